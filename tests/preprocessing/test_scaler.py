# SPDX-License-Identifier: Apache-2.0
"""`BoundedScaler`: its values against exact arithmetic, and no row that another one moves."""

from __future__ import annotations

import json
import math
import pickle
import re
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpftrl_fast.linear_model import DPFTRLLeastSquares
from dpftrl_fast.preprocessing import BoundedScaler
from dpftrl_fast.tables.schema import Schema

MIXED: dict[str, Any] = {"age": (18, 98), "town": ["A", "B", "C"], "old": [False, True]}
NUMBERS = {"age": (18, 98), "income": (0, 1e5)}


class Rude(float):
    """A number whose every conversion fails, with its value in the message."""

    def __float__(self) -> float:
        raise RuntimeError("Smith has 0.5")


class RudeText(str):
    """A text whose comparisons fail."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("Smith")


NASTY: list[Any] = [
    None, math.nan, math.inf, -math.inf, 10**400, -(10**400), "", "Smith", "1e999", "NaN", b"\xff",
    "\udc80", 1j, np.complex128(1j), pd.NA, pd.NaT, np.datetime64("NaT"), [1], {"a": 1}, object(),
    Decimal("sNaN"), Fraction(10**400), Rude(1.0), RudeText("A"), True, np.float32("nan"), "A",
    np.array([1.0, 2.0]), 5e-324, 1.7e308, "  7 ", "1_0", 2**63, b"A",
]  # fmt: skip


def expected_number(value: float, low: float, high: float) -> float:
    """Scale a number in exact arithmetic."""
    low_, high_ = Fraction(low), Fraction(high)
    clipped = min(max(Fraction(value), low_), high_)
    return float((2 * clipped - low_ - high_) / (high_ - low_))


@parametrize_with_checks([BoundedScaler((-5, 5)), BoundedScaler((0, 2))])
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


# ---- Values ----


@given(
    st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5),
    st.floats(-1e6, 1e6),
    st.floats(1e-3, 1e6),
)
@settings(max_examples=60, deadline=None)
def test_numbers_are_scaled_as_exact_arithmetic_says(
    values: list[float], low: float, width: float
) -> None:
    high = low + width
    found = BoundedScaler([(low, high)]).fit_transform(np.array(values)[:, None])[:, 0]
    expected = [expected_number(value, low, high) for value in values]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15 * (1 + abs(low) / width) * 8)
    assert np.all(np.abs(found) <= 1.0)


@pytest.mark.parametrize("bounds", [(-1.7e308, 1.7e308), (5e-324, 1.0), (1e308, 1.1e308)])
def test_extreme_bounds(bounds: tuple[float, float]) -> None:
    values = np.array([[-math.inf], [bounds[0]], [bounds[1]], [math.inf], [math.nan]])
    found = BoundedScaler(bounds).fit_transform(values)[:, 0]
    np.testing.assert_allclose(found, [-1, -1, 1, 1, 0], atol=1e-12)


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "town": ["A", None, "Z", "C"],
            "spare": ["x", "y", "z", "w"],
            "age": [18.0, 58.0, np.nan, 1000.0],
            "old": [True, False, True, False],
        }
    )


WANTED = [
    [-1.0, 1, 0, 0, 0, 1],
    [0.0, 0, 0, 0, 1, 0],
    [0.0, 0, 0, 0, 0, 1],
    [1.0, 0, 0, 1, 1, 0],
]

FORMS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda f: f,
    "pandas extension types": lambda f: f.astype(
        {"age": "Float64", "town": "category", "old": "boolean"}
    ),
    "pandas Arrow types": lambda f: f.astype(
        {
            "age": pd.ArrowDtype(pa.float32()),
            "town": pd.ArrowDtype(pa.string()),
            "old": pd.ArrowDtype(pa.bool_()),
        }
    ),
    "pandas objects": lambda f: f.astype(object),
    "pyarrow": lambda f: pa.Table.from_pandas(f),
    "pyarrow dictionary": lambda f: pa.Table.from_pandas(f.astype({"town": "category"})),
    "polars": lambda f: pytest.importorskip("polars").DataFrame(
        {name: [None if cell != cell else cell for cell in f[name]] for name in f}
    ),
    "array of objects": lambda f: f[[*MIXED]].to_numpy(dtype=object),
    "lists": lambda f: f[[*MIXED]].to_numpy(dtype=object).tolist(),
    "text": lambda f: f[[*MIXED]].astype(object).fillna("").astype(str).to_numpy(dtype="U"),
}


@pytest.mark.parametrize("form", FORMS)
def test_columns_of_any_frame_by_name(form: str) -> None:
    scaler = BoundedScaler(MIXED).fit(FORMS[form](frame()))
    np.testing.assert_array_equal(scaler.transform(FORMS[form](frame())), WANTED)
    assert scaler.get_feature_names_out().tolist() == [
        "age", "town=A", "town=B", "town=C", "old=false", "old=true"
    ]  # fmt: skip
    assert scaler.x_norm_bound == scaler.x_norm_bound_ == math.sqrt(3)


@pytest.mark.parametrize("form", ["pandas", "pyarrow", "polars"])
def test_bounds_of_all_columns_of_a_frame(form: str) -> None:
    columns = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, np.nan]})
    scaler = BoundedScaler((0, 4)).fit(FORMS[form](columns))
    assert scaler.transform(FORMS[form](columns)).tolist() == [[-0.5, 0.5], [0.0, 0.0]]
    assert scaler.feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        scaler.transform(FORMS[form](columns[["b", "a"]]))


def test_declared_values_of_missing_cells() -> None:
    scaler = BoundedScaler(MIXED, missing={"age": 98, "town": "B"})
    found = scaler.fit_transform(frame())
    np.testing.assert_array_equal(found[:, :4], [[-1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0],
                                                 [1, 0, 0, 1]])  # fmt: skip
    same = BoundedScaler((0, 4), missing=4).fit_transform([[None, 2.0]])
    assert same.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("cell", "code"), [(1, 0), (1.0, 0), ("1", 0), (np.int8(1), 0), ("1.0", -1), (1.5, 1), (3, -1)]
)
def test_categories_are_compared_as_text(cell: Any, code: int) -> None:
    found = BoundedScaler([[1, 1.5, "word"]]).fit_transform(np.array([[cell]], dtype=object))
    assert found.tolist() == [[float(code == 0), float(code == 1), 0.0]]


def test_a_bool_is_the_word_of_a_file() -> None:
    found = BoundedScaler([["True", "False"]]).fit_transform(np.array([[True], [False]]))
    assert found.tolist() == [[1, 0], [0, 1]]


def test_schemas_and_their_files(tmp_path: Path) -> None:
    entries = {
        "rows": 4,
        "target": {"name": "spare", "categories": ["x", "y"]},
        "columns": {
            "age": {"bounds": [18, 98], "divisor": 7, "offset": 3},
            "town": {"categories": ["A", "B", "C"]},
            "old": {"categories": ["false", "true"]},
        },
    }
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(entries), "utf-8")
    for bounds in (Schema.from_dict(entries), path, str(path), entries["columns"]):
        np.testing.assert_array_equal(BoundedScaler(bounds).fit_transform(frame()), WANTED)


@pytest.mark.parametrize("columns", [30, 200])
def test_many_categories_are_sparse(columns: int) -> None:
    names = [f"c{k}" for k in range(columns)]
    scaler = BoundedScaler([(0, 1), names])
    cells = np.array([[0.25, "c3"], [1, "none"], [0, "c0"]], dtype=object)
    found = scaler.fit_transform(cells)
    assert scipy.sparse.issparse(found) == (columns == 200)
    dense = BoundedScaler([(0, 1), names], sparse_output=False).fit_transform(cells)
    wanted = np.zeros((3, columns + 1))
    wanted[:, 0], wanted[0, 4], wanted[2, 1] = [-0.5, 1, -1], 1, 1
    np.testing.assert_array_equal(dense, wanted)
    np.testing.assert_array_equal(found.toarray() if columns == 200 else found, wanted)


def test_sparse_rows_stay_sparse_where_zero_stays_zero() -> None:
    rows = scipy.sparse.csr_array(np.array([[0.0, 4.0], [-1.0, np.nan], [9.0, 0.0]]))
    found = BoundedScaler((-2, 2)).fit_transform(rows)
    assert scipy.sparse.issparse(found)
    np.testing.assert_array_equal(found.toarray(), [[0, 1], [-0.5, 0], [1, 0]])
    twice = scipy.sparse.csr_array(([2.0, 2.0], [0, 0], [0, 2]), shape=(1, 1))
    assert BoundedScaler((-2, 2)).fit_transform(twice).toarray().tolist() == [[1.0]]
    for bounds in [(0, 2), [(-2, 2), (-1, 2)], [(-2, 2), ["a", "b"]]]:
        with pytest.raises(ValueError, match=r"bounds \(-b, b\)"):
            BoundedScaler(bounds).fit(rows)


def test_original_units() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform([20, 0], [90, 1e5], (50, 2))
    scaler = BoundedScaler([*NUMBERS.values(), ["a", "b"]])
    cells = np.column_stack([X.astype(object), np.where(X[:, 0] > 50, "a", "b")])
    scaled = scaler.fit_transform(cells)
    for coef, intercept in (
        ([0.5, -2.0, 0.1, 0.2], 3.0),
        (rng.normal(size=(3, 4)), np.arange(3.0)),
    ):
        own, shift = scaler.original_coefficients(coef, intercept)
        raw = np.column_stack([X, scaled[:, 2:]])
        np.testing.assert_allclose(
            raw @ np.transpose(own) + shift, scaled @ np.transpose(coef) + intercept, rtol=1e-10
        )
    numbers = BoundedScaler([*NUMBERS.values()])
    np.testing.assert_allclose(numbers.inverse_transform(numbers.fit_transform(X)), X)
    with pytest.raises(ValueError, match="numeric columns"):
        scaler.inverse_transform(scaled)
    with pytest.raises(ValueError, match="4 columns"):
        scaler.original_coefficients([1.0, 2.0])


# ---- Privacy ----


def cells_of(row: int, cell: Any) -> np.ndarray[Any, Any]:
    cells = np.empty((4, 3), dtype=object)
    cells[:] = frame()[[*MIXED]].to_numpy(dtype=object)
    for column in range(3):
        cells[row, column] = cell
    return cells


@pytest.mark.parametrize("cell", NASTY, ids=lambda cell: type(cell).__name__)
@pytest.mark.parametrize("sparse", [False, True])
def test_no_cell_is_refused_and_none_moves_another_row(cell: Any, sparse: bool) -> None:
    scaler = BoundedScaler(MIXED, sparse_output=sparse)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        found = scaler.fit_transform(cells_of(1, cell))
    found = found.toarray() if sparse else found
    others = [0, 2, 3]
    np.testing.assert_array_equal(found[others], np.array(WANTED)[others])
    assert np.all(np.isfinite(found)) and np.linalg.norm(found[1]) <= scaler.x_norm_bound


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.longdouble, np.int64, np.bool_])
def test_rows_of_numbers_do_not_move_each_other(kind: Any) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(6, 3)).astype(kind)
    scaler = BoundedScaler([(-1, 2), (0, 1), (-3, 3)])
    expected = scaler.fit_transform(X)
    values = [True] if kind is np.bool_ else [2**62] if kind is np.int64 else [np.nan, np.inf, 1e30]
    for value in values:
        other = X.copy()
        other[2] = value
        found = scaler.fit(other).transform(other)
        np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(expected, 2, 0))
        assert np.linalg.norm(found[2]) <= scaler.x_norm_bound
    if kind is np.float64:  # a negative control: one row moves the others
        other = np.where(np.arange(6)[:, None] == 2, 1e3, X)
        moved = StandardScaler().fit_transform(other)[0] - StandardScaler().fit_transform(X)[0]
        assert np.abs(moved).max() > 0.1


def test_signalling_nan_and_text_that_is_no_utf8_are_missing() -> None:
    X = np.zeros((2, 1), dtype=np.float32)
    X.view(np.uint32)[0] = 0x7FA00000
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        assert BoundedScaler((1, 3)).fit_transform(X).tolist() == [[0.0], [-1.0]]
        bad = pa.array([b"\xff", b"A"]).cast(pa.binary()).view(pa.string())
        for column in (bad, pa.chunked_array([bad])):
            table = pa.table({"town": column})
            found = BoundedScaler({"town": ["A"]}).fit_transform(table)
            assert found.tolist() == [[0.0], [1.0]]
            assert BoundedScaler({"town": (0, 1)}).fit_transform(table).tolist() == [[0.0], [0.0]]


def test_fit_learns_nothing() -> None:
    X = np.random.default_rng(0).normal(size=(9, 2))
    one, other = BoundedScaler((-1, 1)).fit(X), BoundedScaler((-1, 1)).fit(X * np.nan)
    assert pickle.dumps(one) == pickle.dumps(other)
    assert BoundedScaler((-1, 1)).transform(X).tolist() == one.transform(X).tolist()


# ---- Refusals ----


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ((1, 1), "low < high"),
        ([(2, 1)], "low < high"),
        ((0, math.nan), "finite"),
        ([(0, math.inf)], "finite"),
        ([(0, 5e-324)], "further apart"),
        ([["a", "a"]], "twice"),
        ([[1, "1"]], "twice"),
        ([["a", None]], "text, numbers or bool"),
        ([[]], "at least one"),
        ([], "at least one"),
        ([{"a", "b"}], "sequence"),
        (3, "sequence"),
        (["a", "b"], "sequence"),
        ({1: (0, 1)}, "names of columns"),
        ({"a": {"bounds": [None, None]}}, "filled in"),
        ("nowhere.txt", "schema file ends"),
    ],
)
def test_wrong_bounds_are_refused(bounds: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        BoundedScaler(bounds).fit(np.zeros((2, 1)))


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (1.0, "mapping"),
        ({"age": 99}, r"\[18, 98\]"),
        ({"town": "Z"}, "declared category"),
        ({"spare": 1}, "declared columns"),
    ],
)
def test_wrong_values_of_missing_cells_are_refused(missing: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        BoundedScaler(MIXED, missing=missing).fit(frame())


def test_wrong_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="one column 'old', got 0"):
        BoundedScaler(MIXED).fit(frame().drop(columns="old"))
    with pytest.raises(ValueError, match="one column 'age', got 2"):
        BoundedScaler(MIXED).fit(pd.concat([frame(), frame()[["age"]]], axis=1))
    with pytest.raises(ValueError, match="must have 3 columns, as declared, got 2"):
        BoundedScaler(MIXED).fit(np.zeros((2, 2)))
    with pytest.raises(TypeError, match="datetime64"):
        BoundedScaler((0, 1)).fit(np.zeros((2, 2), dtype="M8[s]"))
    with pytest.raises(TypeError, match="datetime64"):
        BoundedScaler({"t": (0, 1)}).fit_transform(pd.DataFrame({"t": pd.to_datetime(["2020"])}))
    with pytest.raises(ValueError, match="one of 'auto', True, False"):
        BoundedScaler((0, 1), sparse_output="yes").fit(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="after fit"):
        BoundedScaler((0, 1)).x_norm_bound  # noqa: B018
    scaler = BoundedScaler((0, 1)).fit(np.zeros((2, 3)))
    assert scaler.x_norm_bound == math.sqrt(3)
    with pytest.raises(ValueError, match="2 features"):
        scaler.transform(np.zeros((2, 2)))


# ---- scikit-learn ----


def test_columns_that_are_neither_declared_nor_ignored_are_warned_of() -> None:
    frame = pd.DataFrame({"age": [20.0, 30.0], "pay": [1.0, 2.0], "town": ["A", "B"]})
    bounds = {"age": (18, 90)}
    for ignored in ([], ["pay"], ("town", "elsewhere")):
        scaler = BoundedScaler(bounds, ignored=ignored)
        left = [name for name in ("pay", "town") if name not in ignored]
        with pytest.warns(UserWarning, match=rf"not used: {re.escape(str(left))}; declare"):
            clone(scaler).fit(frame)
    for ignored in (None, ["pay", "town"]):
        scaler = BoundedScaler(bounds, ignored=ignored).fit(frame)
        assert scaler.transform(frame).shape == (2, 1)
    BoundedScaler(bounds, ignored=[]).fit([[20.0], [30.0]])  # columns without names
    for wrong in ("pay", 3):
        with pytest.raises(TypeError, match="ignored must be a sequence of names, got"):
            BoundedScaler(bounds, ignored=wrong).fit(frame)  # type: ignore[arg-type]


def test_clones_and_frames_out() -> None:
    scaler = clone(BoundedScaler(MIXED)).set_output(transform="pandas")
    found = scaler.fit_transform(frame())
    assert [*found.columns][:2] == ["age", "town=A"] and found.shape == (4, 6)
    named = BoundedScaler((0, 1)).fit(np.zeros((2, 2)))
    assert named.get_feature_names_out(["a", "b"]).tolist() == ["a", "b"]


def test_a_bound_for_an_estimator() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform([18, 0], [98, 1e5], (4000, 2))
    y = (X[:, 0] - 58) / 80 + (X[:, 1] - 5e4) / 2e5
    scaler = BoundedScaler([*NUMBERS.values()])
    model = DPFTRLLeastSquares(epsilon=5.0, x_norm_bound=scaler.x_norm_bound, y_bound=1.0)
    scaled = scaler.fit_transform(X)
    assert model.clipping_report(scaled, y)["rows_beyond_x_norm_bound"] == 0
    model.fit(scaled, y)
    coef, intercept = scaler.original_coefficients(model.coef_, model.intercept_)
    np.testing.assert_allclose(X @ coef + intercept, model.predict(scaled), atol=1e-9)
    assert model.score(scaled, y) > 0.9
