# SPDX-License-Identifier: Apache-2.0
"""Bounds of zeta by the absolute inner products of the columns of a strategy of any signs.

Whatever contributions of norm 1 the uses S make, zeta of S is at most the sum of the absolute inner
products of the columns in S.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.sensitivity.strided import (
    UNIT,
    Column,
    place_products,
    rounded_up,
)
from dpftrl_fast.accounting.sensitivity.toeplitz_column import StrategyColumn

Products = NDArray[np.float64]

# Sizes up to which they are computed: columns of a place, steps times columns, steps times uses.
_MOST_COLUMNS, _MOST_PRODUCTS = 2**11, 2**31
_MOST_STEPS, _MOST_CHOICES = 2**11, 2**17


def place_bound(column: StrategyColumn, steps: int, stride: int) -> float:
    """Bound zeta of uses at 0, stride, 2 stride, .., of all of them; infinity if they are many."""
    rows = -(-steps // stride)
    if rows > _MOST_COLUMNS or rows * steps > _MOST_PRODUCTS:
        return np.inf
    products = _absolute(column, steps, stride)
    # Upper triangular: the others of the symmetric matrix count twice.
    total = 2.0 * float(products.sum()) - float(np.trace(products))
    return rounded_up(total, 4 * products.size)


def separated_bound(column: StrategyColumn, steps: int, uses: int, separation: int) -> float:
    """Bound zeta of at most so many uses with a least separation; infinity if there are many steps.

    Each row of the matrix of absolute inner products has a largest sum over sets of uses; those of
    the rows have one, too (Choquette-Choo et al. 2023, algorithm 4).
    """
    if steps > _MOST_STEPS or steps * uses > _MOST_CHOICES:
        return np.inf
    upper = _absolute(column, steps, 1)
    rows = _largest_sums(upper + np.triu(upper, 1).T, uses, separation)
    return rounded_up(float(_largest_sums(rows[np.newaxis], uses, separation)[0]), 4 * uses)


def _absolute(column: StrategyColumn, steps: int, stride: int) -> Products:
    """Return upper bounds of the absolute inner products of columns, upper triangular."""

    def products(x: Column) -> Products:
        longer = np.zeros(steps)
        longer[: x.size] = x
        return place_products(longer, stride)

    upper = products(column.upper)
    # |c_u c_v - computed| is at most the difference of the products of their bounds.
    error = upper - products(np.abs(column.computed))
    roundings = steps + upper.shape[0] + 8
    return np.asarray(np.abs(products(column.computed)) + error + 4.0 * roundings * UNIT * upper)


def _largest_sums(x: Products, uses: int, separation: int) -> Column:
    """Return the largest sum of entries of each row, at most `uses`, at least so far apart."""
    best = np.zeros_like(x)  # by the first place that may be used
    for _ in range(uses):
        longer = x.copy()
        longer[:, :-separation] += best[:, separation:]
        best = np.maximum.accumulate(longer[:, ::-1], axis=1)[:, ::-1]
    return best[:, 0]
