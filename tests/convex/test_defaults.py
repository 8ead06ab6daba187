# SPDX-License-Identifier: Apache-2.0
"""The rules for "auto": by hand, as properties of the facts, and what they announce."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.convex.glm import defaults
from dpftrl_fast.convex.glm.outlook import LearningWarning, problems
from dpftrl_fast.convex.glm.rates import prediction_noise, stable_rate, tolerated_noise
from dpftrl_fast.convex.glm.sums import Objective, clipped_sum
from dpftrl_fast.convex.least_squares.settings import LeastSquaresSettings
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.convex.settings import FitSettings, RunSettings
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

SQUARED = Objective("squared", 9, row_bound=3.0, constant=4.0)  # rows of norm 5
LOSSES = [
    ("squared", 1, 1.0), ("huber", 1, 0.3), ("epsilon_insensitive", 1, 0.1), ("quantile", 1, 0.8),
    ("linear", 1, 1.0), ("logistic", 1, 1.0), ("hinge", 1, 1.0), ("multinomial", 4, 1.0),
    ("hinge", 4, 1.0),
]  # fmt: skip


def noise_of(run: RunSettings, units: int, objective: Objective) -> float:
    """Return the noise of the largest row's prediction under these settings."""
    rate = run.learning_rate
    assert not isinstance(rate, str)
    return prediction_noise(
        objective, run.plan(units), batch_size=run.batch_size, rate=rate / (1.0 - run.momentum)
    )


@pytest.mark.parametrize(("loss", "outputs", "param"), LOSSES)
def test_the_largest_first_gradient_is_that_of_some_row(
    loss: str, outputs: int, param: float
) -> None:
    objective = Objective(
        loss, 2, outputs=outputs, clip_norm=1e6, loss_param=param, row_bound=3.0, constant=4.0
    )
    largest = 0.0
    for x in ([3.0, 0.0], [-1.8, 2.4]):
        for y in range(outputs) if outputs > 1 else (-1.0, 0.0, 1.0):
            batch = Batch(np.array([x]), np.array([float(y)]))
            total = clipped_sum(objective, np.zeros(objective.shape), batch)
            largest = max(largest, float(np.linalg.norm(total)))
    assert defaults.largest_gradient(objective) == pytest.approx(largest, rel=1e-5)
    assert defaults.largest_gradient(objective, 7.0) == pytest.approx(7 * largest, rel=1e-5)


def test_labels_are_clipped_less_where_the_noise_allows_it() -> None:
    labels = replace(SQUARED, loss="logistic")
    found = {n: FitSettings(epsilon=1.0).resolved(n, labels) for n in (200, 10**4, 10**6)}
    shares = [run.clip_norm / 2.5 for run in found.values()]
    assert shares[0] == pytest.approx(0.2) and shares[2] == 2.0 and 0.2 < shares[1] < 2.0
    for n, run in found.items():
        assert noise_of(run, n, labels) <= 5.0 * (1 + 1e-9)
    # As much of the gradient is kept as 16 passes allow, and these are then enough.
    assert found[10**4].epochs == 16
    assert noise_of(found[10**4], 10**4, labels) == pytest.approx(5.0, rel=1e-5)


def test_small_data_take_more_passes_until_the_noise_is_tolerable() -> None:
    found = {n: FitSettings(epsilon=1.0).resolved(n, SQUARED) for n in (300, 10**4, 10**5, 10**6)}
    assert [run.epochs for run in found.values()] == sorted(
        (run.epochs for run in found.values()), reverse=True
    )
    assert found[300].epochs == 64 and found[10**6].epochs == 1
    assert found[300].clip_norm == pytest.approx(0.5) and found[10**6].clip_norm == 1.0
    for n, run in found.items():
        steps = run.epochs * math.ceil(n / run.batch_size)
        assert 500 <= steps <= 520 and run.momentum == 0.9 and 0.5 <= run.clip_norm <= 1.0
        assert noise_of(run, n, SQUARED) <= 0.5 * (1 + 1e-9)
        assert run.learning_rate <= 0.1 * stable_rate(SQUARED, 0.9) * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 5000), st.sampled_from([0.1, 1.0, 10.0]),
    st.sampled_from([None, 1, 7, 100]), st.sampled_from([None, 1, 3]),
)  # fmt: skip
def test_given_numbers_stay_and_the_others_are_in_range(
    units: int, epsilon: float, batch_size: int | None, epochs: int | None
) -> None:
    asked: dict[str, Any] = {}
    if batch_size is not None:
        asked["batch_size"] = min(batch_size, units)
    if epochs is not None:
        asked["epochs"] = epochs
    run = FitSettings(epsilon=epsilon, mechanism="tree", **asked).resolved(units, SQUARED)
    for name, value in asked.items():
        assert getattr(run, name) == value
    assert 1 <= run.batch_size <= units and run.epochs >= 1
    assert math.isfinite(run.learning_rate) and run.learning_rate > 0.0  # type: ignore[arg-type]
    plan = run.plan(units)
    assert plan.epsilon(run.delta) <= epsilon and plan.clip_norm == run.clip_norm
    assert run.resolved(units, SQUARED) == run  # numbers are kept


