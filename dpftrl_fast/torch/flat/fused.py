# SPDX-License-Identifier: Apache-2.0
"""The FTRL update on the CPU: one compiled pass that reads ``p.grad`` and writes the parameters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpftrl_fast.kernels.ftrl_step import ftrl_loop
from dpftrl_fast.torch.flat.views import FlatViews

_DTYPE = attrgetter("dtype")
_SHARE = 2**20  # coordinates that are worth a thread


class FusedUpdate:
    """Compiled update over the pieces of a vector, on at most `threads` threads.

    `vectors` are sum, low, perhaps velocity, and theta_0: CPU vectors of one dtype.
    """

    def __init__(
        self, flat: FlatViews, vectors: Sequence[Tensor], grid: float, threads: int
    ) -> None:
        self._flat, self._dtype = flat, vectors[0].dtype
        self._arrays = [vector.numpy() for vector in vectors]
        kind = self._arrays[0].dtype
        self._grid = kind.type(grid)
        self._loop = ftrl_loop(str(kind), len(vectors) == 4)
        places, start = [], 0
        for block in flat.blocks:
            for piece in block.pieces:
                stop = start + piece.stop - piece.first
                places.append((start, stop, block.group, piece.index, piece.first))
                start = stop
        table = np.array(places, np.int64).reshape(-1, 5)
        self._pieces = np.ascontiguousarray(table[:, :3])
        self._tensor = table[:, 3]
        self._bytes = kind.itemsize
        self._inside = table[:, 4] * self._bytes  # offset of a piece in its tensor
        workers = min(threads, max(1, flat.size // _SHARE))
        shares = np.arange(1, workers) * (flat.size / workers)
        cuts = [0, *np.searchsorted(table[:, 0], shares).tolist(), len(places)]
        self._runs = [slice(*bounds) for bounds in itertools.pairwise(cuts)]
        self._sizes = [shape.numel() for shape in flat.shapes]
        self._zeros: Tensor | None = None

    def step(
        self,
        gradients: Sequence[Tensor | None] | Tensor,
        noise: Tensor,
        numbers: Sequence[tuple[float, ...]],
        parameters: Sequence[Tensor],
        out: Tensor | None,
    ) -> None:
        """Take a step and write the parameters, or the vector `out` instead.

        `gradients` are one tensor or None for each parameter, or a whole vector; `noise` is that of
        the running sum; `numbers` are those of the loop, for each parameter group. Parameters that
        are written must be contiguous and of the vectors' dtype.
        """
        # Memory is written by address: sizes must be those of the start.
        if [*map(Tensor.numel, parameters)] != self._sizes:
            self._refuse_sizes("this rank's part of a parameter", parameters)
        # `held` and the arguments keep alive the tensors that the loop gets as addresses.
        held = gradients if isinstance(gradients, Tensor) else self._readable(gradients)
        g_at, out_at = self._addresses(held), self._addresses(parameters if out is None else out)
        table = np.array(numbers, self._arrays[0].dtype)
        *vectors, theta_0 = self._arrays
        noisy = noise.numpy()

        def run(part: slice) -> None:
            places = self._pieces[part], g_at[part], out_at[part]
            self._loop(*places, table, self._grid, *vectors, theta_0, noisy)

        if len(self._runs) == 1:
            run(self._runs[0])
        else:
            with ThreadPoolExecutor(len(self._runs)) as pool:
                for done in [pool.submit(run, part) for part in self._runs]:
                    done.result()
        if out is None:
            _note_writes(parameters)

    def _addresses(self, tensors: Sequence[Tensor] | Tensor) -> np.ndarray[Any, np.dtype[np.int64]]:
        if isinstance(tensors, Tensor):
            return tensors.data_ptr() + self._bytes * self._pieces[:, 0]
        at = np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))
        return at[self._tensor] + self._inside

    def _readable(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """Return gradients of the vectors' dtype; zeros, shared by all, for those that are None."""
        found = [
            self._zeros_of(size) if gradient is None else gradient
            for size, gradient in zip(self._sizes, gradients, strict=True)
        ]
        if {*map(_DTYPE, found)} != {self._dtype}:
            found = [gradient.to(self._dtype) for gradient in found]
        if not all(map(Tensor.is_contiguous, found)):
            found = [gradient.contiguous() for gradient in found]
        if [*map(Tensor.numel, found)] != self._sizes:
            self._refuse_sizes("a gradient", found)
        return found

    def _refuse_sizes(self, what: str, tensors: Sequence[Tensor]) -> None:
        for shape, tensor in zip(self._flat.shapes, tensors, strict=True):
            if tensor.numel() != shape.numel():
                raise ValueError(
                    f"{what} must be of shape {tuple(shape)}, as at the first step, got "
                    f"{tuple(tensor.shape)}"
                )

    def _zeros_of(self, size: int) -> Tensor:
        if self._zeros is None or self._zeros.numel() < size:
            self._zeros = torch.zeros(size, dtype=self._dtype)
        return self._zeros[:size]


def _note_writes(tensors: Sequence[Tensor]) -> None:
    """Tell autograd that these tensors were written to by address."""
    increment = torch.autograd.graph.increment_version
    try:
        increment(tensors)
    except TypeError:  # torch 2.4 takes one tensor
        for tensor in tensors:
            increment(tensor)
