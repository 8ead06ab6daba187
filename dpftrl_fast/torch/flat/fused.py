# SPDX-License-Identifier: Apache-2.0
"""The update on the CPU: one compiled pass that reads ``p.grad`` and writes the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from dpftrl_fast.torch.flat.compiled import CompiledPieces, note_writes
from dpftrl_fast.torch.flat.views import FlatViews

_DTYPE = attrgetter("dtype")


class FusedUpdate:
    """Compiled update over the pieces of a vector, on at most `threads` threads.

    `loop` makes the loop for a dtype; `vectors` are those that it takes before the noise: CPU
    vectors of one dtype.
    """

    def __init__(
        self,
        loop: Callable[[str], Callable[..., None]],
        flat: FlatViews,
        vectors: Sequence[Tensor],
        grid: float,
        threads: int,
    ) -> None:
        self._flat, self._dtype = flat, vectors[0].dtype
        self._arrays = [vector.numpy() for vector in vectors]
        kind = self._arrays[0].dtype
        self._grid = kind.type(grid)
        self._loop = loop(str(kind))
        self._pieces = CompiledPieces(flat, threads)
        self._sizes = self._pieces.sizes
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
        g_at = self._pieces.addresses(held)
        out_at = self._pieces.addresses(parameters if out is None else out)
        table = np.array(numbers, self._arrays[0].dtype)
        vectors = *self._arrays, noise.numpy()

        def run(part: slice) -> None:
            places = self._pieces.table[part], g_at[part], out_at[part]
            self._loop(*places, table, self._grid, *vectors)

        self._pieces.run(run)
        if out is None:
            note_writes(parameters)

    def _readable(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """Return gradients of the vectors' dtype; zeros, shared by all, for those that are None."""
        found = [
            self._zeros_of(size) if gradient is None else gradient
            for size, gradient in zip(self._sizes, gradients, strict=True)
        ]
        if {*map(_DTYPE, found)} != {self._dtype}:
            found = [gradient.to(self._dtype) for gradient in found]
        if any(map(Tensor.is_neg, found)):  # views whose memory has the other sign
            found = [gradient.resolve_neg() for gradient in found]
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
