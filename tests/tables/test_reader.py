# SPDX-License-Identifier: Apache-2.0
"""Streaming tables: features against a plain-Python reading, and slots that no row can move."""

from __future__ import annotations

import bz2
import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dpftrl_fast.tables import (
    Encoder,
    Rows,
    TableError,
    TableReader,
    csv_slots,
    minibatches,
    validate,
)
from dpftrl_fast.tables.reader import passes
from dpftrl_fast.tables.schema import Schema

SCHEMA = Schema.from_dict(
    {
        "rows": 7,
        "target": {"name": "y", "bounds": [-1, 1]},
        "columns": {
            "a": {"bounds": [0, 10], "divisor": 5, "offset": 4},
            "c": {"categories": ["x", "10", "z"]},
        },
    }
)
HEADER = "id,a,c,y"
LINES = [
    "1,5,x,0.5",
    "2,99,10,-7",
    "3,-3,z,1",
    "4,4,new,0",
    "5,7.5,x,-0.25",
    "6,1e1,z,.5",
    "7,0,10,1",
]


def plain(cells: dict[str, str]) -> tuple[list[float], float]:
    """One row by hand: five features scaled, and the target; all zero if a cell is missing."""
    try:
        a, y = float(cells["a"]), float(cells["y"])
    except ValueError:
        return [0.0] * 5, 0.0
    if not (math.isfinite(a) and math.isfinite(y)) or cells["c"] == "":
        return [0.0] * 5, 0.0
    features = [(min(max(a, 0.0), 10.0) - 4) / 5]
    features += [float(cells["c"] == name) for name in ("x", "10", "z")]
    features.append(1.0)
    scale = math.sqrt((6 / 5) ** 2 + 1 + 1)
    return [f / scale for f in features], min(max(y, -1.0), 1.0)


def expected(lines: list[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rows = [plain(dict(zip(HEADER.split(","), line.split(","), strict=True))) for line in lines]
    return np.array([x for x, _ in rows]), np.array([y for _, y in rows])


def write(path: Path, lines: list[str], *, end: str = "\n", last: str | None = None) -> Path:
    text = end.join([HEADER, *lines]) + (end if last is None else last)
    path.write_bytes(text.encode())
    return path


def everything(table: TableReader, batch_size: int = 3) -> Rows:
    return Rows.concatenate(list(minibatches(table, batch_size)))


def dense(rows: Rows) -> np.ndarray[Any, Any]:
    return np.asarray(rows.matrix(5).toarray())


def check(rows: Rows, lines: list[str]) -> None:
    x, y = expected(lines)
    np.testing.assert_allclose(dense(rows), x, rtol=1e-6)
    np.testing.assert_allclose(rows.target, y)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [None, ""])
def test_csv_rows_are_what_a_plain_reading_gives(tmp_path: Path, end: str, last: str) -> None:
    path = write(tmp_path / "t.csv", LINES, end=end, last=last)
    check(everything(TableReader(path, SCHEMA)), LINES)


def test_indicator_of_an_unknown_category_is_zero_but_the_row_counts(tmp_path: Path) -> None:
    rows = everything(TableReader(write(tmp_path / "t.csv", LINES), SCHEMA))
    assert dense(rows)[3, 1:4].tolist() == [0, 0, 0]
    assert rows.valid[3] and dense(rows)[3, 4] > 0


@pytest.mark.parametrize(
    "cells",
    ["2,,10,-7", "2,ten,10,-7", "2,nan,10,-7", "2,inf,10,1", "2,1e999,x,0", "2,NA,x,0", "2,1_0,x,0",
     "2,1,,0", "2,1,x,", "2,1,x,yes", "2,1,x,-inf", "2,0x10,x,1"],
)  # fmt: skip
def test_a_bad_cell_makes_its_row_zero_and_no_other(tmp_path: Path, cells: str) -> None:
    lines = [LINES[0], cells, *LINES[2:]]
    rows = everything(TableReader(write(tmp_path / "t.csv", lines), SCHEMA))
    assert rows.valid.tolist() == [True, False, *[True] * 5]
    check(rows, [LINES[0], "2,,,", *LINES[2:]])


BAD_LINES = [
    b"", b",", b"1,2", b"1,2,x,0,5", b'"1,2,x,0', b'1,"2,x,0', b'1,2,x,"', b'"', b'""', b"\r",
    b'"a"b,1,x,0', b"1,2\r3,x,0", b'"1\r",2,x,0', b"1,\xff\xfe,x,0", b"\xff", b"\x00",
    b'1,"2""3,x,0', b'a"b,c"d,1', b'",",",",x', b"1,2,x,0\r\r", b"\xef\xbb\xbf",
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_LINES)
@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("at", [0, 3, 6])
def test_a_broken_line_keeps_its_slot(tmp_path: Path, bad: bytes, quoted: bool, at: int) -> None:
    good = [",".join(f'"{cell}"' if quoted else cell for cell in line.split(",")) for line in LINES]
    lines = [line.encode() for line in good]
    lines[at] = bad
    path = tmp_path / "t.csv"
    path.write_bytes(b"\n".join([HEADER.encode(), *lines]) + b"\n")
    rows = everything(TableReader(path, SCHEMA))
    assert not rows.valid[at] and rows.valid.sum() == 6
    check(rows, [*LINES[:at], "0,,,", *LINES[at + 1 :]])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b'1,2,"x', b'",x,0'),  # each has the right number of delimiters outside of the pair
        (b'1,2,"x', b'x",0,1'),
        (b'"1,2,x,0', b'",2,x,0'),
        (b'1,5,x,"0', b'",5,x,0'),
    ],
)
@pytest.mark.parametrize("at", [0, 2, 5])
def test_a_pair_of_quotes_over_two_lines_is_no_field(
    tmp_path: Path, first: bytes, second: bytes, at: int
) -> None:
    """The parser would make one record of both, and the rows after them would move up."""
    lines = [line.encode() for line in LINES]
    lines[at : at + 2] = first, second
    path = tmp_path / "t.csv"
    path.write_bytes(b"\n".join([HEADER.encode(), *lines]) + b"\n")
    rows = everything(TableReader(path, SCHEMA))
    assert rows.valid.tolist() == [i not in (at, at + 1) for i in range(7)]
    check(rows, [*LINES[:at], "0,,,", "0,,,", *LINES[at + 2 :]])


