# SPDX-License-Identifier: Apache-2.0
"""The private pass against a plain NumPy one, and what one row can and cannot change."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitting_cases import (
    BATCH,
    CLASSES,
    GARBAGE,
    LABELS,
    REGRESSION,
    ROWS,
    SEVERAL,
    Lines,
    clipped,
    features,
    gradient_sums,
    lines,
    table,
)

from dpftrl_fast import reference
from dpftrl_fast.accounting import compose
from dpftrl_fast.convex.glm import fit as glm_fit
from dpftrl_fast.convex.least_squares.settings import LeastSquaresSettings
from dpftrl_fast.convex.settings import LOSSES
from dpftrl_fast.fitting import FitResult, RunSettings, fit, make_plan
from dpftrl_fast.fitting.evaluation import metric_name, ridge_reference, scores
from dpftrl_fast.fitting.model_file import model_facts
from dpftrl_fast.fitting.run import make_engine
from dpftrl_fast.linear_model import DPFTRLRegressor
from dpftrl_fast.tables import TableError
from dpftrl_fast.tables.schema import Schema

SETTINGS = RunSettings(batch_size=BATCH, clip_norm=0.5, noise_seed=3, learning_rate=1.0)


def plain_fit(
    rows: Lines, settings: RunSettings, std: float
) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
    """DP-FTRL in a few lines of NumPy over the reference noise; returns all iterates."""
    x, y = features(rows)
    assert isinstance(settings.noise_seed, int)
    noise = reference.TreeNoise(
        5, std, seed=settings.noise_seed, variant=settings.variant, dtype="float64"
    )
    theta, total, iterates = np.zeros(5), np.zeros(5), []
    for start in range(0, ROWS, BATCH):
        for xi, yi in zip(x[start : start + BATCH], y[start : start + BATCH], strict=True):
            total = total + clipped((xi @ theta - yi) * xi, settings.clip_norm)
        theta = -settings.learning_rate * (total + noise.step()) / BATCH
        iterates.append(theta)
    return theta, iterates


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("variant", ["honaker", "vanilla"])
def test_a_fit_is_the_plain_recurrence(tmp_path: Path, variant: Any) -> None:
    settings = RunSettings(
        batch_size=BATCH, clip_norm=0.5, learning_rate=0.7, noise_seed=3, variant=variant,
        mechanism="tree",
    )  # fmt: skip
    result = fit(table(tmp_path / "t.csv", lines()), settings, curve_points=100)
    std = 0.5 * result.plan.noise_multiplier
    theta, iterates = plain_fit(lines(), settings, std)
    np.testing.assert_allclose(result.last, theta, rtol=1e-5, atol=1e-6)
    assert result.steps == len(iterates) == result.curve.steps[-1] == 7
    np.testing.assert_allclose(result.curve.last, iterates, rtol=1e-5, atol=1e-5)
    means = np.cumsum(iterates, axis=0) / np.arange(1, 8)[:, None]
    assert np.isfinite(means).all()
    assert result.average.shape == result.tail.shape == (5,)


def test_epsilon_is_the_plans_and_within_the_budget(tmp_path: Path) -> None:
    result = fit(table(tmp_path / "t.csv", lines()), SETTINGS)
    assert result.epsilon(1e-6) == result.plan.epsilon(1e-6) <= 1.0
    assert compose([result]).epsilon(1e-6) >= result.epsilon(1e-6)
    assert result.epsilon(1e-6, neighbours="replace-one") > result.epsilon(1e-6)
    plan = make_plan(Schema.from_dict(REGRESSION), SETTINGS)
    assert result.plan == plan and plan.bound == "released"
    assert result.plan.steps == 7 and result.plan.clip_norm == 0.5
    by_noise = RunSettings(epsilon=None, noise_multiplier=2.0, batch_size=BATCH)
    assert make_plan(Schema.from_dict(REGRESSION), by_noise).noise_multiplier == 2.0


def test_the_plan_that_is_shown_makes_the_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(Schema.from_dict(REGRESSION), SETTINGS)
    run_plans = []
    begin = glm_fit.GLMRun.__init__

    def record(self: Any, objective: Any, plan: Any, **options: Any) -> None:
        run_plans.append(plan)
        begin(self, objective, plan, **options)

    monkeypatch.setattr(glm_fit.GLMRun, "__init__", record)
    result = fit(table(tmp_path / "t.csv", lines()), SETTINGS, plan=plan)
    assert result.plan is plan and len(run_plans) == 1 and run_plans[0] is plan
    other = make_plan(Schema.from_dict({**REGRESSION, "rows": 60}), SETTINGS)
    with pytest.raises(ValueError, match=r"plan must be for SinglePass\(steps=7\), got one for"):
        fit(table(tmp_path / "t.csv", lines()), SETTINGS, plan=other)


@pytest.mark.usefixtures("fine_grid")
def test_keys_come_from_the_system_unless_a_seed_is_given(tmp_path: Path) -> None:
    def run(settings: RunSettings) -> FitResult:
        return fit(table(tmp_path / "t.csv", lines()), settings)

    seeded = [run(SETTINGS) for _ in range(2)]
    np.testing.assert_array_equal(seeded[0].last, seeded[1].last)
    assert seeded[0].reproducible
    fresh = [run(RunSettings(batch_size=BATCH, clip_norm=0.5)) for _ in range(2)]
    assert not fresh[0].reproducible
    assert (fresh[0].last != fresh[1].last).all()


def test_a_seed_is_not_shown() -> None:
    assert "987654" not in repr(RunSettings(noise_seed=987654))


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(
    ("loss", "schema"),
    [("squared", REGRESSION), ("huber", REGRESSION), ("epsilon_insensitive", REGRESSION),
     ("quantile", REGRESSION), ("logistic", CLASSES), ("hinge", CLASSES), ("hinge", SEVERAL),
     ("multinomial", SEVERAL)],
)  # fmt: skip
@pytest.mark.parametrize("at", [0, 8, 49])
def test_one_row_changes_one_sum_a_pass_by_at_most_the_clip_norm(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loss: str,
    schema: dict[str, Any],
    at: int,
    epochs: int,
) -> None:
    settings = RunSettings(
        batch_size=BATCH, clip_norm=0.2, loss=loss, noise_multiplier=1.0, epsilon=None,
        noise_seed=1, epochs=epochs,
    )  # fmt: skip
    zeroed = lines()
    zeroed[at] = ",,,,,"  # the neighbour: the row's slot is empty
    path = tmp_path / "t.csv"
    base, thetas, sizes = gradient_sums(table(path, zeroed, schema), settings, monkeypatch)
    assert sizes == ([8] * 6 + [2]) * epochs
    for garbage in [lines()[at], *GARBAGE] if epochs == 1 else [lines()[at], '"']:
        rows = lines()
        rows[at] = garbage
        sums, _, other = gradient_sums(table(path, rows, schema), settings, monkeypatch, thetas)
        assert other == sizes
        for step, (mine, theirs) in enumerate(zip(sums, base, strict=True)):
            if step % 7 == at // BATCH:
                assert np.linalg.norm(mine - theirs) <= 0.2
            else:
                np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("loss", ["multinomial", "hinge"])
def test_the_sums_of_several_classes_are_those_of_a_plain_computation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    settings = RunSettings(batch_size=BATCH, clip_norm=0.7, loss=loss, noise_seed=1, epsilon=9.0)
    sums, thetas, _ = gradient_sums(
        table(tmp_path / "t.csv", lines(), SEVERAL), settings, monkeypatch
    )
    x, _ = features(lines())
    label = [LABELS.index(row.split(",")[4]) for row in lines()]
    assert thetas[1].shape == (3, 5)
    for t, (found, theta) in enumerate(zip(sums, thetas, strict=True)):
        wanted = np.zeros((3, 5))
        for i in range(t * BATCH, min((t + 1) * BATCH, ROWS)):
            z, own = theta @ x[i], np.arange(3) == label[i]
            if loss == "multinomial":
                slope = np.exp(z) / np.exp(z).sum() - own
            else:
                sign = np.where(own, 1.0, -1.0)
                slope = np.where(sign * z < 1, -sign, 0.0)
            wanted += clipped(np.outer(slope, x[i]), 0.7)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_two_labels_may_have_coefficients_each(tmp_path: Path) -> None:
    schema = {**CLASSES, "task": "multinomial"}
    result = fit(table(tmp_path / "t.csv", lines(), schema), SETTINGS, curve_points=2)
    assert result.last.shape == result.tail.shape == (2, 5) and result.curve.last.shape == (2, 2, 5)
    assert result.schema.outputs == 2


def test_several_passes_are_those_of_the_estimator(tmp_path: Path) -> None:
    settings = RunSettings(
        batch_size=BATCH, clip_norm=0.5, epochs=3, momentum=0.5, l1=1e-3, radius=2.0, noise_seed=3,
        learning_rate=1.0,
    )  # fmt: skip
    result = fit(table(tmp_path / "t.csv", lines()), settings, curve_points=100)
    estimator = DPFTRLRegressor(
        batch_size=BATCH, clip_norm=0.5, epochs=3, momentum=0.5, l1=1e-3, radius=2.0, noise_seed=3,
        learning_rate=1.0, fit_intercept=False,
    ).fit(*features(lines()))  # fmt: skip
    assert result.plan == estimator.plan_ and result.plan.bound == "released"
    assert result.steps == 21 and result.epsilon(1e-6) <= 1.0
    np.testing.assert_allclose(result.last, estimator.coef_last_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.tail, estimator.coef_tail_, rtol=1e-4, atol=1e-5)
    assert result.curve.steps.tolist() == list(range(1, 22))


def test_a_file_that_changes_between_passes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"

    def run(when: int, epochs: int) -> FitResult:
        def append(step: int, steps: int) -> None:
            if step == when:
                path.write_text(path.read_text("utf-8") + "0,u,0,no,low,p1\n", encoding="utf-8")

        settings = RunSettings(batch_size=BATCH, epochs=epochs)
        return fit(table(path, lines()[:40]), settings, progress=append)

    for when in (3, 7, 9, 14):  # in the first pass, after it, in the second, after it
        with pytest.raises(TableError, match="the same rows in every pass"):
            run(when, 2)
    assert run(3, 1).steps == 7


def test_missing_rows_are_empty_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = lines()[:20]
    sums, _, sizes = gradient_sums(table(tmp_path / "t.csv", short), SETTINGS, monkeypatch)
    assert sizes == [8, 8, 4, 0, 0, 0, 0]
    assert not np.array(sums[3:]).any()
    result = fit(table(tmp_path / "t.csv", short), SETTINGS)
    assert result.steps == 7
    assert result.plan == fit(table(tmp_path / "t.csv", lines()), SETTINGS).plan


def test_nothing_comes_out_when_there_are_too_many_rows(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="expected at most 50 rows"):
        fit(table(tmp_path / "t.csv", lines(rows=51)), SETTINGS)


def test_progress_and_the_steps_of_the_curve(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    result = fit(
        table(tmp_path / "t.csv", lines()),
        SETTINGS,
        curve_points=3,
        progress=lambda done, steps: seen.append((done, steps)),
    )
    assert seen == [(t, 7) for t in range(1, 8)]
    assert result.curve.steps.tolist() == [2, 4, 7]
    np.testing.assert_array_equal(result.curve.last[-1], result.last)
    np.testing.assert_array_equal(result.curve.average[-1], result.average)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": math.nan}, "epsilon must be a finite number > 0, got nan"),
        ({"epsilon": None}, "exactly one of epsilon and noise_multiplier"),
        ({"noise_multiplier": 1.0}, "exactly one of epsilon and noise_multiplier"),
        ({"clip_norm": 0.0}, "clip_norm must be a finite number in [1e-100, 1e+100], got 0.0"),
        ({"learning_rate": math.inf}, "learning_rate must be a finite number > 0"),
        ({"delta": math.nan}, "delta must be a finite number > 0 and < 1, got nan"),
        ({"delta": 1.0}, "delta must be a finite number > 0 and < 1, got 1.0"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"epochs": 0}, "epochs must be an integer >= 1"),
        ({"radius": math.nan}, "radius must be a finite number in [1e-100, 1e+100], got nan"),
        ({"noise_seed": -1}, "noise_seed must be an integer >= 0"),
    ],
)
def test_settings_that_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        RunSettings(**change)
    assert words in str(caught.value)


@pytest.mark.parametrize("change", [{"l1": "1"}, {"radius": True}, {"batch_size": 2.0}])
def test_settings_that_are_no_numbers(change: dict[str, Any]) -> None:
    with pytest.raises(
        TypeError, match=f"{next(iter(change))} must be an? .*, got (str|bool|float)"
    ):
        RunSettings(**change)


def test_settings_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    settings = RunSettings(
        learning_rate=np.float32(0.5),  # type: ignore[arg-type]
        radius=np.float32(2),  # type: ignore[arg-type]
        batch_size=np.int64(BATCH),  # type: ignore[arg-type]
        epochs=np.int32(1),  # type: ignore[arg-type]
    )
    assert type(settings.batch_size) is int and type(settings.radius) is float
    result = fit(table(tmp_path / "t.csv", lines()), settings)
    assert json.loads(json.dumps(model_facts(result)))["settings"]["learning_rate"] == 0.5


def test_a_batch_may_be_larger_than_the_table(tmp_path: Path) -> None:
    results = [
        fit(
            table(tmp_path / "t.csv", lines()),
            RunSettings(batch_size=size, noise_seed=3, learning_rate=1.0),
        )
        for size in (ROWS, 10**12)
    ]
    assert results[0].plan == results[1].plan and results[0].steps == 1
    np.testing.assert_allclose(results[1].last, results[0].last * ROWS / 1e12, rtol=1e-9)


def test_a_loss_must_fit_the_task(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"loss of a regression task must be one of 'squared', .* got 'hinge'"
    ):
        fit(table(tmp_path / "t.csv", lines()), RunSettings(loss="hinge"))
    with pytest.raises(
        ValueError, match=r"of a classification task must be one of 'logistic', 'hinge', got"
    ):
        fit(table(tmp_path / "t.csv", lines(), CLASSES), RunSettings(loss="squared"))
    with pytest.raises(
        ValueError, match=r"of a multinomial task must be one of 'multinomial', 'hinge', got"
    ):
        fit(table(tmp_path / "t.csv", lines(), SEVERAL), RunSettings(loss="logistic"))


def test_the_parameter_of_a_loss() -> None:
    schema = Schema.from_dict(REGRESSION)
    found = [RunSettings(loss=loss).loss_param_for("regression") for loss in LOSSES["regression"]]
    assert found == [None, 1.0, 0.1, 0.5]
    with pytest.raises(ValueError, match=r"loss_param must be None for the loss squared, got 2\.0"):
        make_plan(schema, RunSettings(loss_param=2.0))
    for loss, param in (("quantile", 1.0), ("huber", 0.0), ("epsilon_insensitive", math.nan)):
        with pytest.raises(ValueError, match="loss_param"):
            settings = RunSettings(loss=loss, loss_param=param)
            make_engine(schema, settings, make_plan(schema, settings))


def test_an_engine_takes_the_plan_of_its_method_only() -> None:
    schema = Schema.from_dict(REGRESSION)
    ftrl, least_squares = RunSettings(), LeastSquaresSettings()
    for settings, other, expected in (
        (ftrl, least_squares, "a PrivacyPlan, got LeastSquaresPlan"),
        (least_squares, ftrl, "a LeastSquaresPlan, got PrivacyPlan"),
    ):
        with pytest.raises(TypeError, match=f"plan must be {expected}"):
            make_engine(schema, settings, make_plan(schema, other))


def test_scores_are_those_of_a_plain_computation(tmp_path: Path) -> None:
    rows = [*lines(), "nan,u,1,yes,mid,p"]  # an invalid row is left out
    x, y = features(lines())
    theta = np.array([0.5, -0.1, 1.0, 0.2, 0.1])
    value = scores(table(tmp_path / "t.csv", rows), [theta, 0 * theta])
    for k, t in enumerate((theta, 0 * theta)):
        wanted = 1 - np.sum((x @ t - y) ** 2) / np.sum((y - y.mean()) ** 2)
        assert value[k] == pytest.approx(wanted, rel=1e-6)
    label = np.array([row.split(",")[3] == "yes" for row in lines()])
    right = scores(table(tmp_path / "t.csv", rows, CLASSES), [theta])
    assert right[0] == pytest.approx(np.mean((x @ theta > 0) == label))
    models = np.random.default_rng(2).normal(size=(4, 3, 5))
    several = [LABELS.index(row.split(",")[4]) for row in lines()]
    right = scores(table(tmp_path / "t.csv", rows, SEVERAL), models)
    for value, model in zip(right, models, strict=True):
        assert value == pytest.approx(np.mean((x @ model.T).argmax(axis=1) == several))
    assert metric_name(Schema.from_dict(CLASSES)) == "accuracy"


def test_the_ridge_reference_is_the_solution_of_the_normal_equations(tmp_path: Path) -> None:
    x, y = features(lines())
    wanted = np.linalg.lstsq(
        np.vstack([x, math.sqrt(0.1) * np.eye(5)]), np.append(y, np.zeros(5)), rcond=None
    )[0]
    found = ridge_reference(table(tmp_path / "t.csv", lines()), penalty=0.1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="numeric target"):
        ridge_reference(table(tmp_path / "t.csv", lines(), CLASSES))


def test_a_test_table_without_a_metric_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="expected valid rows"):
        scores(table(tmp_path / "t.csv", ["nan,u,1,yes,mid,p"]), [np.zeros(5)])
    with pytest.raises(TableError, match="targets that differ"):
        scores(table(tmp_path / "t.csv", ["0,u,1,yes,mid,p"] * 2), [np.zeros(5)])


def test_little_noise_recovers_the_model(tmp_path: Path) -> None:
    schema = {**REGRESSION, "rows": 4000}
    settings = RunSettings(
        epsilon=None,
        noise_multiplier=0.5,
        batch_size=50,
        clip_norm=1.0,
        noise_seed=1,
        learning_rate=1.0,
    )
    result = fit(table(tmp_path / "t.csv", lines(rows=4000), schema), settings)
    test = table(tmp_path / "u.csv", lines(seed=1, rows=500), schema)
    best = ridge_reference(table(tmp_path / "t.csv", lines(rows=4000), schema))
    value = scores(test, [result.tail, best])
    assert value[0] > value[1] - 0.02
    labels = {**CLASSES, "rows": 4000}
    settings = RunSettings(
        epsilon=None, noise_multiplier=0.5, batch_size=50, learning_rate=4.0, noise_seed=1
    )
    for loss in ("logistic", "hinge"):
        result = fit(
            table(tmp_path / "t.csv", lines(rows=4000), labels),
            RunSettings(**{**vars(settings), "loss": loss}),
        )
        assert (
            scores(table(tmp_path / "u.csv", lines(seed=1, rows=500), labels), [result.tail])[0]
            > 0.85
        )
