# SPDX-License-Identifier: Apache-2.0
"""Release of noisy sums of steps on a grid, with the remainder of the rounding carried along.

With g_t the sum of step t, a_t its noise less that of the step before, B the batch size, r_0 = 0,

    x = r_(t-1) + (a_t + g_t),    w = grid floor(x / grid + 1/2),    r_t = x - w,

and w / B is released. All releases together are the running sum with its noise, rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpftrl_fast.kernels.residual_step import residual_loop
from dpftrl_fast.torch.flat.compiled import CompiledPieces, note_writes
from dpftrl_fast.torch.flat.noise import to_grid_
from dpftrl_fast.torch.flat.views import FlatViews

_DTYPE = attrgetter("dtype")
_NAMES = {torch.float32: "float32", torch.float64: "float64"}


class FlatResidual:
    """The remainder of a run, **a secret**, and its steps.

    Parameters
    ----------
    flat : FlatViews
        Position of the sums in the vector.
    like : Tensor
        A vector: size, dtype and device of noise and remainder.
    grid : float
        Power of two to whose multiples noisy sums are rounded.
    batch_size : int or None
        B; None for releases that are not divided.
    sums : set of torch.dtype
        Expected dtypes of sums. Others work too.
    fused : bool
        One compiled pass on at most `threads` threads, for the CPU, instead of torch's operations.
        Both have the same bits.

    Attributes
    ----------
    remainder : Tensor
        r_t, in the dtype of the noise.
    """

    def __init__(
        self,
        flat: FlatViews,
        like: Tensor,
        *,
        grid: float,
        batch_size: int | None,
        sums: set[torch.dtype],
        fused: bool,
        threads: int,
    ) -> None:
        self._flat, self._grid, self._batch_size = flat, grid, batch_size
        self.remainder = torch.zeros_like(like)
        self._pieces = CompiledPieces(flat, threads) if fused else None
        if fused:
            for dtype in {like.dtype, *sums}:  # compiled before the first step
                residual_loop(_NAMES[like.dtype], _NAMES[dtype])

    def release_(self, noise: Tensor, parts: Sequence[Tensor], total: Tensor | None) -> None:
        """Take a step: replace the sums of all ranks by noisy ones, on this rank's `parts`.

        `noise` is a_t. g_t is `total`, a vector, or what is in `parts` if it is None. Noise and
        total may be overwritten.
        """
        if total is None and self._pieces is not None and self._addressable(parts):
            self._compiled(self._pieces, noise, parts, self._batch_size or 1)
            note_writes(parts)
            return
        if total is not None and self._pieces is not None:
            self._compiled(self._pieces, noise, total, 1)
            for block in self._flat.blocks:
                self._flat.copy_from(total[block.part], block, parts)
        else:
            self._by_operations(noise, parts, total)
        if self._batch_size is not None:
            torch._foreach_div_([*parts], self._batch_size)

    def _addressable(self, parts: Sequence[Tensor]) -> bool:
        """Whether sums may be written by address: plain memory, of the sizes of the start."""
        return (
            self._pieces is not None
            and {*map(type, parts)} <= {Tensor, torch.nn.Parameter}
            and [*map(Tensor.numel, parts)] == self._pieces.sizes
            and {*map(_DTYPE, parts)} <= _NAMES.keys()
            and all(map(Tensor.is_contiguous, parts))
        )

    def _compiled(
        self, pieces: CompiledPieces, noise: Tensor, sums: Sequence[Tensor] | Tensor, divisor: int
    ) -> None:
        at, vectors = pieces.addresses(sums), (self.remainder.numpy(), noise.numpy())
        own = vectors[1].dtype
        dtypes = [sums.dtype] if isinstance(sums, Tensor) else [*map(_DTYPE, sums)]
        for dtype in {*dtypes}:
            loop, like = residual_loop(str(own), _NAMES[dtype]), np.empty(0, _NAMES[dtype])
            numbers = own.type(self._grid), like.dtype.type(divisor)
            taken = None
            if len({*dtypes}) > 1:
                taken = np.array([other is dtype for other in dtypes])[pieces.tensor]
            pieces.run(partial(_run, loop, pieces.table, at, taken, like, *numbers, *vectors))

    def _by_operations(self, noise: Tensor, parts: Sequence[Tensor], total: Tensor | None) -> None:
        for block in self._flat.blocks:
            noisy, remainder = noise[block.part], self.remainder[block.part]
            if total is None:
                self._flat.add_to(noisy, block, parts)
            else:
                noisy.add_(total[block.part])
            remainder.add_(noisy)
            self._flat.copy_from(to_grid_(noisy.copy_(remainder), self._grid), block, parts)
            remainder.sub_(noisy)


def _run(
    loop: Callable[..., None],
    table: NDArray[np.int64],
    at: NDArray[np.int64],
    taken: NDArray[np.bool_] | None,
    like: NDArray[Any],
    grid: Any,
    divisor: Any,
    remainder: NDArray[Any],
    noise: NDArray[Any],
    part: slice,
) -> None:
    """Do those of a range of pieces that are taken."""
    places = table[part], at[part]
    if taken is not None:
        places = places[0][taken[part]], places[1][taken[part]]
    loop(*places, like, grid, divisor, remainder, noise)