@pytest.mark.parametrize("cell", [b"\xff", b"x\xfe", b"\xc3", b"\xed\xa0\x80"])
def test_a_line_that_is_no_utf8_is_a_row_of_zeros(tmp_path: Path, cell: bytes) -> None:
    """Also in a category, where the cell by itself would only be an unknown one."""
    lines = [line.encode() for line in LINES]
    lines[3] = b"1,2," + cell + b",0"
    path = tmp_path / "t.csv"
    path.write_bytes(b"\n".join([HEADER.encode(), *lines]) + b"\n")
    rows = everything(TableReader(path, SCHEMA))
    check(rows, [*LINES[:3], "0,,,", *LINES[4:]])
    assert rows.valid.tolist() == [i != 3 for i in range(7)]


@given(
    bad=st.binary(max_size=30).filter(lambda b: b"\n" not in b)
    | st.text(alphabet='",\r0123x éz', max_size=30).map(str.encode),
    at=st.integers(0, 6),
    quoted=st.booleans(),
)
@example(bad=b'"', at=0, quoted=True)
@example(bad=b'1,2,"x",0', at=0, quoted=False)
@example(bad=b'\xef\xbb\xbf"', at=0, quoted=True)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_line_changes_another_row(tmp_path: Path, bad: bytes, at: int, quoted: bool) -> None:
    good = [",".join(f'"{cell}"' if quoted else cell for cell in line.split(",")) for line in LINES]
    lines = [line.encode() for line in good]
    lines[at] = bad
    path = tmp_path / "t.csv"
    path.write_bytes(b"\n".join([HEADER.encode(), *lines]) + b"\n")
    rows = everything(TableReader(path, SCHEMA))
    x, y = expected(LINES)
    others = np.arange(7) != at
    assert len(rows) == 7
    np.testing.assert_allclose(dense(rows)[others], x[others], rtol=1e-6)
    np.testing.assert_allclose(rows.target[others], y[others])


@pytest.mark.parametrize("mark", ["\ufeff", '\ufeff"', "\ufeff\ufeff"])
@pytest.mark.parametrize("cell", ["5", ""])
@pytest.mark.parametrize("at", [0, 3])
def test_a_byte_order_mark_is_part_of_its_cell_wherever_it_is(
    tmp_path: Path, mark: str, cell: str, at: int
) -> None:
    schema = Schema.from_dict({**SCHEMA.to_dict(), "target": {"name": "id", "bounds": [0, 9]}})
    lines = [*LINES[:at], f"{mark}{cell},2,x,0", *LINES[at + 1 :]]
    rows = everything(TableReader(write(tmp_path / "t.csv", lines), schema))
    assert rows.valid.tolist() == [i != at for i in range(7)]


