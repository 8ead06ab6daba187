# SPDX-License-Identifier: Apache-2.0
"""Predictions of saved models: the same for a file and for any frame of its rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpftrl_fast.fitting import FitSettings, LeastSquaresSettings, fit
from dpftrl_fast.fitting.model_file import Model, load_model, save_model
from dpftrl_fast.tables import TableReader
from dpftrl_fast.tables.schema import Schema

TARGETS: dict[str, Any] = {
    "y": {"name": "y", "bounds": [0, 10]},
    "k": {"name": "k", "categories": ["no", "yes"]},
    "m": {"name": "m", "categories": ["low", "mid", "high"]},
}
COLUMNS = {
    "a": {"bounds": [0, 1]},
    "town": {"categories": ["u", "v"]},
    "level": {"categories": [1, 2]},
}
LINES = """\
0.5,u,1,3,no,low
1,v,2,9,yes,mid
,u,1,4,no,high
7,w,9,2,yes,low
x,v,2,5,no,mid
0.25,,1,6,yes,high
0.1,v,,6,yes,high
"""


def fitted(folder: Path, target: str, settings: Any = None) -> Model:
    schema = Schema.from_dict({"rows": 7, "target": TARGETS[target], "columns": COLUMNS})
    path = folder / "rows.csv"
    path.write_text("a,town,level,y,k,m\n" + LINES, "utf-8")
    settings = settings or FitSettings(batch_size=2, noise_seed=1)
    save_model(folder / "model", fit(TableReader(path, schema), settings))
    return load_model(folder / "model")


FRAMES: dict[str, Callable[[Path], Any]] = {
    "pandas": pd.read_csv,
    "pandas text": lambda path: pd.read_csv(path, dtype=str),
    "pandas objects": lambda path: pd.read_csv(path).astype(object),
    "pandas Arrow": lambda path: pd.read_csv(path).convert_dtypes(dtype_backend="pyarrow"),
    "pyarrow": lambda path: pa.Table.from_pandas(pd.read_csv(path)),
    "polars": lambda path: pytest.importorskip("polars").read_csv(path),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FRAMES)
def test_a_frame_is_predicted_as_its_file(target: str, form: str, tmp_path: Path) -> None:
    model = fitted(tmp_path, target)
    path = tmp_path / "rows.csv"
    frame = FRAMES[form](path)
    for kind in ("tail", "last"):
        expected = model.predict(path, kind=kind)  # type: ignore[arg-type]
        np.testing.assert_array_equal(model.predict(frame, kind=kind), expected)  # type: ignore[arg-type]
    missing = np.isnan(expected.reshape(7, -1)).any(axis=1)
    assert missing.tolist() == [False, False, True, False, True, True, True]
    if target != "y":
        assert model.predict_labels(frame) == model.predict_labels(path)


@pytest.mark.parametrize("target", ["k", "m"])
def test_probabilities(target: str, tmp_path: Path) -> None:
    model, path = fitted(tmp_path, target), tmp_path / "rows.csv"
    score, found = model.predict(path), model.predict_probabilities(path)
    labels = TARGETS[target]["categories"]
    assert found.shape == (7, len(labels))
    if target == "k":
        np.testing.assert_allclose(found[:, 1], 1 / (1 + np.exp(-score)), rtol=1e-12)
    else:
        np.testing.assert_allclose(np.log(found[0]) - np.log(found[0, 0]), score[0] - score[0, 0])
    good = ~np.isnan(found).any(axis=1)
    np.testing.assert_allclose(found[good].sum(axis=1), 1.0)
    best = [labels[k] for k in found[good].argmax(axis=1)]
    assert [label for label in model.predict_labels(path) if label is not None] == best
    table = model.table(path)
    assert [*table] == ["prediction", *(f"probability_{label}" for label in labels)]
    np.testing.assert_array_equal(table[f"probability_{labels[1]}"], found[:, 1])
    assert table["prediction"] == model.predict_labels(path)


def test_a_hinge_loss_has_scores(tmp_path: Path) -> None:
    hinge = FitSettings(batch_size=2, noise_seed=1, loss="hinge")
    model, path = fitted(tmp_path, "k", hinge), tmp_path / "rows.csv"
    with pytest.raises(ValueError, match="no probabilities"):
        model.predict_probabilities(path)
    table = model.table(path)
    assert [*table] == ["prediction", "score"]
    np.testing.assert_array_equal(table["score"], model.predict(path))


def test_numbers_have_no_probabilities(tmp_path: Path) -> None:
    model = fitted(tmp_path, "y", LeastSquaresSettings(batch_size=2, noise_seed=1))
    path = tmp_path / "rows.csv"
    with pytest.raises(ValueError, match="needs a classification"):
        model.predict_probabilities(path)
    assert [*model.table(path)] == ["prediction"]


def test_cells_of_any_kind_raise_nothing(tmp_path: Path) -> None:
    model = fitted(tmp_path, "y")
    good = pd.DataFrame({"a": [0.5], "town": ["u"], "level": [1]}, dtype=object)
    expected = model.predict(good)
    nasty = [None, np.nan, 10**400, "", b"\xff", "\udc80", 1j, pd.NA, [1], object(), "Smith"]
    rows = [{**good.iloc[0].to_dict(), name: cell} for cell in nasty for name in good]
    frame = pd.DataFrame([*rows, good.iloc[0].to_dict()], dtype=object)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.predict(frame)
    assert found.shape == (len(rows) + 1,) and found[-1] == expected[0]


def test_wrong_frames_are_refused(tmp_path: Path) -> None:
    model = fitted(tmp_path, "y")
    frame = pd.read_csv(tmp_path / "rows.csv")
    for rows, words in (
        (frame.drop(columns="a"), "one column 'a', got 0"),
        (frame.to_numpy(), "data frame in memory"),
        (frame.assign(a=pd.to_datetime("2020-01-01")), "datetime64"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            model.predict(rows)
    with pytest.raises(ValueError, match="delimiter"):
        model.predict(frame, delimiter=";")
