# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast plan``: mechanisms for a budget, ranked by the error of the run."""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dpftrl_fast._validate import integer
from dpftrl_fast.accounting.curve.rounding import short_up
from dpftrl_fast.accounting.planner.mechanisms import plan_mechanism
from dpftrl_fast.accounting.planner.schedules import Schedule, ScheduleTable, plan_schedule
from dpftrl_fast.cli.options import Budget, Delta, Force, Json
from dpftrl_fast.cli.output import (
    NEIGHBOURS,
    UNIT,
    facts_table,
    friendly,
    guarantee_facts,
    print_json,
    progress_bar,
    refuse_to_overwrite,
    rounded_up,
    show,
)
from dpftrl_fast.cli.patterns import (
    BatchSize,
    Bound,
    BoundOption,
    Complete,
    Epochs,
    MaxParticipations,
    MinSeparationOption,
    Order,
    Pattern,
    Reshuffle,
    Rows,
    Steps,
    StepsPerEpoch,
    Variant,
    completion,
    given,
)
from dpftrl_fast.cli.plan_mechanisms import (
    best_place,
    mechanism_facts,
    mechanism_figure,
    mechanism_lines,
    mechanism_table,
    plan_of_row,
)
from dpftrl_fast.files import check_folder, write_files
from dpftrl_fast.mechanisms.workload import Workload
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.plots import Curve, error_curves_png

_CURVES = 4


class Mechanisms(str, enum.Enum):
    """Mechanisms that are ranked."""

    all = "all"
    tree = "tree"


class RankBy(str, enum.Enum):
    """Errors that rank schedules."""

    rms = "rms"
    last = "last"
    worst = "worst"
    smoothed = "smoothed"


