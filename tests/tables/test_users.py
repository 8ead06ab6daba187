# SPDX-License-Identifier: Apache-2.0
"""Rows by user against a plain grouping, several passes over a file, and what refuses them."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dpftrl_fast.tables import (
    Encoder,
    Rows,
    TableError,
    TableReader,
    minibatches,
    passes,
    rows_by_user,
    users,
    validate,
)
from dpftrl_fast.tables.cells import numbers as number_cells
from dpftrl_fast.tables.schema import Schema

SCHEMA = Schema.from_dict(
    {
        "rows": 9,
        "target": {"name": "y", "bounds": [-9, 9], "divisor": 1},
        "columns": {"c": {"categories": ["1", "2"]}},
        "users": 5,
        "group_column": "who",
    }
)
WHO = ["b", "a", "", "b", "7", "a", "b"]  # the third row is nobody's


def write(path: Path, who: list[str] = WHO) -> Path:
    rows = [f"{name},{1 + i % 2},{i}" for i, name in enumerate(who)]
    path.write_text("\n".join(["who,c,y", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "numbers"])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 10**12])
def test_rows_of_a_user_lie_side_by_side_in_file_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, batch_size: int
) -> None:
    path = write(tmp_path / "t.csv")
    if kind != "csv":
        path = tmp_path / "t.parquet"
        who = pa.array([name or None for name in WHO]).dictionary_encode()
        if kind == "numbers":
            who = pa.array([{"a": 1, "b": 2, "7": 7}.get(name) for name in WHO], pa.int16())
        c = pa.array([1 + i % 2 for i in range(7)])
        parquet.write_table(pa.table({"c": c, "y": pa.array(range(7)), "who": who}), path)
        monkeypatch.setattr("dpftrl_fast.tables.column_file._PARQUET_ROWS", 2)
    together = rows_by_user(TableReader(path, SCHEMA))
    wanted = [[0, 3, 6], [1, 5], [4], [], []]  # b, a and 7; two users are not there
    batches = list(together.batches(5, batch_size))
    assert len(batches) == -(-5 // batch_size)
    found = []
    for rows, starts in batches:
        assert starts[0] == 0 and starts[-1] == len(rows) and starts.dtype == np.int64
        found += [rows.target[a:b].tolist() for a, b in pairwise(starts)]
        assert rows.valid.all()
        np.testing.assert_array_equal(rows.indices[:, 0], rows.target % 2)
    assert found == wanted[:3]


def test_a_row_whose_user_is_a_feature_too(tmp_path: Path) -> None:
    data = {**SCHEMA.to_dict(), "columns": {"who": {"categories": ["a", "b"]}}}
    together = rows_by_user(TableReader(write(tmp_path / "t.csv"), Schema.from_dict(data)))
    assert together.rows.values[:, 0].astype(bool).tolist() == [True] * 5 + [False]


def test_what_rows_by_user_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.csv")
    with pytest.raises(TableError, match="a schema with a group column"):
        rows_by_user(TableReader(path, SCHEMA.without_groups()))
    with pytest.raises(TableError, match="expected at most 2 users"):
        rows_by_user(TableReader(path, SCHEMA.with_groups("who", 2)))
    with pytest.raises(TableError, match="expected at most 6 rows"):
        rows_by_user(TableReader(path, SCHEMA.with_rows(6)))
    (tmp_path / "u.csv").write_text("c,y\n1,2\n", encoding="utf-8")
    with pytest.raises(TableError, match="one column 'who'"):
        TableReader(tmp_path / "u.csv", SCHEMA)
    TableReader(tmp_path / "u.csv", SCHEMA.without_groups())
    floats = pa.table({"c": ["1"], "y": [1.0], "who": [1.5]})
    parquet.write_table(floats, tmp_path / "t.parquet")
    with pytest.raises(TableError, match="'who' must hold text, a whole number"):
        TableReader(tmp_path / "t.parquet", SCHEMA)


@pytest.mark.parametrize("rows", [6, 8])
def test_a_file_that_changes_between_the_two_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    path = write(tmp_path / "t.csv")
    real = TableReader.again
    other = [*WHO, "a"][:rows]

    def unseen(table: TableReader) -> TableReader:
        write(path, other)
        return TableReader(table.path, table.schema)  # a change that the file's state hides

    def seen(table: TableReader) -> TableReader:
        write(path, other)
        return real(table)

    for again in (unseen, seen):
        write(path)
        with monkeypatch.context() as patch:
            patch.setattr(TableReader, "again", again)
            with pytest.raises(TableError, match="rows in every pass"):
                rows_by_user(TableReader(path, SCHEMA))


def test_users_are_numbered_as_they_appear() -> None:
    numbers = users.UserNumbers()
    first = numbers.of(pa.array(["x", "", None, "y"]))
    assert first.tolist() == [0, -1, -1, 1]
    assert numbers.of(pa.array(["", None])).tolist() == [-1, -1]
    assert numbers.of(pa.array([], pa.string())).tolist() == []
    assert numbers.of(pa.array(["y", "z", "x"])).tolist() == [1, 2, 0] and len(numbers) == 3


def no_utf_8(words: list[bytes]) -> pa.Array:
    values = pa.array(words, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), values.buffers())


def test_cells_that_are_no_utf_8_raise_nothing(tmp_path: Path) -> None:
    """An error of a decoder would show bytes of a private cell."""
    numbers = users.UserNumbers()
    who = no_utf_8([b"a", b"\xfe", b"b", b"\xff", b"\xfe"])
    assert numbers.of(who).tolist() == [0, 1, 2, 3, 1]
    assert numbers.of(pa.chunked_array([who[1:3], who[:1]])).tolist() == [1, 2, 0]
    cells = no_utf_8([b"1.5", b"\xff", b"x", b"", b"1_0"])
    np.testing.assert_array_equal(number_cells(cells), [1.5, np.nan, np.nan, np.nan, np.nan])
    path = tmp_path / "t.parquet"
    columns = {"who": who, "c": no_utf_8([b"1", b"2", b"\xff", b"1", b"2"])}
    parquet.write_table(pa.table({**columns, "y": [1.0, 2.0, 3.0, 4.0, 5.0]}), path)
    found = rows_by_user(TableReader(path, SCHEMA))
    assert np.diff(found.bounds).tolist() == [1, 2, 1, 1]


# ---- Passes ----


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_every_pass_has_the_same_batches(tmp_path: Path, kind: str, epochs: int) -> None:
    path, schema = write(tmp_path / "t.csv"), SCHEMA.without_groups()
    if kind == "parquet":
        path = tmp_path / "t.parquet"
        parquet.write_table(pa.table({"c": ["1", "2"] * 3, "y": range(6)}), path)
    once = list(minibatches(TableReader(path, schema), 2))
    found = list(passes(TableReader(path, schema), epochs, 2, encoder=Encoder(schema)))
    assert len(found) == 5 * epochs
    for mine, theirs in zip(found, once * epochs, strict=True):
        np.testing.assert_array_equal(mine.target, theirs.target)
        np.testing.assert_array_equal(mine.values, theirs.values)


@pytest.mark.parametrize("change", ["touched", "replaced", "longer"])
def test_a_changed_file_is_not_read_again(tmp_path: Path, change: str) -> None:
    path = write(tmp_path / "t.csv")
    batches = passes(TableReader(path, SCHEMA), 2, 2)
    for _ in range(3):
        next(batches)
    state = path.stat()
    if change == "touched":
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    elif change == "replaced":
        copy = write(tmp_path / "u.csv")
        os.utime(copy, ns=(state.st_atime_ns, state.st_mtime_ns))
        copy.replace(path)
    else:
        write(path, [*WHO, "a"])
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(TableError, match="the same rows in every pass"):
        list(batches)


def test_a_pass_with_another_number_of_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "t.csv")
    with monkeypatch.context() as patch:
        patch.setattr(TableReader, "refuse_change", lambda self: None)
        batches: list[Rows] = []
        with pytest.raises(TableError, match="expected 7 rows in every pass"):
            for batch in passes(TableReader(path, SCHEMA), 2, 2):
                batches.append(batch)
                if len(batches) == 5:
                    write(path, WHO[:-1])


# ---- A look at the values ----


def test_validation_counts_users(tmp_path: Path) -> None:
    report = validate(TableReader(write(tmp_path / "t.csv"), SCHEMA))
    assert report["users_declared"] == 5 and report["users_in_file"] == 3
    assert report["rows_of_the_largest_user"] == 3
    assert report["rows_invalid"] == 1 and report["columns"]["who"] == {"missing": 1}
    assert "users_in_file" not in validate(
        TableReader(write(tmp_path / "t.csv"), SCHEMA.without_groups())
    )
