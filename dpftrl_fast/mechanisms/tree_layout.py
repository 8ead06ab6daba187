# SPDX-License-Identifier: Apache-2.0
"""How the steps of a run are laid out over trees: restarts, and which trees are completed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import positive_integer, step_count

Complete: TypeAlias = bool | Literal["all"] | Sequence[bool]

_COMPLETE = 'False, True, "all" or a sequence of bools, one a tree'


@dataclass(frozen=True)
class TreeRun:
    """Equal trees in a row.

    Parameters
    ----------
    steps : int
        Steps of each tree (n >= 1).
    completed : bool
        Whether each is advanced, with zero gradients, to the next power of two.
    count : int
        How many there are, >= 1.

    Examples
    --------
    >>> TreeRun(steps=500, completed=True, count=19).end
    512
    """

    steps: int
    completed: bool
    count: int

    @property
    def end(self) -> int:
        """Last leaf of each tree: its last step, or the next power of two if it is completed."""
        return 1 << (self.steps - 1).bit_length() if self.completed else self.steps


@dataclass(frozen=True)
class Trees:
    """The trees of a run in their order, equal neighbours counted together.

    Made by :func:`resolve_trees`. The size of this object follows the number of `runs`, which is at
    most three for a restart period, however many trees that makes; its methods search them by
    bisection.

    Attributes
    ----------
    runs : tuple of TreeRun
        No two neighbours are equal but for their count.

    Examples
    --------
    >>> trees = resolve_trees(1600, restart_every=500, complete=True)
    >>> trees.runs[0], trees.count, trees.steps
    (TreeRun(steps=500, completed=True, count=3), 4, 1600)
    >>> trees.locate(501)
    (1, 1)
    """

    runs: tuple[TreeRun, ...]

    @cached_property
    def _starts(self) -> tuple[list[int], list[int]]:
        """Trees and steps before each run, and at the end those of all runs."""
        trees = accumulate((run.count for run in self.runs), initial=0)
        steps = accumulate((run.count * run.steps for run in self.runs), initial=0)
        return list(trees), list(steps)

    @property
    def steps(self) -> int:
        """Real steps of all trees together."""
        return self._starts[1][-1]

    @property
    def count(self) -> int:
        """Number of trees."""
        return self._starts[0][-1]

    @property
    def tallest(self) -> int:
        """Largest number of leaves of a tree, completion included."""
        return max(run.end for run in self.runs)

    @property
    def longest(self) -> int:
        """Largest number of real steps of a tree."""
        return max(run.steps for run in self.runs)

    def locate(self, step: int) -> tuple[int, int]:
        """Return where a step of the run is: its tree (from 0) and its step in there (from 1).

        Parameters
        ----------
        step : int
            From 1 to `steps`.

        Raises
        ------
        IndexError
            If there is no such step.
        """
        if not 1 <= step <= self.steps:
            raise IndexError(f"step must be an integer in [1, {self.steps}], got {step}")
        trees, steps = self._starts
        i = bisect_right(steps, step - 1) - 1
        more, t = divmod(step - 1 - steps[i], self.runs[i].steps)
        return trees[i] + more, t + 1

    def run_of(self, tree: int) -> TreeRun:
        """Return the run that a tree (from 0) belongs to.

        Raises
        ------
        IndexError
            If there is no such tree.
        """
        if not 0 <= tree < self.count:
            raise IndexError(f"tree must be an integer in [0, {self.count}), got {tree}")
        return self.runs[bisect_right(self._starts[0], tree) - 1]

    def steps_before(self, tree: int) -> int:
        """Return the real steps of the trees before a tree (from 0); of all, for ``tree = count``.

        Raises
        ------
        IndexError
            If there is no such tree.
        """
        if not 0 <= tree <= self.count:
            raise IndexError(f"tree must be an integer in [0, {self.count}], got {tree}")
        trees, steps = self._starts
        i = bisect_right(trees, tree) - 1
        return steps[i] + (tree - trees[i]) * self.runs[i].steps if tree < self.count else steps[i]

    def trees_of(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tree (from 0) of each of an array of steps (from 0 here, as arrays count).

        Raises
        ------
        IndexError
            If there is no such step.

        Examples
        --------
        >>> resolve_trees(5, restart_every=2).trees_of(np.arange(5)).tolist()
        [0, 0, 1, 1, 2]
        """
        if steps.size and not 0 <= steps.min() <= steps.max() < self.steps:
            raise IndexError(
                f"steps must be integers in [0, {self.steps}), got {steps.min()} to {steps.max()}"
            )
        trees_before, steps_before = (np.array(starts, np.int64) for starts in self._starts)
        lengths = np.array([run.steps for run in self.runs], np.int64)
        run = np.searchsorted(steps_before, steps, side="right") - 1
        return np.asarray(trees_before[run] + (steps - steps_before[run]) // lengths[run])


def check_complete(complete: Any) -> bool | Literal["all"] | tuple[bool, ...]:
    """Return ``complete`` if it is False, True, ``"all"`` or a sequence of bools; that as a tuple.

    Raises
    ------
    TypeError, ValueError
        If it is none of these.

    Examples
    --------
    >>> check_complete([True, False])
    (True, False)
    """
    if isinstance(complete, (bool, np.bool_)):
        return bool(complete)
    if isinstance(complete, str):
        if complete != "all":
            raise ValueError(f"complete must be {_COMPLETE}, got {complete!r}")
        return "all"
    values = _listed("complete", complete, _COMPLETE)
    if wrong := [type(x).__name__ for x in values if not isinstance(x, (bool, np.bool_))]:
        raise TypeError(f"complete must be {_COMPLETE}, got one with a {wrong[0]}")
    return tuple(bool(x) for x in values)


def check_lengths(tree_lengths: Any) -> tuple[int, ...]:
    """Return the steps of each tree as a tuple of ints, each >= 1, at least one.

    Raises
    ------
    TypeError, ValueError
        If it is no sequence of such integers.

    Examples
    --------
    >>> check_lengths([3, 2])
    (3, 2)
    """
    values = _listed("tree_lengths", tree_lengths, "a sequence of integers >= 1")
    if not values:
        raise ValueError("tree_lengths must hold at least one tree, got none")
    return tuple(step_count("each of tree_lengths", x) for x in values)


def resolve_trees(
    steps: int,
    *,
    restart_every: int | None = None,
    tree_lengths: Sequence[int] | None = None,
    complete: Complete = False,
) -> Trees:
    """Lay out the steps of a run over trees.

    Parameters
    ----------
    steps : int
        Real steps of the run (T), 1 to 2^40.
    restart_every : int, optional
        A new tree starts after every ``restart_every`` steps, as long as steps are left: the last
        tree may be shorter. None means one tree.
    tree_lengths : sequence of int, optional
        The steps of each tree, instead of ``restart_every``; their sum is ``steps``.
    complete : bool, "all" or sequence of bool
        Trees that are advanced, by steps with zero gradients, to the next power of two: none
        (False), each tree that a restart follows (True), the last tree too (``"all"``), or those
        that a sequence with one bool a tree says.

    Returns
    -------
    Trees

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above.

    Examples
    --------
    >>> resolve_trees(10, restart_every=4, complete=True).runs[1]
    TreeRun(steps=2, completed=False, count=1)
    >>> resolve_trees(2**40, restart_every=1).count == 2**40
    True
    >>> resolve_trees(5, tree_lengths=[3, 2], complete="all").tallest
    4
    """
    total = step_count("steps", steps)
    completion = check_complete(complete)
    if tree_lengths is not None:
        if restart_every is not None:
            raise ValueError("expected restart_every or tree_lengths, got both")
        lengths = check_lengths(tree_lengths)
        if sum(lengths) != total:
            raise ValueError(
                f"tree_lengths must add up to the {total} steps of the run, got {sum(lengths)}"
            )
        runs = [(n, len(list(same))) for n, same in groupby(lengths)]
    else:
        every = total if restart_every is None else positive_integer("restart_every", restart_every)
        count, rest = divmod(total, every)
        runs = [(n, k) for n, k in ((every, count), (rest, 1)) if n and k]
    if isinstance(completion, tuple):
        return _merged(_one_by_one(runs, completion))
    last_length, last_count = runs.pop()
    return _merged(
        [
            *((n, completion is not False, k) for n, k in runs),
            (last_length, completion is not False, last_count - 1),
            (last_length, completion == "all", 1),
        ]
    )


def _one_by_one(
    runs: list[tuple[int, int]], completion: tuple[bool, ...]
) -> Iterable[tuple[int, bool, int]]:
    count = sum(k for _, k in runs)
    if len(completion) != count:
        raise ValueError(
            f"complete must have one bool for each of {count} trees, got {len(completion)}"
        )
    choices = iter(completion)
    return ((n, next(choices), 1) for n, k in runs for _ in range(k))


def _merged(runs: Iterable[tuple[int, bool, int]]) -> Trees:
    filled = (run for run in runs if run[2])
    return Trees(
        tuple(
            TreeRun(n, completed, sum(k for _, _, k in same))
            for (n, completed), same in groupby(filled, key=lambda run: run[:2])
        )
    )


def _listed(name: str, values: Any, expected: str) -> list[Any]:
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise ValueError(f"{name} must be {expected}, got an array of shape {values.shape}")
        return list(values)
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise TypeError(f"{name} must be {expected}, got {type(values).__name__}")
    return list(values)
