# SPDX-License-Identifier: Apache-2.0
"""From a budget to the plan of a run: the schedule is the planner's best, unless one is given."""

from __future__ import annotations

from typing import Any, Literal

from dpftrl_fast.accounting import FixedEpochs, Participation, SinglePass, plan_schedule
from dpftrl_fast.mechanisms.choices import Completion, PlanBound, Variant
from dpftrl_fast.plan.privacy_plan import PrivacyPlan


def participation_of(units: int, batch_size: int, epochs: int, shuffle: bool) -> Participation:
    """Return who takes part when, for so many rows (or users) in batches of a fixed size.

    Examples
    --------
    >>> participation_of(10, 4, 1, False), participation_of(10, 4, 2, False)
    (SinglePass(steps=3), FixedEpochs(steps_per_epoch=3, epochs=2, reshuffle=False))
    """
    steps = -(-units // batch_size)
    if epochs == 1:
        return SinglePass(steps)
    return FixedEpochs(steps, epochs, reshuffle=shuffle)


def plan_of(
    participation: Participation,
    *,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    clip_norm: float,
    momentum: float = 0.0,
    restart_every: int | Literal["auto"] | None = "auto",
    complete: Completion | Literal["auto"] = "auto",
    variant: Variant = "honaker",
    bound: PlanBound = "released",
) -> PrivacyPlan:
    """Return the plan of a run: calibrated to epsilon, or with the noise multiplier given.

    Parameters
    ----------
    participation : participation
        Who takes part when.
    epsilon, noise_multiplier : float or None
        Exactly one of them.
    delta : float
        Of the budget.
    clip_norm : float
        L.
    momentum : float
        Of the optimiser; schedules are ranked by the noise that it smooths.
    restart_every : int, None or "auto"
        "auto" is one tree for a single pass and the best row of `plan_schedule` for several. With a
        noise multiplier the rows are ranked for epsilon 1.
    complete, variant, bound
        As for `PrivacyPlan`; with "auto" the ranking chooses, where there is one, and nothing is
        completed else. A run gives out running sums only, so that "released" holds.

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above, or if no noise keeps the budget.

    Examples
    --------
    >>> plan = plan_of(
    ...     FixedEpochs(100, 10), epsilon=8.0, noise_multiplier=None, delta=1e-5, clip_norm=1.0
    ... )
    >>> plan.restart_every, plan.complete, plan.epsilon(1e-5) <= 8.0
    (100, True, True)
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            "expected either epsilon or noise_multiplier, got "
            f"epsilon={epsilon!r} and noise_multiplier={noise_multiplier!r}"
        )
    every: int | None = None
    completed: Completion = False if complete == "auto" else complete
    if restart_every != "auto":
        every = restart_every
    elif not isinstance(participation, SinglePass):
        best = plan_schedule(
            1.0 if epsilon is None else epsilon,
            delta,
            participation=participation,
            complete=(False, True) if complete == "auto" else complete,
            variants=variant,
            momentum=momentum,
            bound=bound,
            rank_by="smoothed" if momentum > 0.0 else "rms",
        ).best
        every, completed = best.restart_every, best.complete
    fields: dict[str, Any] = {
        "clip_norm": clip_norm,
        "participation": participation,
        "restart_every": every,
        "complete": completed,
        "variant": variant,
        "bound": bound,
    }
    if noise_multiplier is not None:
        plan = PrivacyPlan(noise_multiplier=noise_multiplier, **fields)
        plan.epsilon(delta)  # a delta at which nothing can be stated is refused here
        return plan
    assert epsilon is not None
    return PrivacyPlan.calibrate(epsilon=epsilon, delta=delta, **fields)
