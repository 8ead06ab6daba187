# SPDX-License-Identifier: Apache-2.0
"""Sums of clipped per-example gradients, and the room that rounding needs.

The guarantee is for the change of the *written* sum: with one example's gradient replaced by zero,
the sums in ``p.grad``, taken as exact numbers and over all parameters together, change by at most
the clip norm L. Clipping each gradient to L is not enough for that, since the sum is rounded, and
two sums that differ in one term are rounded differently. The rounding error of a float32 number of
size B L is up to B L 2^-24: with B = 250 that is 15 times the margin of 2^-20 L by which a single
gradient is clipped below L. So

- norms, factors and sums are computed in float64, and a sum is rounded to the dtype of ``p.grad``
  once, when it is written;
- gradients are clipped to the somewhat smaller norm of :func:`contribution_limit`, so that their
  own norm and both roundings together stay below L. At B = 250 it is L (1 - 3.1e-5), at B = 65536
  it is L (1 - 0.8%);
- `DPFTRL` adds the sums of all steps up, and two running sums that differ in one example are
  rounded differently in each step from then on. It keeps a running sum as two numbers of its dtype
  and rounds their smaller one only, which the limit covers too. With one number and the rounding
  error of its last addition (Kahan), the sum of a step would be rounded as well: 2^-24 of it in
  each step, which adds up to 2 L in 2,048 steps of 65,536 examples in the worst case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dpftrl_fast._validate import norm_bound, positive_integer
from dpftrl_fast.kernels.clipped_rows import add_weighted, squared_norms
from dpftrl_fast.rounding import clip_limit

_UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
# Inside, neither sums nor underflow in up to 2^36 coordinates matter in float32.
_SMALLEST_F32, _LARGEST_F32 = 1e-20, 1e20
_CHUNK = 1 << 18  # numbers that are in float64 at a time


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which the sum for a parameter is written: float64 or float32.

    Examples
    --------
    >>> sum_dtype(torch.bfloat16), sum_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return dtype if dtype == torch.float64 else torch.float32


def contribution_limit(
    clip_norm: float,
    batch_size: int,
    dtype: torch.dtype = torch.float32,
    *,
    roundings: int = 1,
    steps: int = 1,
) -> float:
    """Return the norm to clip to, so that one example changes the written sum by at most L.

    Let each of B gradients have a norm of at most m. A sum of them in float64 is off by at most
    B^2 m 2^-53, and each rounding to a dtype of unit u adds u B m (1 + u B 2^-50). Two sums that
    differ in one term differ by m and by the errors of both.

    A running sum is kept as s + low, |low| <= u |s|. The sum of step t (from 1), of norm at most
    B m, is added to s with its error e, |e| <= u |s_t|. low + e is rounded, by at most u (u
    |s_(t-1)| + u |s_t|) <= u^2 (2 t - 1) B m, and the rest is exact. All steps together: u^2 T^2
    B m.

    Parameters
    ----------
    clip_norm : float
        L. For sums in float32 within [1e-20, 1e20], so that nothing overflows or underflows.
    batch_size : int
        Most examples in a sum (B), public.
    dtype : torch.dtype
        Of the sums: float32 or float64.
    roundings : int
        Number of roundings of a sum to that dtype before the noise is added: one, and one more for
        each addition of a reduction over processes.
    steps : int
        Steps whose sums are added up in this dtype (T), by `DPFTRL`; 1 where they are not.

    Examples
    --------
    >>> f"{1 - contribution_limit(1.0, 250):.1e}"
    '3.1e-05'
    >>> f"{1 - contribution_limit(1.0, 250, steps=10_000):.1e}"
    '2.1e-04'
    """
    total = norm_bound("clip_norm", clip_norm)
    examples = positive_integer("batch_size", batch_size)
    if dtype not in _UNIT:
        raise ValueError(f"dtype of the sums must be float32 or float64, got {dtype}")
    if dtype == torch.float32 and not _SMALLEST_F32 <= total <= _LARGEST_F32:
        raise ValueError(
            f"clip_norm must be in [{_SMALLEST_F32}, {_LARGEST_F32}] for sums in float32, got "
            f"{total}"
        )
    rounding = 1.01 * (positive_integer("roundings", roundings) * _UNIT[dtype])
    summing = 1.01 * (examples + 2) * 2.0**-53
    running = 1.01 * positive_integer("steps", steps) ** 2 * _UNIT[dtype] ** 2
    return clip_limit(total) / (1.0 + 2.0 * examples * (rounding + summing + running))


def row_norms(sample: Tensor) -> Tensor:
    """Return the L2 norm of each example's gradient of one parameter, in float64.

    It is inf or NaN where a gradient is not finite, or its norm overflows float64.

    Examples
    --------
    >>> row_norms(torch.tensor([[3.0, 4.0], [1e30, 0.0], [float("nan"), 0.0]]))
    tensor([5.0000e+00, 1.0000e+30,        nan], dtype=torch.float64)
    """
    rows = sample.detach().reshape(sample.shape[0], -1) if sample.numel() else None
    squares = torch.zeros(sample.shape[0], dtype=torch.float64, device=sample.device)
    if rows is None:
        return squares
    if (array := _compiled_rows(rows)) is not None:
        return torch.from_numpy(squared_norms(array, torch.get_num_threads())).sqrt_()
    scale = None
    if rows.dtype == torch.float64:  # squares of other dtypes neither overflow nor vanish
        largest = torch.linalg.vector_norm(rows, ord=math.inf, dim=1)
        scale = torch.where(_usable(largest), largest, 1.0)[:, None]
    for _, part in _parts(rows):
        if scale is not None:
            part.div_(scale)
        squares += torch.linalg.vector_norm(part, dim=1).square_()
    norms = squares.sqrt_()
    return norms if scale is None else norms * scale[:, 0]


def add_clipped_(total: Tensor, sample: Tensor, factors: Tensor) -> None:
    """Add the sum over examples of factor times gradient to a contiguous total in float64.

    Examples with a factor of 0 are left out, whatever values they have.

    Examples
    --------
    >>> total = torch.zeros(2, dtype=torch.float64)
    >>> gradients = torch.tensor([[1.0, 2.0], [float("inf"), 1.0]])
    >>> add_clipped_(total, gradients, torch.tensor([0.5, 0.0], dtype=torch.float64))
    >>> total
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    array = _compiled_rows(
        sample.detach().reshape(sample.shape[0], -1) if sample.numel() else sample
    )
    if array is not None:
        weights = factors.numpy() if factors.is_contiguous() else factors.contiguous().numpy()
        add_weighted(array, weights, total.view(-1).numpy(), torch.get_num_threads())
        return
    keep = factors > 0
    if not bool(keep.all()):  # 0 times NaN is no 0
        sample, factors = sample[keep], factors[keep]
    if sample.numel() == 0:
        return
    flat = total.view(-1)
    for start, part in _parts(sample.detach().reshape(sample.shape[0], -1)):
        flat[start : start + part.shape[1]].addmv_(part.t(), factors)


