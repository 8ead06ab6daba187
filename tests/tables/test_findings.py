# SPDX-License-Identifier: Apache-2.0
"""``validate``: the kinds of cells and lines, their numbers, first lines and hints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dpftrl_fast.tables import TableReader, csv_slots, minibatches, validate
from dpftrl_fast.tables.csv_format import NumberFormat
from dpftrl_fast.tables.findings import kind_of_cell
from dpftrl_fast.tables.schema import Schema

SCHEMA = Schema.from_dict(
    {
        "rows": 24,
        "target": {"name": "y", "bounds": [0, 9], "divisor": 1, "offset": 0},
        "columns": {"town": {"categories": ["A", "B"]}},
    }
)


def found(path: Path, schema: Schema = SCHEMA, **csv: Any) -> dict[tuple[Any, str], Any]:
    report = validate(TableReader(path, schema, **csv))
    assert "NOT private" in report["label"]
    return {
        (f["column"], f["kind"]): (f["count"], f["first"], f["hint"]) for f in report["findings"]
    }


LINES = [
    b"A,1", b"B,", b"A,  ", b"A,NA", b"A,null", b"A,x1", b"A,inf", b"A,-1e999", b"A,-1", b"A,10",
    b"A,11", b'A,"1,5"', b'A,"1,234"', b"A,'7'", b"A,1 234", b"A", b"A,1,2", b"", b'A,"1',
    b"A\r,1", b"\xff,1", b"C,1", b",1", b"A,1", b"A,2", b"B,3",
]  # fmt: skip


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("block", [1, 13, 1 << 20])
def test_kinds_of_cells_and_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes, block: int
) -> None:
    monkeypatch.setattr(csv_slots, "_BLOCK", block)
    path = tmp_path / "t.csv"
    path.write_bytes(end.join([b"town,y", *LINES, b""]))
    assert found(path) == {
        ("y", "empty"): (2, 3, None),
        ("y", "a word for a missing number, such as NA"): (2, 5, None),
        ("y", "not a number"): (1, 7, None),
        ("y", "not finite"): (2, 8, None),
        ("y", "below the bounds: clipped"): (1, 10, None),
        ("y", "above the bounds: clipped"): (2, 11, None),
        ("y", "a decimal comma"): (1, 13, "--decimal ','"),
        ("y", "a mark of thousands or a decimal comma"): (
            1,
            14,
            "--thousands ',' or --decimal ','",
        ),
        ("y", "quotes in the cell"): (1, 15, None),
        ("y", "a mark of thousands"): (1, 16, "--thousands ' '"),
        (None, csv_slots.FEWER_FIELDS): (1, 17, None),
        (None, csv_slots.MORE_FIELDS): (1, 18, None),
        (None, csv_slots.BLANK): (1, 19, None),
        (None, csv_slots.QUOTES): (1, 20, None),
        (None, csv_slots.CARRIAGE_RETURN): (1, 21, None),
        (None, csv_slots.NOT_TEXT): (1, 22, "--encoding, such as cp1252"),
        ("town", "a category that is not declared"): (1, 23, None),
        ("town", "empty"): (1, 24, None),
        (None, "row beyond those declared: the file would be refused"): (2, 26, None),
    }


def test_absent_rows_and_a_column_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("town;y\nA;1,5\nA;x\nA;\n", encoding="utf-8")
    result = found(path, delimiter=";")
    assert result[None, "declared slot without a row: it adds nothing"] == (21, 5, None)
    assert result["y", "no cell of the column can be read"] == (3, 2, None)
    result = found(path, delimiter=";", decimal=",")
    assert ("y", "no cell of the column can be read") not in result
    assert result["y", "not a number"] == (1, 3, None)


def test_an_overlong_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_slots, "_MAX_LINE", 40)
    path = tmp_path / "t.csv"
    path.write_text("town,y\nA,1\nA," + "1" * 100 + "\nB,1\n", encoding="utf-8")
    for block in (16, 1 << 12):
        monkeypatch.setattr(csv_slots, "_BLOCK", block)
        assert found(path)[None, csv_slots.TOO_LONG] == (1, 3, None)


def test_weights_and_users(tmp_path: Path) -> None:
    data = {**SCHEMA.to_dict(), "users": 9, "group_column": "who", "weight_column": "w"}
    path = tmp_path / "t.csv"
    path.write_text("town,y,who,w\nA,1,,1\nA,1,u,-2\nA,1,u,?\nA,1,u\n", encoding="utf-8")
    result = found(path, Schema.from_dict(data))
    assert result["who", "empty"] == (1, 2, None)
    assert result["w", "negative"] == (1, 3, None)
    assert result["w", "not a number"] == (1, 4, None)
    assert result[None, csv_slots.FEWER_FIELDS] == (1, 5, None)


def test_rows_of_parquet_are_counted_from_one(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    y = [1.0, None, float("nan"), 99.0, float("-inf"), -5.0]
    parquet.write_table(pa.table({"town": ["A", None, "C", "B", "A", "A"], "y": y}), path)
    result = found(path, SCHEMA.with_rows(6))
    assert result == {
        ("town", "empty"): (1, 2, None),
        ("town", "a category that is not declared"): (1, 3, None),
        ("y", "null, or no text"): (1, 2, None),
        ("y", "not finite"): (2, 3, None),
        ("y", "above the bounds: clipped"): (1, 4, None),
        ("y", "below the bounds: clipped"): (1, 6, None),
    }


@pytest.mark.parametrize(
    ("cell", "form", "kind", "hint"),
    [
        ("1.234.567,89", {}, "a mark of thousands and a decimal comma",
         "--thousands '.' --decimal ','"),
        ("1\u202f234,5", {}, "a mark of thousands and a decimal comma",
         "--thousands '\\u202f' --decimal ','"),
        ("12,34,567.5", {}, "a mark of thousands", "--thousands ','"),
        ("-0,5e3", {}, "a decimal comma", "--decimal ','"),
        ("1.5", {"decimal": ","}, "a decimal point", "--decimal '.'"),
        ("1.234,5", {"decimal": ","}, "a mark of thousands", "--thousands '.'"),
        ("1,5,", {}, "not a number", None),
        ("$5", {}, "not a number", None),
        ("5 %", {}, "not a number", None),
        ("2024-01-01", {}, "not a number", None),
        ("1_000", {}, "a mark of thousands", "--thousands '_'"),
        (None, {}, "null, or no text", None),
    ],
)  # fmt: skip
def test_kinds(cell: str | None, form: dict[str, str], kind: str, hint: str | None) -> None:
    assert kind_of_cell(cell, NumberFormat(**form)) == (kind, hint)


CELL = st.sampled_from(["1", "12", "-4", "x", "", "inf", "NA", '"', '"1"', "1,5", "\r", "true"])


@given(cells=st.lists(CELL, min_size=1, max_size=12))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_findings_add_up_to_the_invalid_rows(tmp_path: Path, cells: list[str]) -> None:
    """Each row that is not valid is one broken line or one cell of the only column; no other."""
    schema = Schema.from_dict({**SCHEMA.with_rows(12).to_dict(), "columns": {}})
    path = tmp_path / "t.csv"
    path.write_text("".join(f"{x}\n" for x in ["y,z", *(f"{c},0" for c in cells)]), newline="")
    report = validate(TableReader(path, schema))
    clipped = sum(f["count"] for f in report["findings"] if "bounds" in f["kind"])
    rest = [f for f in report["findings"] if "bounds" not in f["kind"]]
    rest = [f for f in rest if "slot" not in f["kind"] and "no cell" not in f["kind"]]
    batch = next(minibatches(TableReader(path, schema), 12))
    assert sum(f["count"] for f in rest) == report["rows_invalid"] == int((~batch.valid).sum())
    assert clipped == sum(cell in ("12", "-4") for cell in cells)
    firsts = {f["first"] - 2 for f in rest}
    assert firsts <= set(np.flatnonzero(~batch.valid).tolist())
