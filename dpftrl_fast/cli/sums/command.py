# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast sum``: private running sums of a column, or tables of events over time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from dpftrl_fast.cli.options import (
    Budget,
    BudgetFile,
    Data,
    Decimal,
    Delimiter,
    Delta,
    Encoding,
    Force,
    Json,
    MechanismName,
    MechanismOption,
    NoiseSeed,
    Thousands,
    Validate,
)
from dpftrl_fast.cli.output import friendly
from dpftrl_fast.cli.sums.events import EventSums, sum_events
from dpftrl_fast.cli.sums.output import SumOptions
from dpftrl_fast.cli.sums.rows import Missing, RowSums, sum_rows
from dpftrl_fast.tables import CsvOptions

_ROWS, _EVENTS = "Rows in file order", "Events by time"


@friendly
def command(
    data: Data,
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write; - is the standard output.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="Numeric column to sum.")] = None,
    bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(help="Public bounds LOW HIGH; values are clipped."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a daily job, made by its first run: a secret. Later runs overwrite "
            "--out."
        ),
    ] = None,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    epsilon: Budget = 1.0,
    delta: Delta = 1e-6,
    mechanism: MechanismOption = MechanismName.auto,
    rows: Annotated[
        int | None,
        typer.Option(help="Public number of row slots.", rich_help_panel=_ROWS),
    ] = None,
    every: Annotated[
        int,
        typer.Option(help="Rows of a step: a sum is written after each.", rich_help_panel=_ROWS),
    ] = 1,
    missing: Annotated[
        Missing | None,
        typer.Option(
            help="A cell that is no number counts as zero, or as the middle of the bounds, which "
            "needs less noise. Default: the middle if zero is not within the bounds.",
            rich_help_panel=_ROWS,
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="Column of times: count events by period.", rich_help_panel=_EVENTS),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(help="Start of the first period, as 2013-01-01.", rich_help_panel=_EVENTS),
    ] = None,
    period: Annotated[
        str,
        typer.Option(
            help="Length of a period, as 1D, 1h, 15min or 1W; or a number.",
            rich_help_panel=_EVENTS,
        ),
    ] = "1D",
    periods: Annotated[
        int | None,
        typer.Option(
            help="Public number of periods. Default: no declared end.", rich_help_panel=_EVENTS
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="Time by a public clock: periods that end by then are released. Required "
            "with --folder and without --periods; by default all.",
            rich_help_panel=_EVENTS,
        ),
    ] = None,
    group_by: Annotated[
        str | None, typer.Option(help="Column of keys.", rich_help_panel=_EVENTS)
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(help="Public keys, separated by commas.", rich_help_panel=_EVENTS),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            help="Column of users: protect all events of a user in a period, or in all of them "
            "with --user-periods.",
            rich_help_panel=_EVENTS,
        ),
    ] = None,
    user_periods: Annotated[
        int | None,
        typer.Option(help="Most periods in which a user counts.", rich_help_panel=_EVENTS),
    ] = None,
    keys_per_period: Annotated[
        int,
        typer.Option(help="Most keys in which a user counts a period.", rich_help_panel=_EVENTS),
    ] = 1,
    events_per_key: Annotated[
        int,
        typer.Option(
            help="Most events of a user that count in a key and period.", rich_help_panel=_EVENTS
        ),
    ] = 1,
    figures: Annotated[
        str,
        typer.Option(
            help="The counts that are written: running totals since the start, those of each "
            "period, or of a window.",
            rich_help_panel=_EVENTS,
        ),
    ] = "running",
    window: Annotated[
        int | None, typer.Option(help="Periods of a window.", rich_help_panel=_EVENTS)
    ] = None,
    late: Annotated[
        str,
        typer.Option(
            help="Events of a closed period: drop, or count in the next one.",
            rich_help_panel=_EVENTS,
        ),
    ] = "drop",
    batch: Annotated[
        str | None,
        typer.Option(
            help="Label of DATA in --folder, where it counts once. Default: the name of the file.",
            rich_help_panel=_EVENTS,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="PNG file of the figures with bands.", rich_help_panel=_EVENTS),
    ] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    validate_only: Validate = False,
    budget: BudgetFile = None,
    noise_seed: NoiseSeed = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Write private running sums of a column, or of events by period.

    Without --time a column is summed in file order, with --time events are counted by period.
    A missing or unparsable cell, or a slot beyond the end of the file, adds zero or the middle of
    the bounds. Events with an invalid time, key or user do not count.
    """
    options = SumOptions(
        data=data,
        out=out,
        csv=CsvOptions(
            delimiter=delimiter, encoding=encoding, decimal=decimal, thousands=thousands
        ),
        folder=folder,
        level=level,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism.value,
        validate_only=validate_only,
        budget=budget,
        noise_seed=noise_seed,
        force=force,
        json=json_,
    )
    of_events = {
        "--start": start, "--periods": periods, "--until": until, "--group-by": group_by,
        "--keys": keys, "--user": user, "--user-periods": user_periods, "--window": window,
        "--batch": batch, "--plot": plot,
    }  # fmt: skip
    if time is None:
        _refuse_options(of_events, "needs --time, the column of times of events")
        sum_rows(options, RowSums(column, bounds, rows, every, missing))
        return
    _refuse_options(
        {"--rows": rows, "--missing": missing}, "is of rows in file order, not of events (--time)"
    )
    sum_events(
        options,
        EventSums(
            time=time, start=start, period=period, periods=periods, until=until, key=group_by,
            keys=keys, user=user, user_periods=user_periods, keys_per_period=keys_per_period,
            events_per_key=events_per_key, figures=figures, window=window, late=late,
            batch=batch, plot=plot, column=column, bounds=bounds,
        ),
    )  # fmt: skip


def _refuse_options(given: Mapping[str, object], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} {why}, got {value!r}")
