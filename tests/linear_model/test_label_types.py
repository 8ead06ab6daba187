# SPDX-License-Identifier: Apache-2.0
"""Labels of a type that no class has are refused by their dtype, before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from estimator_cases import make, recorded_noises, rows

from dpftrl_fast.linear_model import DPFTRLClassifier

X, NUMBERS = rows(DPFTRLClassifier)
TEXT = np.where(NUMBERS == 1, "1", "0")
LABELS: dict[str, Any] = {
    "int": NUMBERS,
    "float": NUMBERS.astype(np.float32),
    "bool": NUMBERS == 1,
    "text": TEXT,
    "pandas Int64": pd.Series(NUMBERS, dtype="Int64"),
    "pandas bool": pd.Series(NUMBERS == 1, dtype="boolean"),
    "pandas text": pd.Series(TEXT, dtype="string"),
    "pandas categories of text": pd.Series(TEXT, dtype="category"),
    "pandas categories of int": pd.Series(NUMBERS, dtype="category"),
    "pandas Arrow text": pd.Series(TEXT, dtype=pd.ArrowDtype(pa.string())),
}
CLASSES: dict[str, Any] = {
    "int": [0, 1],
    "float": [0.0, 1.0],
    "bool": [False, True],
    "text": ["0", "1"],
    "objects of text": np.array(["0", "1"], dtype=object),
    "objects of int": np.array([0, 2**70], dtype=object),
    "other int": [0, 7],
}


def fits(labels: str, classes: str) -> bool:
    is_text = "text" in labels
    if classes in ("other int", "objects of int"):  # no bool is 7
        return not is_text and "bool" not in labels
    return is_text == ("text" in classes)


PAIRS = [(labels, classes) for labels in LABELS for classes in CLASSES]


def refused(call: Any) -> None:
    with recorded_noises() as made, pytest.raises(TypeError, match="type of the classes"):
        call()
    assert not made  # before the first step, and before its key


@pytest.mark.parametrize(("labels", "classes"), PAIRS)
def test_in_a_stream(labels: str, classes: str) -> None:
    model = make(DPFTRLClassifier, horizon=60, classes=CLASSES[classes])
    part = LABELS[labels][:10]
    if fits(labels, classes):
        assert model.partial_fit(X[:10], part).n_steps_ == 1
        return
    refused(lambda: model.partial_fit(X[:10], part))
    good = np.array(CLASSES[classes])[NUMBERS[:10]]
    assert model.partial_fit(X[:10], good).n_steps_ == 1  # nothing was taken


@pytest.mark.parametrize(("labels", "classes"), PAIRS)
def test_in_memory(labels: str, classes: str) -> None:
    model = make(DPFTRLClassifier, classes=CLASSES[classes])
    if fits(labels, classes) and classes not in ("other int", "objects of int"):
        assert model.fit(X, LABELS[labels]).n_steps_ == 6
        return
    with recorded_noises() as made, pytest.raises((TypeError, ValueError), match="y must"):
        model.fit(X, LABELS[labels])
    assert not made


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("labels", ["int", "float", "bool", "text", "pandas categories of text"])
def test_in_files(labels: str, classes: str, tmp_path: Path) -> None:
    model = make(DPFTRLClassifier, classes=CLASSES[classes])
    frame = pd.DataFrame(X, columns=[*"abc"]).assign(y=LABELS[labels])
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(table, tmp_path / "rows.parquet")
    for source in (tmp_path / "rows.parquet", ds.dataset(table)):
        if fits(labels, classes):
            assert model.fit(source, "y").n_steps_ == 6
        else:
            refused(lambda source=source: model.fit(source, "y"))


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("labels", ["int", "bool", "text", "pandas text"])
def test_in_dask(labels: str, classes: str) -> None:
    model = make(DPFTRLClassifier, classes=CLASSES[classes])
    frame = pd.DataFrame(X, columns=[*"abc"]).assign(y=LABELS[labels])
    with dask.config.set(scheduler="synchronous"):
        sources: list[tuple[Any, Any]] = [(dd.from_pandas(frame, npartitions=2), "y")]
        if "pandas" not in labels:
            sources.append((da.from_array(X, chunks=(30, 3)), da.from_array(LABELS[labels], 30)))
        for rows_, y in sources:
            if fits(labels, classes):
                assert model.fit(rows_, y).n_steps_ == 6
            else:
                refused(lambda rows_=rows_, y=y: model.fit(rows_, y))


def test_true_is_one() -> None:
    options = {"noise_seed": 3, "batch_size": 10}
    coef = make(DPFTRLClassifier, classes=[0, 1], **options).fit(X, NUMBERS).coef_
    for classes, y in (([False, True], NUMBERS), ([0, 1], NUMBERS == 1), ([0.0, 1.0], NUMBERS)):
        found = make(DPFTRLClassifier, classes=classes, **options).fit(X, y)
        np.testing.assert_array_equal(found.coef_, coef)


def test_objects_in_a_stream_are_not_refused() -> None:
    """Their types are values: a neighbour of one row would be told from another."""
    model = make(DPFTRLClassifier, horizon=60, classes=[0, 1])
    model.partial_fit(X[:10], TEXT[:10].astype(object))
    model.partial_fit(X[:10], np.array([*NUMBERS[:9], "a"], dtype=object))
    assert model.n_steps_ == 2