def _compiled_rows(rows: Tensor) -> Any:
    """Return the array that the compiled passes take; None if they do not take these rows."""
    if rows.device.type != "cpu" or rows.dtype != torch.float32 or rows.numel() == 0:
        return None
    return rows.contiguous().resolve_neg().numpy()


def _parts(rows: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield (first column, the columns from there in float64), so many that they fit the cache.

    They lie in one buffer, which is written over for the next.
    """
    examples, width = rows.shape[0], max(1, _CHUNK // rows.shape[0])
    buffer = rows.new_empty(examples * min(width, rows.shape[1]), dtype=torch.float64)
    for start in range(0, rows.shape[1], width):
        columns = rows[:, start : start + width]
        yield start, buffer[: columns.numel()].view(columns.shape).copy_(columns)


def joint_norms(norms: Tensor) -> Tensor:
    """Return the norm of each column (example) of norms by parameter, without overflow on the way.

    It is not finite where one of the norms is not.
    """
    largest = norms.amax(dim=0)
    scale = torch.where(_usable(largest), largest, 1.0)
    joint: Tensor = torch.linalg.vector_norm(norms / scale, dim=0) * scale
    return joint


def _usable(scale: Tensor) -> Tensor:
    return torch.isfinite(scale) & (scale > 0)
