# SPDX-License-Identifier: Apache-2.0
"""Encodings, line ends and marks within numbers: an oracle each, and slots that no row can move."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dpftrl_fast.tables import Rows, TableError, TableReader, csv_slots, minibatches, rows_by_user
from dpftrl_fast.tables.cells import BOOLS, NO_NUMBER, numbers
from dpftrl_fast.tables.csv_format import CsvFormat, NumberFormat, codec_of
from dpftrl_fast.tables.frames import csv_lines, frame_block
from dpftrl_fast.tables.schema import Schema
from dpftrl_fast.tables.values import numbers_of

SCHEMA = Schema.from_dict(
    {
        "rows": 6,
        "target": {"name": "größe", "bounds": [-100, 100], "divisor": 1, "offset": 0},
        "columns": {"c": {"categories": ["é", "x"]}},
    }
)
HEADER = "größe,c"
LINES = ["1.5,é", "-2,x", "true,x", "99,é", "0,x", "7e0,é"]
VALUES = [1.5, -2.0, 1.0, 99.0, 0.0, 7.0]
CODECS = ["cp1252", "latin-1", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "cp850",
          "cp037", "cp500", "mac-roman", "gb18030", "utf-8", "utf-8-sig", "UTF8", "utf-7",
          "hz", "iso2022_jp_2"]  # fmt: skip


def everything(path: Path, schema: Schema = SCHEMA, size: int = 4, **csv: Any) -> Rows:
    return Rows.concatenate(list(minibatches(TableReader(path, schema, **csv), size)))


def encoded(lines: list[str], codec: str, end: str = "\n", header: str = HEADER) -> bytes:
    text = end.join([header, *lines, ""])
    if codec in ("hz", "iso2022_jp_2"):  # they have no such letters
        text = text.translate({ord("ö"): "o", ord("ß"): "s", ord("é"): "e"})
    return text.encode(codec)


def plain_schema(codec: str) -> Schema:
    if codec not in ("hz", "iso2022_jp_2"):
        return SCHEMA
    data = SCHEMA.to_dict()
    data["target"]["name"] = "grose"
    data["columns"]["c"]["categories"] = ["e", "x"]
    return Schema.from_dict(data)


# ---- Encodings and line ends ----


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_rows_are_the_same_in_any_encoding_with_any_line_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, end: str, block: int
) -> None:
    monkeypatch.setattr(csv_slots, "_BLOCK", block)
    path = tmp_path / "t.csv"
    path.write_bytes(encoded(LINES, codec, end))
    schema = plain_schema(codec)
    rows = everything(path, schema, encoding=codec)
    assert rows.target.tolist() == VALUES and rows.valid.all()
    assert rows.indices[:, 0].tolist() == [0, 1, 1, 0, 1, 0]
    last = encoded(LINES, codec, end)[: -len(end.encode(codec if codec[:4] != "utf-" else "utf-8"))]
    if codec in ("cp1252", "utf-8"):  # without a line end after the last row
        path.write_bytes(last)
        assert everything(path, schema, encoding=codec).target.tolist() == VALUES


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_tells_the_encoding(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(encoded(LINES, codec))
    assert everything(path).target.tolist() == VALUES
    with pytest.raises(TableError, match=r"byte order mark of utf-.*, got encoding 'cp1252'"):
        TableReader(path, SCHEMA, encoding="cp1252")


def test_utf_16_of_big_endian_needs_only_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xfe\xff" + encoded(LINES, "utf-16-be"))
    for encoding in (None, "utf-16", "utf-16-be"):
        assert everything(path, encoding=encoding).target.tolist() == VALUES


BROKEN: list[tuple[str, bytes]] = [
    ("utf-16-le", "5".encode("utf-16-le") + b"\x00\xd8"),  # a lone surrogate before the line end
    (
        "utf-16-le",
        "\u0a00\u0100,\u0a00\u0100".encode("utf-16-le"),
    ),  # bytes of a line end within characters
    ("utf-32-le", b"\xff\xff\xff\xff"),
    ("gb18030", b"5,\x81"),  # the first half of a character
    ("euc-jp", b"5,\x8f\xa1"),
    ("hz", b"5,~{"),  # a state that is not left
    ("iso2022_jp_2", b"5,\x1b$B"),
    ("utf-7", b"5,+AAo-x"),  # an encoded line end
    ("utf-7", b"5,+"),
    ("raw_unicode_escape", b"5,\\u000a7,x"),
    ("cp1252", b"5,\x81"),  # undefined there
    ("ascii", b"5,\xe9"),
]
ENDS_IN_A_STATE = {b"5,~{", b"5,\x1b$B", b"5,+"}  # Python takes such an end for text


@pytest.mark.parametrize(("codec", "bad"), BROKEN)
@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("block", [1, 5, 1 << 20])
def test_a_line_that_is_no_text_changes_no_other_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, bad: bytes, at: int, block: int
) -> None:
    """Its slot counts as zero; a decoder with a state would have changed the rows after it."""
    monkeypatch.setattr(csv_slots, "_BLOCK", block)
    schema = Schema.from_dict(
        {"rows": 6, "target": {"name": "y", "bounds": [-100, 100], "divisor": 1, "offset": 0},
         "columns": {}}
    )  # fmt: skip
    values = [str(value) for value in VALUES]
    lines = [f"{value},x".encode(codec) for value in values]
    lines[at] = bad
    end = "\n".encode(codec)
    path = tmp_path / "t.csv"
    path.write_bytes(end.join(["y,c".encode(codec), *lines]) + end)
    rows = everything(path, schema, encoding=codec)
    own = 5.0 if bad in ENDS_IN_A_STATE else 0.0
    expected = [own if i == at else value for i, value in enumerate(VALUES)]
    assert rows.target.tolist() == expected


@given(bad=st.binary(max_size=24), at=st.integers(0, 5), codec=st.sampled_from(CODECS[:12]))
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_bytes_of_a_line_change_another_row(
    tmp_path: Path, bad: bytes, at: int, codec: str
) -> None:
    unmarked = "utf-16-le" if codec == "utf-16" else "utf-32-le" if codec == "utf-32" else codec
    end = "\n".encode(unmarked)
    bad += bytes(-len(bad) % len(end))
    units = [bad[i : i + len(end)] for i in range(0, len(bad), len(end))]
    bad = b"".join(unit for unit in units if unit != end)
    lines = [line.encode(unmarked) for line in LINES]
    lines[at] = bad
    path = tmp_path / "t.csv"
    path.write_bytes(end.join([HEADER.encode(unmarked), *lines]) + end)
    rows = everything(path, encoding=codec)
    others = np.arange(6) != at
    assert len(rows) == 6
    assert rows.target[others].tolist() == [v for i, v in enumerate(VALUES) if i != at]


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-32-be", "cp1252", "utf-7", None])
@pytest.mark.parametrize("end", ["\n", "\r"])
def test_an_overlong_line_keeps_its_slot_wherever_blocks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str | None, end: str
) -> None:
    monkeypatch.setattr(csv_slots, "_MAX_LINE", 40)
    kept = set()
    for block in (1, 16, 33, 64, 1 << 12):
        monkeypatch.setattr(csv_slots, "_BLOCK", block)
        for length in (20, 36, 39, 40, 41, 60, 300):
            lines = list(LINES)
            lines[2] = "5," + "x" * (length - 2)
            path = tmp_path / "t.csv"
            path.write_bytes(encoded(lines, codec or "utf-8", end))
            rows = everything(path, encoding=codec)
            assert rows.target.tolist()[:2] + rows.target.tolist()[3:] == VALUES[:2] + VALUES[3:]
            kept.add((length, rows.target[2] == 5))
    assert len(kept) == 7  # where blocks end does not matter
    assert {length for length, whole in kept if not whole} == {40, 41, 60, 300}


def test_a_lone_line_end_of_the_other_kind_is_part_of_its_line(tmp_path: Path) -> None:
    """The header tells the line ends of all lines: no row can change them."""
    path = tmp_path / "t.csv"
    for end, other in (("\n", "\r"), ("\r\n", "\r"), ("\r", "\n")):
        lines = [*LINES[:3], f"3,é{other}4,x", *LINES[4:]]
        path.write_bytes(encoded(lines, "utf-8", end))
        rows = everything(path)
        assert rows.target.tolist() == [*VALUES[:3], 0.0, *VALUES[4:]]


def test_a_packed_file_in_another_encoding(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(encoded(LINES, "utf-16")))
    assert everything(path).target.tolist() == VALUES


@pytest.mark.parametrize(
    "encoding",
    ["", "nowhere", "base64", "rot13", "unicode_escape", "punycode", "undefined", 7, "a\0"],
)
def test_encodings_that_are_refused(encoding: Any) -> None:
    with pytest.raises(ValueError, match="encoding must be a text encoding of Python"):
        codec_of(encoding)


# ---- Numbers ----

CELLS = st.text(alphabet="0123456789+-.,' eE_ainfNtrueFALS", max_size=14) | st.sampled_from(
    [*NO_NUMBER, *BOOLS, "1.234,5", "12,34,567.8", "1,234", "1 234", " 7 ", "1e400", "-0", "+1.5",
     "0" * 400 + "1", "9" * 400, "1." + "3" * 400, "1.5e3", "infinity", "tRue"]
)  # fmt: skip


def by_hand(cell: str) -> float:
    """One number, by a rule written another way: NaN for what adds nothing."""
    if cell in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return float(cell.lower() == "true")
    try:
        value = float(cell.replace("_", "x"))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def with_marks(cell: str, decimal: str, thousands: str | None) -> float:
    """One number in a format: groups are checked by hand, then it is read as a plain one."""
    cell = cell.strip()
    if thousands is not None and thousands in cell:
        whole, rest = cell, ""
        for place, character in enumerate(cell):
            if character in {decimal, "e", "E"}:
                whole, rest = cell[:place], cell[place:]
                break
        sign, whole = (whole[0], whole[1:]) if whole[:1] in ("+", "-") else ("", whole)
        first, *groups = whole.split(thousands)
        if not groups:  # the mark stands in the rest
            return math.nan
        digits = all(re.fullmatch("[0-9]+", group) for group in (first, *groups))
        right = len(first) in (1, 2, 3) and all(len(group) in (2, 3) for group in groups)
        if not (digits and right and len(groups[-1]) == 3) or thousands in rest:
            return math.nan
        cell = sign + first + "".join(groups) + rest
    if decimal != ".":
        if "." in cell:
            return math.nan
        cell = cell.replace(decimal, ".")
    return by_hand(cell)


def same(found: float, expected: float) -> bool:
    return math.isnan(found) if math.isnan(expected) else found == expected


@given(cells=st.lists(CELLS, max_size=6))
@example(cells=["1.5", "bad", None])
@settings(max_examples=400, deadline=None)
def test_every_cell_is_read_by_itself(cells: list[str | None]) -> None:
    found = numbers(pa.array(cells, pa.string()))
    for cell, value in zip(cells, found, strict=True):
        assert same(value, math.nan if cell is None else by_hand(cell))


@given(cells=st.lists(CELLS, max_size=6), decimal=st.sampled_from(".,"),
       thousands=st.sampled_from([None, ".", ",", "'", " ", "_"]))  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_numbers_with_marks(cells: list[str], decimal: str, thousands: str | None) -> None:
    if decimal == thousands:
        return
    found = numbers(pa.array(cells, pa.string()), NumberFormat(decimal, thousands))
    for cell, value in zip(cells, found, strict=True):
        assert same(value, with_marks(cell, decimal, thousands)), cell


@pytest.mark.parametrize(
    ("form", "cells"),
    [
        ({"decimal": ","}, {"1,5": 1.5, "-,5": -0.5, "1.5": None, "1,2,3": None, "7": 7, "": None}),
        ({"thousands": ","}, {"1,234.5": 1234.5, "12,34,567": 1234567, "1,5": None, "1,23": None,
                              "0.5,000": None, ",123": None, "1,234e2": 123400}),
        ({"decimal": ",", "thousands": "."}, {"1.234.567,89": 1234567.89, "1.5": None, "1,5": 1.5}),
        ({"thousands": "\u202f", "decimal": ","}, {"1\u202f234,5": 1234.5, "1 234": None}),
        ({"thousands": "'"}, {"1'234.5": 1234.5, "'12": None}),
    ],
)  # fmt: skip
def test_formats_of_files(
    tmp_path: Path, form: dict[str, str], cells: dict[str, float | None]
) -> None:
    schema = Schema.from_dict(
        {"rows": len(cells), "columns": {},
         "target": {"name": "x", "bounds": [-1e9, 1e9], "divisor": 1, "offset": 0}}
    )  # fmt: skip
    path = tmp_path / "t.csv"
    path.write_text("n;x\n" + "".join(f"1;{cell}\n" for cell in cells), encoding="utf-8")
    rows = everything(path, schema, delimiter=";", **form)
    assert rows.target.tolist() == [value or 0.0 for value in cells.values()]
    assert rows.valid.tolist() == [value is not None for value in cells.values()]


def test_a_column_of_users_is_text_whatever_the_format(tmp_path: Path) -> None:
    """Marks are taken from numbers only: 1.234 and 1234 are two users, but one number."""
    schema = Schema.from_dict(
        {"rows": 4, "users": 4, "group_column": "who",
         "target": {"name": "y", "bounds": [0, 9], "divisor": 1, "offset": 0},
         "columns": {"who": {"bounds": [0, 2000], "divisor": 1, "offset": 0}}}
    )  # fmt: skip
    path = tmp_path / "t.csv"
    path.write_text("who;y\n1.234;1\n1234;2\n1.234;3\nx;4\n", encoding="utf-8")
    users = rows_by_user(TableReader(path, schema, delimiter=";", decimal=",", thousands="."))
    assert users.bounds.tolist() == [0, 2, 3, 4]
    assert users.rows.target.tolist() == [1, 3, 2, 0]  # x is no number: its row counts as zero
    scale = schema.row_scale
    np.testing.assert_allclose(users.rows.values[:3, 0] * scale, 1234, rtol=1e-6)


def test_true_and_false_are_numbers_everywhere(tmp_path: Path) -> None:
    words = [*BOOLS, "tRUE", "yes"]
    expected = [*BOOLS.values(), math.nan, math.nan]
    assert np.array_equal(numbers(pa.array(words)), expected, equal_nan=True)
    assert np.array_equal(numbers_of(np.array(words)), expected, equal_nan=True)
    schema = Schema.from_dict(
        {"rows": 3, "columns": {"x": {"bounds": [0, 1]}}, "target": {"name": "y", "bounds": [0, 1]}}
    )
    frame = pa.table({"x": ["True", "false", "?"]})
    assert frame_block(frame, schema)["x"].to_pylist() == [1.0, 0.0, None]
    parquet.write_table(
        pa.table({"x": [True, False, None], "y": [1, 0, 1]}), tmp_path / "t.parquet"
    )
    assert everything(tmp_path / "t.parquet", schema).valid.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decimal": "7"}, "decimal must be one character"),
        ({"decimal": ""}, "decimal must be one character"),
        ({"decimal": " "}, "decimal must be no space"),
        ({"thousands": "e"}, "thousands must be one character"),
        ({"thousands": "-"}, "thousands must be one character"),
        ({"thousands": ",,"}, "thousands must be one character"),
        ({"decimal": ",", "thousands": ","}, "decimal and thousands must differ"),
        ({"thousands": "."}, "decimal and thousands must differ"),
        ({"delimiter": r"\n"}, "delimiter must be one ASCII character"),
        ({"delimiter": 7}, "delimiter must be one ASCII character"),
    ],
)
def test_options_that_are_refused(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CsvFormat.of(options, default_delimiter=",")


def test_an_unknown_option_is_a_type_error(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("größe,c\n1,x\n", encoding="utf-8")
    with pytest.raises(TypeError, match=r"options of CSV must be among .*, got 'sep'"):
        TableReader(tmp_path / "t.csv", SCHEMA, sep=";")  # type: ignore[call-arg]


@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
@example(values=[5e-324, -0.0, 1e308, 0.1, 1e22, 123456789.125])
@settings(max_examples=200, deadline=None)
def test_written_numbers_read_back_the_same(values: list[float]) -> None:
    text = csv_lines(np.arange(len(values)), np.array(values, dtype=np.float64)).decode()
    rows = [line.split(",") for line in text.splitlines()]
    assert [int(row[0]) for row in rows] == list(range(len(values)))
    found = np.array([float(row[1]) for row in rows])
    assert found.tobytes() == np.array(values, dtype=np.float64).tobytes()
