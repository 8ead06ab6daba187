# SPDX-License-Identifier: Apache-2.0
"""Rounding of sums of clipped vectors: the margin of the clipping, and sums in twice the precision.

A plain float64 running sum rounds at every step, by an amount that depends on all that was added
before. After n steps of norm at most L the rounded sums of two neighbours can differ by L and a
worst case of about n^2 2^-54 L, which exceeds the 2^-20 L that clipping leaves free from n = 10^5
on. With the rounding errors added up beside the sum, the difference stays below L for every n up to
2^32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MARGIN = 1.0 - 2.0**-20


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
