# SPDX-License-Identifier: Apache-2.0
"""The grid on which clipped updates are summed in integers, and the bounds on its fineness.

Every coordinate of a clipped update is rounded to a multiple of a unit 2^e, so that sums are exact:
the same bits for every order of the clients, and, between neighbours, a difference that is one
client's rounded update and nothing else. The unit is chosen from public numbers alone: the clip
norm L, the number of coordinates d, the number of updates of the whole run and the largest value of
the noise. With k such that 2^k <= L/unit < 2^(k+1),

    k >= 21 + log2(d)/2           the rounding moves an update by at most sqrt(d)/2 units, which is
                                  at most 2^-22 L: a quarter of the margin of clipping;
    (N + noise) 2^(k+1) <= 2^62   no sum of N updates, plus noise of up to `noise` times L,
                                  overflows int64.

Within these bounds k is the larger of 31 and 21 + log2(d)/2, rounded up: fine enough that a
coordinate of the size of L/sqrt(d) keeps 21 bits or more, far below the noise on the sum, and
coarse enough that the sums of a hundred updates of a million coordinates fit int32, as a rule
(see `RoundSum`).

The noise is rounded to the same grid before it is added, in integers. Since the sum is a multiple
of the unit, this is the rounding of the exact noisy sum: the released value is a function of
sum + noise, as in the privacy proof. For the limited precision of float32 noise see `RunningSum`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import non_negative, norm_bound, positive_integer

_FINEST = 31  # k, where d allows for it
_BITS = 62
_BLOCK = 1 << 15


def sum_unit(clip_norm: float, size: int, contributions: int, noise: float = 0.0) -> float:
    """Return the unit of the sums of a run: a power of two.

    `size` is the number of coordinates (d), `contributions` the public, largest number of updates
    in any sum of the run (N), and `noise` the largest absolute value of the noise on a sum, in
    units of the clip norm. ValueError if no unit keeps both bounds: N + noise above 2^22 at
    d = 2^36, above 2^30 at d = 2^20.

    Examples
    --------
    >>> sum_unit(1.0, 1_000_000, 10_000 * 1600) == 2.0**-31
    True
    """
    norm_bound("clip_norm", clip_norm)
    coarsest = _coarsest(positive_integer("size", size))
    total = positive_integer("contributions", contributions)
    total += math.ceil(non_negative("noise", noise))
    finest = _BITS - 1 - (total - 1).bit_length()  # (N + noise) 2^(k+1) <= 2^62
    if finest < coarsest:
        raise ValueError(
            f"contributions + noise must be at most 2^{_BITS - 1 - coarsest} for sums of {size} "
            f"numbers in 64-bit integers, got {contributions} + {noise}"
        )
    k = min(max(_FINEST, coarsest), finest)
    # frexp: L = m 2^e with 1/2 <= m < 1, so that L / 2^(e-1-k) is in [2^k, 2^(k+1)).
    return math.ldexp(1.0, math.frexp(clip_norm)[1] - 1 - k)


def check_unit(clip_norm: float, size: int, unit: float) -> float:
    """Return `unit` if it is a power of two, fine enough for the clip norm and not too fine."""
    mantissa, exponent = math.frexp(unit)
    k = math.frexp(clip_norm)[1] - exponent
    coarsest = _coarsest(size)
    if not (mantissa == 0.5 and coarsest <= k < _BITS - 12):
        raise ValueError(
            f"unit must be a power of two from 2^-{_BITS - 12} to 2^-{coarsest} times the clip "
            f"norm {clip_norm}, got {unit}"
        )
    return unit


def most_contributions(clip_norm: float, unit: float) -> int:
    """Return the number of clipped updates that a sum can hold before int64 could overflow.

    Examples
    --------
    >>> most_contributions(1.0, 2.0**-31) == 2**30
    True
    """
    return 1 << (_BITS - 1 - (math.frexp(clip_norm)[1] - math.frexp(unit)[1]))


def bits_of_sum(clip_norm: float, unit: float, updates: int) -> int:
    """Return the fewest bits b such that a sum of clipped updates is known from itself modulo 2^b.

    That is, updates 2^(k+1) < 2^(b-1).

    Examples
    --------
    >>> bits_of_sum(1.0, 2.0**-31, 100)
    40
    """
    k = math.frexp(clip_norm)[1] - math.frexp(unit)[1]
    return 1 + (updates << (k + 1)).bit_length()


def centred(integers: NDArray[np.uint64], modulus_bits: int) -> NDArray[np.int64]:
    """Return the smallest numbers that equal `integers` modulo 2^modulus_bits: the memory itself.

    Examples
    --------
    >>> centred(np.array([1, 7, 4], np.uint64), 3).tolist()
    [1, -1, -4]
    """
    shift = 64 - modulus_bits
    integers <<= np.uint64(shift)
    signed = integers.view(np.int64)
    signed >>= np.int64(shift)
    return signed


def norm_of(total: NDArray[np.int64]) -> float:
    """Return the norm of integers, with a relative error below 2^-30.

    Examples
    --------
    >>> norm_of(np.array([3, -4]))
    5.0
    """
    squares = 0.0
    for start in range(0, total.size, _BLOCK):
        part = total[start : start + _BLOCK].astype(np.float64)
        squares += float(np.dot(part, part))
    return math.sqrt(squares)


def noisy_sum(
    total: NDArray[np.int64],
    noise: NDArray[Any],
    unit: float,
    out: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return sum (in units) plus noise: added in integers, converted once.

    Examples
    --------
    >>> noisy_sum(np.array([3, -2]), np.array([0.3, 0.0]), 0.25).tolist()
    [1.0, -0.5]
    """
    result = np.empty(total.size) if out is None else out
    for start in range(0, total.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        steps = noise[part].astype(np.float64)
        steps /= unit  # exact
        np.rint(steps, out=steps)
        np.multiply(total[part] + steps.astype(np.int64), unit, out=result[part])
    return result


def _coarsest(size: int) -> int:
    """Return 21 + log2(size)/2, rounded up."""
    return 21 + ((size - 1).bit_length() + 1) // 2
