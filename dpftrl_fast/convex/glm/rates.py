# SPDX-License-Identifier: Apache-2.0
"""Learning rates derived from public facts: the plan, the bounds, the loss."""

from __future__ import annotations

import math

import numpy as np

from dpftrl_fast.accounting import noise_std
from dpftrl_fast.convex.glm.sums import CURVATURE, Objective
from dpftrl_fast.ftrl import theory_learning_rate
from dpftrl_fast.plan.privacy_plan import PrivacyPlan


def learning_rate(
    rule: float | str,
    objective: Objective,
    plan: PrivacyPlan,
    *,
    batch_size: int,
    momentum: float = 0.0,
    radius: float | None = None,
) -> float:
    """Return the learning rate 1/lambda of a rule; a number is returned as it is.

    "theory" minimises the regret bound (`dpftrl_fast.ftrl.theory_learning_rate`) for parameters
    within distance D of zero, D being the radius of the ball, or 1 without one. It assumes the
    worst possible losses, and is often ten times too small.

    "auto" is the largest rate at which two things hold: a step on rows of the declared norm does
    not pass the minimum, rate (curvature of the loss) (row bound^2 + constant^2) <= 1, and the
    noise moves the parameters by at most D in root mean square. Without a row bound, or for
    non-smooth losses (hinge, epsilon-insensitive, quantile, linear), there is no such bound, and it
    is "theory".

    With momentum gamma the sums are 1/(1 - gamma) times as large: both rules give (1 - gamma)
    times the rate.

    Examples
    --------
    >>> from dpftrl_fast.accounting import SinglePass
    >>> plan = PrivacyPlan(1.0, 2.0, SinglePass(100))
    >>> learning_rate("auto", Objective("squared", 5, row_bound=2.0), plan, batch_size=256)
    0.25
    """
    if not isinstance(rule, str):
        return float(rule)
    distance = 1.0 if radius is None else radius
    scale = plan.clip_norm * plan.noise_multiplier * math.sqrt(objective.size) / batch_size
    std = noise_std(plan.steps, plan.mechanism).prefix
    curvature = CURVATURE.get(objective.loss)
    if rule == "auto" and curvature is not None and objective.row_bound is not None:
        stable = 1.0 / (curvature * (objective.row_bound**2 + objective.constant**2))
        quiet = distance / (scale * math.sqrt(float(np.mean(std * std))))
        return (1.0 - momentum) * min(stable, quiet)
    rate = theory_learning_rate(plan.steps, distance, plan.clip_norm, scale * float(np.mean(std)))
    return (1.0 - momentum) * rate
