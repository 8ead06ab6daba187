# SPDX-License-Identifier: Apache-2.0
"""`DeviceSource`: what the cores of trees and of Toeplitz mechanisms do alike on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dpftrl_fast.noise.arguments import MAX_STEPS

STORED = -1
"""Setting of the memory: keep everything that saves work."""

_MOST_RESTARTS = 2**24


class DeviceSource(ABC):
    """Position of a source, and vectors on its device.

    Parameters
    ----------
    size : int
    memory : int
        `STORED`, 0 for regenerate, else the most vectors.
    dtype : torch.dtype
    device : torch.device
        A CUDA device, or the CPU under Triton's interpreter.
    """

    def __init__(self, size: int, memory: int, dtype: torch.dtype, device: torch.device) -> None:
        self._size, self._memory = size, memory
        self._dtype, self._device = dtype, device
        self._t = 0
        self._ends: list[int] = []  # step at which each earlier block, or tree, was left
        self._last: tuple[int, int] = (-1, 0)  # block and step of the last result

    @property
    def t(self) -> int:
        """Steps of the present block."""
        return self._t

    def advance_to(self, t: int) -> None:
        """Move on without making noise."""
        if not self._t <= t <= MAX_STEPS:
            raise ValueError(f"t must be an integer in [{self._t}, 2**46], got {t}")
        self._t = t

    @abstractmethod
    def step(self, out: torch.Tensor | None) -> torch.Tensor:
        """Advance one step and return its noise."""

    def steps(self, out: torch.Tensor, rows: int, first: int, count: int) -> None:
        """Take steps, the noise of each to its row of `out`, from row `first` on."""
        each = out.view(rows, self._size)
        for row in range(first, first + count):
            self.step(each[row])

    def position(self) -> tuple[int, list[int], int, int]:
        """Return the step, the ends of earlier blocks, and where something was last returned."""
        return self._t, list(self._ends), *self._last

    def saved(self) -> tuple[Any, ...]:
        """Return position and kept vectors, as NumPy arrays: the compiled sources' form."""
        return *self.position(), [(*head, v.cpu().numpy().copy()) for *head, v in self._kept()]

    @abstractmethod
    def _kept(self) -> list[tuple[Any, ...]]:
        """Return the vectors to save, each after its name and place."""

    def _check_restart(self, word: str) -> None:
        if self._t == 0:
            raise ValueError(f"restart needs at least one step of the present {word}, got t = 0")
        if len(self._ends) >= _MOST_RESTARTS:
            raise ValueError("a stream has at most 2**24 restarts")

    def _check_position(self, t: int, ends: Sequence[int], last_block: int, last_t: int) -> None:
        count = len(ends)
        latest = t if last_block == count else ends[last_block] if 0 <= last_block < count else 0
        if last_block > count or (last_block >= 0 and not 1 <= last_t <= latest):
            raise ValueError("a saved position has its last returned step after its present one")

    def _move_to(self, t: int, ends: Sequence[int], last_block: int, last_t: int) -> None:
        self._t, self._ends = t, list(ends)
        self._last = (last_block, last_t) if last_block >= 0 else (-1, 0)

    def _restored(self, vector: Any) -> torch.Tensor:
        """Return a saved vector on the device; ValueError if it is not one."""
        expected = torch.empty(0, dtype=self._dtype).numpy().dtype
        if (
            not isinstance(vector, np.ndarray)
            or vector.dtype != expected
            or vector.size != self._size
        ):
            raise ValueError(
                f"a saved vector must be an array of {self._size} elements of {expected}"
            )
        return torch.tensor(vector.reshape(-1), device=self._device)

    def _room(self, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is None:
            return torch.empty(self._size, dtype=self._dtype, device=self._device)
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"out must be a tensor on {self._device}, got {type(out).__name__}")
        return out
