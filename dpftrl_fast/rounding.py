# SPDX-License-Identifier: Apache-2.0
"""Rounding of sums of clipped vectors: the margin of the clipping, exact sums, the released grid.

A plain float64 sum rounds at every addition, by an amount that depends on all that was added
before. After n vectors of norm at most L the rounded sums of two neighbours can differ by L and a
worst case of about n^2 2^-53 L, which exceeds the 2^-20 L that clipping leaves free from n = 10^5
on. So vectors are added up in blocks, and the sums of the blocks with their rounding errors beside
them. `check_summands` has the derivation of the largest n.

What is released of a noisy sum is a multiple of a public power of two, about a hundredth of the
noise's standard deviation. Low-order bits of the sum are not in it, where noise and sum nearly
cancel, or elsewhere (docs/guarantees/floating_point.md).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MARGIN = 1.0 - 2.0**-20
_GRID_BITS = 7  # rounding to std 2^-7 adds 5.1e-6 of the noise's variance
_BLOCK = 1 << 14  # numbers that stay in cache from one operation to the next
_FINEST_GRID = -960  # sums up to 2^63 divided by 2^-960 do not overflow
_FINEST_IN_FLOAT32 = 2.0**-80  # nor sums up to 2^47 divided by this one, in float32
_ROUNDING = 2.0**-21  # what `check_summands` allows, in clip norms

#: Most vectors that are added one after another without their rounding errors.
PLAIN_SUMMANDS = 4096

#: Most vectors (records, rows or users) in one sum.
MOST_SUMMANDS = 2**28


def clip_limit(clip_norm: float) -> float:
    """Return the norm that vectors are clipped to, for a guaranteed norm of `clip_norm`.

    A little less than the clip norm leaves room for rounding: no contribution ever gets more.
    """
    return clip_norm * _MARGIN


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a + b rounded, and the rounding error exactly (Knuth, TAOCP 2, 4.2.2, theorem B).

    Arrays of one dtype, of NumPy or JAX.

    Examples
    --------
    >>> import numpy as np
    >>> total, error = two_sum(np.array([1e16]), np.array([1.0]))
    >>> total.item() + error.item() == 1e16, error.item()
    (True, 1.0)
    """
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def release_grid(std: float) -> float:
    """Return the grid of released sums: the largest power of two that is at most std/128.

    `std` is the least standard deviation of the noise of a sum, finite and > 0. The grid is at
    least 2^-960, so that a sum can be divided by it.

    Examples
    --------
    >>> release_grid(1.0) == release_grid(1.99) == 2.0**-7
    True
    """
    return math.ldexp(1.0, max(math.frexp(std)[1] - 1 - _GRID_BITS, _FINEST_GRID))


def residual_grid(grid: float, dtype: str) -> float:
    """Return the grid of sums of steps that are rounded in the noise's dtype, with a remainder.

    It is `grid`, of `release_grid`, but in float32 at least 2^-80.

    Examples
    --------
    >>> residual_grid(0.5, "float32"), residual_grid(2.0**-90, "float32") == 2.0**-80
    (0.5, True)
    """
    return max(grid, _FINEST_IN_FLOAT32) if dtype == "float32" else grid


def to_grid(x: NDArray[np.float64], grid: float) -> NDArray[np.float64]:
    """Round a contiguous array to multiples of a power of two, in place; return it.

    The cell of a multiple m is [m - grid/2, m + grid/2). With ties to even, even multiples would be
    more frequent than odd ones where x has few bits, as float32 noise has. Numbers that are not
    finite stay so.

    Examples
    --------
    >>> to_grid(np.array([0.3, 0.5, -0.5, 1.5]), 1.0).tolist()
    [0.0, 1.0, 0.0, 2.0]
    """
    flat = x.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        part = flat[start : start + _BLOCK]
        part /= grid  # exact
        part += 0.5
        np.floor(part, out=part)
        part *= grid
    return x


def noisy_sum(
    total: NDArray[np.float64], low: NDArray[np.float64], noise: NDArray[np.floating], grid: float
) -> NDArray[np.float64]:
    """Return total + low + noise on the grid, in a new array.

    `low` is the small part of the sum; it is added to the noise first, so that the only rounding of
    the size of the sum is a function of the exact noisy sum.

    Examples
    --------
    >>> noisy_sum(np.array([2.0]), np.array([2.0**-60]), np.array([0.3], np.float32), 0.25).item()
    2.25
    """
    return to_grid(total + (low + noise), grid)


def check_summands(name: str, summands: int, additions: int) -> None:
    """Refuse a sum so long that its roundings could exceed the margin of the clipping.

    `summands` (n) is the number of clipped vectors in it, all steps together, and `additions` (T)
    the number of sums of steps that are added to the running sum, with their rounding errors beside
    it. Both are public.

    Two neighbours differ in one vector, of norm at most (1 - 2^-20) L. With u = 2^-53, in units of
    L and to first order, their computed sums differ by at most that and

    - 2^-23: blocks of up to 2^16 vectors are sums of sums of 4096, with an error of at most
      (2^12 + 2^4) u 2^16 in each of the two neighbours' blocks that differ; all other blocks are
      the same bits;
    - 2 u n: the sum of a step is rounded to float64 once, after its blocks were added up with their
      rounding errors;
    - u^2 T^2 n: each addition to the running sum leaves an error of at most u n, kept exactly, and
      the sum of up to T of them, at most T u n, is rounded T times;
    - 2 u n: the running sum and these errors are rounded to one number.

    The last three stay below 2^-21 if n (2^-51 + 2^-106 T^2) <= 2^-21: for n up to 2^28 if every
    step has a vector, and up to 2^29 in fewer than 2^27 steps.

    Raises
    ------
    ValueError
        If they could exceed it.

    Examples
    --------
    >>> check_summands("rows", 2**28, 2**28)
    >>> check_summands("rows", 2**30, 2**20)
    Traceback (most recent call last):
    ...
    ValueError: rows must be so few that the rounding of their sum stays within the margin of the \
clipping (2^28 in all, or 2^29 in fewer than 2^27 steps), got 1073741824 in 1048576 steps: use \
several runs on parts of the data
    """
    if summands * (2.0**-51 + additions * additions * 2.0**-106) > _ROUNDING:
        raise ValueError(
            f"{name} must be so few that the rounding of their sum stays within the margin of the "
            "clipping (2^28 in all, or 2^29 in fewer than 2^27 steps), got "
            f"{summands} in {additions} steps: use several runs on parts of the data"
        )
