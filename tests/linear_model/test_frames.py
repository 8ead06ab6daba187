# SPDX-License-Identifier: Apache-2.0
"""Frames of pandas, polars and pyarrow: the same models as the arrays of their columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from estimator_cases import CLASSES, NAMES, first_of, learned, make, outcome, recorded_noises, rows

from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor

every = pytest.mark.parametrize("cls", CLASSES, ids=NAMES)


def polars() -> Any:
    return pytest.importorskip(
        "polars", reason="polars is not installed: it is an optional package"
    )


FRAMES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pandas": pd.DataFrame,
    "pyarrow": pa.table,
    "polars": lambda columns: polars().DataFrame(columns),
}
frames = pytest.mark.parametrize("kind", FRAMES)


def columns_of(X: Any, **more: Any) -> dict[str, Any]:
    return {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], **more}


@every
@frames
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_frame_is_the_array_of_its_columns(cls: Any, kind: str, dtype: Any) -> None:
    X, y = rows(cls)
    X = X.astype(dtype)
    frame = FRAMES[kind](columns_of(X))
    plain = make(cls, noise_seed=1).fit(X, y)
    model = make(cls, noise_seed=1).fit(frame, y)
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    found, expected = (np.asarray(m.predict(x), float) for m, x in ((model, frame), (plain, X)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)  # pandas has its columns one by one
    assert model.clipping_report(frame, y) == plain.clipping_report(X, y)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(FRAMES[kind]({"b": X[:, 1], "a": X[:, 0], "c": X[:, 2]}))


@every
@frames
def test_targets_and_users_by_name(cls: Any, kind: str) -> None:
    X, y = rows(cls)
    users = np.repeat(np.arange(30), 2)
    text = np.array(["no", "yes"])[y] if cls is DPFTRLClassifier else y
    frame = FRAMES[kind](columns_of(X, target=text, who=users))
    if cls is DPFTRLLeastSquares:
        frame = FRAMES[kind](columns_of(X, target=text))
        options: dict[str, Any] = {}
    else:
        options = {"groups": "who"}
    given = {"groups": users} if options else {}
    plain = make(cls, noise_seed=1).fit(X, text, **given)
    model = make(cls, noise_seed=1).fit(frame, "target", **options)
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="one column 'gain', got 0"):
        model.fit(frame, "gain")


@every
@frames
def test_streams_of_frames(cls: Any, kind: str) -> None:
    X, y = rows(cls)
    text = np.array(["no", "yes"])[y] if cls is DPFTRLClassifier else y
    first = {"classes": ["no", "yes"]} if cls is DPFTRLClassifier else {}
    plain = make(cls, noise_seed=1, horizon=60).partial_fit(X, text, **first)
    model = make(cls, noise_seed=1, horizon=60)
    for start in range(0, 60, 15):
        part = slice(start, start + 15)
        model.partial_fit(FRAMES[kind](columns_of(X[part], t=text[part])), "t", **first)
        first = {}
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    with pytest.raises((TypeError, ValueError)):
        make(cls, horizon=60).partial_fit(FRAMES[kind]({"a": ["Smith"] * 10}), y[:10], **first)


@every
@pytest.mark.parametrize("kind", ["pyarrow", "polars"])
def test_a_null_keeps_its_slot_in_a_stream(cls: Any, kind: str) -> None:
    X, y = rows(cls)
    cells, labels = columns_of(X[:10]), y[:10].tolist()
    missing = {name: [*column[:3].tolist(), None, *column[4:].tolist()]
               for name, column in cells.items()}  # fmt: skip
    missing["flag"] = [True] * 4 + [None] + [False] * 5
    other = np.column_stack([X[:10], [1.0] * 4 + [np.nan] + [0.0] * 5])
    other[3, :3] = np.nan
    targets = y[:10].astype(float)
    targets[5] = np.nan
    labels[5] = None
    model, plain = (make(cls, noise_seed=1, horizon=60) for _ in range(2))
    model.partial_fit(FRAMES[kind](missing), column(kind, labels), **first_of(cls))
    plain.partial_fit(other, targets, **first_of(cls))
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    model = make(cls)
    with pytest.raises(ValueError, match="finite, got NaN in row 3"):
        model.fit(FRAMES[kind](missing), y[:10])
    assert not learned(model)


def column(kind: str, cells: list[Any]) -> Any:
    return pa.array(cells) if kind == "pyarrow" else polars().Series(cells)


@every
@pytest.mark.parametrize("kind", ["pyarrow", "polars"])
def test_no_refusal_of_a_stream_depends_on_cells(cls: Any, kind: str) -> None:
    X, y = rows(cls)
    said = []
    for cell in (0.5, None, np.nan, np.inf):
        cells = columns_of(X[:10])
        cells["a"] = [*cells["a"][:9].tolist(), cell]
        model, frame, first = make(cls, horizon=60), FRAMES[kind](cells), first_of(cls)
        said.append(
            [
                outcome(lambda m=model, f=frame, first=first: m.partial_fit(f, y[:10], **first)),
                outcome(lambda m=model, f=frame: m.partial_fit(f.select(["a"]), y[:10])),
            ]
        )
    assert all(one == said[0] for one in said)
    assert said[0][0] is None and said[0][1] is not None


@every
@pytest.mark.parametrize("kind", ["pyarrow", "polars"])
def test_columns_of_text_are_refused_by_their_type(cls: Any, kind: str) -> None:
    X, y = rows(cls)
    frame = FRAMES[kind](columns_of(X, town=["Smith"] * 60))
    for call in (
        lambda: make(cls).fit(frame, y),
        lambda: make(cls, horizon=60).partial_fit(frame, y, **first_of(cls)),
    ):
        with recorded_noises() as made, pytest.raises(TypeError, match="'town' of type") as error:
            call()
        assert not made and "Smith" not in str(error.value) and "BoundedScaler" in str(error.value)
    if cls is not DPFTRLClassifier:
        with pytest.raises(TypeError, match="real numbers, got a column of type"):
            make(cls).fit(FRAMES[kind](columns_of(X)), column(kind, ["Smith"] * 60))


@pytest.mark.parametrize("kind", ["pyarrow", "polars"])
def test_users_of_a_column_that_lacks_one(kind: str) -> None:
    X, y = rows(DPFTRLRegressor)
    users = column(kind, ["u", "v", None, "w"])
    model = make(DPFTRLRegressor, batch_size=4, horizon=8)
    assert model.partial_fit(X[:4], y[:4], groups=users).n_steps_ == 1
    with pytest.raises(ValueError, match="took part"):
        model.partial_fit(X[:4], y[:4], groups=column(kind, ["v", "x", "y", "z"]))


def test_lazy_frames_say_how() -> None:
    X, y = rows(DPFTRLRegressor)
    lazy = polars().DataFrame(columns_of(X)).lazy()
    for call in (
        lambda: make(DPFTRLRegressor).fit(lazy, y),
        lambda: make(DPFTRLRegressor, horizon=60).partial_fit(lazy, y),
    ):
        with pytest.raises(TypeError, match=r"collect\(\), or sink_parquet"):
            call()


@every
@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "ROWS.TSV", "rows.json"])
def test_text_files_say_how(cls: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("a,y\n0.5,1\n", "utf-8")
    with pytest.raises(ValueError, match=r"no types.*BoundedScaler.*dpftrl-fast fit.*Parquet"):
        make(cls, classes=[0, 1]).fit(path, "y") if cls is DPFTRLClassifier else make(cls).fit(
            path, "y"
        )
