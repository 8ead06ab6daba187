# SPDX-License-Identifier: Apache-2.0
"""Weights of rows and classes in fits of tables: their sums, their bounds, and their slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitting_cases import (
    BATCH,
    CLASSES,
    REGRESSION,
    ROWS,
    SEVERAL,
    Lines,
    clipped,
    features,
    gradient_sums,
    lines,
)

from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.sums import batch_sums
from dpftrl_fast.fitting import LeastSquaresSettings, RunSettings, fit, make_plan
from dpftrl_fast.fitting.model_file import model_facts
from dpftrl_fast.fitting.weights import check_class_weight
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.linear_model.pipeline import from_schema
from dpftrl_fast.tables import Encoder, TableReader, validate
from dpftrl_fast.tables.schema import Schema, SchemaError

Array = np.ndarray[Any, np.dtype[Any]]
SETTINGS = RunSettings(batch_size=BATCH, clip_norm=0.5, noise_seed=3, learning_rate=1.0)
SQUARES = LeastSquaresSettings(
    batch_size=BATCH, noise_seed=3, intervals=True, sample_weight_bound=2.0, alpha=0.3
)
#: Cells of bad weights; the row of each counts as zero.
BAD = ["", "nan", "-1", "-1e300", "inf", "heavy"]


def weights_of_rows(rows: int = ROWS) -> Array:
    return np.random.default_rng(5).uniform(0.0, 3.0, rows)


def weighted(path: Path, rows: Lines, weights: Any, schema: dict[str, Any]) -> TableReader:
    body = [f"{row},{weight}" for row, weight in zip(rows, weights, strict=True)]
    path.write_text("\n".join(["a,c,y,k,m,who,w", *body]) + "\n", encoding="utf-8")
    return TableReader(path, Schema.from_dict({**schema, "weight_column": "w"}))


def squares_of(table: TableReader, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Array, Array]]:
    """Return the sums of each step of least squares: of y x and y^2, and of x x^T."""
    found = []
    step = LeastSquares.step

    def spy(self: Any, batch: Any) -> None:
        found.append(batch_sums(self.plan, batch))
        step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(LeastSquares, "step", spy)
        fit(table, SQUARES)
    return found


def test_gradients_are_weighted_and_then_clipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = weights_of_rows()
    table = weighted(tmp_path / "t.csv", lines(), w, REGRESSION)
    sums, thetas, _ = gradient_sums(table, SETTINGS, monkeypatch)
    x, y = features(lines())
    for t, (found, theta) in enumerate(zip(sums, thetas, strict=True)):
        rows = range(t * BATCH, min((t + 1) * BATCH, ROWS))
        plain = sum(clipped(w[i] * (x[i] @ theta.reshape(-1) - y[i]) * x[i], 0.5) for i in rows)
        np.testing.assert_allclose(found.reshape(-1), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("schema", [CLASSES, SEVERAL])
@pytest.mark.parametrize("column", [False, True])
def test_models_are_those_of_the_estimators(
    tmp_path: Path, schema: dict[str, Any], column: bool
) -> None:
    labels = schema["target"]["categories"]
    own = {labels[0]: 0.25, labels[-1]: 4.0}
    w = weights_of_rows() if column else np.ones(ROWS)
    table = weighted(tmp_path / "t.csv", lines(), w, schema)
    if not column:
        table = TableReader(tmp_path / "t.csv", table.schema.without_groups())
    settings = RunSettings(batch_size=10, noise_seed=3, epsilon=20.0)
    result = fit(table, settings, class_weight=own)
    x = features(lines())[0].astype(np.float32)
    place = 3 if schema is CLASSES else 4
    y = np.array([labels.index(row.split(",")[place]) for row in lines()])
    model = DPFTRLClassifier(
        epsilon=20.0, batch_size=10, epochs=1, clip_norm=1.0, momentum=0.0, noise_seed=3,
        x_norm_bound=1.0, fit_intercept=False, classes=[*range(len(labels))],
        class_weight={labels.index(label): one for label, one in own.items()},
    ).fit(x, y, sample_weight=w if column else None)  # fmt: skip
    np.testing.assert_allclose(np.atleast_2d(result.tail), model.coef_, rtol=1e-5, atol=1e-7)
    assert model_facts(result)["settings"]["class_weight"] == own


def test_weighted_regression_is_that_of_the_estimator(tmp_path: Path) -> None:
    w = weights_of_rows()
    table = weighted(tmp_path / "t.csv", lines(), w, REGRESSION)
    result = fit(table, RunSettings(batch_size=10, noise_seed=3, learning_rate=0.5))
    x, y = features(lines())
    model = DPFTRLRegressor(
        batch_size=10, epochs=1, clip_norm=1.0, momentum=0.0, noise_seed=3, x_norm_bound=1.0,
        fit_intercept=False, learning_rate=0.5,
    ).fit(x.astype(np.float32), y, sample_weight=w)  # fmt: skip
    np.testing.assert_allclose(result.tail, model.coef_, rtol=1e-5, atol=1e-7)
    plain = fit(
        TableReader(tmp_path / "t.csv", table.schema.without_groups()),
        RunSettings(batch_size=10, noise_seed=3, learning_rate=0.5),
    )
    assert not np.allclose(plain.tail, result.tail)


@pytest.mark.parametrize("alpha", [0.0, 30.0])
def test_least_squares_has_the_model_of_the_estimator(tmp_path: Path, alpha: float) -> None:
    w = weights_of_rows()
    schema = {**REGRESSION, "intercept": False}
    table = weighted(tmp_path / "t.csv", lines(), w, schema)
    options: dict[str, Any] = {
        "epsilon": 500.0, "noise_seed": 3, "alpha": alpha, "sample_weight_bound": 2.0,
        "ridge_factor": 1e-3,
    }  # fmt: skip
    result = fit(table, LeastSquaresSettings(**options))
    x, y = features(lines())
    x = (x[:, :-1] * np.sqrt(3.0 / 2.0)).astype(np.float32)  # without the intercept
    model = DPFTRLLeastSquares(
        **options, x_norm_bound=1.0, y_bound=2.0, fit_intercept=False
    ).fit(x, y, sample_weight=w)  # fmt: skip
    assert model.plan_.noise_multiplier == result.plan.noise_multiplier
    np.testing.assert_allclose(result.last, model.coef_, rtol=1e-4, atol=1e-5)


def test_the_penalty_spares_the_intercept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = weighted(tmp_path / "t.csv", lines(), np.ones(ROWS), REGRESSION)
    settings = LeastSquaresSettings(
        epsilon=None, noise_multiplier=1.0, noise_seed=3, alpha=5.0, ridge_factor=1e-9
    )
    released: list[Any] = []
    solve = LeastSquares._solve

    def kept(self: Any) -> None:
        solve(self)
        released.append(self.released())

    monkeypatch.setattr(LeastSquares, "_solve", kept)
    result = fit(table, settings)
    bias, packed = released[-1]
    matrix = np.zeros((5, 5))
    matrix[np.triu_indices(5)] = packed
    matrix += np.triu(matrix, 1).T
    expected = np.linalg.solve(matrix + np.diag([5.0] * 4 + [0.0]), bias)
    np.testing.assert_allclose(result.last, expected, rtol=1e-6, atol=1e-9)
    assert model_facts(result)["settings"]["alpha"] == 5.0


# ---- Privacy: neighbours and slots ----


@pytest.mark.parametrize("weight", [*BAD, "0", "1e300", "1e-300", "2"])
@pytest.mark.parametrize("row", ["1e300,v,2,yes,high,p1", "-1,u,-2,no,low,p1"])
def test_a_row_of_any_weight_moves_one_sum_by_the_clip_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight: str, row: str
) -> None:
    w = [str(one) for one in weights_of_rows()]
    rows, other = lines(), [*w]
    changed = [*rows]
    changed[20], other[20] = row, weight
    gone = [*rows]
    gone[20] = ",,,,,"
    base = weighted(tmp_path / "gone.csv", gone, w, REGRESSION)
    without, thetas, others = gradient_sums(base, SETTINGS, monkeypatch)
    table = weighted(tmp_path / "t.csv", changed, other, REGRESSION)
    sums, _, sizes = gradient_sums(table, SETTINGS, monkeypatch, thetas)
    assert sizes == others and len(sizes) == 7  # the row keeps its slot
    for t, (found, plain) in enumerate(zip(sums, without, strict=True)):
        moved = float(np.linalg.norm(found - plain))
        assert moved <= (0.5 if t == 2 else 0.0)
        if t == 2 and weight in BAD:
            assert moved == 0.0


@pytest.mark.parametrize("weight", [*BAD, "0", "1e300", "2"])
def test_a_row_of_any_weight_moves_the_sums_of_least_squares_within_their_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight: str
) -> None:
    w = [str(one) for one in weights_of_rows()]
    rows, other = lines(), [*w]
    changed = [*rows]
    changed[20], other[20] = "1,v,2,yes,high,p1", weight
    gone = [*rows]
    gone[20] = ",,,,,"
    reader = weighted(tmp_path / "t.csv", changed, other, REGRESSION)
    found = squares_of(reader, monkeypatch)
    without = squares_of(weighted(tmp_path / "g.csv", gone, w, REGRESSION), monkeypatch)
    plan: Any = make_plan(reader.schema, SQUARES)
    assert len(found) == len(without) == 7
    for t, (one, base) in enumerate(zip(found, without, strict=True)):
        bias, packed = (a - b for a, b in zip(one, base, strict=True))
        matrix = np.zeros((5, 5))
        matrix[np.triu_indices(5)] = packed
        matrix += np.triu(matrix, 1).T
        moved = (float(np.linalg.norm(bias)), float(np.linalg.norm(matrix)))
        if t == 2 and weight in ("1e300", "2"):  # clipped to the bound: all of the sensitivity
            assert 0.5 * plan.covariance.clip_norm < moved[1]
        if t != 2 or weight in (*BAD, "0"):
            assert moved == (0.0, 0.0)
        assert moved[0] <= plan.bias.clip_norm and moved[1] <= plan.covariance.clip_norm


@pytest.mark.parametrize("cell", BAD)
def test_nothing_but_models_depends_on_a_weight(tmp_path: Path, cell: str) -> None:
    w: list[Any] = [*weights_of_rows()]
    good = fit(weighted(tmp_path / "a.csv", lines(), w, REGRESSION), SQUARES)
    bad = fit(weighted(tmp_path / "b.csv", lines(), [*w[:30], cell, *w[31:]], REGRESSION), SQUARES)
    assert good.plan == bad.plan and good.steps == bad.steps
    facts, others = model_facts(good), model_facts(bad)
    for one in (facts, others):
        del one["confidence_intervals"], one["solve"]  # of the released sums
    assert facts == others


@pytest.mark.parametrize("cell", ["1e308", "1e-320", "0"])
@pytest.mark.parametrize("schema", [REGRESSION, SEVERAL])
def test_numpy_tells_of_no_weight_and_of_no_cell(
    tmp_path: Path, schema: dict[str, Any], cell: str
) -> None:
    rows = lines()
    rows[7] = f"{cell},{rows[7].split(',', 1)[1]}"
    weights = [cell, *weights_of_rows()[1:]]
    table = weighted(tmp_path / "t.csv", rows, weights, schema)
    labels = schema["target"].get("categories", [])
    own = dict.fromkeys(labels, 1e200) or None
    tiny = LeastSquaresSettings(batch_size=BATCH, noise_seed=3, sample_weight_bound=1e-5)
    with np.errstate(all="raise"):
        fit(table, SETTINGS if own else tiny, class_weight=own)


def test_users_keep_their_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w, users = weights_of_rows(), {"users": 12, "group_column": "who"}
    table = weighted(tmp_path / "t.csv", lines(), w, {**REGRESSION, **users})
    settings = RunSettings(batch_size=12, clip_norm=0.5, noise_seed=3, learning_rate=1.0)
    (found,), _, _ = gradient_sums(table, settings, monkeypatch)
    x, y = features(lines())
    owner = [row.split(",")[-1] for row in lines()]
    plain = np.zeros(5)
    for user in {*owner}:
        mine = [i for i, one in enumerate(owner) if one == user]
        plain += clipped(sum(-w[i] * y[i] * x[i] for i in mine), 0.5)
    np.testing.assert_allclose(found.reshape(-1), plain, rtol=1e-5, atol=1e-6)


# ---- Declared facts ----


def test_weights_of_encoded_rows(tmp_path: Path) -> None:
    cells = [2.5, *BAD, 0, 1e300]
    table = weighted(tmp_path / "t.csv", lines()[: len(cells)], cells, REGRESSION)
    (block,) = table
    rows = Encoder(table.schema).encode(block)
    assert rows.weight is not None
    assert rows.weight.tolist() == [2.5, *[0.0] * len(BAD), 0.0, 1e300]
    assert rows.valid.tolist() == [True, *[False] * len(BAD), True, True]
    assert np.all(rows.values[1 : 1 + len(BAD)] == 0.0)
    assert Encoder(table.schema, target=False).encode(block).weight is None
    report = validate(weighted(tmp_path / "t.csv", lines()[: len(cells)], cells, REGRESSION))
    assert report["columns"]["w"] == {"missing": 4, "negative": 2}
    assert report["rows_invalid"] == len(BAD)


def test_the_schema_names_the_column() -> None:
    schema = Schema.from_dict({**REGRESSION, "weight_column": "w"})
    assert Schema.from_dict(schema.to_dict()) == schema
    assert schema == Schema.from_dict(REGRESSION).with_weights("w")
    assert schema.without_groups() == Schema.from_dict(REGRESSION)
    assert "weight_column" not in schema.without_groups().to_dict()
    for wrong, words in (("y", "another column than the target"), ("", "name of a column")):
        with pytest.raises(SchemaError, match=words):
            schema.with_weights(wrong)
    with pytest.raises(SchemaError, match="than the group column 'g'"):
        Schema.from_dict({**REGRESSION, "users": 2, "group_column": "g", "weight_column": "g"})
    with pytest.raises(SchemaError, match="weight column 'a' cannot be the target"):
        schema.with_weights("a").with_target("a")
    with pytest.raises(ValueError, match="must be without a weight column, got 'w'"):
        from_schema(schema)


def test_class_weights_that_are_refused(tmp_path: Path) -> None:
    labels, numbers = Schema.from_dict(CLASSES), Schema.from_dict(REGRESSION)
    assert check_class_weight(labels, None) is None
    with pytest.raises(ValueError, match="None for a numeric target"):
        check_class_weight(numbers, {"yes": 1.0})
    with pytest.raises(ValueError, match=r"labels of \['no', 'yes'\] as keys, got 'maybe'"):
        check_class_weight(labels, {"maybe": 1.0})
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="class_weight must be a finite number >= 0"):
            check_class_weight(labels, {"yes": wrong})
    with pytest.raises(ValueError, match="needs a column of weights"):
        make_plan(numbers, LeastSquaresSettings(sample_weight_bound=2.0))
    with pytest.raises(ValueError, match="need a schema with an intercept"):
        make_plan(
            Schema.from_dict({**REGRESSION, "intercept": False}),
            LeastSquaresSettings(intervals=True),
        )
