# SPDX-License-Identifier: Apache-2.0
"""Schemas: what follows from the declared facts, and what is refused."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from dpftrl_fast.tables import Encoder, TableError, TableReader, draft_schema
from dpftrl_fast.tables.schema import Schema, SchemaError

GOOD: dict[str, Any] = {
    "version": 1,
    "rows": 100,
    "target": {"name": "y", "bounds": [-2, 4]},
    "columns": {
        "age": {"bounds": [0, 90], "divisor": 30},
        "year": {"bounds": [2000, 2010], "offset": 2005},
        "town": {"categories": ["A", 7]},
    },
}


def changed(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    data = copy.deepcopy(GOOD)
    at = data
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return data


def test_what_follows_from_a_schema() -> None:
    schema = Schema.from_dict(GOOD)
    assert schema.feature_names == ("age", "year", "town=A", "town=7", "intercept")
    assert schema.n_features == 5
    # age reaches 3, year is in [-1, 1] by its default divisor, one town, the constant
    assert schema.largest_row_norm == pytest.approx(math.sqrt(9 + 1 + 1 + 1))
    assert schema.row_scale == schema.largest_row_norm
    assert schema.target.name == "y" and schema.task == "regression"
    assert schema.file_columns == ("age", "year", "town", "y")


def test_the_default_divisor_of_a_target_is_its_reach() -> None:
    target = Schema.from_dict(GOOD).target
    assert target.to_dict() == {"bounds": [-2.0, 4.0], "divisor": 4.0, "offset": 0.0}


def test_the_default_offset_is_the_middle_of_the_bounds() -> None:
    target = Schema.from_dict({**GOOD, "version": 2}).target
    assert target.to_dict() == {"bounds": [-2.0, 4.0], "divisor": 3.0, "offset": 1.0}


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml"])
def test_files_read_back(tmp_path: Path, suffix: str) -> None:
    schema = Schema.from_dict(GOOD)
    path = tmp_path / f"s{suffix}"
    path.write_text(json.dumps(schema.to_dict()), encoding="utf-8")  # JSON is YAML
    assert Schema.load(path) == schema


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("columns", "age"), {}, "must declare public bounds"),
        (("columns", "age"), {"divisor": 3}, "must declare public bounds"),
        (("columns", "age", "bounds"), [3, 3], "low < high"),
        (("columns", "age", "bounds"), [4, 3], "low < high"),
        (("columns", "age", "bounds"), [math.nan, 3], "finite"),
        (("columns", "age", "bounds"), [0, math.inf], "finite"),
        (("columns", "age", "bounds"), [0, 10**400], "finite"),
        (
            ("columns", "age", "bounds"),
            ["0", 3],
            "finite number, got str (in YAML write 1.0e-6, not 1e-6)",
        ),
        (("columns", "age", "bounds"), [True, 3], "finite number, got bool"),
        (("columns", "age", "bounds"), [None, None], "filled in from public knowledge"),
        (("columns", "age", "bounds"), [1], "must be [low, high]"),
        (("columns", "age", "divisor"), 0, "divisor of 'age' must be a finite number > 0, got 0.0"),
        (("columns", "age", "divisor"), math.nan, "finite"),
        (("columns", "age", "divisor"), 1e-320, "overflow"),
        (("columns", "age", "divisor"), "1e-6", "write 1.0e-6"),
        (("columns", "age", "scale"), 3, "unknown entry 'scale'"),
        (("columns", "age", "categories"), ["a"], "got both"),
        (("columns", "town", "categories"), [], "non-empty list"),
        (("columns", "town", "categories"), "AB", "non-empty list"),
        (("columns", "town", "categories"), ["A", "A"], "stands twice"),
        (("columns", "town", "categories"), [7, "7"], "stands twice"),
        (("columns", "town", "categories"), [False, "yes"], "quote words"),
        (("columns", "town", "categories"), [1.5], "whole numbers"),
        (("columns", "y"), {"bounds": [0, 1]}, "must not be among the columns"),
        (("columns",), [1], "must be a mapping"),
        (("columns",), {3: {"bounds": [0, 1]}}, "must be text"),
        (("target",), {"bounds": [0, 1]}, "must have a name"),
        (("target",), {"name": "y"}, "must declare public bounds"),
        (("target",), {"name": "y", "categories": ["a"]}, "two categories"),
        (("target",), None, "must have the entry 'target'"),
        (("rows",), None, "must have the entry 'rows'"),
        (("rows",), 0, "rows must be an integer >= 1, got 0"),
        (("rows",), 10.0, "rows must be an integer >= 1, got float"),
        (("rows",), True, "rows must be an integer >= 1, got bool"),
        (("intercept",), "yes", "true or false"),
        (("row_norm_bound",), -1, "row_norm_bound must be a finite number > 0, got -1.0"),
        (("row_norm_bound",), math.nan, "finite"),
        (("row_norm_bound",), 1e-300, "overflows"),
        (("version",), 3, "version must be 1 or 2"),
        (("task",), "classification", "task must be 'regression'"),
        (("task",), ["regression"], "task must be 'regression'"),
        (("users",), 0, "users must be an integer >= 1, got 0"),
        (("users",), 2.5, "users must be an integer >= 1, got float"),
        (("group_column",), "town", "users must be declared for the group column 'town'"),
        (("group_column",), "y", "another column than the target"),
        (("group_column",), 3, "must be the name of a column"),
        (("batch",), 3, "unknown entry 'batch'"),
    ],
)
def test_what_is_refused(path: tuple[str, ...], value: Any, words: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Schema.from_dict(changed(path, value))
    assert words in str(caught.value)


def test_a_schema_must_predict_from_something() -> None:
    with pytest.raises(SchemaError, match="at least one column"):
        Schema.from_dict({**GOOD, "columns": {}, "intercept": False})


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("s.yaml", "rows: 1\nrows: 2\n", "'rows' stands twice"),
        ("s.json", '{"rows": 1, "rows": 2}', "'rows' stands twice"),
        ("s.yaml", "a: [", "not valid YAML"),
        ("s.json", "{", "not valid JSON"),
        ("s.yaml", "", "schema must be a mapping"),
        ("s.toml", "", "ends in .yaml, .yml or .json"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SchemaError) as caught:
        Schema.load(path)
    assert words in str(caught.value)


def test_another_target_leaves_the_features() -> None:
    schema = Schema.from_dict(GOOD).with_target("age")
    assert schema.target.name == "age"
    assert schema.file_columns == ("year", "town", "age")
    with pytest.raises(SchemaError, match="declared in the schema with its bounds"):
        schema.with_target("town")


def test_a_task_follows_from_the_target_or_is_one_that_it_can_ask_for() -> None:
    def target(labels: list[str], **more: Any) -> Schema:
        return Schema.from_dict({**GOOD, "target": {"name": "y", "categories": labels}, **more})

    two, three = target(["a", "b"]), target(["a", "b", "c"])
    assert (two.task, two.outputs, three.task, three.outputs) == (
        "classification", 1, "multinomial", 3
    )  # fmt: skip
    each = target(["a", "b"], task="multinomial")
    assert (each.task, each.outputs) == ("multinomial", 2) and each == two.with_task("multinomial")
    assert Schema.from_dict(each.to_dict()) == each and each.with_task("classification") == two
    assert each.with_target("age").task == "regression"
    with pytest.raises(SchemaError, match="'multinomial' for a target with 3 categories"):
        three.with_task("classification")
    with pytest.raises(SchemaError, match="'classification' or 'multinomial' for a target with 2"):
        two.with_task("regression")


def test_users_are_declared_with_their_column() -> None:
    schema = Schema.from_dict({**GOOD, "users": 20})
    assert (schema.units, schema.unit) == (100, "record")
    grouped = schema.with_groups("person")
    assert (grouped.units, grouped.unit) == (20, "user")
    assert Schema.from_dict(grouped.to_dict()) == grouped
    assert grouped == Schema.from_dict({**GOOD, "users": 20, "group_column": "person"})
    assert grouped.with_groups("town", 7).units == 7
    assert grouped.without_groups() == schema
    with pytest.raises(SchemaError, match="users must be declared"):
        Schema.from_dict(GOOD).with_groups("person")
    with pytest.raises(SchemaError, match="cannot be the target"):
        schema.with_groups("age").with_target("age")


def test_another_row_norm_bound() -> None:
    schema = Schema.from_dict(GOOD).with_row_norm_bound(2.0)
    assert schema.row_scale == 2.0
    for bound, words in (
        (0, "a finite number > 0, got 0"),
        (math.nan, "finite"),
        (1e-300, "overflows"),
    ):
        with pytest.raises(SchemaError, match=words):
            schema.with_row_norm_bound(bound)


def write(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("age,town,y\n3,A,1.5\n70,B,\n9,A,0.5\n", encoding="utf-8")
    return path


def test_a_draft_learns_nothing_from_the_rows(tmp_path: Path) -> None:
    text = draft_schema(write(tmp_path))
    assert "70" not in text and '"A"' not in text
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SchemaError, match="filled in from public knowledge"):
        Schema.load(tmp_path / "s.yaml")
    filled = text.replace("[null, null]", "[0, 100]").replace("[]", '["A"]')
    (tmp_path / "s.yaml").write_text(filled, encoding="utf-8")
    assert Schema.load(tmp_path / "s.yaml").rows == 3


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_draft_of_public_rows_is_a_schema(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path)
    if kind == "parquet":
        table = pa.table({"age": [3, 70, 9], "town": ["A", "B", "A"], "y": [1.5, None, 0.5]})
        path = tmp_path / "t.parquet"
        parquet.write_table(table, path)
    (tmp_path / "s.yaml").write_text(
        draft_schema(path, these_rows_are_public=True, target="age"), encoding="utf-8"
    )
    schema = Schema.load(tmp_path / "s.yaml")
    assert (schema.target.low, schema.target.high) == (3.0, 70.0)  # type: ignore[union-attr]
    assert schema.feature_names == ("town=A", "town=B", "y", "intercept")


def test_words_for_truth_are_categories_as_they_are_spelled(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("flag,y\ntrue,1\nfalse,0.5\n", encoding="utf-8")
    assert '"flag": {"categories": []}' in draft_schema(path)
    (tmp_path / "s.yaml").write_text(draft_schema(path, these_rows_are_public=True), "utf-8")
    schema = Schema.load(tmp_path / "s.yaml")
    assert schema.feature_names == ("flag=false", "flag=true", "intercept")
    (block,) = TableReader(path, schema)
    assert Encoder(schema).encode(block).valid.all()


def test_a_draft_names_the_columns_it_found(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="got 'z'"):
        draft_schema(write(tmp_path), target="z")


def test_a_draft_of_text_that_is_no_utf_8_names_what_is(tmp_path: Path) -> None:
    binary = pa.array([b"a", b"\xffsecret", b"b", b""], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 4, binary.buffers())
    parquet.write_table(pa.table({"t": text, "y": [1.0, 2.0, 3.0, 4.0]}), tmp_path / "t.parquet")
    draft = draft_schema(tmp_path / "t.parquet", these_rows_are_public=True)
    assert '"t": {"categories": ["a", "b"]}' in draft
