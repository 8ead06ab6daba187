# SPDX-License-Identifier: Apache-2.0
"""Refusals of files by their first lines: one true sentence each, and no value of a row."""

from __future__ import annotations

import bz2
import gzip
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dpftrl_fast.tables import TableError, TableReader, draft_schema, minibatches
from dpftrl_fast.tables.schema import Schema

SCHEMA = Schema.from_dict(
    {
        "rows": 3,
        "target": {"name": "y", "bounds": [0, 9], "divisor": 1, "offset": 0},
        "columns": {"town": {"categories": ["A"]}},
    }
)
ROWS = "A,1\nA,2\nA,3\n"


def refusal(path: Path) -> str:
    with pytest.raises(TableError) as caught:
        TableReader(path, SCHEMA)
    message = str(caught.value)
    assert "\n" not in message and caught.value.__cause__ is None
    return message


def first_rows(path: Path) -> list[float]:
    return [float(y) for batch in minibatches(TableReader(path, SCHEMA), 3) for y in batch.target]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "expected a header and rows, got an empty file"),
        (b"\xef\xbb\xbf", "got an empty file"),
        (b"\xff\xfe", "got an empty file"),
        (b"\n" + ROWS.encode(), "expected a header line in"),
        (b"town,y", "got a header and no row"),
        (b"town,y\r", "got a header and no row"),
        (b"town,y\r\n", "got a header and no row"),
        (b"town,y\r\r\n" + ROWS.encode(), "several carriage returns and a line feed"),
        (b'town,"y\n' + ROWS.encode(), "is not a CSV record: a quote is not closed in it"),
        (b'to"wn,"y"z\n' + ROWS.encode(), "is not a CSV record"),
        (b"town,y," + b"h" * 200_000 + b"\n" + ROWS.encode(), "field larger than field limit"),
        (b"town,y" + b"h" * (5 << 20), "got no line end"),
        ("town,größe\n".encode("latin-1"), "is not UTF-8 text: give its encoding (--encoding)"),
        ("town,y\nA,1\n".encode("utf-16-le"), "holds NUL characters: is it UTF-16?"),
        (b"town,y\0\nA,1\n", "holds NUL characters"),
        (b"town;y\nA;1\n", "holds that name between ';': give the delimiter (--delimiter)"),
        (b"town\ty\nA\t1\n", "holds that name between '\\t'"),
        (b"town|y\nA|1\n", "holds that name between '|'"),
        (b'"town";"y"\nA;1\n', "a quoted name is not followed by ','; if columns are delimited"),
        (b"town, Y\nA,1\n", "got ' Y', which differs in case or spaces"),
        (b"town,x,z\nA,1,2\n", "no such column among: 'town', 'x', 'z'"),
        (b"town,x,2013\nA,1,2\n", "got 3 fields in the first line, none of them that name"),
        (b"town,x,\nA,1,2\n", "got 3 fields in the first line"),
        (b"id,x\nA,1\n", "got 2 fields in the first line"),
        (b"town,y,x,x\nA,1,2,2\n", "columns 3 and 4 have one name"),
        (gzip.compress(b"town,y\n"), "is a gzip file, not text: add .gz to its name"),
        (bz2.compress(b"town,y\n"), "is a bzip2 file, not text"),
        (bz2.compress(b"town,y\n", 1), "is a bzip2 file, not text"),
        (pa.compress(b"town,y\n", "zstd", asbytes=True), "is a zstd file, not text"),
        (b"\xd0\xcf\x11\xe0rest", "is a document of Microsoft Office, not text"),
        (b"PK\x03\x04rest", "is a zip archive, not text"),
        (b"PAR1\x15rest", "is a Parquet file, not text"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_a_reason(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    message = refusal(path)
    assert words in message
    assert "'town'" not in message or "no such column" in message or "expected one" in message
    if "no row" not in words:
        assert str(path) in message


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["PAR1", "BZh9", "PK"])
def test_names_may_begin_as_packed_files_do(tmp_path: Path, end: str, name: str) -> None:
    path = tmp_path / "t.csv"
    text = f"{name},town,y\n" + ROWS.replace("A", "7,A")
    path.write_text(text.replace("\n", end), encoding="utf-8", newline="")
    assert first_rows(path) == [1, 2, 3]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("header", ["town,y", '"town","y"', "\ufefftown,y", '\ufeff"town",y'])
def test_headers_that_are_read(tmp_path: Path, end: str, header: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\n{ROWS}".replace("\n", end), encoding="utf-8", newline="")
    assert first_rows(path) == [1, 2, 3]


SECRET = st.sampled_from(["Smith", "7771", "0.125", "ill", "Ümlaut", "x y", "-3", "1,5", '"q"', ""])


@given(cells=st.lists(SECRET, min_size=1, max_size=5), delimiter=st.sampled_from(",;\t|"))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_file_without_a_header_shows_no_cell(
    tmp_path: Path, cells: list[str], delimiter: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{delimiter.join(cells)}\n{ROWS}", encoding="utf-8")
    message = refusal(path)
    for cell in cells:
        if len(cell.strip('"')) > 1:
            assert cell.strip('"') not in message.replace(str(path), "")


def test_a_row_that_holds_a_declared_name_shows_no_number(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("town,7771,A\n" + ROWS, encoding="utf-8")
    assert "7771" not in refusal(path)
    with pytest.raises(TableError) as caught:
        draft_schema(path, target="nowhere")
    assert "7771" not in str(caught.value) and "3 columns" in str(caught.value)
    path.write_text("town,x,z\n" + ROWS, encoding="utf-8")
    with pytest.raises(TableError, match="expected a target among 'town', 'x', 'z'"):
        draft_schema(path, target="nowhere")


def test_columns_of_parquet_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"town": ["A"], "2013": [1]}), path)
    assert "got no such column among: 'town', '2013'" in refusal(path)
    parquet.write_table(pa.table([["A"], [1], [2]], names=["town", "y", "y"]), path)
    assert "expected one column 'y'" in refusal(path) and "got 2 of that name" in refusal(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_paths_that_are_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.csv")
    assert "must be a file, got a pipe or a device: read it through -" in refusal(
        tmp_path / "p.csv"
    )
    (tmp_path / "d.csv").mkdir()
    assert "expected .parquet files in the folder" in refusal(tmp_path / "d.csv")
    assert "no such file" in refusal(tmp_path / "n.csv")
    for name in ("p.csv", "n.csv"):
        with pytest.raises(TableError, match=r"got a pipe|no such file"):
            draft_schema(tmp_path / name)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("town,y\n" + ROWS, encoding="utf-8")
    path.chmod(0)
    with pytest.raises(PermissionError):
        TableReader(path, SCHEMA)
