# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast predict``: predictions of a saved model."""

from __future__ import annotations

import csv
import enum
import io
import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dpftrl_fast.cli.options import Decimal, Delimiter, Encoding, Force, Json, Thousands
from dpftrl_fast.cli.output import friendly, note, print_json, refuse_to_overwrite, show
from dpftrl_fast.files import check_folder, write_files
from dpftrl_fast.fitting.model_file import load_model
from dpftrl_fast.tables.frames import parquet_bytes

_STANDARD = "-"


class Coefficients(str, enum.Enum):
    """Kinds of coefficients of a model."""

    tail = "tail"
    average = "average"
    last = "last"


@friendly
def command(
    model: Annotated[Path, typer.Argument(help="Folder of the model that fit wrote.")],
    data: Annotated[
        str, typer.Argument(help="Rows: .csv, .tsv, .txt (also .gz), Parquet, or - for CSV input.")
    ],
    out: Annotated[str, typer.Option(help="File to write, .csv or .parquet; - is the output.")],
    kind: Annotated[
        Coefficients | None, typer.Option(help="Coefficients; default tail (least squares: last).")
    ] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Predict the target of every row of a table.

    The output has one row per input row, in order; a row with a missing or unparsable cell has an
    empty prediction.
    """
    target = Path(out)
    if out == _STANDARD:
        if json_:
            raise ValueError("--json needs a file: --out - prints the predictions")
    else:
        _kind_of_file(target)
        refuse_to_overwrite(target, force=force)
        check_folder(target.parent)
    loaded = load_model(model)
    columns = loaded.table(
        Path(data),
        kind=None if kind is None else kind.value,
        delimiter=delimiter,
        encoding=encoding,
        decimal=decimal,
        thousands=thousands,
    )
    if out == _STANDARD:
        sys.stdout.write(_csv(columns))
    elif _kind_of_file(target) == "csv":
        write_files(target.parent, {target.name: _csv(columns).encode()})
    else:
        write_files(target.parent, {target.name: parquet_bytes(columns)})
    rows = len(columns["prediction"])
    for mark in loaded.facts.get("marks", ()):
        note(f"warning: the model is {mark}")
    if json_:
        print_json({"rows": rows, "columns": [*columns], "out": out})
    elif out != _STANDARD:
        show(f"wrote {rows:,} predictions to {out}")


def _kind_of_file(path: Path) -> str:
    kind = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}.get(path.suffix.lower())
    if kind is None:
        raise ValueError(f"--out must end in .csv or .parquet, or be -, got {str(path)!r}")
    return kind


def _csv(columns: dict[str, Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(_cells(column) for column in columns.values()), strict=True))
    return text.getvalue()


def _cells(column: Any) -> list[Any]:
    """Return cells as text; "" where there is none."""
    cells = column if isinstance(column, list) else column.tolist()
    return [
        "" if cell is None or (isinstance(cell, float) and math.isnan(cell)) else cell
        for cell in cells
    ]