def test_a_row_that_the_parser_refuses_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        csv_slots.CsvLines, "_clean", lambda self, block: (block, block.count(10), np.zeros(0, int))
    )
    path = write(tmp_path / "t.csv", [*LINES[:6], "123456789,0"])
    with pytest.raises(
        RuntimeError, match="expected 7 records from 7 lines: an internal error"
    ) as caught:
        everything(TableReader(path, SCHEMA))
    assert caught.value.__suppress_context__ and "123456789" not in str(caught.value)


@given(cell=st.text(alphabet="0123456789+-.eEnaifNA_ xdé", max_size=12))
@example(cell="+1")
@example(cell="1e400")
@example(cell="nan")
@settings(max_examples=200, deadline=None)
def test_a_number_reads_the_same_beside_garbage(cell: str) -> None:
    from dpftrl_fast.tables.cells import numbers

    alone = numbers(pa.array([cell]))
    beside = numbers(pa.array([cell, "garbage"]))
    assert alone.tobytes() == beside[:1].tobytes()
    try:
        value = float(cell) if "_" not in cell else math.nan
    except ValueError:
        value = math.nan
    assert (alone[0] == value) if math.isfinite(value) else math.isnan(alone[0])


def test_lines_longer_than_a_block_keep_their_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_slots, "_BLOCK", 64)
    monkeypatch.setattr(csv_slots, "_MAX_LINE", 40)
    for length in (39, 40, 41, 63, 64, 65, 200, 1000):
        for at in (0, 3, 6):
            lines = list(LINES)
            lines[at] = "1,2," + "q" * (length - 6) + ",0"
            path = write(tmp_path / "t.csv", lines, last="")
            rows = everything(TableReader(path, SCHEMA))
            assert len(rows) == 7
            assert rows.valid[at] == (length < 40)  # an unknown category, or a line given up
            assert rows.valid.sum() >= 6


