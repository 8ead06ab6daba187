# SPDX-License-Identifier: Apache-2.0
"""The bounds of docs/results/convex.md, as numbers."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erfc

from dpftrl_fast.accounting import noise_std
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.plan.privacy_plan import PrivacyPlan


def mean_noise_norm(plan: PrivacyPlan, p: int, batch_size: int) -> float:
    """Return N, a bound on the mean over the steps of E||n_(t-1)|| / B, with n_0 = 0.

    Parameters
    ----------
    plan : PrivacyPlan
    p : int
        Parameters.
    batch_size : int
        B.
    """
    std = noise_std(plan.steps, plan.mechanism).prefix
    scale = plan.clip_norm * plan.noise_multiplier * math.sqrt(p) / batch_size
    return scale * float(np.sum(std[:-1])) / plan.steps


def regret_bound(
    steps: int, distance: float, gradient_norm: float, noise_norm: float, learning_rate: float
) -> float:
    """Return the bound on the regret of FTRL, divided by the steps.

    lambda/2 D^2 + T G^2 / (2 lambda) + T G N / lambda, over T.

    Examples
    --------
    >>> regret_bound(100, 1.0, 1.0, 0.0, 0.1)
    0.1
    """
    worst = gradient_norm * (gradient_norm / 2.0 + noise_norm) * learning_rate
    return distance**2 / (2.0 * learning_rate * steps) + worst


def excess_risk_bound(
    plan: LeastSquaresPlan, p: int, n: int, radius: float, ridge_factor: float = 2.0
) -> float:
    """Return the bound on E[f(theta) - min over the ball of f]/n of the last least-squares model.

    With f the sum of the squared errors, h the half ridge and v the variance factor of the last
    model: (R^2 h + 2 R L Y sigma_b sqrt(v p) + R^2 r)/n, where r bounds the
    excess of the matrix noise over h.
    """
    half_ridge = plan.half_ridge(plan.steps, p, ridge_factor)
    variance = math.sqrt(float(plan.variance_factors[-1]))
    unit = plan.row_norm**2 * plan.covariance.noise_multiplier * variance
    bias = plan.row_norm * plan.y_bound * plan.bias.noise_multiplier * variance * math.sqrt(p)
    beyond = (ridge_factor - math.sqrt(2.0)) * math.sqrt(p)
    rest = unit * math.sqrt(math.pi / 2.0) * float(erfc(beyond / math.sqrt(2.0)))
    return (radius**2 * (half_ridge + rest) + 2.0 * radius * bias) / n
