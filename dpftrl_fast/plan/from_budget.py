# SPDX-License-Identifier: Apache-2.0
"""The plan of a run from a budget: with the planner's best mechanism, or a given one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpftrl_fast._validate import flag
from dpftrl_fast.accounting import FixedEpochs, Participation, SinglePass
from dpftrl_fast.accounting.planner.choice import (
    MAX_VECTORS,
    MechanismChoice,
    TreeSearch,
    check_choice,
    chosen_mechanism,
)
from dpftrl_fast.accounting.sensitivity.squared import PlanBound
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.mechanisms.workload import Workload
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


def mechanism_of(options: Mapping[str, Any]) -> MechanismChoice:
    """Return the choice of a mechanism that a front end's options ask for.

    Parameters
    ----------
    options : mapping
        With the keys "mechanism" (by default "auto"), "restart_every", "complete" and "variant".
        The last three are those of `Tree`, or "auto" for the first two of them; given otherwise,
        they ask for a tree. Other keys are not read.

    Raises
    ------
    TypeError, ValueError
        If the mechanism is none, or comes together with options of a tree.

    Examples
    --------
    >>> mechanism_of({"restart_every": 500, "complete": "auto", "variant": "honaker"})
    Tree(variant='honaker', restart_every=500, tree_lengths=None, complete=False)
    >>> mechanism_of({"restart_every": "auto", "complete": "auto", "variant": "honaker"})
    'auto'
    """
    mechanism = check_choice(options.get("mechanism", "auto"))
    every, complete = options.get("restart_every", "auto"), options["complete"]
    variant = options["variant"]
    given = [
        f"{name}={value!r}"
        for name, value, default in (
            ("restart_every", every, "auto"),
            ("complete", complete, "auto"),
            ("variant", variant, "honaker"),
        )
        if type(value) is not type(default) or value != default
    ]
    if not isinstance(mechanism, str):
        if given:
            raise ValueError(
                f"{', '.join(given)} must come with mechanism='tree', got {mechanism!r}: put the "
                "options into a Tree"
            )
        return mechanism
    if mechanism == "auto" and not given:
        return "auto"
    if every == "auto":
        return TreeSearch(variant, complete)
    return Tree(variant, every, complete=False if complete == "auto" else complete)


def plan_of(
    participation: Participation,
    *,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    clip_norm: float,
    workload: Workload = Workload(),
    mechanism: MechanismChoice = "auto",
    max_vectors: int | None = MAX_VECTORS,
    dtype: Any = None,
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
    workload : Workload
        Of the run: mechanisms are ranked by its error.
    mechanism, max_vectors, dtype
        As for :func:`~dpftrl_fast.accounting.planner.choice.chosen_mechanism`. With a noise
        multiplier mechanisms are ranked for epsilon 1.
    bound
        As for `PrivacyPlan`. A run releases running sums only, so that "released" holds.

    Examples
    --------
    >>> plan = plan_of(
    ...     FixedEpochs(100, 10), epsilon=8.0, noise_multiplier=None, delta=1e-5, clip_norm=1.0,
    ...     mechanism="tree",
    ... )
    >>> plan.mechanism.restart_every, plan.mechanism.complete, plan.epsilon(1e-5) <= 8.0
    (100, True, True)
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            "expected either epsilon or noise_multiplier, got "
            f"epsilon={epsilon!r} and noise_multiplier={noise_multiplier!r}"
        )
    chosen = chosen_mechanism(
        mechanism,
        participation,
        1.0 if epsilon is None else epsilon,
        delta,
        workload=workload,
        max_vectors=max_vectors,
        bound=bound,
        dtype=dtype,
    )
    fields: dict[str, Any] = {
        "clip_norm": clip_norm,
        "participation": participation,
        "mechanism": chosen,
        "bound": bound,
    }
    if noise_multiplier is not None:
        plan = PrivacyPlan(noise_multiplier=noise_multiplier, **fields)
        stated_epsilon(plan, delta)
        return plan
    assert epsilon is not None
    return PrivacyPlan.calibrate(epsilon=epsilon, delta=delta, **fields)


def stated_epsilon(plan: PrivacyPlan, delta: float) -> float:
    """Return the epsilon of a plan; ValueError if its noise is too small for one at this delta.

    Examples
    --------
    >>> stated_epsilon(PrivacyPlan(1.0, 0.1, SinglePass(3)), 1e-5)
    Traceback (most recent call last):
    ...
    ValueError: noise_multiplier must be large enough for an epsilon at delta 1e-05, got 0.1: give \
epsilon instead, and the multiplier is computed
    """
    try:
        return plan.epsilon(delta)
    except ValueError as error:
        if not 0.0 < delta < 1.0 or plan.delta_floor < delta:
            raise
        raise ValueError(
            f"noise_multiplier must be large enough for an epsilon at delta {delta}, got "
            f"{plan.noise_multiplier}: give epsilon instead, and the multiplier is computed"
        ) from error
