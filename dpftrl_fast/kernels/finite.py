# SPDX-License-Identifier: Apache-2.0
"""Index of the first non-finite value, in one pass at the speed of memory.

x - x is 0 for a finite x and NaN otherwise, and sums of these stay NaN: no branch per entry, and
nothing overflows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from dpftrl_fast._validate import FLOATS, Array, array
from dpftrl_fast.kernels.jit import compiled, helper, read_only, writable

_BLOCK = 4096


@helper
def _all_finite(values: Array) -> bool:
    total = np.float32(0.0)
    for i in range(values.size):
        total += np.float32(values[i] - values[i])
    return bool(total == np.float32(0.0))


def _find(values: Array, block: int, out: Array) -> None:
    out[0] = -1
    for start in range(0, values.size, block):
        stop = min(start + block, values.size)
        if not _all_finite(values[start:stop]):
            for i in range(start, stop):
                if not np.isfinite(values[i]):
                    out[0] = i
                    return


@functools.cache
def _loop(dtype: str) -> Callable[..., Any]:
    return compiled(_find, read_only(dtype, 1), types.int64, writable("l", 1))


def first_bad(values: Array) -> int | None:
    """Return the index of the first NaN or infinity in a vector of floats, None if there is none.

    Examples
    --------
    >>> first_bad(np.array([0.0, np.inf])), first_bad(np.zeros(5))
    (1, None)
    """
    values = array("values", values, FLOATS, 1)
    out = np.empty(1, dtype=np.int64)
    _loop(values.dtype.char)(values, _BLOCK, out)
    place = int(out[0])
    return None if place < 0 else place
