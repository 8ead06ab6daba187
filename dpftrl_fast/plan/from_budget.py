# SPDX-License-Identifier: Apache-2.0
"""The plan of a run from a budget: with the planner's best schedule, or a given one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dpftrl_fast._validate import flag
from dpftrl_fast.accounting import FixedEpochs, Participation, SinglePass, plan_schedule
from dpftrl_fast.accounting.sensitivity.squared import PlanBound
from dpftrl_fast.mechanisms import Completion, Mechanism, Tree, Variant
from dpftrl_fast.plan.privacy_plan import PrivacyPlan


def participation_of(units: int, batch_size: int, epochs: int, shuffle: bool) -> Participation:
    """Return the participation of rows (or users) in batches of a fixed size.

    Examples
    --------
    >>> participation_of(10, 4, 1, False), participation_of(10, 4, 2, False)
    (SinglePass(steps=3), FixedEpochs(steps_per_epoch=3, epochs=2, reshuffle=False))
    """
    reshuffle = flag("shuffle", shuffle)
    steps = -(-units // batch_size)
    if epochs == 1:
        return SinglePass(steps)
    return FixedEpochs(steps, epochs, reshuffle=reshuffle)


@dataclass(frozen=True)
class TreeSearch:
    """A tree whose restarts the planner chooses: the best row of `plan_schedule`.

    Parameters
    ----------
    variant : {"honaker", "vanilla"}
        As for `Tree`.
    complete : bool, "all" or "auto"
        As for `Tree`; with "auto" the ranking chooses between False and True.
    """

    variant: Variant = "honaker"
    complete: Completion | Literal["auto"] = "auto"

    def best(
        self,
        participation: Participation,
        epsilon: float,
        delta: float,
        *,
        momentum: float = 0.0,
        bound: PlanBound = "released",
    ) -> Tree:
        """Return the best tree for a budget; for a single pass, one tree."""
        if isinstance(participation, SinglePass):
            return Tree(self.variant, complete=self.complete != "auto" and self.complete)
        return plan_schedule(
            epsilon,
            delta,
            participation=participation,
            complete=(False, True) if self.complete == "auto" else self.complete,
            variants=self.variant,
            momentum=momentum,
            bound=bound,
            rank_by="smoothed" if momentum > 0.0 else "rms",
        ).best.mechanism


def tree_of(options: Mapping[str, Any]) -> Tree | TreeSearch:
    """Return the mechanism that a front end's options ask for.

    Parameters
    ----------
    options : mapping
        With the keys "restart_every", "complete" and "variant", as for `Tree`; the first two may be
        "auto". Other keys are not read.

    Examples
    --------
    >>> tree_of({"restart_every": 500, "complete": "auto", "variant": "honaker"})
    Tree(variant='honaker', restart_every=500, tree_lengths=None, complete=False)
    """
    variant, complete = options["variant"], options["complete"]
    if options["restart_every"] == "auto":
        return TreeSearch(variant, complete)
    completed = False if complete == "auto" else complete
    return Tree(variant, options["restart_every"], complete=completed)


def plan_of(
    participation: Participation,
    *,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    clip_norm: float,
    momentum: float = 0.0,
    mechanism: Mechanism | TreeSearch | Literal["auto"] = "auto",
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
    mechanism : Tree, TreeSearch or "auto"
        "auto" is ``TreeSearch()``: one tree for a single pass and the best row of `plan_schedule`
        for several. With a noise multiplier the rows are ranked for epsilon 1.
    bound
        As for `PrivacyPlan`. A run releases running sums only, so that "released" holds.

    Examples
    --------
    >>> plan = plan_of(
    ...     FixedEpochs(100, 10), epsilon=8.0, noise_multiplier=None, delta=1e-5, clip_norm=1.0
    ... )
    >>> plan.mechanism.restart_every, plan.mechanism.complete, plan.epsilon(1e-5) <= 8.0
    (100, True, True)
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            "expected either epsilon or noise_multiplier, got "
            f"epsilon={epsilon!r} and noise_multiplier={noise_multiplier!r}"
        )
    chosen = TreeSearch() if mechanism == "auto" else mechanism
    if isinstance(chosen, TreeSearch):
        budget = 1.0 if epsilon is None else epsilon
        chosen = chosen.best(participation, budget, delta, momentum=momentum, bound=bound)
    fields: dict[str, Any] = {
        "clip_norm": clip_norm,
        "participation": participation,
        "mechanism": chosen,
        "bound": bound,
    }
    if noise_multiplier is not None:
        plan = PrivacyPlan(noise_multiplier=noise_multiplier, **fields)
        plan.epsilon(delta)  # a delta at which nothing can be stated is refused here
        return plan
    assert epsilon is not None
    return PrivacyPlan.calibrate(epsilon=epsilon, delta=delta, **fields)