@pytest.mark.parametrize("block", [1, 2, 3, 5, 16, 50, 1 << 20])
def test_the_size_of_blocks_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(csv_slots, "_BLOCK", block)
    check(everything(TableReader(write(tmp_path / "t.csv", LINES), SCHEMA)), LINES)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_packed_csv(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    raw = write(tmp_path / "t.csv", LINES).read_bytes()
    (tmp_path / f"p.csv{suffix}").write_bytes(pack(raw))
    check(everything(TableReader(tmp_path / f"p.csv{suffix}", SCHEMA)), LINES)


def test_tabs_byte_order_mark_and_quoted_headers(tmp_path: Path) -> None:
    text = "\n".join([HEADER, *LINES]).replace(",", "\t").replace("id", '"id"')
    (tmp_path / "t.tsv").write_text(text, encoding="utf-8-sig")
    check(everything(TableReader(tmp_path / "t.tsv", SCHEMA)), LINES)


def parquet_table() -> pa.Table:
    cells = [line.split(",") for line in LINES]
    return pa.table(
        {
            "y": [float(row[3]) for row in cells],
            "c": pa.array([row[2] for row in cells]).dictionary_encode(),
            "a": [float(row[1]) for row in cells],
            "unused": [b"\xff"] * 7,
        }
    )


@pytest.mark.parametrize("group", [1, 2, 100])
def test_parquet_rows_are_what_a_plain_reading_gives(tmp_path: Path, group: int) -> None:
    parquet.write_table(parquet_table(), tmp_path / "t.parquet", row_group_size=group)
    table = TableReader(tmp_path / "t.parquet", SCHEMA)
    assert table.rows == 7
    check(everything(table), LINES)


@pytest.mark.parametrize(
    "a",
    [pa.array([5, None, 3, 4, 7, 10, 0]), pa.array([5, math.nan, 3, 4, 7, 10, 0], pa.float32()),
     pa.array([5, math.inf, 3, 4, 7, 10, 0]),
     pa.array([5, None, 3, 4, 7, 10, 0], pa.decimal128(9, 3))],
)  # fmt: skip
def test_parquet_nulls_make_zero_rows(tmp_path: Path, a: pa.Array) -> None:
    parquet.write_table(parquet_table().set_column(2, "a", a), tmp_path / "t.parquet")
    rows = everything(TableReader(tmp_path / "t.parquet", SCHEMA))
    assert rows.valid.tolist() == [True, False, *[True] * 5]
    assert not dense(rows)[1].any() and rows.target[1] == 0


def test_whole_numbers_are_categories_too(tmp_path: Path) -> None:
    codes = pa.array([10, 10, 3, None, 10, 10, 10], pa.int16())
    parquet.write_table(parquet_table().set_column(1, "c", codes), tmp_path / "t.parquet")
    rows = everything(TableReader(tmp_path / "t.parquet", SCHEMA))
    assert (dense(rows)[:, 2] > 0).tolist() == [True, True, False, False, True, True, True]
    assert rows.valid.tolist() == [True, True, True, False, True, True, True]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("rows", [7, 8, 20])
def test_row_i_is_in_batch_i_over_b_whatever_the_blocks(
    tmp_path: Path, batch_size: int, rows: int
) -> None:
    path = write(tmp_path / "t.csv", LINES)
    batches = list(minibatches(TableReader(path, SCHEMA.with_rows(rows)), batch_size))
    assert len(batches) == math.ceil(rows / batch_size)
    x, _ = expected(LINES)
    for i, batch in enumerate(batches):
        np.testing.assert_allclose(
            dense(batch), x[i * batch_size : (i + 1) * batch_size], rtol=1e-6
        )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_more_rows_than_declared_are_refused(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "t.csv", LINES)
    if kind == "parquet":
        path = tmp_path / "t.parquet"
        parquet.write_table(parquet_table(), path)
    with pytest.raises(TableError, match="expected at most 6 rows"):
        list(minibatches(TableReader(path, SCHEMA.with_rows(6)), 3))


def test_a_file_that_states_more_rows_is_refused_before_its_first_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpftrl_fast.tables.column_file._PARQUET_ROWS", 2)
    parquet.write_table(parquet_table(), tmp_path / "t.parquet", row_group_size=2)
    blocks = TableReader(tmp_path / "t.parquet", SCHEMA.with_rows(6)).blocks()
    with pytest.raises(TableError, match="expected at most 6 rows"):
        next(blocks)


def test_every_pass_reads_alike(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\n".join([HEADER, *LINES]).replace(",", ";") + "\n")
    batches = [*passes(TableReader(path, SCHEMA, delimiter=";"), 2, 4)]
    assert len(batches) == 4
    for first, again in zip(batches[:2], batches[2:], strict=True):
        assert first.valid.all() and again.valid.all()
        assert np.array_equal(first.values, again.values)
        assert np.array_equal(first.target, again.target)


@pytest.mark.parametrize("when", ["before the second pass", "during the second pass"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_that_changes_between_passes_is_refused(
    tmp_path: Path, kind: str, when: str
) -> None:
    path = tmp_path / f"t.{kind}"

    def make(lines: list[str]) -> None:
        if kind == "csv":
            write(path, lines)
        else:
            parquet.write_table(parquet_table().slice(0, len(lines)), path)

    make(LINES)
    batches = passes(TableReader(path, SCHEMA), 2, 4)
    taken = 2 if when == "before the second pass" else 3
    for _ in range(taken):
        next(batches)
    path.unlink()
    make(LINES[:6])
    with pytest.raises(TableError, match="expected the same rows in every pass"):
        list(batches)


def test_a_row_norm_bound_below_the_largest_norm_cuts_rows(tmp_path: Path) -> None:
    data = SCHEMA.to_dict()
    data["row_norm_bound"] = 1.5
    path = write(tmp_path / "t.csv", [*LINES[:5], "6,,z,.5", LINES[6]])
    whole = everything(TableReader(path, SCHEMA))
    cut = everything(TableReader(path, Schema.from_dict(data)))
    raw = dense(whole) * SCHEMA.largest_row_norm / 1.5
    norm = np.linalg.norm(raw, axis=1)
    assert (norm > 1).any() and (norm < 1).any()
    np.testing.assert_allclose(dense(cut), raw / np.maximum(norm, 1)[:, None], rtol=1e-6)


def test_labels(tmp_path: Path) -> None:
    data = {"rows": 7, "target": {"name": "c", "categories": ["x", "z"]}, "columns": {}}
    rows = everything(TableReader(write(tmp_path / "t.csv", LINES), Schema.from_dict(data)))
    assert rows.target.tolist() == [0, 0, 1, 0, 0, 1, 0]
    assert rows.valid.tolist() == [True, False, True, False, True, True, False]


def test_reading_without_the_target(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,c\n5,x\n", encoding="utf-8")
    table = TableReader(tmp_path / "t.csv", SCHEMA, target=False)
    rows = [Encoder(SCHEMA, target=False).encode(block) for block in table]
    np.testing.assert_allclose(dense(rows[0]), expected(LINES)[0][:1], rtol=1e-6)
    with pytest.raises(TableError, match="'y'"):
        TableReader(tmp_path / "t.csv", SCHEMA)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", b"", "got an empty file"),
        ("t.csv", b"id,a,c,y\n", "got a header and no row"),
        ("t.csv", b"id,a,c,y", "got a header and no row"),
        ("t.csv", b"\n1,2\n", "got an empty line"),
        ("t.csv", b"id,a,c\n1,2,x\n", "expected one column 'y'"),
        ("t.csv", b"id,a,c\n1,2,x\n", "no such column among: 'id', 'a', 'c'"),
        ("t.csv", b"id,a,c,y,a\n1,2,x,0,1\n", "columns 2 and 5 have one name"),
        ("t.csv", b"\xff,a,c,y\n1,2,x,0\n", "not UTF-8"),
        ("t.xls", b"", "expected a .csv"),
        ("t.parquet", b"no parquet", "t.parquet' is not a Parquet file"),
    ],
)
def test_files_that_are_refused_before_step_1(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError) as caught:
        TableReader(tmp_path / name, SCHEMA)
    assert words in str(caught.value)


@pytest.mark.parametrize("first", ["7771,5,x,1", "7771,7771,x,1", '"7771","x",1', "7771;5;x;1"])
def test_a_file_without_a_header_shows_no_row(tmp_path: Path, first: str) -> None:
    """Its first line is a row."""
    (tmp_path / "t.csv").write_text(f"{first}\n2,2,x,0\n", encoding="utf-8")
    with pytest.raises(TableError) as caught:
        TableReader(tmp_path / "t.csv", SCHEMA)
    assert "7771" not in str(caught.value) and str(tmp_path / "t.csv") in str(caught.value)


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("a", pa.array(["1"] * 7), "'a' must hold a number or boolean, got string"),
        ("c", pa.array([1.5] * 7), "'c' must hold text, a whole number or boolean, got double"),
        ("y", pa.array([None] * 7), "'y' must hold a number or boolean, got null"),
    ],
)
def test_parquet_types_that_are_refused(
    tmp_path: Path, column: str, values: pa.Array, words: str
) -> None:
    table = parquet_table()
    table = table.set_column(table.column_names.index(column), column, values)
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(TableError) as caught:
        TableReader(tmp_path / "t.parquet", SCHEMA)
    assert words in str(caught.value)


def test_a_reader_is_read_once(tmp_path: Path) -> None:
    parquet.write_table(parquet_table(), tmp_path / "t.parquet")
    for path in (write(tmp_path / "t.csv", LINES), tmp_path / "t.parquet"):
        table = TableReader(path, SCHEMA)
        everything(table)
        with pytest.raises(RuntimeError, match="a second one"):
            everything(table)


def test_no_such_file_and_a_bad_delimiter(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no such file"):
        TableReader(tmp_path / "t.csv", SCHEMA)
    path = write(tmp_path / "t.csv", LINES)
    for delimiter in ("", ",,", '"', "\n", "é", "\0"):
        with pytest.raises(TableError, match="one ASCII character"):
            TableReader(path, SCHEMA, delimiter=delimiter)


def test_validation_counts_and_says_that_it_is_not_private(tmp_path: Path) -> None:
    lines = [*LINES[:5], "6,,z,.5", "7,0"]
    report = validate(TableReader(write(tmp_path / "t.csv", lines), SCHEMA.with_rows(9)))
    assert "NOT private" in report["label"]
    assert (report["rows_declared"], report["rows_in_file"], report["rows_invalid"]) == (9, 7, 2)
    assert report["columns"] == {
        "a": {"missing": 2, "below": 1, "above": 1},
        "c": {"missing": 1, "unknown": 1},
        "y": {"missing": 1, "below": 1, "above": 0},
    }
