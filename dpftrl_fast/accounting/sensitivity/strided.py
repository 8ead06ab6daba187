# SPDX-License-Identifier: Apache-2.0
"""Sums of a column and its copies that are shifted by multiples of a stride, and their squares.

For uses at steps 0, b, .., (k-1) b of a Toeplitz strategy with first column x, the shift of the
noise of step t is y_t = sum over j < k of x_(t - j b): additions only, so that for x >= 0 the
relative error is that of k roundings.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

#: Twice the unit roundoff: r roundings of sums and products of numbers >= 0 change the result by a
#: factor of less than 1 + r UNIT, the terms of second order included, for r <= 2^40.
UNIT = 2.0**-52
_CHUNK = 1024


def rounded_up(value: float, roundings: int) -> float:
    """Return a float that is not below the exact value of a sum with so many roundings a term."""
    return value * (1.0 + (roundings + 3) * UNIT)


def shifted_sum(x: Column, uses: int, stride: int) -> Column:
    """Return y_t = sum over j < uses of x_(t - j stride), each of at most uses + 1 terms in turn.

    Examples
    --------
    >>> shifted_sum(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), 2, 2).tolist()
    [1.0, 2.0, 4.0, 6.0, 8.0]
    """
    rows = -(-x.size // stride)
    if rows == 1 or uses == 1:
        return x
    window = min(uses, rows)
    groups = -(-rows // window)
    table = np.zeros((groups, window, stride))
    table.reshape(-1)[: x.size] = x
    # A window of rows is the end of one group and the start of the next: nothing is subtracted.
    total = np.cumsum(table, axis=1)
    if groups > 1:
        ends = np.cumsum(table[:, :0:-1], axis=1)[:, ::-1]
        total[1:, :-1] += ends[:-1]
    return total.reshape(-1)[: x.size]


def squared_norm(y: Column) -> float:
    """Return the sum of squares, of a relative error below 1026 roundings.

    Examples
    --------
    >>> squared_norm(np.array([3.0, 4.0]))
    25.0
    """
    return math.fsum(np.add.reduceat(y * y, np.arange(0, y.size, _CHUNK)).tolist())


def first_place(x: Column, uses: int, stride: int) -> float:
    """Return the squared norm of `shifted_sum`, rounded up where x >= 0.

    Examples
    --------
    >>> round(first_place(np.array([1.0, 0.5, 0.25]), 2, 2), 4)
    2.8125
    """
    return rounded_up(squared_norm(shifted_sum(x, uses, stride)), 2 * uses + _CHUNK + 8)


def place_products(x: Column, stride: int) -> NDArray[np.float64]:
    """Return the inner products of the columns at 0, stride, 2 stride, .. of the strategy of x.

    Returns
    -------
    ndarray of float64, shape (m, m), upper triangular
        Entry (i, j), i <= j, is the sum over t of x_(t - i stride) x_(t - j stride).

    Examples
    --------
    >>> place_products(np.array([1.0, 0.5, -1.0]), 2).tolist()
    [[2.25, -1.0], [0.0, 1.0]]
    """
    rows = -(-x.size // stride)
    last = x.size - (rows - 1) * stride
    table = np.zeros((rows, stride))
    table.reshape(-1)[: x.size] = x
    full, cut = table @ table.T, table[:, :last] @ table[:, :last].T
    products = np.zeros((rows, rows))
    for apart in range(rows):
        left = rows - apart
        whole, end = np.diagonal(full, apart), np.diagonal(cut, apart)
        before = np.concatenate([[0.0], np.cumsum(whole)[:-1]])
        at = np.arange(left)
        products[at, at + apart] = (before + end)[::-1]
    return products
