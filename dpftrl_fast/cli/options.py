# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, besides those of `patterns`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Data = Annotated[
    Path,
    typer.Argument(
        help="Private rows: .csv, .tsv, .txt (also .gz), Parquet (also a folder), or -."
    ),
]
Delta = Annotated[float, typer.Option(help="Delta of the guarantee.")]
Budget = Annotated[
    float, typer.Option(help="Epsilon to keep, for one record (or user) replaced by zero.")
]
BudgetFile = Annotated[
    Path | None, typer.Option(help="File of `budget new` that the release is charged to.")
]
Delimiter = Annotated[
    str | None, typer.Option(help=r"Delimiter of CSV cells; \t for a tab. Default: a comma.")
]
Encoding = Annotated[
    str | None,
    typer.Option(help="Encoding of CSV, as Python names it. Default: UTF-8, or by its mark."),
]
Decimal = Annotated[
    str | None, typer.Option(help="Decimal mark of numbers in CSV. Default: a point.")
]
Thousands = Annotated[
    str | None, typer.Option(help="Mark of thousands of numbers in CSV. Default: none.")
]
Validate = Annotated[
    bool,
    typer.Option(
        "--validate",
        help="Count missing, clipped and invalid values (NOT private); release nothing.",
    ),
]
NoiseSeed = Annotated[
    int | None, typer.Option(help="Seed of the noise, for tests: the result is not private.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]


class MechanismName(str, enum.Enum):
    """Ways to choose the mechanism of the noise."""

    auto = "auto"
    tree = "tree"


MechanismOption = Annotated[
    MechanismName,
    typer.Option(help="Noise of least error, of all mechanisms (auto) or of the trees (tree)."),
]
