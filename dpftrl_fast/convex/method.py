# SPDX-License-Identifier: Apache-2.0
"""Choice between least squares and DP-FTRL for a numeric target, by public facts."""

from __future__ import annotations

from typing import Literal, TypeAlias

from dpftrl_fast.convex.least_squares.choice import noise_share
from dpftrl_fast.convex.least_squares.settings import LeastSquaresSettings

Method: TypeAlias = Literal["ftrl", "least-squares"]

# Least squares is chosen up to this number of columns, and this share of noise.
_MOST_COLUMNS, _NEGLIGIBLE = 1000, 2e-4


def default_method(
    rows: int,
    columns: int,
    *,
    epsilon: float | None,
    delta: float,
    noise_multiplier: float | None = None,
) -> Method:
    """Return least squares where the noise of its sums is negligible, and DP-FTRL otherwise.

    Least squares needs one pass, no learning rate and no clipping of gradients, and gives
    confidence intervals. Its noise is proportional to the largest norm of a row, squared; that of
    DP-FTRL to the norm to which gradients are clipped. docs/sklearn/defaults.md has measurements.

    Parameters
    ----------
    rows, columns : int
        Number of rows, and of columns with that of the intercept.
    epsilon, delta, noise_multiplier
        Budget of the fit, as for `LeastSquaresSettings`.

    Examples
    --------
    >>> default_method(500_000, 10, epsilon=1.0, delta=1e-6)
    'least-squares'
    >>> default_method(500, 10, epsilon=1.0, delta=1e-6)
    'ftrl'
    """
    if columns > _MOST_COLUMNS:
        return "ftrl"
    settings = LeastSquaresSettings(
        epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier
    ).resolved(rows)
    plan = settings.plan(rows, x_norm_bound=1.0, y_bound=1.0)
    return "least-squares" if noise_share(plan, columns, rows) <= _NEGLIGIBLE else "ftrl"
