# SPDX-License-Identifier: Apache-2.0
"""`from_schema`: the pipelines of declared facts, and their neighbours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from estimator_cases import recorded_noises
from sklearn.pipeline import Pipeline, make_pipeline

from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.linear_model import (
    DPFTRLClassifier,
    DPFTRLLeastSquares,
    DPFTRLRegressor,
    from_schema,
)
from dpftrl_fast.preprocessing import BoundedScaler
from dpftrl_fast.tables import draft_schema
from dpftrl_fast.tables.schema import Schema

FACTS: dict[str, Any] = {"age": (18, 90), "town": ["A", "B"], "gain": (-2, 2), "old": ["no", "yes"]}


def frame(n: int = 600) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"age": rng.uniform(18, 90, n), "town": rng.choice(["A", "B"], n)})
    rows["gain"] = (rows["age"] - 54) / 36 + (rows["town"] == "A") * 0.5
    rows["old"] = np.where(rows["age"] > 54, "yes", "no")
    return rows


def of(target: str, **settings: Any) -> Pipeline:
    used = ("age", "town", target)
    columns = {name: FACTS[name] if name in used else "ignore" for name in FACTS}
    return from_schema(columns, target, **settings)


@pytest.mark.parametrize("method", ["auto", "ftrl", "least-squares"])
def test_a_numeric_target_is_fitted_by_either_method(method: str) -> None:
    rows = frame(8000)
    asked: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-7, "batch_size": 100, "method": method}
    pipeline = of("gain", **asked).fit(rows, rows["gain"])
    model = pipeline["model"]
    squares = method == "least-squares"
    assert type(model) is (DPFTRLLeastSquares if squares else DPFTRLRegressor)
    assert (model.y_bound, model.batch_size, model.delta) == ((-2.0, 2.0), 100, 1e-7)
    assert model.x_norm_bound == pytest.approx(2**0.5) and model.epsilon_ <= 4.0
    assert pipeline.score(rows, rows["gain"]) > 0.95


def test_targets_that_are_not_about_zero_are_predicted_in_their_units() -> None:
    rows = frame(8000)
    rows["gain"] = 500 + 40 * rows["gain"]
    facts = {**FACTS, "gain": (440, 580), "old": "ignore"}
    pipeline = from_schema(facts, "gain", epsilon=4.0).fit(rows, rows["gain"])
    assert pipeline["model"].y_bound == (440, 580)
    assert pipeline.score(rows, rows["gain"]) > 0.9


def test_labels_are_fitted_by_the_classifier() -> None:
    rows = frame(8000)
    pipeline = of("old", epsilon=4.0).fit(rows, rows["old"])
    model = pipeline["model"]
    assert type(model) is DPFTRLClassifier and model.classes_.tolist() == ["no", "yes"]
    assert pipeline.score(rows, rows["old"]) > 0.9


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([0, 1], [0, 1]), (["0", "1", "2"], [0, 1, 2]), (["00", "1"], ["00", "1"]), (["a", "1"],) * 2],
)
def test_labels_that_are_whole_numbers_are_integers(labels: list[Any], classes: list[Any]) -> None:
    pipeline = from_schema({"x": (0, 1), "y": {"categories": labels}}, "y", learning_rate=0.5)
    assert pipeline["model"].classes == classes and pipeline["model"].learning_rate == 0.5
    given = from_schema({"x": (0, 1), "y": {"categories": labels}}, "y", classes=[False, True])
    assert given["model"].classes == [False, True]


def test_many_rows_are_fitted_by_least_squares() -> None:
    facts = {"target": {"name": "y", "bounds": [0, 9]}, "columns": {"x": {"bounds": [0, 1]}}}
    for rows, expected in ((10**7, DPFTRLLeastSquares), (1000, DPFTRLRegressor)):
        assert type(from_schema({**facts, "rows": rows})["model"]) is expected
    with pytest.raises(ValueError, match="method must be one of"):
        from_schema({**facts, "rows": 9}, method="ridge")


@pytest.mark.parametrize("method", ["auto", "ftrl"])
def test_intervals_name_the_method_that_has_them(method: str) -> None:
    with pytest.raises(TypeError, match="intervals must come with method='least-squares'"):
        of("gain", method=method, intervals=True)
    with pytest.raises(TypeError, match="momentum must come with method='ftrl'"):
        of("gain", method="least-squares", momentum=0.9)
    with pytest.raises(TypeError, match="unexpected keyword argument 'interval'"):
        of("gain", method="least-squares", interval=True)
    assert of("gain", method="least-squares", intervals=True)["model"].intervals


def test_conf_int_of_a_regressor_names_the_estimator_that_has_it() -> None:
    rows = frame()
    model = of("gain", noise_seed=1).fit(rows, rows["gain"])["model"]
    for name in ("conf_int", "inference_"):
        assert not hasattr(model, name)
        with pytest.raises(AttributeError, match=r"DPFTRLLeastSquares\(intervals=True\)"):
            getattr(model, name)
    with pytest.raises(AttributeError, match="no attribute 'confint'"):
        model.confint  # noqa: B018


def test_intervals_in_original_units_hold_the_slopes_of_the_rows() -> None:
    rows = frame(40_000)
    rows["gain"] += 0.1 * np.random.default_rng(1).normal(size=len(rows))
    facts = {**FACTS, "town": ["A"], "old": "ignore"}  # B is the reference
    settings = {"method": "least-squares", "intervals": True, "noise_seed": 0}
    pipeline = from_schema(facts, "gain", epsilon=4.0, **settings).fit(rows, rows["gain"])
    ends, intercept = pipeline["model"].conf_int(0.9999)
    slopes = pipeline["scaler"].original_coefficients(ends.T)[0].T
    for (low, high), truth in zip(slopes, (1 / 36, 0.5), strict=True):
        assert low < truth < high and high - low < 0.2 * truth
    assert intercept[0] < 0.0 < intercept[1]  # the prediction at age 54 in town B


def test_a_pipeline_is_that_of_its_parts() -> None:
    rows = frame()
    whole = of("gain", noise_seed=1, method="least-squares").fit(rows, rows["gain"])
    scaler = BoundedScaler({name: FACTS[name] for name in ("age", "town")})
    model = DPFTRLLeastSquares(x_norm_bound=scaler.x_norm_bound, y_bound=2.0, noise_seed=1)
    parts = make_pipeline(scaler, model).fit(rows, rows["gain"])
    np.testing.assert_array_equal(whole.predict(rows), parts.predict(rows))


@pytest.mark.parametrize("target", ["gain", "old"])
def test_a_drafted_schema_makes_a_pipeline(target: str, tmp_path: Path) -> None:
    rows = frame()
    rows["gain"] = rows["gain"].clip(-1.0, 1.0)
    rows.loc[:1, "gain"] = [-1.0, 1.0]
    rows = rows[["age", "town", target]]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    path = tmp_path / "facts.yaml"
    path.write_text(draft_schema(tmp_path / "rows.csv", these_rows_are_public=True), "utf-8")
    for facts in (path, Schema.load(path), Schema.load(path).to_dict()):
        pipeline = from_schema(facts, epsilon=2.0).fit(rows, rows[target])
        assert pipeline["model"].epsilon_ <= 2.0
        assert pipeline["scaler"].get_feature_names_out().tolist() == ["age", "town=A", "town=B"]
        assert pipeline.predict(rows.drop(columns=target)).shape == (600,)


def test_without_an_intercept() -> None:
    facts = {"rows": 9, "target": {"name": "y", "bounds": [-1, 1]}, "intercept": False}
    pipeline = from_schema({**facts, "columns": {"x": {"bounds": [0, 1]}}})
    assert pipeline["model"].fit_intercept is False


@pytest.mark.parametrize(
    ("schema", "target", "words"),
    [
        ({"x": (0, 1)}, "y", r"the facts declare, \['x'\], got 'y': declare its public bounds"),
        ({"x": (0, 1), "y": "ignore"}, "y", r"the facts declare, \['x'\], got 'y'"),
        ({"x": (0, 1), "y": (0, 1)}, ["y"], r"the facts declare, \['x', 'y'\], got \['y'\]"),
        ({"x": None, "y": (0, 1)}, "y", "bounds of 'x' must be public facts.*got None: fill them"),
        ({"y": (0, 1)}, "y", "at least one column"),
        ({"x": (0, 1)}, None, "entry"),
        ({"x": (1, 0), "y": (0, 1)}, "y", "low < high"),
        (7, None, "got 7"),
        (
            {
                "rows": 9,
                "users": 3,
                "group_column": "who",
                "target": {"name": "y", "bounds": [0, 1]},
                "columns": {"x": {"bounds": [0, 1]}},
            },
            None,
            "group column, got 'who'",
        ),
    ],
)
def test_wrong_schemas_are_refused(schema: Any, target: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        from_schema(schema, target)


def test_columns_that_nobody_has_named_are_warned_of(tmp_path: Path) -> None:
    rows = frame().assign(income=1.0, town_of_birth="A")
    rows = rows.drop(columns="old")
    facts = {"age": (18, 90), "town": ["A", "B"], "gain": (-2, 2)}
    words = r"not used: \['income', 'town_of_birth'\]"
    path = tmp_path / "facts.json"
    whole = {name: {"bounds": [18, 90]} for name in ("age",)}
    whole |= {"town": {"categories": ["A", "B"]}}
    given = {"rows": 600, "target": {"name": "gain", "bounds": [-2, 2]}, "columns": whole}
    path.write_text(json.dumps({"version": 2, **given}), encoding="utf-8")
    for pipeline in (from_schema(facts, "gain"), from_schema(given), from_schema(path)):
        with pytest.warns(UserWarning, match=words):
            pipeline.fit(rows, rows["gain"])
        pipeline.predict(rows)
        pipeline.fit(rows[["town", "gain", "age"]], rows["gain"])  # the target is known
    silent = from_schema({**facts, "income": "ignore", "town_of_birth": "ignore"}, "gain")
    silent.fit(rows, rows["gain"])
    assert silent["scaler"].get_feature_names_out().tolist() == ["age", "town=A", "town=B"]


def test_a_pipeline_of_a_dict_shows_no_number_of_rows_that_was_not_declared() -> None:
    text = repr(from_schema(FACTS, "gain"))
    assert "rows" not in text and "'age': (18, 90)" in text and "'gain'" in text


# ---- Privacy ----


def test_warnings_about_columns_depend_on_names_only() -> None:
    rows = frame()
    other = rows.copy()
    other.loc[10, ["age", "town", "old"]] = [np.nan, "Smith", None]
    texts = []
    for data in (rows, other):
        with pytest.warns(UserWarning, match="not used") as found:
            from_schema({"age": (18, 90), "gain": (-2, 2)}, "gain").fit(data, rows["gain"])
        texts.append([str(one.message) for one in found])
    assert texts[0] == texts[1] and "Smith" not in texts[1][0]


def recorded_fit(data: pd.DataFrame, y: Any, target: str) -> tuple[list[Any], int, Any]:
    """Return the batches of a fit, its number of noises, and its model."""
    engine: Any = LeastSquares if target == "gain" else GLMRun
    step, batches = engine.step, []

    def kept(self: Any, batch: Any) -> None:
        batches.append(batch)
        step(self, batch)

    with pytest.MonkeyPatch.context() as patch, recorded_noises() as made:
        patch.setattr(engine, "step", kept)
        kind = {"method": "least-squares"} if target == "gain" else {"epochs": 1}
        pipeline = of(target, batch_size=100, noise_seed=3, **kind).fit(data, y)
    return batches, len(made), pipeline["model"]


@pytest.mark.parametrize("target", ["gain", "old"])
@pytest.mark.parametrize("row", [(1e300, "A"), (np.nan, None), (-np.inf, "Z")])
def test_a_row_moves_the_sums_by_its_own_contribution_only(target: str, row: Any) -> None:
    """Beside an extreme row the sums change by at most its slot, and no message does."""
    rows = frame()
    other = rows.copy()
    other.loc[10, ["age", "town"]] = row
    found = [recorded_fit(data, rows[target], target) for data in (rows, other)]
    (one, noises, model), (two, again, neighbour) = found
    assert noises == again and len(one) == len(two) == 6
    assert {k: v for k, v in vars(model).items() if k in ("epsilon_", "n_steps_")} == {
        k: v for k, v in vars(neighbour).items() if k in ("epsilon_", "n_steps_")
    }
    for step, (a, b) in enumerate(zip(one, two, strict=True)):
        changed = np.flatnonzero(np.any(np.asarray(a.X) != np.asarray(b.X), axis=1))
        assert changed.tolist() == ([10] if step == 0 else [])
        assert np.all(np.linalg.norm(np.asarray(b.X), axis=1) <= model.x_norm_bound * (1 + 1e-12))
        np.testing.assert_array_equal(a.y, b.y)
