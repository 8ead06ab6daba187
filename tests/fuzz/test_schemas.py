# SPDX-License-Identifier: Apache-2.0
"""Schemas, as data and as files; tables in CSV and Parquet, and the readers of both."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from fuzzing import attempt, fuzz, json_bytes, mutated, mutated_bytes

from dpftrl_fast.tables import Encoder, TableReader, validate
from dpftrl_fast.tables.draft import draft_schema
from dpftrl_fast.tables.reader import TableError
from dpftrl_fast.tables.schema import Schema, SchemaError
from dpftrl_fast.tables.users import rows_by_user

pa = pytest.importorskip("pyarrow")
yaml = pytest.importorskip("yaml")

from pyarrow import parquet  # noqa: E402

SCHEMAS: list[dict[str, Any]] = [
    {
        "version": 1,
        "rows": 9,
        "target": {"name": "y", "bounds": [0, 10], "divisor": 5, "offset": 2},
        "columns": {"a": {"bounds": [0, 1]}, "c": {"categories": ["u", "v"]}},
    },
    {
        "rows": 9,
        "task": "multinomial",
        "target": {"name": "y", "categories": ["1", "2", "3"]},
        "columns": {"a": {"bounds": [0.5, 1e6], "divisor": 2.5}},
        "intercept": False,
        "row_norm_bound": 2.0,
        "users": 4,
        "group_column": "who",
    },
]
TEXT = b'a,c,y,who\n0.5,u,3,x\n1,v,9,x\n0.123456,u,4,"z"\n0,v,2,\n,u,5,w\n"0.75",u,1,w\n'


def test_schemas() -> None:
    def one(rng: random.Random) -> Any:
        data = mutated(rng.choice(SCHEMAS), rng, SCHEMAS)
        result = attempt(lambda: Schema.from_dict(data), own=(SchemaError,))
        if not isinstance(result, Exception):
            assert Schema.from_dict(json.loads(json.dumps(result.to_dict()))) == result
            _ = result.n_features, result.row_scale, result.tasks
        return result

    fuzz("schemas", one)


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_files_of_schemas(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"schema.{suffix}"
    kept = [json.dumps(data, indent=2).encode() for data in SCHEMAS]
    if suffix == "yaml":
        kept = [yaml.safe_dump(data).encode() for data in SCHEMAS]  # half as long

    def one(rng: random.Random) -> Any:
        if rng.random() < (0.7 if suffix == "json" else 0.9):
            path.write_bytes(mutated_bytes(rng.choice(kept), rng, kept))
        else:
            path.write_bytes(
                json_bytes(mutated(rng.choice(SCHEMAS), rng, SCHEMAS, plain=True), rng)
            )
        return attempt(lambda: Schema.load(path), own=(SchemaError,))

    fuzz(f"files of schemas: {suffix}", one)


# ---- Tables ----


def read(path: Path, schema: Schema, **csv: Any) -> Any:
    """Read all rows and count them; those of a schema with users also user after user."""
    encoder = Encoder(schema)
    found = [encoder.encode(block) for block in TableReader(path, schema, **csv).blocks()]
    report = validate(TableReader(path, schema, **csv))
    assert report["rows_in_file"] == sum(map(len, found))
    assert report["rows_invalid"] >= sum(int((~rows.valid).sum()) for rows in found)
    if schema.group_column is not None:
        rows_by_user(TableReader(path, schema, **csv))
    return found


def test_tables_in_csv(tmp_path: Path) -> None:
    schemas = [Schema.from_dict(data) for data in SCHEMAS]
    kept = [TEXT, TEXT.replace(b"\n", b"\r\n"), TEXT * 2, b"\xef\xbb\xbf" + TEXT]

    def one(rng: random.Random) -> Any:
        data = mutated_bytes(rng.choice(kept), rng, kept)
        path = tmp_path / ("t.csv.gz" if rng.random() < 0.1 else "t.csv")
        if path.suffix == ".gz":
            data = gzip.compress(data, 1)
            data = mutated_bytes(data, rng) if rng.random() < 0.5 else data
        path.write_bytes(data)
        schema = rng.choice(schemas)
        return attempt(lambda: read(path, schema), own=(TableError,))

    fuzz("csv", one)


def test_tables_in_other_encodings_and_formats(tmp_path: Path) -> None:
    schemas = [Schema.from_dict(data) for data in SCHEMAS]
    path = tmp_path / "t.csv"
    codecs = ("cp1252", "utf-16", "utf-16-be", "utf-32", "gb18030", "cp037", "iso2022_jp", "utf-7")

    def one(rng: random.Random) -> Any:
        codec = rng.choice(codecs)
        end = rng.choice(("\n", "\r\n", "\r"))
        kept = [TEXT.decode().replace("\n", end).replace("0.75", mark + "1") for mark in "é,;"]
        data = rng.choice(kept).encode(codec, "ignore")
        path.write_bytes(mutated_bytes(data, rng, [data]) if rng.random() < 0.9 else data)
        csv = {
            "encoding": rng.choice((codec, codec, None, rng.choice(codecs))),
            "decimal": rng.choice((None, None, ",", "'")),
            "thousands": rng.choice((None, None, ".", " ", ",")),
            "delimiter": rng.choice((None, None, ",", ";", "\\t", "xx")),
        }
        schema = rng.choice(schemas)
        return attempt(lambda: read(path, schema, **csv), own=(TableError,))

    fuzz("csv in other formats", one)


def test_drafts_of_schemas(tmp_path: Path) -> None:
    def one(rng: random.Random) -> Any:
        path = tmp_path / "t.csv"
        path.write_bytes(mutated_bytes(TEXT, rng, [TEXT]))
        public = rng.random() < 0.5
        csv: dict[str, Any] = {
            "decimal": rng.choice((None, None, ",", "'")),
            "thousands": rng.choice((None, None, ".", "5")),
            "encoding": rng.choice((None, None, "latin-1", "utf-16")),
        }
        result = attempt(
            lambda: draft_schema(path, these_rows_are_public=public, **csv), own=(TableError,)
        )
        # PyYAML takes most of the time.
        if not isinstance(result, Exception) and rng.random() < 0.2:
            (tmp_path / "s.yaml").write_text(result, encoding="utf-8", errors="surrogatepass")
            attempt(lambda: Schema.load(tmp_path / "s.yaml"), own=(SchemaError,))
        return result

    fuzz("drafts", one, share=0.3)


def parquets() -> list[bytes]:
    columns: dict[str, Any] = {
        "a": [0.5, 1.0, None, 0.25, float("nan"), 1e300],
        "c": ["u", "v", "", None, "w", "u"],
        "y": [3, 9, 4, 2, 5, 1],
        "who": ["x", "x", "z", "", "w", "w"],
    }
    table = pa.table(columns)
    found = []
    for options in ({}, {"compression": "none"}, {"use_dictionary": False, "compression": "none"}):
        file = io.BytesIO()
        parquet.write_table(table, file, **options)
        found.append(file.getvalue())
    # Words that are no UTF-8, under a type that says they are.
    words = pa.array([b"u", b"\xff\xfe", b"v", None, b"\xed\xa0\x80", b"u"], pa.binary())
    for kind in (pa.string(), pa.large_string()):
        wrong = words.cast(pa.large_binary() if kind == pa.large_string() else pa.binary())
        column = pa.Array.from_buffers(kind, 6, wrong.buffers())
        for names in (("c",), ("who",), ("y",)):
            odd = table
            for name in names:
                odd = odd.set_column(odd.schema.get_field_index(name), name, column)
            file = io.BytesIO()
            parquet.write_table(odd, file, compression="none")
            found.append(file.getvalue())
    return found


def test_tables_in_parquet(tmp_path: Path) -> None:
    schemas = [Schema.from_dict(data) for data in SCHEMAS]
    kept = parquets()
    path = tmp_path / "t.parquet"

    def one(rng: random.Random) -> Any:
        data = rng.choice(kept)
        path.write_bytes(mutated_bytes(data, rng, kept) if rng.random() < 0.95 else data)
        schema = rng.choice(schemas)
        return attempt(lambda: read(path, schema), own=(TableError,))

    fuzz("parquet", one)


def test_parquet_for_estimators(tmp_path: Path) -> None:
    from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLRegressor

    kept = parquets()[-1:]
    path = tmp_path / "t.parquet"
    columns = {"a": [0.5, 1.0, None, 0.25], "b": [1, 2, 3, 4], "who": [1, 1, 2, 3]}
    for y in ([3.0, 1.0, 2.0, 0.5], ["u", "v", "u", "u"]):
        file = io.BytesIO()
        parquet.write_table(pa.table({**columns, "y": y}), file, compression="none")
        kept.append(file.getvalue())

    def one(rng: random.Random) -> Any:
        data = rng.choice(kept)
        path.write_bytes(mutated_bytes(data, rng, kept) if rng.random() < 0.8 else data)
        groups = rng.choice((None, "who"))
        if rng.random() < 0.5:
            model: Any = DPFTRLClassifier(
                epsilon=1.0, delta=1e-6, batch_size=2, classes=["u", "v"], x_norm_bound=1.0
            )
        else:
            model = DPFTRLRegressor(
                epsilon=1.0, delta=1e-6, batch_size=2, x_norm_bound=1.0, y_bound=1.0
            )
        return attempt(lambda: model.fit(str(path), "y", groups=groups))

    fuzz("parquet for estimators", one, share=0.1)
