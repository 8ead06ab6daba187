# SPDX-License-Identifier: Apache-2.0
"""Learning rates derived from public facts: the plan, the bounds, the loss."""

from __future__ import annotations

import math

import numpy as np

from dpftrl_fast.accounting import noise_std
from dpftrl_fast.convex.glm.sums import CURVATURE, Objective
from dpftrl_fast.ftrl import theory_learning_rate
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

#: Beyond so many steps no error of a mechanism is computed.
MOST_STEPS = 1 << 26
#: Share of the largest stable rate that "auto" takes.
_STABLE = 0.8
#: Standard deviation of a prediction's noise that "auto" accepts: for targets in [-1, 1], and for
#: the margins of a classification.
TOLERATED = {"number": 0.5, "label": 5.0}
#: Losses of a classification.
LABEL_LOSSES = ("logistic", "multinomial", "hinge")


def row_reach(objective: Objective) -> float:
    """Return the bound on the norm of a row with its constant column.

    Without a row bound it is that of features in [-1, 1].

    Examples
    --------
    >>> row_reach(Objective("squared", 3, row_bound=3.0, constant=4.0))
    5.0
    >>> row_reach(Objective("squared", 4))
    2.0
    """
    bound = objective.row_bound
    largest = math.sqrt(objective.n_features) if bound is None else bound
    return math.hypot(largest, objective.constant)


def tolerated_noise(objective: Objective, radius: float | None = None) -> float:
    """Return the standard deviation of a prediction's noise that "auto" accepts.

    Examples
    --------
    >>> tolerated_noise(Objective("squared", 3)), tolerated_noise(Objective("logistic", 3))
    (0.5, 5.0)
    """
    usual = TOLERATED["label" if objective.loss in LABEL_LOSSES else "number"]
    return usual if radius is None else min(usual, radius * row_reach(objective))


def prediction_noise(
    objective: Objective, plan: PrivacyPlan, *, batch_size: int, rate: float
) -> float:
    """Return the standard deviation of the noise of a prediction, for a row of the largest norm.

    It is that of the iterates of the last half of the steps, in root mean square, at the learning
    rate `rate` without momentum (with momentum gamma: that divided by 1 - gamma).

    Examples
    --------
    >>> from dpftrl_fast.accounting import SinglePass
    >>> plan = PrivacyPlan(1.0, 2.0, SinglePass(1))
    >>> prediction_noise(Objective("squared", 4), plan, batch_size=10, rate=1.0)
    0.4
    """
    std = noise_std(plan.steps, plan.mechanism).prefix[plan.steps // 2 :]
    moved = rate * plan.clip_norm * plan.noise_multiplier / batch_size
    return moved * math.sqrt(float(np.mean(std * std))) * row_reach(objective)


def stable_rate(objective: Objective, momentum: float, rows_per_unit: float = 1.0) -> float:
    """Return the learning rate without momentum of 0.8 times the largest stable one.

    With momentum gamma, h the largest second derivative of the loss and R the bound on the norm of
    a row, the largest stable rate is 2 (1 + gamma)/(h R^2), and in units without momentum that
    divided by 1 - gamma.

    Examples
    --------
    >>> stable_rate(Objective("squared", 4), 0.0), stable_rate(Objective("logistic", 4), 0.0)
    (0.4, 1.6)
    """
    curvature = CURVATURE.get(objective.loss, 1.0) * rows_per_unit
    reach = row_reach(objective)
    return _STABLE * 2.0 * (1.0 + momentum) / (1.0 - momentum) / (curvature * reach * reach)


def learning_rate(
    rule: float | str,
    objective: Objective,
    plan: PrivacyPlan,
    *,
    batch_size: int,
    momentum: float = 0.0,
    radius: float | None = None,
    rows_per_unit: float = 1.0,
) -> float:
    """Return the learning rate 1/lambda of a rule; a number is returned as it is.

    "auto" is the smaller of two rates: `stable_rate`, at which gradient descent is stable on any
    rows within the bound, and the one at which the noise of a prediction has the largest standard
    deviation that is tolerated (`tolerated_noise`).

    "theory" minimises the regret bound (`dpftrl_fast.ftrl.theory_learning_rate`) for parameters
    within distance D of zero, D being the radius of the ball, or 1 without one. It assumes the
    worst possible losses, and is often far too small. With momentum the sums are 1/(1 - gamma)
    times as large, and the rate is multiplied by 1 - gamma.

    `rows_per_unit` is the mean number of rows of a user, where users are the units.

    Examples
    --------
    >>> from dpftrl_fast.accounting import SinglePass
    >>> plan = PrivacyPlan(1.0, 2.0, SinglePass(100))
    >>> learning_rate("auto", Objective("squared", 5, row_bound=2.0), plan, batch_size=2560)
    0.4
    """
    if not isinstance(rule, str):
        return float(rule)
    if rule == "auto":
        stable = stable_rate(objective, momentum, rows_per_unit)
        noise = prediction_noise(objective, plan, batch_size=batch_size, rate=1.0)
        return (1.0 - momentum) * min(stable, tolerated_noise(objective, radius) / noise)
    distance = 1.0 if radius is None else radius
    scale = plan.clip_norm * plan.noise_multiplier * math.sqrt(objective.size) / batch_size
    std = noise_std(plan.steps, plan.mechanism).prefix
    rate = theory_learning_rate(plan.steps, distance, plan.clip_norm, scale * float(np.mean(std)))
    return (1.0 - momentum) * rate
