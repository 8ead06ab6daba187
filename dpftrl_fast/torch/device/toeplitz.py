# SPDX-License-Identifier: Apache-2.0
"""Toeplitz mechanisms on a GPU: steps to make and vectors to keep.

`ToeplitzCore` has the interface of the compiled cores (`dpftrl_fast._core.ToeplitzFloat32`), with
tensors of one device for arrays. A position and the key determine everything; vectors only save
work, and are dropped where a launch fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpftrl_fast.noise.arguments import MAX_STEPS
from dpftrl_fast.torch.device.source import STORED, DeviceSource
from dpftrl_fast.torch.device.toeplitz_stream import ToeplitzStream

#: Two taps keep no z: a vector of the size of the model would save one normal a step.
_FEWEST_KEPT_Z = 2


@dataclass
class Ring:
    """Vectors that a step reads, as they stand after step `t` of a block.

    Buffers by their number; z or x of a step s at place s modulo their number. Those of `since` and
    later steps hold.
    """

    vectors: list[torch.Tensor | None]
    t: int
    since: int = 1


class ToeplitzCore(DeviceSource):
    """Noise of a Toeplitz mechanism whose vectors lie on one device.

    Arguments are those of the compiled cores (`memory` is -1 for stored, 0 for regenerate, else a
    number of vectors); `device` is a CUDA device, or the CPU under Triton's interpreter.

    z of taps are kept if there are at least three taps and `memory` has room for all that a step
    reads; otherwise each step makes them again. Buffers and x of bands are kept if `memory` has
    room for all; otherwise each step makes its block again from the first one.
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
        kind: str,
        first: Sequence[float],
        second: Sequence[float],
        memory: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(size, memory, dtype, device)
        self._stream = ToeplitzStream(
            key,
            std=std,
            kind=kind,
            first=first,
            second=second,
            dtype=dtype,
            device=device,
            rounds=rounds,
            purpose=purpose,
            offset=offset,
            size=size,
        )
        self._kind = kind
        self._length = len(first) if kind == "buffers" else len(first) - 1
        has_room = memory == STORED or self._length <= memory
        self._keeps = has_room and self._length >= (_FEWEST_KEPT_Z if kind == "taps" else 1)
        self._ring: Ring | None = None  # of the present block; stands at the step last returned
        self._sum: torch.Tensor | None = None  # noise of the running sum there

    @property
    def block(self) -> int:
        """Restarts so far."""
        return len(self._ends)

    @property
    def allocated_vectors(self) -> int:
        """Vectors that are kept now."""
        vectors = [] if self._ring is None else self._ring.vectors
        return sum(vector is not None for vector in (*vectors, self._sum))

    def step(self, out: torch.Tensor | None) -> torch.Tensor:
        """Take a step and return the noise of the running sum."""
        return self._advance(self._room(out), residual=False)

    def residual(self, out: torch.Tensor | None) -> torch.Tensor:
        """Take a step and return its noise, with that of steps that were passed over."""
        return self._advance(self._room(out), residual=True)

    def prefix(self, t: int, out: torch.Tensor | None) -> torch.Tensor:
        """Return x_1 + .. + x_t of the present block; every x is made again."""
        out = self._room(out)
        self._make(self.block, 1, t, self._scratch(1), out=out)
        return out

    def current(self, out: torch.Tensor | None) -> torch.Tensor:
        """Return the noise of the running sum at the step last returned; 0 before the first."""
        out = self._room(out)
        if self._last[0] < 0:
            return out.zero_()
        return out.copy_(self._ensure_sum())

    def restart(self) -> None:
        """Begin a block of fresh noise."""
        self._check_restart("block")
        self._ends.append(self._t)
        self._t, self._ring = 0, None

    # ---- saving ----

    def _kept(self) -> list[tuple[Any, ...]]:
        kept: list[tuple[Any, ...]] = []
        if self._sum is not None:
            kept.append(("sum", 0, self._sum))
        if self._ring is not None and self._kind != "taps":
            slots = enumerate(self._ring.vectors)
            kept += [("slot", i, vector) for i, vector in slots if vector is not None]
        return kept

    def set_position(
        self,
        t: int,
        ends: Sequence[int],
        last_block: int,
        last_t: int,
        vectors: Sequence[tuple[str, int, np.ndarray[Any, Any]]],
    ) -> None:
        """Take up a saved position; nothing is changed where there is no such position."""
        self._check_position(t, ends, last_block, last_t)
        if any(kind not in ("sum", "slot") for kind, _, _ in vectors):
            raise ValueError("a saved vector must be a 'sum' or a 'slot'")
        kept = [(kind, i, self._restored(vector)) for kind, i, vector in vectors]
        self._forget()
        self._move_to(t, ends, last_block, last_t)
        if last_block < 0:
            return
        for kind, _, vector in kept:
            if kind == "sum":
                self._sum = vector
        if self._keeps and self._kind != "taps" and last_block == self.block:
            self._ring = self._ring_of({i: vector for kind, i, vector in kept if kind == "slot"})

    def _ring_of(self, slots: dict[int, torch.Tensor]) -> Ring | None:
        """Return saved vectors if none is missing: without one the noise would be another."""
        t, length = self._last[1], self._length
        places = range(length)
        if self._kind == "bands" and t < length:
            places = range(1, t + 1)
        if any(i not in slots for i in places):
            return None
        return Ring([slots[i] if i in places else None for i in range(length)], t)

    # ---- steps ----

    def _advance(self, out: torch.Tensor, *, residual: bool) -> torch.Tensor:
        here = self.block, self._t + 1
        if here[1] > MAX_STEPS:
            raise ValueError("a block has at most 2**46 steps: restart it")
        try:
            total = self._sum if residual else self._ensure_sum()
            self._add_steps(self._last, here, out=out, total=total, show_total=not residual)
        except BaseException:
            self._forget()
            raise
        self._t, self._last = here[1], here
        return out

    def _ensure_sum(self) -> torch.Tensor:
        """Return the noise of the running sum at the step last returned; made again if need be."""
        if self._sum is None:
            total = self._room()
            if self._last[0] >= 0:
                self._add_steps((-1, 0), self._last, total=total)
            self._sum = total
        return self._sum

    def _add_steps(
        self,
        start: tuple[int, int],
        end: tuple[int, int],
        *,
        out: torch.Tensor | None = None,
        total: torch.Tensor | None = None,
        show_total: bool = False,
    ) -> None:
        """Add x of the steps after `start` up to `end`, through the blocks between.

        They are summed in `out`, and added to `total`, which `out` shows at the end if it is to.
        The kept vectors go along where there is an `out`.
        """
        summed = False
        for block in range(max(start[0], 0), end[0] + 1):
            first = start[1] + 1 if block == start[0] else 1
            last = end[1] if block == end[0] else self._ends[block]
            if first > last:
                continue
            kept = out is not None and block == self.block and self._keeps
            self._make(
                block,
                first,
                last,
                self._kept_ring(first) if kept else self._scratch(first),
                out=None if show_total and block != end[0] else out,
                total=total,
                summed=summed,
                has_total=summed or start[0] >= 0,
                show_total=show_total,
            )
            summed = True

    def _kept_ring(self, first: int) -> Ring:
        """Return the kept vectors for a stretch that is asked for from this step on."""
        if self._ring is None:
            self._ring = self._scratch(first)
            self._ring.vectors = [None] * self._length
        return self._ring

    def _scratch(self, first: int) -> Ring:
        """Return vectors for steps to be made again: none for taps, which need no earlier step."""
        if self._kind == "taps":
            return Ring([], first - 1, first)
        return Ring([None] * self._length, 0)

    def _make(
        self,
        block: int,
        first: int,
        last: int,
        ring: Ring,
        *,
        out: torch.Tensor | None = None,
        total: torch.Tensor | None = None,
        summed: bool = False,
        has_total: bool = False,
        show_total: bool = False,
    ) -> None:
        """Make the steps up to `last` of a block, and add up those from `first` on.

        `summed` says that `out` holds a sum already, `has_total` that `total` does.
        """
        for t in range(ring.t + 1, last + 1):
            asked = t >= first
            shown = asked and (t == last or not show_total)
            self._stream.take(
                block,
                t,
                **self._vectors(ring, t),
                out=out if shown else None,
                total=total if asked else None,
                add_out=summed,
                add_total=has_total,
                show_total=show_total,
            )
            ring.t = t
            summed, has_total = summed or asked, has_total or asked

    def _vectors(self, ring: Ring, t: int) -> dict[str, Any]:
        """Return what step t makes, reads and keeps."""
        slots = ring.vectors
        if self._kind == "buffers":
            for i, buffer in enumerate(slots):
                slots[i] = self._room() if buffer is None else buffer
            return {"made": 1, "known": slots if t > 1 else [], "keep": None, "written": slots}
        earlier = min(self._length, t - 1)
        if not slots:
            return {"made": 1 + earlier, "known": [], "keep": None, "written": []}
        place = t % len(slots)
        keep = slots[place] = self._room() if slots[place] is None else slots[place]
        if ring.since > t - earlier:  # z before the first kept one
            return {"made": 1 + earlier, "known": [], "keep": keep, "written": []}
        known = [slots[(t - j) % len(slots)] for j in range(1, earlier + 1)]
        return {"made": 1, "known": known, "keep": keep, "written": []}

    def _forget(self) -> None:
        self._ring = self._sum = None
