# SPDX-License-Identifier: Apache-2.0
"""Release of noisy sums of steps on a grid, with the remainder of the rounding carried along.

With g_t the sum of step t, a_t its noise less that of the step before, B the batch size, r_0 = 0,

    x = r_(t-1) + (a_t + g_t),    w = grid floor(x / grid + 1/2),    r_t = x - w,

and w / B is released. All releases together are the running sum with its noise, rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from dpftrl_fast.torch.flat.compiled import CompiledPieces, note_writes
from dpftrl_fast.torch.flat.noise import FlatNoise, to_grid_
from dpftrl_fast.torch.flat.views import FlatViews

_DTYPE = attrgetter("dtype")
_DTYPES = {torch.float32, torch.float64}


class FlatResidual:
    """The remainder of a run, **a secret**, and its steps.

    Parameters
    ----------
    flat : FlatViews
        Position of the sums in the vector.
    like : Tensor
        A vector: size, dtype and device of noise and remainder.
    batch_size : int or None
        B; None for releases that are not divided.
    fused : bool
        By the source of the noise, in one pass, for the CPU, instead of torch's operations. Both
        have the same bits.

    Attributes
    ----------
    remainder : Tensor
        r_t, in the dtype of the noise.
    """

    def __init__(
        self, flat: FlatViews, like: Tensor, *, batch_size: int | None, fused: bool
    ) -> None:
        self._flat, self._batch_size = flat, batch_size
        self.remainder = torch.zeros_like(like)
        self._pieces = CompiledPieces(flat) if fused else None

    def release_(
        self, noise: FlatNoise, room: Tensor, parts: Sequence[Tensor], total: Tensor | None
    ) -> None:
        """Take a step: replace the sums of all ranks by noisy ones, on this rank's `parts`.

        g_t is `total`, a vector, or what is in `parts` if it is None. `total` and `room`, a vector
        for the noise, may be overwritten.
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
            noise.residual(room)
            self._by_operations(room, noise.grid, parts, total)
        if self._batch_size is not None:
            torch._foreach_div_([*parts], self._batch_size)

    def _addressable(self, parts: Sequence[Tensor]) -> bool:
        """Whether sums may be written by address: plain memory, of the sizes of the start."""
        return (
            self._pieces is not None
            and {*map(type, parts)} <= {Tensor, torch.nn.Parameter}
            and [*map(Tensor.numel, parts)] == self._pieces.sizes
            and {*map(_DTYPE, parts)} <= _DTYPES
            and all(map(Tensor.is_contiguous, parts))
        )

    def _compiled(
        self,
        pieces: CompiledPieces,
        noise: FlatNoise,
        sums: Sequence[Tensor] | Tensor,
        divisor: int,
    ) -> None:
        places = pieces.table.copy()
        if isinstance(sums, Tensor):
            places[:, 2] = sums.dtype == torch.float64
        else:
            doubles = np.fromiter((x.dtype == torch.float64 for x in sums), np.int64, len(sums))
            places[:, 2] = doubles[pieces.tensor]
        noise.release(places, pieces.addresses(sums), self.remainder, divisor)

    def _by_operations(
        self, noise: Tensor, grid: float, parts: Sequence[Tensor], total: Tensor | None
    ) -> None:
        for block in self._flat.blocks:
            noisy, remainder = noise[block.part], self.remainder[block.part]
            if total is None:
                self._flat.add_to(noisy, block, parts)
            else:
                noisy.add_(total[block.part])
            remainder.add_(noisy)
            self._flat.copy_from(to_grid_(noisy.copy_(remainder), grid), block, parts)
            remainder.sub_(noisy)
