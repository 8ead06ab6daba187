# SPDX-License-Identifier: Apache-2.0
"""The tree on a GPU: its sums and the vectors that are kept, as in `csrc/src/noise/tree.cpp`.

It has the interface of the compiled trees (`dpftrl_fast._core.TreeFloat32`), with tensors of one
device for arrays, so that a `TreeNoise` can use either. A position and the key determine
everything; vectors only save work, and are dropped where a launch fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dpftrl_fast.noise.arguments import MAX_STEPS
from dpftrl_fast.torch.device.source import STORED, DeviceSource
from dpftrl_fast.torch.device.stream import HIGHEST_LEVEL, Node, Stream

Key = tuple[int, int]  # level, index


class DeviceTree(DeviceSource):
    """A tree of noise whose vectors lie on one device.

    Arguments are those of the compiled trees (`memory` is -1 for stored, 0 for regenerate, else a
    number of vectors); `device` is a CUDA device, or the CPU under Triton's interpreter.
    """

    def __init__(
        self,
        *,
        size: int,
        std: float,
        key: bytes,
        rounds: int,
        purpose: int,
        offset: int,
        variant: str,
        memory: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._honaker = variant == "honaker"
        levels = range(HIGHEST_LEVEL + 1)
        self._stream = Stream(
            key,
            std=std,
            weights=[1.0 / (2.0 - 2.0**-level) if self._honaker else 1.0 for level in levels],
            dtype=dtype,
            device=device,
            rounds=rounds,
            purpose=purpose,
            offset=offset,
            size=size,
        )
        super().__init__(size, memory, dtype, device)
        self._heads: dict[int, torch.Tensor] = {}  # by step: the sum there, carry included
        self._averages: dict[Key, torch.Tensor] = {}
        self._carry: torch.Tensor | None = None
        self._last_value: torch.Tensor | None = None

    @property
    def tree(self) -> int:
        """Restarts so far."""
        return len(self._ends)

    @property
    def allocated_vectors(self) -> int:
        """Vectors that are kept now."""
        single = (self._carry is not None) + (self._last_value is not None)
        return len(self._heads) + len(self._averages) + single

    def step(self, out: torch.Tensor | None) -> torch.Tensor:
        """Take a step and return its noise."""
        return self._advance(self._room(out), residual=False)

    def residual(self, out: torch.Tensor | None) -> torch.Tensor:
        """Take a step and return its noise less the last result."""
        return self._advance(self._room(out), residual=True)

    def prefix(self, t: int, out: torch.Tensor | None) -> torch.Tensor:
        """Return the noise at a step of this tree, without the carry."""
        out = self._room(out)
        base, at = None, 0
        if not self._ends:  # a head holds the carry too, so it serves the first tree only
            base, at = self._head_of(t)
        self._add_up(out, self.tree, t, base, at)
        return out

    def node(self, level: int, index: int, out: torch.Tensor | None) -> torch.Tensor:
        """Return one node's noise."""
        out = self._room(out)
        self._stream.add_up(out, tree=self.tree, node=Node(level, index, None), plain=True)
        return out

    def restart(self, complete: bool) -> None:
        """Begin the next tree; with `complete` the noise at the next power of two is carried."""
        self._check_restart("tree")
        end = 1 << (self._t - 1).bit_length() if complete else self._t
        try:
            self._ensure_carry()
            carry = self._room()
            self._sum_at(self.tree, end, carry)
        except BaseException:
            self._forget()
            raise
        self._carry = carry
        self._heads, self._averages = {}, {}
        self._ends.append(end)
        self._t = 0

    # ---- saving ----

    def _kept(self) -> list[tuple[Any, ...]]:
        kept: list[tuple[Any, ...]] = []
        if self._carry is not None:
            kept.append(("carry", 0, 0, self._carry))
        if self._last_value is not None:
            kept.append(("last", 0, 0, self._last_value))
        kept += [("average", *node, vector) for node, vector in self._averages.items()]
        return kept

    def set_position(
        self,
        t: int,
        ends: Sequence[int],
        last_tree: int,
        last_t: int,
        vectors: Sequence[tuple[str, int, int, np.ndarray[Any, Any]]],
    ) -> None:
        """Take up a saved position; nothing is changed where there is no such position."""
        self._check_position(t, ends, last_tree, last_t)
        kept = [(kind, (level, index), self._restored(v)) for kind, level, index, v in vectors]
        self._forget()
        self._move_to(t, ends, last_tree, last_t)
        for kind, node, vector in kept:
            if kind == "carry" and self._ends:
                self._carry = vector
            elif kind == "last" and self._last[0] >= 0:
                self._last_value = vector
            elif kind == "average" and self._stays(node, t):
                self._averages[node] = vector

    # ---- one step ----

    def _advance(self, out: torch.Tensor, *, residual: bool) -> torch.Tensor:
        t = self._t + 1
        if t > MAX_STEPS:
            raise ValueError("a tree has at most 2**46 steps: restart it")
        try:
            self._ensure_carry()
            if residual:
                self._ensure_last()
            base, at = self._head_of(t)
            if at == 0:
                base = self._carry
            keep = self._heads_to_keep(t)
            last = self._last_value if residual else None
            if residual and last is None:
                last = self._last_value = self._room()
            heads, averages = self._add_up(
                out, self.tree, t, base, at, keep, last, residual and self._last[0] >= 0, step=True
            )
        except BaseException:
            self._forget()
            raise
        self._retain(t, keep, heads, averages)
        self._t, self._last = t, (self.tree, t)
        if not residual:
            self._last_value = None
        return out

    def _retain(
        self,
        t: int,
        keep: Sequence[int],
        heads: dict[int, torch.Tensor],
        averages: dict[Key, torch.Tensor],
    ) -> None:
        """Keep the vectors that later steps read."""
        self._heads = {at: head for at, head in self._heads.items() if at in keep} | heads
        stay = {node: a for node, a in self._averages.items() if self._stays(node, t)}
        self._averages = stay | averages

    def _add_up(
        self,
        out: torch.Tensor,
        tree: int,
        t: int,
        base: torch.Tensor | None,
        at: int,
        keep: Sequence[int] = (),
        last: torch.Tensor | None = None,
        difference: bool = False,
        step: bool = False,
    ) -> tuple[dict[int, torch.Tensor], dict[Key, torch.Tensor]]:
        """Set out to base + the terms of step t behind `at`; return the vectors to keep."""
        heads: dict[int, torch.Tensor] = {}
        averages: dict[Key, torch.Tensor] = {}
        known: list[tuple[torch.Tensor, int]] = []
        levels = [level for level in range((t - at).bit_length())[::-1] if (t - at) >> level & 1]
        if not levels and base is not None:
            out.copy_(base)
        for level in levels:
            at += 1 << level
            node = (level, (t >> level) - 1)
            is_last = level == levels[-1]
            average = self._averages.get(node) if tree == self.tree else None
            if average is not None and not is_last:
                known.append((average, level))
                continue
            options: dict[str, Any] = {"last": last, "difference": difference} if is_last else {}
            if average is not None:
                known.append((average, level))
                self._stream.add_up(out, tree=tree, base=base, known=known, **options)
                continue
            if at in keep:
                options["keep_sum"] = heads[at] = self._room()
            if step and self._keeps_average(level, t):
                options["keep_average"] = averages[node] = self._room()
            left = self._left_averages(tree, node) if self._honaker else None
            self._stream.add_up(
                out, tree=tree, base=base, known=known, node=Node(*node, left), **options
            )
            known, base = [], out
        return heads, averages

    def _left_averages(self, tree: int, node: Key) -> list[torch.Tensor]:
        """Return the averages of the left children on the way to the last leaf, lowest first.

        Those that are not at hand are made again.
        """
        level, index = node
        found = []
        for below in range(level):
            left = (below, ((index + 1) << (level - below)) - 2)
            average = self._averages.get(left) if tree == self.tree else None
            if average is None:
                average = self._room()
                lower = self._left_averages(tree, left)
                self._stream.add_up(average, tree=tree, node=Node(*left, lower), plain=True)
            found.append(average)
        return found

    # ---- which vectors ----

    def _heads_to_keep(self, t: int) -> list[int]:
        """Return the steps whose sums are worth a vector once that of t is made.

        Vanilla keeps for each later step its deepest head (the `memory` deepest of them, one in
        blocks of 16 steps if none is to be kept); Honaker one, if it keeps no averages: the step at
        which the lower half of the bits of t is zero, so that a step costs about sqrt(t) nodes.
        """
        if self._honaker:
            half = (t.bit_length() - 1) // 2 + 1
            at = t >> half << half
            return [at] if at and self._memory == 0 else []
        if self._memory == 0:
            at = t & ~15
            for bit in (8, 4, 2):
                if not t & bit:
                    break
                at |= bit
            return [at] if at and _head_end(at) > t + 1 else []
        keep: list[int] = []
        covered, at = t + 1, t  # steps below `covered` are served by a deeper head
        while at and (self._memory == STORED or len(keep) < self._memory):
            if _head_end(at) > covered:
                keep.append(at)
                covered = _head_end(at)
            at &= at - 1
        return keep

    def _keeps_average(self, level: int, t: int) -> bool:
        if not self._honaker or self._memory == 0:
            return False
        return self._memory == STORED or t.bit_length() - 1 - level < self._memory

    def _stays(self, node: Key, t: int) -> bool:
        """Whether this node is live at step t, and its average is kept then."""
        level, index = node
        return bool(t >> level & 1) and index == (t >> level) - 1 and self._keeps_average(level, t)

    def _head_of(self, t: int) -> tuple[torch.Tensor | None, int]:
        """Return the deepest head of step t and its step; (None, 0) for none."""
        at = max((at for at in self._heads if at <= t < _head_end(at)), default=0)
        return self._heads.get(at), at

    # ---- sums at other steps ----

    def _sum_at(self, tree: int, t: int, out: torch.Tensor) -> None:
        """Set out to the noise of a step of this tree or an earlier one, carry included."""
        if tree == self.tree:
            base, at = self._head_of(t)
            self._add_up(out, tree, t, self._carry if at == 0 else base, at)
            return
        base = None
        for earlier in range(tree):
            self._add_up(out, earlier, self._ends[earlier], base, 0)
            base = out
        self._add_up(out, tree, t, base, 0)

    def _ensure_carry(self) -> None:
        if not self._ends or self._carry is not None:
            return
        carry = self._room()
        # Not through this tree's own heads: they stand on the carry.
        self._sum_at(self.tree - 1, self._ends[-1], carry)
        self._carry = carry

    def _ensure_last(self) -> None:
        if self._last[0] < 0 or self._last_value is not None:
            return
        value = self._room()
        self._sum_at(*self._last, value)
        self._last_value = value

    # ---- memory ----

    def _forget(self) -> None:
        self._heads, self._averages = {}, {}
        self._carry = self._last_value = None


def _head_end(at: int) -> int:
    """Return the first step that a head at this step does not serve."""
    return at + (at & -at)
