# SPDX-License-Identifier: Apache-2.0
"""First columns of lower-triangular Toeplitz matrices and of their inverses, by recursion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

import dpftrl_fast._core as _core

Column = NDArray[np.float64]
Values: TypeAlias = Sequence[float] | Column


def padded(values: Values, steps: int) -> Column:
    """Return the first `steps` of `values`, and zeros after them."""
    column = np.zeros(steps)
    column[: len(values)] = values[:steps]
    return column


def solve_banded(band: Values, x: Column) -> Column:
    """Return C^-1 x for the Toeplitz matrix C with the first column `band`, 0, 0, ..

    Examples
    --------
    >>> solve_banded([1.0, -0.5], np.array([1.0, 0.0, 1.0])).tolist()
    [1.0, 0.5, 1.25]
    """
    out = np.empty(x.size)
    _core.solve_banded(np.asarray(band, np.float64), x, out)
    return out


def solve_buffers(decay: Values, scale: Values, x: Column) -> Column:
    """Return C^-1 x for the C of buffers."""
    out = np.empty(x.size)
    _core.solve_buffers(np.asarray(decay, np.float64), np.asarray(scale, np.float64), x, out)
    return out


def banded_inverse(band: Values, steps: int) -> Column:
    """Return the first column of the inverse of a banded Toeplitz matrix."""
    return solve_banded(band, padded((1.0,), steps))


def buffers_inverse(decay: Values, scale: Values, steps: int) -> Column:
    """Return the first column of the inverse of the matrix of buffers."""
    return solve_buffers(decay, scale, padded((1.0,), steps))


def buffers_column(decay: Values, scale: Values, steps: int) -> Column:
    """Return 1 and then the sums over i of scale_i decay_i^(j-1), j = 1, 2, .."""
    out = np.empty(steps)
    _core.buffers_column(np.asarray(decay, np.float64), np.asarray(scale, np.float64), out)
    return out
