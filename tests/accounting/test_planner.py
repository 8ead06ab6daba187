# SPDX-License-Identifier: Apache-2.0
"""The planner: the known figures, the ranking, and that every row keeps its budget."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.planner.schedules import Schedule, plan_schedule
from dpftrl_fast.mechanisms import Tree


def rows_by_schedule(table: acc.ScheduleTable) -> dict[tuple[Any, Any], Schedule]:
    return {(row.restart_every, row.complete): row for row in table}


@pytest.fixture(scope="module")
def exact() -> acc.ScheduleTable:
    return plan_schedule(8, 1e-5, 100, 100, bound="exact")


@pytest.fixture(scope="module")
def released() -> acc.ScheduleTable:
    return plan_schedule(8, 1e-5, 100, 100)


# The paper's CIFAR setting: restart every so many epochs, completed or not.
FIGURES = [
    (500, True, 64.6, 23.78, 1570),
    (2000, True, 78.3, 38.57, 4129),
    (2000, False, 83.8, 27.67, 2125),
    (100, True, 87.9, 16.97, 799),
    (500, False, 107.5, 18.98, 1000),
    (None, False, 137.0, 71.90, 14349),
]


@pytest.mark.parametrize(("every", "complete", "rms", "sigma", "zeta"), FIGURES)
def test_figures(
    exact: acc.ScheduleTable, every: Any, complete: bool, rms: float, sigma: float, zeta: int
) -> None:
    row = rows_by_schedule(exact)[every, complete]
    assert round(row.rms_std, 1) == rms
    assert round(row.noise_multiplier, 2) == sigma
    assert row.sensitivity_squared == zeta


def test_the_winner_restarts_every_5_epochs_with_completion(exact: acc.ScheduleTable) -> None:
    assert (exact.best.restart_every, exact.best.complete) == (500, True)
    figures = {(every, complete) for every, complete, *_ in FIGURES}
    ranked = [key for key in rows_by_schedule(exact) if key in figures]
    assert ranked == [(every, complete) for every, complete, *_ in FIGURES]


def test_released_figures(exact: acc.ScheduleTable, released: acc.ScheduleTable) -> None:
    assert (released.best.restart_every, released.best.complete) == (500, True)
    assert released.best.rms_std == pytest.approx(61.7, abs=0.05)
    assert rows_by_schedule(released)[2000, False].rms_std == pytest.approx(80.7, abs=0.1)
    smaller = rows_by_schedule(released)
    for key, row in rows_by_schedule(exact).items():
        assert smaller[key].noise_multiplier < row.noise_multiplier


def test_default_periods_are_in_epochs(exact: acc.ScheduleTable) -> None:
    periods = {row.restart_every for row in exact}
    assert periods == {100, 200, 500, 1000, 2000, 5000, None}
    assert len(exact) == 13  # the one tree is completed or not at no restart


@pytest.mark.parametrize("bound", ["exact", "released"])
@pytest.mark.parametrize("variant", ["honaker", "vanilla"])
def test_every_row_is_a_plan_that_keeps_the_budget(bound: Any, variant: Any) -> None:
    table = plan_schedule(
        2, 1e-6, 7, 6, bound=bound, variants=variant, complete=(False, True, "all")
    )
    for row in table:
        plan = PrivacyPlan.from_schedule(row, clip_norm=1.0)
        assert plan.sensitivity_squared == row.sensitivity_squared
        assert plan.epsilon(1e-6) <= 2 < plan.epsilon(1e-6) * (1 + 1e-12)
        assert row.mechanism == Tree(variant, row.restart_every, complete=row.complete)
        same = PrivacyPlan.calibrate(
            epsilon=2, delta=1e-6, clip_norm=1.0, participation=row.participation,
            mechanism=row.mechanism, bound=bound,
        )  # fmt: skip
        assert same == plan


def test_errors_of_a_row_are_those_of_its_run() -> None:
    for row in plan_schedule(3, 1e-5, 5, 7, momentum=0.8, variants=("honaker", "vanilla")):
        tree = Tree(row.variant, row.restart_every, complete=row.complete)
        unit = acc.noise_std(35, tree, momentum=0.8)
        prefix = row.noise_multiplier * unit.prefix
        assert row.rms_std == pytest.approx(np.sqrt(np.mean(prefix**2)), rel=1e-12)
        assert row.last_std == prefix[-1] and row.worst_std == prefix.max()
        smoothed = row.noise_multiplier * unit.smoothed
        assert row.smoothed_std == pytest.approx(np.sqrt(np.mean(smoothed**2)), rel=1e-12)
        np.testing.assert_array_equal(row.noise_std().smoothed, smoothed)


@pytest.mark.parametrize("rank_by", ["rms", "last", "worst", "smoothed"])
def test_ranking(rank_by: Any) -> None:
    table = plan_schedule(8, 1e-5, 20, 30, momentum=0.9, rank_by=rank_by)
    errors = [getattr(row, f"{rank_by}_std") for row in table]
    assert errors == sorted(errors) and table.best is table[0]
    assert len({row.restart_every for row in table}) > 3


def test_the_best_schedule_depends_on_the_error() -> None:
    by = {
        rank_by: plan_schedule(8, 1e-5, 100, 100, rank_by=rank_by).best  # type: ignore[arg-type]
        for rank_by in ("rms", "last")
    }
    assert by["last"].last_std < by["rms"].last_std
    assert by["rms"].rms_std < by["last"].rms_std


def test_schedules_that_do_not_differ_come_once() -> None:
    table = plan_schedule(
        8, 1e-5, 8, 4, restart_every=(8, 16, 32, 99, None), complete=(False, True, "all")
    )
    # trees of powers of two are complete
    assert {(row.restart_every, row.complete) for row in table} == {
        (8, False), (16, False), (None, False)
    }  # fmt: skip
    # the last tree, of 3 steps, is not
    table = plan_schedule(8, 1e-5, participation=acc.SinglePass(11), restart_every=4,
                          complete=(False, True, "all"))  # fmt: skip
    assert {row.complete for row in table} == {False, "all"}


@pytest.mark.parametrize(
    ("participation", "periods"),
    [
        (acc.SinglePass(20), {1, 2, 4, 8, 16, None}),
        (acc.FixedOrder([0, 1, 0, -1, 1]), {1, 2, 4, None}),
        (acc.MinSeparation(100, 3, 7), {7, 14, 35, 70, None}),
        (acc.FixedEpochs(3, 4, reshuffle=False), {3, 6, None}),
    ],
)
def test_other_patterns(participation: Any, periods: set[int | None]) -> None:
    table = plan_schedule(1, 1e-6, participation=participation, complete=False)
    assert {row.restart_every for row in table} == periods
    for row in table:
        assert row.participation == participation
        assert PrivacyPlan.from_schedule(row, clip_norm=2.0).epsilon(1e-6) <= 1


def test_one_order_for_the_whole_run_needs_no_more_noise() -> None:
    dealt = plan_schedule(8, 1e-5, participation=acc.FixedEpochs(10, 6), restart_every=15)
    kept = plan_schedule(
        8, 1e-5, participation=acc.FixedEpochs(10, 6, reshuffle=False), restart_every=15
    )
    assert len(kept) == len(dealt) == 2
    for key, row in rows_by_schedule(dealt).items():
        assert rows_by_schedule(kept)[key].noise_multiplier < row.noise_multiplier


def test_progress() -> None:
    calls: list[tuple[int, int]] = []
    table = plan_schedule(8, 1e-5, 4, 5, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(i + 1, len(table)) for i in range(len(table))]


def test_table_as_text_and_dicts(exact: acc.ScheduleTable) -> None:
    lines = str(exact).splitlines()
    assert lines[0].startswith("epsilon 8 at delta 1e-05 (neighbours: one record's (or user's)")
    assert "bound 'exact'" in lines[1] and "smoothed" not in lines[2]
    assert lines[3].split()[:3] == ["500", "True", "honaker"] and lines[3].split()[5] == "64.6"
    assert len(lines) == 3 + len(exact)
    dicts = json.loads(json.dumps(exact.to_dicts()))
    assert dicts[0]["participation"] == acc.FixedEpochs(100, 100).to_dict()
    assert dicts[0]["rms_std"] == exact.best.rms_std
    assert "smoothed" in str(plan_schedule(8, 1e-5, 4, 5, momentum=0.5))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"epsilon": -1}, ValueError, "epsilon must be a finite number > 0"),
        ({"epsilon": float("nan")}, ValueError, "epsilon must be"),
        ({"delta": 1}, ValueError, "delta must be"),
        ({"delta": float("nan")}, ValueError, "delta must be"),
        ({"epochs": None}, ValueError, "steps_per_epoch=4 and epochs=None"),
        ({"epochs": 0}, ValueError, "epochs must be an integer in .*, got 0"),
        ({"participation": acc.SinglePass(5)}, ValueError, "got both"),
        ({"steps_per_epoch": None, "epochs": None, "participation": 5}, TypeError,
         "participation must be"),
        ({"restart_every": 0}, ValueError, "restart_every must be an integer >= 1, got 0"),
        ({"restart_every": [True]}, TypeError, "restart_every must be an integer >= 1, got bool"),
        ({"restart_every": []}, ValueError, "at least one period or None"),
        ({"restart_every": 2.5}, TypeError, "restart_every must be"),
        ({"complete": "some"}, ValueError, "each of complete must be one of"),
        ({"complete": [1]}, ValueError, "each of complete must be one of"),
        ({"complete": []}, ValueError, "at least one of"),
        ({"complete": None}, TypeError, "complete must hold"),
        ({"variants": "binary"}, ValueError, "each of variants must be one of"),
        ({"momentum": 1}, ValueError, "momentum must be"),
        ({"bound": "level"}, ValueError, "bound must be one of 'exact', 'released'"),
        ({"rank_by": "mean"}, ValueError, "rank_by must be one of"),
        ({"steps_per_epoch": 2**30}, ValueError, "steps must be at most 2\\^26"),
        ({"steps_per_epoch": 2**40}, ValueError, "an integer in .*, got 5497558138880"),
    ],
)  # fmt: skip
def test_bad_input(change: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments: dict[str, Any] = {
        "epsilon": 8, "delta": 1e-5, "steps_per_epoch": 4, "epochs": 5, "bound": "exact", **change
    }  # fmt: skip
    with pytest.raises(error, match=words):
        plan_schedule(**arguments)
