# SPDX-License-Identifier: Apache-2.0
"""Rounding of sums of clipped vectors: the margin of the clipping, exact sums, the released grid.

A plain float64 running sum rounds at every step, by an amount that depends on all that was added
before. After n steps of norm at most L the rounded sums of two neighbours can differ by L and a
worst case of about n^2 2^-54 L, which exceeds the 2^-20 L that clipping leaves free from n = 10^5
on. With the rounding errors added up beside the sum, the difference stays below L for every n up to
2^32.

What is released of a noisy sum is a multiple of a public power of two, about a hundredth of the
noise's standard deviation. Low-order bits of the sum are not in it, where noise and sum nearly
cancel, or elsewhere (docs/floating_point.md).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_MARGIN = 1.0 - 2.0**-20
_GRID_BITS = 7  # the variance of rounding to std 2^-7 is 5.1e-6 of the noise's


def clip_limit(clip_norm: float) -> float:
    """Return the norm that vectors are clipped to, for a guaranteed norm of `clip_norm`.

    A little less than the clip norm leaves room for rounding: no contribution ever gets more.
    """
    return clip_norm * _MARGIN


def two_sum(
    a: NDArray[np.float64], b: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a + b rounded, and the rounding error exactly (Knuth, TAOCP 2, 4.2.2, theorem B).

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
    least the smallest normal number.

    Examples
    --------
    >>> release_grid(1.0) == release_grid(1.99) == 2.0**-7
    True
    """
    return math.ldexp(1.0, max(math.frexp(std)[1] - 1 - _GRID_BITS, -1022))


def to_grid(x: NDArray[np.float64], grid: float) -> NDArray[np.float64]:
    """Round to multiples of a power of two, in place; return the array.

    The cell of a multiple m is [m - grid/2, m + grid/2). With ties to even, even multiples would be
    more frequent than odd ones where x has few bits, as float32 noise has. Numbers that are not
    finite stay so.

    Examples
    --------
    >>> to_grid(np.array([0.3, 0.5, -0.5, 1.5]), 1.0).tolist()
    [0.0, 1.0, 0.0, 2.0]
    """
    x /= grid  # exact
    x += 0.5
    np.floor(x, out=x)
    x *= grid
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
