# SPDX-License-Identifier: Apache-2.0
"""`BlockLayout`: the steps of a run as consecutive blocks, for layouts of every mechanism."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray


class BlockRun(Protocol):
    """Equal blocks in a row: a frozen dataclass with these fields."""

    @property
    def steps(self) -> int:
        """Steps of each block, >= 1."""

    @property
    def count(self) -> int:
        """Number of blocks, >= 1."""

    @property
    def end(self) -> int:
        """Step of each block whose noise stays in all later sums, >= `steps`."""

    def part(self: R, first: int, last: int) -> R:
        """Return one block's steps first..last as a run of one block."""


R = TypeVar("R", bound=BlockRun)
B = TypeVar("B", bound="BlockLayout[Any]")


class BlockLayout(Generic[R]):
    """Blocks in their order, equal neighbours counted together; searched by bisection.

    A subclass is a frozen dataclass with the field `runs`, a tuple of runs of equal blocks. Steps
    and the steps of a block count from 1, blocks from 0.
    """

    runs: tuple[R, ...]

    @cached_property
    def _starts(self) -> tuple[list[int], list[int]]:
        """Blocks and steps before each run, and at the end those of all runs."""
        blocks = accumulate((run.count for run in self.runs), initial=0)
        steps = accumulate((run.count * run.steps for run in self.runs), initial=0)
        return list(blocks), list(steps)

    @property
    def steps(self) -> int:
        """Real steps of all blocks together."""
        return self._starts[1][-1]

    @property
    def count(self) -> int:
        """Number of blocks."""
        return self._starts[0][-1]

    @property
    def longest(self) -> int:
        """Largest number of real steps of a block."""
        return max(run.steps for run in self.runs)

    def locate(self, step: int) -> tuple[int, int]:
        """Return the block (from 0) of a step, and its number in there (from 1), or IndexError."""
        if not 1 <= step <= self.steps:
            raise IndexError(f"step must be an integer in [1, {self.steps}], got {step}")
        blocks, steps = self._starts
        i = bisect_right(steps, step - 1) - 1
        more, t = divmod(step - 1 - steps[i], self.runs[i].steps)
        return blocks[i] + more, t + 1

    def run_of(self, block: int) -> R:
        """Return the run that a block (from 0) belongs to, or IndexError."""
        if not 0 <= block < self.count:
            raise IndexError(f"block must be an integer in [0, {self.count}), got {block}")
        return self.runs[bisect_right(self._starts[0], block) - 1]

    def steps_before(self, block: int) -> int:
        """Return the real steps of the blocks before a block (from 0), or of all for `count`."""
        if not 0 <= block <= self.count:
            raise IndexError(f"block must be an integer in [0, {self.count}], got {block}")
        blocks, steps = self._starts
        i = bisect_right(blocks, block) - 1
        if block == self.count:
            return steps[i]
        return steps[i] + (block - blocks[i]) * self.runs[i].steps

    def blocks_of(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block (from 0) of each of an array of steps, which count from 0 here.

        Examples
        --------
        >>> from dpftrl_fast.mechanisms import Tree
        >>> Tree(restart_every=2).layout(5).blocks_of(np.arange(5)).tolist()
        [0, 0, 1, 1, 2]
        """
        return self.places_of(steps)[1]

    def places_of(self, steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Return run, block and place in the block of an array of steps; all count from 0 here.

        Examples
        --------
        >>> from dpftrl_fast.mechanisms import Tree
        >>> [x.tolist() for x in Tree(restart_every=2).layout(5).places_of(np.arange(5))]
        [[0, 0, 0, 0, 1], [0, 0, 1, 1, 2], [0, 1, 0, 1, 0]]
        """
        if steps.size and not 0 <= steps.min() <= steps.max() < self.steps:
            raise IndexError(
                f"steps must be integers in [0, {self.steps}), got {steps.min()} to {steps.max()}"
            )
        blocks_before, steps_before = (np.array(starts, np.int64) for starts in self._starts)
        lengths = np.array([run.steps for run in self.runs], np.int64)
        run = np.searchsorted(steps_before, steps, side="right") - 1
        more, place = np.divmod(steps - steps_before[run], lengths[run])
        return run, blocks_before[run] + more, place

    def with_carry(
        self, steps: NDArray[np.int64], each: Sequence[float]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return each step's number in its block, and the sum over the blocks before it.

        Steps count from 1. `each` has the number that one block of each run adds to the sum.

        Examples
        --------
        >>> from dpftrl_fast.mechanisms import Tree
        >>> within, carry = Tree(restart_every=2).layout(5).with_carry(np.arange(1, 6), [1.0, 9.0])
        >>> within.tolist(), carry.tolist()
        ([1, 2, 1, 2, 1], [0.0, 0.0, 1.0, 1.0, 2.0])
        """
        blocks, first = (np.array(starts, np.int64) for starts in self._starts)
        run = np.searchsorted(first, steps - 1, side="right") - 1
        lengths = np.array([each_run.steps for each_run in self.runs], np.int64)[run]
        earlier, within = np.divmod(steps - 1 - first[run], lengths)
        added = np.asarray(each, np.float64)
        carry = np.concatenate([[0.0], np.cumsum(np.diff(blocks) * added)])[run]
        return np.asarray(within + 1), np.asarray(carry + earlier * added[run])

    def blocks(self: B) -> Iterator[tuple[B, int]]:
        """Yield each kind of block as a layout of one block, with the number of such blocks."""
        for run in self.runs:
            yield self._of([replace(run, count=1)]), run.count

    def between(self: B, first: int, last: int) -> B:
        """Return the blocks of steps first..last as a separate run with fresh noise.

        The block of step `first` starts with it, the block of step `last` ends there.

        Examples
        --------
        >>> from dpftrl_fast.mechanisms import Tree
        >>> trees = Tree(restart_every=100, complete=True).layout(1000)
        >>> [(run.steps, run.completed, run.count) for run in trees.between(150, 420).runs]
        [(51, True, 1), (100, True, 2), (20, False, 1)]
        """
        (begin, start), (end, stop) = self.locate(first), self.locate(last)
        if last < first:
            raise IndexError(f"expected first <= last, got {first} and {last}")
        pieces: list[Any] = []
        before = 0  # blocks of the runs gone through
        for run in self.runs:
            whole = range(max(before, begin), min(before + run.count, end + 1))
            before += run.count
            # The blocks at the ends may be cut, those between are whole.
            cut = sorted({begin, end} & {*whole[:1], *whole[-1:]})
            between = len(whole) - len(cut)
            for block in cut:
                if between and block == end:
                    pieces.append(replace(run, count=between))
                    between = 0
                low, high = start if block == begin else 1, stop if block == end else run.steps
                pieces.append(run.part(low, high))
            if between:
                pieces.append(replace(run, count=between))
        return self._of(pieces)

    def begins(self: B, longer: B) -> bool:
        """Return whether the first steps of a longer layout are these blocks, with this noise.

        Examples
        --------
        >>> from dpftrl_fast.mechanisms import Tree
        >>> tree = Tree(restart_every=100, complete=True)
        >>> tree.layout(250).begins(tree.layout(1000)), tree.layout(90).begins(Tree().layout(1000))
        (True, True)
        >>> Tree().layout(150).begins(tree.layout(1000))
        False
        """
        return self.steps <= longer.steps and longer.between(1, self.steps) == self

    def _of(self: B, runs: Iterable[Any]) -> B:
        """Return this layout with other runs."""
        return replace(self, runs=merged_runs(runs))  # type: ignore[type-var]


def merged_runs(runs: Iterable[R]) -> tuple[R, ...]:
    """Count equal neighbours together; runs without blocks are dropped."""
    filled = (run for run in runs if run.count)
    alike = groupby(filled, key=lambda run: replace(run, count=1))  # type: ignore[type-var]
    return tuple(
        replace(one, count=sum(run.count for run in same))  # type: ignore[type-var]
        for one, same in alike
    )
