# SPDX-License-Identifier: Apache-2.0
"""From a budget to a plan: what is given is kept, the rest is the best row of the ranking."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, MinSeparation, SinglePass, plan_schedule
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.plan.from_budget import plan_of, tree_of

DELTA = 1e-5
MANY = FixedEpochs(20, 10)


def plan(pattern: Any = MANY, **options: Any) -> PrivacyPlan:
    fields = {"epsilon": None, "noise_multiplier": None, "delta": DELTA, "clip_norm": 1.0}
    asked = {"restart_every": "auto", "complete": "auto", "variant": "honaker"}
    asked.update({name: options.pop(name) for name in asked if name in options})
    return plan_of(pattern, mechanism=tree_of(asked), **{**fields, **options})


def tree(found: PrivacyPlan) -> Tree:
    assert isinstance(found.mechanism, Tree)
    return found.mechanism


def error(found: PrivacyPlan, momentum: float, by: str) -> float:
    """The error of a plan's own schedule, from a table of one row."""
    table = plan_schedule(
        found.epsilon(DELTA),
        DELTA,
        participation=found.participation,
        restart_every=[tree(found).restart_every],
        complete=tree(found).complete,  # type: ignore[arg-type]
        momentum=momentum,
        bound=found.bound,
    )
    return float(getattr(table.best, f"{by}_std"))


@pytest.mark.parametrize("pattern", [MANY, MinSeparation(200, 4, 50)])
@pytest.mark.parametrize(("momentum", "by"), [(0.0, "rms"), (0.9, "smoothed")])
def test_no_other_restarts_have_a_smaller_error(pattern: Any, momentum: float, by: str) -> None:
    found = plan(pattern, epsilon=4.0, momentum=momentum)
    assert found.epsilon(DELTA) <= 4.0
    least = error(found, momentum, by)
    for every in (20, 40, 50, 100, None):
        for complete in (False, True):
            other = plan(pattern, epsilon=4.0, restart_every=every, complete=complete)
            assert least <= error(other, momentum, by) * (1 + 1e-6)


def test_a_noise_multiplier_is_kept_with_the_schedule_of_the_ranking() -> None:
    found = plan(noise_multiplier=3.0, momentum=0.9)
    best = plan_schedule(1.0, DELTA, participation=MANY, momentum=0.9, rank_by="smoothed").best
    assert found.noise_multiplier == 3.0
    assert tree(found) == best.mechanism


def test_what_is_given_is_kept() -> None:
    found = plan(epsilon=4.0, restart_every=60, variant="vanilla", bound="exact", clip_norm=0.5)
    assert (found.mechanism, found.bound) == (Tree("vanilla", 60), "exact")
    assert found.clip_norm == 0.5
    assert tree(plan(epsilon=4.0, complete=False)).complete is False
    assert tree(plan(epsilon=4.0, complete="all")).complete == "all"
    assert plan(SinglePass(50), epsilon=4.0).mechanism == Tree()
    assert plan(SinglePass(50), epsilon=4.0, complete="all").mechanism == Tree(complete="all")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "either epsilon or noise_multiplier"),
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, "either epsilon or noise_multiplier"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"noise_multiplier": 1.0, "delta": 0.0}, "delta"),
        ({"noise_multiplier": 1.0, "delta": math.nan}, "delta"),
        ({"epsilon": 1.0, "momentum": 1.0}, "momentum"),
        ({"epsilon": 1.0, "momentum": math.nan}, "momentum"),
        ({"epsilon": 1.0, "clip_norm": math.inf}, "clip_norm"),
        ({"epsilon": 1.0, "restart_every": 0}, "restart_every"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        plan(**options)
