# SPDX-License-Identifier: Apache-2.0
"""From public parameters to the plan of a run on one tree after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpftrl_fast.accounting import FixedEpochs, Participation, SinglePass, plan_schedule
from dpftrl_fast.accounting.choices import PlanBound
from dpftrl_fast.plan import PrivacyPlan

__all__ = ["make_plan", "participation_of"]


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


def make_plan(
    parameters: Mapping[str, Any], participation: Participation, *, bound: PlanBound = "released"
) -> PrivacyPlan:
    """Return the plan of a run, calibrated to `epsilon` or with the given `noise_multiplier`.

    ``restart_every="auto"`` is one tree for a single pass, and the best row of
    `dpftrl_fast.accounting.plan_schedule` for several: by the noise in the running sums, smoothed
    by the momentum if there is one. With a given noise multiplier the rows are ranked for epsilon
    1, and the row's restarts are taken.

    Parameters
    ----------
    parameters : mapping
        Checked: epsilon, delta, noise_multiplier, clip_norm, variant, restart_every, complete, and
        momentum where there is one.
    participation : participation
        Who takes part when.
    bound : {"released", "exact"}
        What zeta covers, see `dpftrl_fast.PrivacyPlan`: a run gives out running sums only.

    Raises
    ------
    ValueError
        If no noise keeps the budget.

    Examples
    --------
    >>> plan = make_plan(
    ...     {"epsilon": 1.0, "delta": 1e-6, "noise_multiplier": None, "clip_norm": 0.3,
    ...      "variant": "honaker", "restart_every": "auto", "complete": "auto"},
    ...     SinglePass(100),
    ... )
    >>> plan.restart_every, plan.complete, plan.epsilon(1e-6) <= 1.0
    (None, False, True)
    """
    every, complete = parameters["restart_every"], parameters["complete"]
    if every == "auto" and isinstance(participation, SinglePass):
        every = None
    if every == "auto":
        momentum = parameters.get("momentum", 0.0)
        best = plan_schedule(
            parameters["epsilon"] or 1.0,
            parameters["delta"],
            participation=participation,
            complete=(False, True) if complete == "auto" else complete,
            variants=parameters["variant"],
            momentum=momentum,
            bound=bound,
            rank_by="smoothed" if momentum > 0.0 else "rms",
        ).best
        every, complete = best.restart_every, best.complete
    fields: dict[str, Any] = {
        "clip_norm": parameters["clip_norm"],
        "participation": participation,
        "restart_every": every,
        "complete": False if complete == "auto" else complete,
        "variant": parameters["variant"],
        "bound": bound,
    }
    if parameters["epsilon"] is None:
        plan = PrivacyPlan(noise_multiplier=parameters["noise_multiplier"], **fields)
        plan.epsilon(parameters["delta"])  # a delta at which nothing can be stated is refused here
        return plan
    return PrivacyPlan.calibrate(epsilon=parameters["epsilon"], delta=parameters["delta"], **fields)
