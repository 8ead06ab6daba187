# SPDX-License-Identifier: Apache-2.0
"""Outlook of a run before it starts: whether its model can learn, as far as public facts tell."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dpftrl_fast.convex.glm.rates import MOST_STEPS, prediction_noise, row_reach, tolerated_noise
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

_FEWEST_STEPS = 8
_NOISY = 4.0  # times the tolerated noise


class LearningWarning(UserWarning):
    """A run is private, but its model is unlikely to learn; the message names the setting.

    Examples
    --------
    >>> print(LearningWarning("the run has only 3 steps"))
    this model may not learn: the run has only 3 steps
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"this model may not learn: {reason}")


def problems(
    objective: Objective,
    plan: PrivacyPlan,
    *,
    batch_size: int,
    learning_rate: float,
    momentum: float,
) -> Iterator[str]:
    """Yield a sentence for every reason why the model of a run is unlikely to learn.

    Only public facts are used. Targets are taken to be in [-1, 1].

    Examples
    --------
    >>> from dpftrl_fast.accounting import SinglePass
    >>> plan = PrivacyPlan(1.0, 2.0, SinglePass(3))
    >>> options = {"batch_size": 1000, "momentum": 0.0}
    >>> for text in problems(Objective("squared", 4), plan, learning_rate=1.0, **options):
    ...     print(text)
    the run has only 3 steps: give a smaller batch_size or more epochs
    """
    if plan.steps < _FEWEST_STEPS:
        count = f"{plan.steps} step" + "s" * (plan.steps > 1)
        yield f"the run has only {count}: give a smaller batch_size or more epochs"
    rate = learning_rate / (1.0 - momentum)
    reach = row_reach(objective)
    travel = rate * plan.clip_norm * plan.steps * reach
    if not travel >= 1.0:
        yield (
            f"no prediction can move by more than {travel:.2g} during the run, while targets are "
            "up to 1 away: give a larger learning_rate, clip_norm or number of epochs, or, where "
            'these are "auto", more rows, a larger epsilon or a larger delta'
        )
    if plan.steps > MOST_STEPS:
        return
    noise = prediction_noise(objective, plan, batch_size=batch_size, rate=rate)
    tolerated = tolerated_noise(objective)
    if not noise <= _NOISY * tolerated:
        shown = "infinity" if math.isinf(noise) else f"{noise:.2g}"
        yield (
            f"the noise of a prediction has a standard deviation of up to {shown}, far above "
            f"{tolerated:g}: give a smaller learning_rate, more rows, a larger epsilon or a larger "
            "delta"
        )
