# SPDX-License-Identifier: Apache-2.0
"""Noisy moments that a run of least squares has released, with the law of their noise.

Functions of them are post-processing and cost no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.kernels.packed import unpack

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Noisy sums after a step: those behind a model.

    Attributes
    ----------
    step : int
        t.
    covariance : (p (p + 1) / 2,) array of float32 or float64
        Upper triangle of the noisy sum of x x^T, row after row. The noise has the standard
        deviation `covariance_std` on the diagonal and that divided by sqrt(2) off it.
    products : (m, p) array of float64
        Noisy sums of y x of each target, with noise of standard deviation `products_std`.
    squares : (m,) array of float64, optional
        Noisy sums of y^2, with noise of standard deviation `squares_std`.
    constant : float
        Entry of the constant column, which is the last one; 0 without one.
    """

    step: int
    covariance: NDArray[Any]
    products: FloatArray
    squares: FloatArray | None
    covariance_std: float
    products_std: float
    squares_std: float
    constant: float

    @property
    def matrix(self) -> FloatArray:
        """The noisy sum of x x^T as a symmetric matrix."""
        p = self.products.shape[1]
        upper = unpack(self.covariance, 0.0, np.zeros((p, p)))
        return upper + np.triu(upper, 1).T

    @property
    def diagonal(self) -> FloatArray:
        """The noisy sums of the squares of the columns."""
        p = self.products.shape[1]
        rows = np.arange(p)
        return np.asarray(self.covariance[rows * p - rows * (rows - 1) // 2], dtype=np.float64)

    @property
    def last_column(self) -> FloatArray:
        """The noisy sums of the products of the last column with all."""
        p = self.products.shape[1]
        rows = np.arange(p)
        last = rows * p - rows * (rows + 1) // 2 + p - 1
        return np.asarray(self.covariance[last], dtype=np.float64)


def moments_of(
    plan: LeastSquaresPlan, step: int, bias: FloatArray, covariance: NDArray[Any], constant: float
) -> Moments:
    """Return the moments in what `LeastSquares.released` returns after a step.

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> plan = LeastSquaresPlan(1.0, 1.0, 13.0, accounting.SinglePass(4), squares=0.25)
    >>> found = moments_of(plan, 4, np.array([3.0, 4.0, 2.5]), np.array([1.0, 2.0, 5.0]), 0.0)
    >>> found.matrix.tolist(), found.products.tolist(), found.squares.round(3).tolist()
    ([[1.0, 2.0], [2.0, 5.0]], [[3.0, 4.0]], [10.0])
    """
    root = math.sqrt(float(plan.variance_factors[step - 1]))
    products_std = plan.bias.clip_norm * plan.bias.noise_multiplier * root
    table = bias.reshape(plan.targets, -1)
    weight = plan.square_weight
    return Moments(
        step=step,
        covariance=covariance,
        products=table if weight == 0 else np.ascontiguousarray(table[:, :-1]),
        squares=table[:, -1] / weight if weight > 0 else None,
        covariance_std=plan.covariance.clip_norm * plan.covariance.noise_multiplier * root,
        products_std=products_std,
        squares_std=products_std / weight if weight > 0 else math.inf,
        constant=constant,
    )


class ColumnStatistics(NamedTuple):
    """Means and variances of columns, and their standard errors from the noise alone."""

    means: FloatArray
    variances: FloatArray
    means_stderr: FloatArray
    variances_stderr: FloatArray


def column_statistics(moments: Moments, rows: int | None) -> ColumnStatistics:
    """Return mean and variance of each column before the constant one, from the noisy sums.

    With c the constant, the last column of the sum of x x^T holds c sum x, its last entry c^2 n,
    and its diagonal sum x^2.

    Parameters
    ----------
    moments : Moments
        With a constant column.
    rows : int, optional
        Number of rows, if it is public and all of them count with weight 1. Without it, the noisy
        sum of weights takes its place.

    Returns
    -------
    ColumnStatistics
        A variance is at least 0. Standard errors are those of estimates of the mean and variance of
        the rows in the sums, to first order.

    Examples
    --------
    >>> covariance = np.array([30.0, 8.0, 4.0])  # of the rows 1, 2, 3 and 4, and ones, with noise
    >>> moments = Moments(1, covariance, np.zeros((1, 2)), None, 0.1, 0.1, np.inf, 1.0)
    >>> found = column_statistics(moments, 4)
    >>> [part.round(3).tolist() for part in found]
    [[2.0], [3.5], [0.018], [0.075]]
    """
    c, std = moments.constant, moments.covariance_std
    if not c > 0:
        raise ValueError(f"moments must have a constant column, got constant={c}")
    sums, squares = moments.last_column[:-1] / c, moments.diagonal[:-1]
    off, own = std / (math.sqrt(2.0) * c), 0.0
    if rows is not None:
        n = float(rows)
    else:
        own = std / c**2
        n = max(float(moments.diagonal[-1]) / c**2, own)
    means, raw = sums / n, squares / n
    # Derivatives of sums/n and squares/n - (sums/n)^2 by sums, squares and n, all times n.
    means_stderr = np.hypot(off, means * own) / n
    by_n = 2.0 * means**2 - raw
    variances_stderr = np.sqrt(std**2 + (2.0 * means * off) ** 2 + (by_n * own) ** 2) / n
    variances = np.maximum(raw - means**2 + means_stderr**2, 0.0)
    return ColumnStatistics(means, variances, means_stderr, variances_stderr)
