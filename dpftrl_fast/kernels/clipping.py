# SPDX-License-Identifier: Apache-2.0
"""Clipping of the gradient slope * x of one row, given its slope and the squared norm of x.

Clipping is to L (1 - 2^-20) with the norm in float64. The squared norm of p float64 products has a
relative error below p 2^-52, the root halves it, and factor and product add three roundings: far
inside 2^-20 for every p below 2^30, so that the contribution that is added, taken as exact numbers,
has a norm of at most L. A gradient that is not clipped is unchanged.

A row is scaled into the ball of the row bound R first, if there is one, and then gets its constant
entry c: slope * (s x, c) is clipped, with s = min(1, R / |x|).

The squared norm itself may overflow (float64 entries beyond 1e154) or lose entries to underflow
(below 1e-154). Where it leaves [2^-900, largest float64] the row is computed again after division
by the power of two just above its largest entry: exact, slow, and never needed for float32 rows
other than rows of zeros. Inside the range, the squares that underflow are below p 2^-1074.
"""

from __future__ import annotations

import math
import sys

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.jit import helper

SMALLEST_SQUARE = 2.0**-900
LARGEST_SQUARE = sys.float_info.max


@helper
def clip_factor(slope: float, square: float, limit: float) -> float:
    """Return f with f x = clip(slope x), for `square` = |x|^2 in range; 0 for a bad slope."""
    if not math.isfinite(slope):
        return 0.0
    # No branch: which rows are clipped cannot be predicted.
    return math.copysign(min(abs(slope), limit / math.sqrt(square)), slope)


@helper
def weight_of(weights: Array, i: int) -> float:
    """Return the weight of row i, 1 where there are no weights."""
    return weights[i] if weights.size > 0 else 1.0


@helper
def exceeds(slope: float, square: float, exponent: int, limit: float) -> bool:
    """Return whether |slope| sqrt(square) 2^exponent > limit, for any finite slope."""
    mantissa, power = math.frexp(abs(slope))
    return math.ldexp(mantissa * math.sqrt(square), power + exponent) > limit


@helper
def row_scale(square: float, row_bound: float) -> float:
    """Return s = min(1, R / |x|), for `square` = |x|^2 in range; 1 without a bound."""
    return min(1.0, row_bound / math.sqrt(square)) if row_bound < math.inf else 1.0


@helper
def scaled_square(square: float, row_bound: float) -> float:
    """Return |s x|^2; the square of s may be too small for float64."""
    return min(square, row_bound * row_bound)
