# SPDX-License-Identifier: Apache-2.0
"""Draft of a schema: column names and types, with bounds and categories left to declare.

Bounds learned from private rows would reveal them, so they are filled in only for rows that the
user declares to be public.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpftrl_fast.tables.cells import is_category, is_number, numbers, texts
from dpftrl_fast.tables.column_file import file_kind, refuse_no_file
from dpftrl_fast.tables.csv_format import PLAIN_NUMBERS, CsvFormat, CsvOptions, NumberFormat
from dpftrl_fast.tables.csv_slots import CsvLines, arrow_input
from dpftrl_fast.tables.damaged import readable
from dpftrl_fast.tables.header import is_header
from dpftrl_fast.tables.parquet import open_parquet
from dpftrl_fast.tables.table_error import TableError

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MOST_CATEGORIES = 1000


def draft_schema(
    path: str | Path,
    *,
    target: str | None = None,
    these_rows_are_public: bool = False,
    **csv: Unpack[CsvOptions],
) -> str:
    """Return the text of a YAML schema for a table.

    Parameters
    ----------
    path : str or Path
        A CSV or Parquet file; its number of rows and the types of its columns are taken as public.
    target : str, optional
        Column to predict; by default the last one.
    these_rows_are_public : bool
        Fill in bounds (smallest and largest value) and categories from the rows.
    **csv
        Options of CSV files: `CsvOptions`.

    Returns
    -------
    str
        YAML; without `these_rows_are_public` its bounds and categories are empty, and
        `Schema.load` refuses it until they are filled in.
    """
    table = _read(Path(path), csv)
    names = list(table.column_names)
    target = names[-1] if target is None else target
    if target not in names:
        raise TableError(_no_target(target, names))
    entries = {name: _entry(table[name], these_rows_are_public) for name in names}
    lines = [
        "# Facts declared in public. Bounds and categories must not be learned from private rows.",
        "# Column types and the number of rows come from the file: are they public?",
        "# A numeric column: bounds [low, high] and optionally divisor, offset;",
        "# a categorical one: categories. Delete unused columns.",
        "version: 2",
        f"rows: {table.num_rows}  # row slots; public",
        f"target: {json.dumps({'name': target, **entries.pop(target)})}",
        "columns:" if entries else "columns: {}",
        *(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()),
        "intercept: true",
        "row_norm_bound: null  # null: the largest norm that the bounds allow",
    ]
    return "\n".join(lines) + "\n"


def _no_target(target: str, names: list[str]) -> str:
    # A file without a header begins with a row, which is not shown.
    among = ", ".join(map(repr, names)) if is_header(names, names) else f"{len(names)} columns"
    return f"expected a target among {among}, got {target!r}"


def _read(path: Path, options: CsvOptions) -> Any:
    kind, delimiter = file_kind(path)
    refuse_no_file(path)
    if kind == "parquet":
        with readable(repr(str(path)), TableError):
            return open_parquet(path).read()
    from pyarrow import csv

    try:
        form = CsvFormat.of(options, default_delimiter=delimiter)
        lines = CsvLines(path, form)
    except ValueError as error:
        raise TableError(str(error)) from None
    with readable(repr(str(path)), TableError):
        text = b"".join(block for block, _ in lines)
        # Words like true are text: a category as spelled.
        convert: dict[str, Any] = {"check_utf8": False, "true_values": [], "false_values": []}
        if form.numbers.decimal.isascii():
            convert["decimal_point"] = form.numbers.decimal
        table = csv.read_csv(
            arrow_input(text),
            csv.ReadOptions(column_names=lines.names),
            csv.ParseOptions(delimiter=lines.delimiter, ignore_empty_lines=False),
            csv.ConvertOptions(**convert),
        )
    return table if form.numbers == PLAIN_NUMBERS else _with_numbers(table, form.numbers)


def _with_numbers(table: Any, form: NumberFormat) -> Any:
    """Return a table whose columns of text that are all numbers in this format are numbers."""
    import pyarrow as pa

    for place, name in enumerate(table.column_names):
        if pa.types.is_string(table[name].type):
            cells = numbers(table[name], form)
            empty = table[name].fill_null("").to_pylist().count("")
            if (cells != cells).sum() <= empty < len(cells):
                table = table.set_column(place, name, [pa.array(cells)])
    return table


def _entry(column: Any, public: bool) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_number(column.type):
        if not public:
            return {"bounds": [None, None]}
        values = numbers(column)
        values = values[values == values]
        if values.size == 0:
            return {"bounds": [None, None]}
        low, high = float(values.min()), float(values.max())
        return {"bounds": [low, high if high > low else low + 1.0]}
    if not public or not is_category(column.type):
        return {"categories": []}
    cells = texts(pc.unique(column)).cast(pa.binary()).to_pylist()
    named = sorted({text for cell in cells if cell and (text := _text(cell)) is not None})
    return {"categories": named if len(named) <= _MOST_CATEGORIES else []}


def _text(cell: bytes) -> str | None:
    try:
        return cell.decode()
    except UnicodeDecodeError:  # such a category cannot be declared: its cells are unknown
        return None
