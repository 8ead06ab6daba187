# SPDX-License-Identifier: Apache-2.0
"""From a budget to a plan: what is given is kept, the rest is the best row of the ranking."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, MinSeparation, SinglePass, plan_schedule
from dpftrl_fast.accounting.planner import choice
from dpftrl_fast.accounting.planner.mechanisms import best_mechanism
from dpftrl_fast.mechanisms import BandedInverse, Mechanism, Tree
from dpftrl_fast.mechanisms.workload import Workload
from dpftrl_fast.plan.from_budget import mechanism_of, plan_of

DELTA = 1e-5
MANY = FixedEpochs(20, 10)


def plan(pattern: Any = MANY, **options: Any) -> PrivacyPlan:
    fields = {"epsilon": None, "noise_multiplier": None, "delta": DELTA, "clip_norm": 1.0}
    asked = {
        "mechanism": "tree", "restart_every": "auto", "complete": "auto", "variant": "honaker"
    }  # fmt: skip
    asked.update({name: options.pop(name) for name in asked if name in options})
    if "momentum" in options:
        options["workload"] = Workload(options.pop("momentum"))
    return plan_of(pattern, mechanism=mechanism_of(asked), **{**fields, **options})


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


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("budget", [{"epsilon": 4.0}, {"noise_multiplier": 3.0}])
def test_auto_is_the_best_mechanism_for_the_workload(budget: Any, momentum: float) -> None:
    found = plan(mechanism="auto", momentum=momentum, **budget)
    ranked_for = budget.get("epsilon", 1.0)
    workload = Workload(momentum)
    assert found.mechanism == best_mechanism(ranked_for, DELTA, MANY, workload=workload)
    kept = found.noise_multiplier if "epsilon" not in budget else found.epsilon(DELTA)
    assert kept == pytest.approx(*budget.values(), rel=1e-6)


@pytest.mark.parametrize("bound", ["exact", "released"])
def test_auto_ranks_by_the_bound_of_the_plan(bound: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def best(*args: Any, **options: Any) -> Any:
        asked.append(options["bound"])
        return best_mechanism(*args, **options)

    monkeypatch.setattr(choice, "best_mechanism", best)
    choice._best.cache_clear()
    calibrated = PrivacyPlan.calibrate(
        epsilon=4.0, delta=DELTA, clip_norm=1.0, participation=MANY, bound=bound
    )
    assert calibrated.bound == bound
    plan(mechanism="auto", epsilon=4.0, bound=bound)
    assert asked == [bound]


def test_auto_keeps_no_more_vectors_than_allowed() -> None:
    none = plan(mechanism="auto", epsilon=4.0, max_vectors=0).mechanism
    assert not isinstance(none, Tree) and getattr(none, "vectors") == 0  # noqa: B009


def test_coefficients_are_rounded_before_they_are_accounted_for() -> None:
    given = BandedInverse.anticorrelated(0.9)
    for dtype in ("float32", "float64"):
        found = plan(mechanism=given, epsilon=4.0, dtype=dtype)
        assert found.mechanism == given.rounded(dtype)
        assert found.epsilon(DELTA) <= 4.0
        found.noise(3, dtype=dtype)  # type: ignore[arg-type]
    assert plan(mechanism=given, epsilon=4.0).mechanism == given


@pytest.mark.parametrize("given", [BandedInverse.square_root(4), Tree(restart_every=20)])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"restart_every": 5}, "restart_every=5 must come with mechanism='tree'"),
        ({"restart_every": None}, "restart_every=None must come"),
        ({"complete": True}, "complete=True must come"),
        ({"variant": "vanilla"}, "variant='vanilla' must come"),
    ],
)
def test_options_of_a_tree_are_refused_with_a_mechanism(
    given: Mechanism, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        plan(mechanism=given, epsilon=4.0, **options)


@pytest.mark.parametrize(
    ("wrong", "error"), [("best", ValueError), (3, TypeError), (None, TypeError), (Tree, TypeError)]
)
def test_what_is_no_mechanism_is_refused(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="mechanism must be"):
        plan(mechanism=wrong, epsilon=4.0)


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
