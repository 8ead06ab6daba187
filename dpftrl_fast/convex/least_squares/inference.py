# SPDX-License-Identifier: Apache-2.0
"""Standard errors of least-squares coefficients from noisy moments.

With W the sum of x x^T, e the errors of y, and N and n the noise of the sums of x x^T and y x, the
released moments are W~ = W + N and s~ = W theta + X^T e + n, so that

    W~^-1 s~ - theta = W~^-1 u,   u = X^T e + n - N theta,

and u has mean zero and a known covariance but for the variance of e. No ridge is used.
docs/sklearn/least_squares.md has the derivations.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from dpftrl_fast.convex.least_squares.moments import Moments
from dpftrl_fast.kernels.blas_threads import one_blas_thread

FloatArray = NDArray[np.float64]

#: Least eigenvalue of W~, in spectral norms of its noise, at which errors are stated.
LEAST_SIGNAL = 2.0


class Estimates(NamedTuple):
    """Least-squares coefficients without a ridge, and their standard errors.

    Attributes
    ----------
    theta : (m, p) array of float64
        Coefficients, corrected for the bias that the noise of W has to second order; NaN if not
        `reliable`.
    stderr : (m, p) array of float64
        Standard errors, of the noise and of the errors of y; infinite if not `reliable`.
    residual_variance : (m,) array of float64
        Estimates of the variance of the errors of y, at least 0.
    reliable : bool
        Whether the least eigenvalue of W~ is at least twice the spectral norm of its noise.
    """

    theta: FloatArray
    stderr: FloatArray
    residual_variance: FloatArray
    reliable: bool


@one_blas_thread()
def estimates(moments: Moments, rows: int) -> Estimates:
    """Estimate coefficients of linear models, and their standard errors.

    The errors of y are taken to be independent of x, with one variance a target; rows are not
    scaled and targets not clipped.

    Parameters
    ----------
    moments : Moments
        With sums of squares.
    rows : int
        Number of rows in the sums.

    Examples
    --------
    >>> W, s = np.array([1000.0, 0.0, 1000.0]), np.array([[500.0, 0.0]])
    >>> moments = Moments(1, W, s, np.array([350.0]), 10.0, 20.0, 80.0, 0.0)
    >>> found = estimates(moments, 1002)
    >>> found.theta.round(3).tolist(), found.stderr.round(4).tolist()
    ([[0.5, 0.0]], [[0.0229, 0.0227]])
    """
    if moments.squares is None:
        raise ValueError("moments must have sums of squares, got none")
    W, s = moments.matrix, moments.products
    p = len(W)
    tau, noise = moments.covariance_std, moments.products_std**2
    values, vectors = eigh(W, driver="evd", check_finite=False)
    if not values[0] >= LEAST_SIGNAL * math.sqrt(2.0 * p) * tau:
        nothing = np.full(s.shape, math.inf)
        return Estimates(np.full(s.shape, math.nan), nothing, np.full(len(s), math.inf), False)
    inverse = (vectors / values) @ vectors.T
    trace = float(np.trace(inverse))
    first = s @ inverse
    # E[N W^-1 N] = tau^2/2 (tr(W^-1) I + W^-1)
    theta = first - 0.5 * tau**2 * (trace * first + first @ inverse) @ inverse
    variances, errors = [], []
    for one, raw, products, square in zip(theta, first, s, moments.squares, strict=True):
        # Cov(N theta) = tau^2/2 (||theta||^2 I + theta theta^T)
        own = noise + 0.5 * tau**2 * float(one @ one)
        image = inverse @ one
        drawn = own * trace + 0.5 * tau**2 * float(one @ image)  # tr(W^-1 Cov(n - N theta))
        left = float(square - raw @ products) + drawn
        variance = max(left / max(rows - p, 1), 0.0)
        diagonal = (
            variance * np.diag(inverse)
            + own * np.einsum("ij,ij->i", inverse, inverse)
            + 0.5 * tau**2 * image**2
        )
        variances.append(variance)
        errors.append(np.sqrt(diagonal))
    return Estimates(theta, np.stack(errors), np.array(variances), True)
