# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast schema draft`` and ``schema check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpftrl_fast.cli.output import (
    Json,
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
    data: Annotated[Path, typer.Argument(help="A .csv, .tsv, .txt (also .gz) or .parquet file.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write; default: print the draft.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Column to predict; default: last.")] = None,
    delimiter: Annotated[str | None, typer.Option(help="For CSV.")] = None,
    these_rows_are_public: Annotated[
        bool,
        typer.Option(
            "--these-rows-are-public",
            help="Say that the rows are public: bounds and categories are taken from them.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    json_: Json = False,
) -> None:
    """Draft a schema: names and types from the file, bounds and categories left to you."""
    text = draft_schema(
        data, target=target, these_rows_are_public=these_rows_are_public, delimiter=delimiter
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
    schema: Annotated[Path, typer.Argument(help="A .yaml or .json file.")], json_: Json = False
) -> None:
    """Check a schema and say what follows from it."""
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
