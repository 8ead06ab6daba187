# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast schema draft`` and ``schema check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpftrl_fast.cli.options import Decimal, Delimiter, Encoding, Force, Json, Thousands
from dpftrl_fast.cli.output import (
    facts_table,
    friendly,
    note,
    print_json,
    refuse_to_overwrite,
    show,
)
from dpftrl_fast.files import write_files
from dpftrl_fast.tables import draft_schema
from dpftrl_fast.tables.schema import Schema


@friendly
def draft(
    data: Annotated[Path, typer.Argument(help="Table: .csv, .tsv, .txt (also .gz) or .parquet.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write; by default the draft is printed.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Column to predict; default: the last.")
    ] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    these_rows_are_public: Annotated[
        bool,
        typer.Option(
            "--these-rows-are-public",
            help="Take bounds and categories from the rows, which you declare to be public.",
        ),
    ] = False,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Draft a schema from the names and types of a table.

    Bounds and categories are left to you, unless the rows are public.
    """
    text = draft_schema(
        data,
        target=target,
        these_rows_are_public=these_rows_are_public,
        delimiter=delimiter,
        encoding=encoding,
        decimal=decimal,
        thousands=thousands,
    )
    if out is not None:
        refuse_to_overwrite(out, force=force)
        write_files(out.parent, {out.name: text.encode()})
    if json_:
        print_json({"draft": text, "out": None if out is None else str(out)})
    elif out is None:
        print(text, end="")
    else:
        show(f"wrote {out}")
    if not these_rows_are_public:
        note("bounds and categories are empty: fill them in from public knowledge")


@friendly
def check(
    schema: Annotated[Path, typer.Argument(help="Schema: .yaml or .json.")], json_: Json = False
) -> None:
    """Check a schema and print its derived facts."""
    declared = Schema.load(schema)
    facts = {
        "task": declared.task,
        "target": declared.target.name,
        "rows": declared.rows,
        "features": declared.n_features,
        "largest_row_norm": declared.largest_row_norm,
        "row_norm_bound": declared.row_scale,
    }
    if json_:
        print_json(facts)
    else:
        show(facts_table({name.replace("_", " "): value for name, value in facts.items()}))