def test_a_given_rate_has_no_momentum_unless_it_is_given() -> None:
    for asked, momentum in (
        ({"learning_rate": 0.1}, 0.0), ({"learning_rate": 0.1, "momentum": 0.5}, 0.5),
        ({"learning_rate": "theory"}, 0.0), ({}, 0.9), ({"momentum": 0.0}, 0.0),
        ({"batch_size": 1000, "epochs": 5}, 0.0),  # a short run
    ):  # fmt: skip
        assert FitSettings(**asked).resolved(2000, SQUARED).momentum == momentum


def test_a_given_noise_multiplier_is_spent_on_one_epoch() -> None:
    """More epochs would raise epsilon, which nobody has limited."""
    for asked in ({}, {"batch_size": 50}):
        run = FitSettings(epsilon=None, noise_multiplier=3.0, **asked).resolved(1000, SQUARED)
        assert run.epochs == 1
    two = FitSettings(epsilon=None, noise_multiplier=3.0, epochs=2).resolved(1000, SQUARED)
    assert two.epochs == 2


def test_users_with_many_rows_have_a_larger_clip_norm_and_a_smaller_rate() -> None:
    rows = FitSettings(epsilon=100.0).resolved(10**6, SQUARED)
    users = FitSettings(epsilon=100.0).resolved(10**6, SQUARED, rows_per_unit=4.0)
    assert users.clip_norm == 4 * rows.clip_norm
    assert users.learning_rate == pytest.approx(rows.learning_rate / 4)  # type: ignore[operator]


def test_the_tolerated_noise_is_smaller_in_a_ball() -> None:
    assert tolerated_noise(SQUARED, 0.01) == pytest.approx(0.05)
    assert tolerated_noise(SQUARED, 10.0) == 0.5


def test_a_run_takes_numbers_only() -> None:
    for name in ("batch_size", "epochs", "clip_norm", "momentum"):
        with pytest.raises(ValueError, match=f"{name} must be a number, got 'auto'"):
            RunSettings(**{name: "auto"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size must be a number for a plan, got 'auto'"):
        LeastSquaresSettings().plan(10, x_norm_bound=1.0, y_bound=1.0)


def test_least_squares_takes_all_rows_in_one_step_if_only_the_last_model_counts() -> None:
    for settings_, units, regret, expected in (
        (LeastSquaresSettings(), 1000, False, 1000),
        (LeastSquaresSettings(), 10**6, False, 65_536),
        (LeastSquaresSettings(), 1000, True, 256),
        (LeastSquaresSettings(solve_every=5), 1000, False, 256),
        (LeastSquaresSettings(batch_size=7), 1000, False, 7),
    ):
        assert settings_.resolved(units, regret=regret).batch_size == expected
    noise = [
        LeastSquaresSettings(batch_size=size).plan(10_000, x_norm_bound=1.0, y_bound=1.0)
        for size in (10_000, 256)
    ]
    one, many = (p.noise_multiplier * math.sqrt(p.variance_factors[-1]) for p in noise)
    assert one < 0.7 * many


# ---- What is announced ----


def announced(run: RunSettings, units: int = 10_000) -> list[str]:
    rate = run.learning_rate
    assert not isinstance(rate, str)
    plan: PrivacyPlan = run.plan(units)
    objective = replace(SQUARED, clip_norm=run.clip_norm)
    return [
        *problems(
            objective, plan, batch_size=run.batch_size, learning_rate=rate, momentum=run.momentum
        )
    ]


def test_a_good_run_has_no_problem() -> None:
    assert announced(FitSettings().resolved(10_000, SQUARED)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 2000, "learning_rate": 0.2}, "the run has only 5 steps"),
        ({"batch_size": 10_000, "learning_rate": 0.5}, "the run has only 1 step:"),
        ({"learning_rate": 1e-6}, "no prediction can move by more than"),
        ({"learning_rate": 1e9}, "the noise of a prediction has a standard deviation of up to"),
    ],
)
def test_a_run_that_cannot_learn_is_announced(change: dict[str, Any], words: str) -> None:
    run = RunSettings(**{"batch_size": 100, "learning_rate": 0.02, **change})
    found = announced(run)
    assert len(found) == 1 and words in found[0]
    assert str(LearningWarning(found[0])).startswith("this model may not learn: ")


def test_seven_steps_are_few_and_eight_are_not() -> None:
    few, enough = (RunSettings(batch_size=size, learning_rate=0.3) for size in (1429, 1250))
    assert "only 7 steps" in announced(few)[0]
    assert announced(enough) == []


def test_the_bound_on_the_travel_of_a_prediction_is_reached() -> None:
    """Gradients that all point one way move the largest row's prediction as far as is said."""
    objective = Objective("linear", 1, clip_norm=0.5, row_bound=1.0)
    run = RunSettings(batch_size=4, learning_rate=0.01, clip_norm=0.5)
    plan = PrivacyPlan(0.5, 1e-6, SinglePass(10))
    engine = run.start(objective, plan)
    for _ in range(10):
        engine.step(Batch(np.ones((4, 1)), np.ones(4)))
    travel = 0.01 * 0.5 * 10
    assert abs(engine.last[0, 0]) == pytest.approx(travel, rel=1e-4)
    (text,) = problems(objective, plan, batch_size=4, learning_rate=0.01, momentum=0.0)
    assert f"more than {travel:.2g} " in text