@friendly
def command(
    ctx: typer.Context,
    epsilon: Budget,
    delta: Delta = 1e-6,
    steps: Steps = None,
    rows: Rows = None,
    batch_size: BatchSize = 1,
    steps_per_epoch: StepsPerEpoch = None,
    epochs: Epochs = None,
    reshuffle: Reshuffle = True,
    max_participations: MaxParticipations = None,
    min_separation: MinSeparationOption = None,
    order: Order = None,
    mechanism: Annotated[
        Mechanisms | None,
        typer.Option(
            help="Rank all mechanisms, or trees by their schedules. Default: all, or tree if an "
            "option of trees is given."
        ),
    ] = None,
    max_vectors: Annotated[
        int | None, typer.Option(help="Most vectors that the noise keeps between steps.")
    ] = None,
    max_normals: Annotated[
        int | None, typer.Option(help="Most normals that it makes a step and coordinate.")
    ] = None,
    sampling: Annotated[
        bool,
        typer.Option(
            "--sampling",
            help="Compare with DP-SGD amplified by Poisson sampling, with --rows or --population.",
        ),
    ] = False,
    population: Annotated[
        int | None,
        typer.Option(
            help="Records (or users) of whom --sampling draws --batch-size a step, in place of "
            "--rows."
        ),
    ] = None,
    restart_every: Annotated[
        list[int] | None,
        typer.Option(help="Restart period to try, in steps; repeatable. Never is tried too."),
    ] = None,
    restart_epochs: Annotated[
        list[int] | None, typer.Option(help="Restart period in epochs; default 1, 2, 5, 10, 20, ..")
    ] = None,
    complete: Annotated[
        list[Complete] | None,
        typer.Option(help="Completion to try; repeatable. Default: none and restarts."),
    ] = None,
    variant: Annotated[
        list[Variant] | None,
        typer.Option(help="Estimator of the noise to try; repeatable. Default: honaker."),
    ] = None,
    momentum: Annotated[float, typer.Option(help="Momentum of the training.")] = 0.0,
    bound: BoundOption = Bound.released,
    rank_by: Annotated[RankBy, typer.Option(help="Error to rank by.")] = RankBy.rms,
    plot: Annotated[
        Path | None, typer.Option(help="PNG for the error over the steps of the best few.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the plan of a row.")] = None,
    row: Annotated[
        int | None, typer.Option(help="Row whose plan --out writes. Default: the best.")
    ] = None,
    clip_norm: Annotated[float, typer.Option(help="Clip norm of the plan.")] = 1.0,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Rank mechanisms for a budget by the error of the run.

    Each gets the smallest noise multiplier that keeps the budget. No data are read.
    """
    for path in (plot, out):
        if path is not None:
            refuse_to_overwrite(path, force=force)
            check_folder(path.parent)
    pattern = Pattern(steps, rows, batch_size, steps_per_epoch, epochs, reshuffle,
                      max_participations, min_separation, order)  # fmt: skip
    of_trees = {
        "--restart-every": restart_every,
        "--restart-epochs": restart_epochs,
        "--complete": complete,
        "--variant": variant,
        "--bound exact": bound is Bound.exact,
        "--rank-by smoothed": rank_by is RankBy.smoothed,
    }
    people = _population(ctx, sampling, rows, population)
    of_all = {
        "--max-vectors": max_vectors is not None,
        "--max-normals": max_normals is not None,
        "--sampling": sampling,
    }
    figure: Callable[[], bytes]
    facts: Callable[[], dict[str, Any]]
    if _trees_only(mechanism, of_trees, of_all):
        with progress_bar("schedules", quiet=json_) as progress:
            schedules = plan_schedule(
                epsilon,
                delta,
                participation=pattern.participation(),
                restart_every=_periods(pattern, restart_every, restart_epochs),
                complete=[completion(x) for x in complete or (Complete.none, Complete.restarts)],
                variants=[x.value for x in variant or (Variant.honaker,)],
                momentum=momentum,
                bound=bound.value,
                rank_by=rank_by.value,
                progress=progress,
            )
        place = 1 if row is None else integer("--row", row, 1, len(schedules))
        plan = PrivacyPlan.from_schedule(schedules[place - 1], clip_norm=clip_norm)
        figure = partial(_figure, schedules, plan)
        facts = partial(_facts, schedules, plan, place, plot, out)
        lines: list[str] = []
        heading = [
            f"schedules by {schedules.rank_by} error: the standard deviation of the noise in a",
            "coordinate of the running sum, in clip norms; restart periods in steps",
        ]
        shown = _rich_table(schedules)
        whose = None
    else:
        with progress_bar("mechanisms", quiet=json_) as progress:
            table = plan_mechanism(
                epsilon,
                delta,
                pattern.participation(),
                workload=Workload(momentum),
                max_vectors=max_vectors,
                max_normals=max_normals,
                rank_by=rank_by.value,  # type: ignore[arg-type]
                batch_size=batch_size if sampling else None,
                population=people,
                progress=progress,
            )
        place = best_place(table) if row is None else integer("--row", row, 1, len(table))
        plan = plan_of_row(table, place, clip_norm)
        figure = partial(mechanism_figure, table, plan)
        facts = partial(mechanism_facts, table, plan, place, plot, out)
        lines = mechanism_lines(table)
        heading = [
            f"mechanisms by {table.rank_by} error: the standard deviation of the noise in a",
            f"coordinate of the {'smoothed ' if momentum else ''}running sum, in clip norms",
        ]
        shown = mechanism_table(table)
        whose = f"row {place}: {table[place - 1].words}" if sampling or place > 1 else None
    if plot is not None:
        write_files(plot.parent, {plot.name: figure()})
    if out is not None:
        plan.save(out)
    if json_:
        print_json(facts())
        return
    show(facts_table(guarantee_facts(plan, delta, UNIT), whose), "", *heading, shown, *lines)
    for path in (plot, out):
        if path is not None:
            show(f"wrote {path}")


def _population(
    ctx: typer.Context, sampling: bool, rows: int | None, population: int | None
) -> int | None:
    """Return the number of records that are sampled, None without sampling."""
    if population is None:
        if sampling and rows is None:
            raise ValueError("--sampling needs --rows or --population, and --batch-size")
        return rows if sampling else None
    if not sampling:
        raise ValueError("--population needs --sampling")
    if rows is not None:
        raise ValueError("--population and --rows exclude each other")
    if not given(ctx, "batch_size"):
        raise ValueError("--population needs --batch-size")
    return population


def _trees_only(
    mechanism: Mechanisms | None, of_trees: dict[str, Any], of_all: dict[str, Any]
) -> bool:
    """Return whether schedules of trees are ranked; refuse options of the other table."""
    trees = [name for name, given in of_trees.items() if given]
    every = [name for name, given in of_all.items() if given]
    if mechanism is Mechanisms.all and trees:
        raise ValueError(f"{trees[0]} needs --mechanism tree, got --mechanism all")
    if (mechanism is Mechanisms.tree or trees) and every:
        got = "--mechanism tree" if mechanism is Mechanisms.tree else trees[0]
        raise ValueError(f"{every[0]} needs --mechanism all, got {got}")
    return mechanism is Mechanisms.tree or bool(trees)


def _periods(
    pattern: Pattern, every: list[int] | None, epochs: list[int] | None
) -> list[int | None] | None:
    if not every and not epochs:
        return None
    periods = [pattern.period(x, None) for x in every or ()]
    return [*periods, *(pattern.period(None, x) for x in epochs or ()), None]


def _facts(
    table: ScheduleTable, plan: PrivacyPlan, row: int, plot: Path | None, out: Path | None
) -> dict[str, Any]:
    best = table.best
    shared = ("participation", "epsilon", "delta", "bound", "momentum")
    rows = [
        {key: value for key, value in facts.items() if key not in shared}
        for facts in table.to_dicts()
    ]
    return {
        "epsilon": best.epsilon,
        "delta": best.delta,
        "neighbours": NEIGHBOURS,
        "epsilon_replace_one": plan.replace_one(best.delta),
        "participation": best.participation.to_dict(),
        "bound": best.bound,
        "momentum": best.momentum,
        "rank_by": table.rank_by,
        "rows": rows,
        "row": row,
        "plot": None if plot is None else str(plot),
        "out": None if out is None else str(out),
    }


def _rich_table(table: ScheduleTable) -> Table:
    momentum = table.best.momentum
    smoothed = [f"momentum {momentum:g}"] if momentum else []
    shown = Table(box=None, pad_edge=False)
    for heading in ("", "restart every"):
        shown.add_column(heading, justify="right")
    for heading in ("complete", "variant"):
        shown.add_column(heading)
    for heading in ("sigma", "zeta", "rms", "last", "worst", *smoothed):
        shown.add_column(heading, justify="right")
    for place, row in enumerate(table, start=1):
        zeta = row.sensitivity_squared
        errors = [row.rms_std, row.last_std, row.worst_std, row.smoothed_std]
        shown.add_row(
            str(place),
            "never" if row.restart_every is None else f"{row.restart_every:,}",
            _completed(row),
            row.variant,
            f"{row.noise_multiplier:.6g}",
            f"{zeta:,}" if isinstance(zeta, int) else rounded_up(zeta, 1),
            *(f"{error:.1f}" for error in errors[: 3 + len(smoothed)]),
            style="bold" if place == 1 else None,
        )
    return shown


def _completed(row: Schedule) -> str:
    return "all" if row.complete == "all" else "restarts" if row.complete else "none"


def _figure(table: ScheduleTable, plan: PrivacyPlan) -> bytes:
    by_momentum = table.rank_by == "smoothed"
    curves = []
    for row in table[:_CURVES]:
        std = row.noise_std()
        period = "never" if row.restart_every is None else f"{row.restart_every:,} steps"
        words = {"none": "", "restarts": ", completed", "all": ", all completed"}[_completed(row)]
        error = row.smoothed_std if by_momentum else row.rms_std
        curves.append(
            Curve(
                f"{period}{words}, {row.variant}: {error:.1f}",
                std.smoothed if by_momentum else std.prefix,
            )
        )
    best = table.best
    replace_one = rounded_up(plan.replace_one(best.delta))
    total = "smoothed running sum" if by_momentum else "running sum"
    return error_curves_png(
        curves,
        ylabel=f"std of the noise in the {total} (clip norms)",
        title=f"epsilon {short_up(best.epsilon)} (replace-one {replace_one}) at delta "
        f"{short_up(best.delta)}",
        legend="restart every .. : rms over the steps",
    )
