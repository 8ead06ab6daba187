# SPDX-License-Identifier: Apache-2.0
"""Runs over users, and least squares: against estimators and plain sums, and what is bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitting_cases import (
    BATCH,
    CLASSES,
    GARBAGE,
    REGRESSION,
    ROWS,
    SEVERAL,
    USERS,
    Array,
    Lines,
    clipped,
    features,
    gradient_sums,
    lines,
    table,
)

from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.least_squares.sums import batch_sums
from dpftrl_fast.fitting import LeastSquaresSettings, RunSettings, fit, make_plan
from dpftrl_fast.fitting.evaluation import scores
from dpftrl_fast.fitting.model_file import model_facts
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.tables import TableError
from dpftrl_fast.tables.schema import Schema

BY_USER = {**REGRESSION, **USERS}
FTRL = RunSettings(batch_size=3, clip_norm=0.5, noise_seed=3, learning_rate=1.0)


def who(rows: Lines) -> list[str]:
    return [row.split(",")[5] for row in rows]


# ---- Users ----


def test_the_sums_of_users_are_those_of_a_plain_computation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = lines()
    sums, thetas, sizes = gradient_sums(table(tmp_path / "t.csv", rows, BY_USER), FTRL, monkeypatch)
    x, y = features(rows)
    order = list(dict.fromkeys(who(rows)))  # as they first appear
    assert len(order) == 11 and sum(sizes) == ROWS and len(sums) == 4
    for t, (found, theta) in enumerate(zip(sums, thetas, strict=True)):
        wanted = np.zeros(5)
        for user in order[3 * t : 3 * t + 3]:
            mine = np.array([name == user for name in who(rows)])
            wanted += clipped((x[mine] @ theta[0] - y[mine]) @ x[mine], 0.5)
        np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_fit_by_user_is_that_of_the_estimator(tmp_path: Path, epochs: int) -> None:
    settings = RunSettings(
        batch_size=3, clip_norm=0.5, noise_seed=3, epochs=epochs, learning_rate=1.0
    )
    rows = lines(users=12)
    result = fit(table(tmp_path / "t.csv", rows, BY_USER), settings)
    estimator = DPFTRLRegressor(
        batch_size=3, clip_norm=0.5, noise_seed=3, epochs=epochs, learning_rate=1.0,
        fit_intercept=False,
    ).fit(*features(rows), groups=who(rows))  # fmt: skip
    assert result.plan == estimator.plan_ and result.steps == 4 * epochs
    np.testing.assert_allclose(result.last, estimator.coef_last_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.tail, estimator.coef_tail_, rtol=1e-4, atol=1e-5)
    assert model_facts(result)["neighbours"] == "one user replaced by zero"


def test_several_classes_by_user_are_those_of_the_estimator(tmp_path: Path) -> None:
    rows = lines(users=12)
    settings = RunSettings(batch_size=3, clip_norm=0.5, noise_seed=3, learning_rate=1.0)
    result = fit(table(tmp_path / "t.csv", rows, {**SEVERAL, **USERS}), settings)
    labels = ["low", "mid", "high"]
    estimator = DPFTRLClassifier(
        batch_size=3, epochs=1, clip_norm=0.5, noise_seed=3, learning_rate=1.0, fit_intercept=False,
        loss="multinomial", classes=[0, 1, 2],
    )  # fmt: skip
    classes = [labels.index(row.split(",")[4]) for row in rows]
    estimator.fit(features(rows)[0], classes, groups=who(rows))
    np.testing.assert_allclose(result.last, estimator.coef_last_, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("schema", "loss"), [(REGRESSION, "squared"), (CLASSES, "hinge"), (SEVERAL, "multinomial")]
)
def test_one_user_changes_one_sum_a_pass_by_at_most_the_clip_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: dict[str, Any], loss: str
) -> None:
    settings = RunSettings(
        batch_size=3, clip_norm=0.2, loss=loss, noise_multiplier=1.0, epsilon=None, epochs=2
    )
    path, rows = tmp_path / "t.csv", lines()
    user = who(rows)[4]
    mine = [i for i, name in enumerate(who(rows)) if name == user]
    step = list(dict.fromkeys(who(rows))).index(user) // 3
    zeroed = [f",,,,,{user}" if i in mine else row for i, row in enumerate(rows)]
    base, thetas, sizes = gradient_sums(table(path, zeroed, {**schema, **USERS}), settings,
                                        monkeypatch)  # fmt: skip
    whole = [text.format(user) for text in GARBAGE if "{}" in text]
    for garbage in [None, *whole]:
        other = [garbage if garbage and i in mine else row for i, row in enumerate(rows)]
        sums, _, found = gradient_sums(
            table(path, other, {**schema, **USERS}), settings, monkeypatch, thetas
        )
        assert found == sizes
        for t, (left, right) in enumerate(zip(sums, base, strict=True)):
            if t % 4 == step:
                assert np.linalg.norm(left - right) <= 0.2
            else:
                np.testing.assert_array_equal(left, right)


def test_a_row_without_a_user_counts_as_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rows = tmp_path / "t.csv", lines()
    base, thetas, _ = gradient_sums(table(path, rows, BY_USER), FTRL, monkeypatch)
    at = max(i for i in range(ROWS) if who(rows)[i] in who(rows)[:i])
    user = who(rows)[at]
    zeroed, garbled = [*rows], [*rows]
    zeroed[at] = f",,,,,{user}"
    wanted, _, _ = gradient_sums(table(path, zeroed, BY_USER), FTRL, monkeypatch, thetas)
    for garbage in [rows[at].removesuffix(user), "", '"', "1,2"]:
        garbled[at] = garbage
        sums, _, _ = gradient_sums(table(path, garbled, BY_USER), FTRL, monkeypatch, thetas)
        np.testing.assert_array_equal(sums, wanted)
    assert not np.array_equal(base, wanted)


def test_users_are_declared(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    few = {**BY_USER, "users": 10}
    with pytest.raises(TableError, match="expected at most 10 users"):
        fit(table(path, lines(), few), FTRL, progress=lambda *_: pytest.fail("a step was taken"))
    many = fit(table(path, lines(), {**BY_USER, "users": 100}), FTRL)
    assert many.steps == many.plan.steps == 34
    nobody = fit(table(path, [row.rsplit(",", 1)[0] + "," for row in lines()], BY_USER), FTRL)
    assert nobody.steps == 4
    with pytest.raises(TableError, match="expected at most 40 rows"):
        fit(table(path, lines(), {**BY_USER, "rows": 40}), FTRL)


# ---- Least squares ----

LEAST_SQUARES = LeastSquaresSettings(batch_size=BATCH, noise_seed=3, epsilon=20.0)


@pytest.mark.parametrize("radius", [None, 0.3])
def test_least_squares_is_that_of_the_estimator(tmp_path: Path, radius: float | None) -> None:
    settings = LeastSquaresSettings(
        batch_size=BATCH, noise_seed=3, epsilon=20.0, radius=radius, split=0.4, ridge_factor=1.0
    )
    target = {"target": {"name": "y", "bounds": [-2, 2]}}
    source = table(tmp_path / "t.csv", lines(), {**REGRESSION, **target})
    result = fit(source, settings, curve_points=3)
    estimator = DPFTRLLeastSquares(
        epsilon=20.0, x_norm_bound=1.0, y_bound=2.0, batch_size=BATCH, noise_seed=3,
        radius=None if radius is None else 2 * radius, split=0.4, ridge_factor=1.0,
        fit_intercept=False,
    ).fit(*features(lines()))  # fmt: skip
    assert result.plan == estimator.plan_
    assert result.epsilon(1e-6) == estimator.epsilon_ <= 20.0
    assert list(result.coefficients) == ["last"] and result.curve.average is None
    np.testing.assert_allclose(2.0 * result.last, estimator.coef_, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(result.curve.last[-1], result.last)
    assert result.curve.steps.tolist() == [2, 4, 7] and result.solve is not None
    assert result.solve.case == estimator.solves_[-1].case
    assert radius is None or np.linalg.norm(result.last) <= radius + 1e-6


@pytest.mark.parametrize("at", [0, 8, 49])
def test_one_row_changes_the_sums_by_at_most_what_the_plan_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    def sums(rows: Lines) -> list[tuple[Array, Array]]:
        found: list[tuple[Array, Array]] = []
        real = LeastSquares.step

        def spy(self: Any, batch: Any) -> None:
            bias, packed = batch_sums(self.plan, batch)
            square = np.zeros((5, 5))
            square[np.triu_indices(5)] = packed
            found.append((bias, square + np.triu(square, 1).T))
            real(self, batch)

        with monkeypatch.context() as patch:
            patch.setattr(LeastSquares, "step", spy)
            fit(table(tmp_path / "t.csv", rows), LEAST_SQUARES)
        return found

    rows = lines()
    rows[at] = ",,,,,"
    base = sums(rows)
    plan = make_plan(Schema.from_dict(REGRESSION), LEAST_SQUARES)
    assert isinstance(plan, LeastSquaresPlan)
    for garbage in [lines()[at], "1,u,2,no,low,p", *GARBAGE]:
        rows[at] = garbage
        for step, (mine, theirs) in enumerate(zip(sums(rows), base, strict=True)):
            if step == at // BATCH:
                assert np.linalg.norm(mine[0] - theirs[0]) <= plan.bias.clip_norm == 2.0
                assert np.linalg.norm(mine[1] - theirs[1]) <= plan.covariance.clip_norm == 1.0
            else:
                np.testing.assert_array_equal(mine[0], theirs[0])
                np.testing.assert_array_equal(mine[1], theirs[1])


def test_least_squares_recovers_the_model(tmp_path: Path) -> None:
    schema = {**REGRESSION, "rows": 4000}
    settings = LeastSquaresSettings(epsilon=None, noise_multiplier=1.0, batch_size=50, noise_seed=1)
    result = fit(table(tmp_path / "t.csv", lines(rows=4000), schema), settings)
    test = table(tmp_path / "u.csv", lines(seed=1, rows=500), schema)
    assert scores(test, [result.last])[0] > 0.8
    settings_told = json.loads(json.dumps(model_facts(result)))["settings"]
    assert settings_told["method"] == "least-squares" and settings_told["epochs"] == 1


@pytest.mark.parametrize(
    ("schema", "words"),
    [(CLASSES, "needs a numeric target"), (SEVERAL, "needs a numeric target"),
     (BY_USER, "protects single records")],
)  # fmt: skip
def test_what_least_squares_cannot_do(tmp_path: Path, schema: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit(table(tmp_path / "t.csv", lines(), schema), LEAST_SQUARES)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"split": 1.0}, "split must be a finite number > 0 and < 1, got 1.0"),
        ({"split": float("nan")}, "split must be a finite number > 0 and < 1, got nan"),
        ({"ridge_factor": 0.0}, "ridge_factor must be a finite number > 0"),
        ({"epsilon": None}, "exactly one of epsilon and noise_multiplier"),
    ],
)
def test_settings_that_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LeastSquaresSettings(**change)


def test_a_delta_below_the_floor_is_refused_before_step_1(tmp_path: Path) -> None:
    settings = LeastSquaresSettings(epsilon=None, noise_multiplier=0.01)
    with pytest.raises(ValueError, match="floor"):
        fit(table(tmp_path / "t.csv", lines()), settings)
