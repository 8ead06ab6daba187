# SPDX-License-Identifier: Apache-2.0
"""Running sums in twice the precision: rounding must not carry one record's trace past its bound.

A plain float64 running sum rounds at every step, by an amount that depends on all that was added
before. After n steps of norm at most L the rounded sums of two neighbours can differ by L and a
worst case of about n^2 2^-54 L, which exceeds the 2^-20 L that clipping leaves free from n = 10^5
on. With the rounding errors added up beside the sum, the difference stays below L for every n up to
2^32.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["two_sum"]

_Vector: TypeAlias = NDArray[np.float64]


def two_sum(a: _Vector, b: _Vector) -> tuple[_Vector, _Vector]:
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
