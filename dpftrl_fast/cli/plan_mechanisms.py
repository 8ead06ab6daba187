# SPDX-License-Identifier: Apache-2.0
"""Mechanisms for ``dpftrl-fast plan``: their ranked table, its JSON and its figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from dpftrl_fast.accounting.curve.rounding import short_up
from dpftrl_fast.accounting.planner.mechanisms import MechanismTable, bound_words
from dpftrl_fast.cli.output import NEIGHBOURS, rounded_up
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.plots import Curve, error_curves_png

_CURVES = 4


def plan_of_row(table: MechanismTable, place: int, clip_norm: float) -> PrivacyPlan:
    """Return the plan of a row, counted from 1."""
    row = table[place - 1]
    if row.needs_sampling:
        raise ValueError(
            f"--row must be the row of a mechanism that needs no sampling, got {place}"
        )
    return PrivacyPlan(
        clip_norm=clip_norm,
        noise_multiplier=row.noise_multiplier,
        participation=row.participation,
        mechanism=row.mechanism,
        bound="released",
    )


def best_place(table: MechanismTable) -> int:
    """Return the place of the best row, from 1."""
    return table.rows.index(table.best) + 1


def mechanism_facts(
    table: MechanismTable, plan: PrivacyPlan, place: int, plot: Path | None, out: Path | None
) -> dict[str, Any]:
    """Return the table as JSON-able facts."""
    best = table.best
    shared = ("participation", "epsilon", "delta", "workload")
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
        "bound": "released",
        "workload": best.workload.to_dict(),
        "rank_by": table.rank_by,
        "lower_bound": table.lower_bound,
        "rows": rows,
        "row": place,
        "notes": list(table.notes),
        "plot": None if plot is None else str(plot),
        "out": None if out is None else str(out),
    }


def mechanism_table(table: MechanismTable) -> Table:
    """Return the table as it is printed."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("", justify="right")
    shown.add_column("mechanism")
    for heading in ("vectors", "normals", "sigma", "rms", "last", "worst"):
        shown.add_column(heading, justify="right")
    for place, row in enumerate(table, start=1):
        shown.add_row(
            str(place),
            row.words,
            str(row.vectors),
            str(row.normals),
            f"{row.noise_multiplier:.6g}",
            *(f"{error:.4g}" for error in (row.rms_std, row.last_std, row.worst_std)),
            style="bold" if row is table.best else None,
        )
    return shown


def mechanism_lines(table: MechanismTable) -> list[str]:
    """Return the lines below the table."""
    sampled = [place for place, row in enumerate(table, start=1) if row.needs_sampling]
    condition = [
        f"row {place} keeps the budget only if each batch is a Poisson sample of all records, "
        "drawn anew; --out does not save it"
        for place in sampled
    ]
    return [*bound_words(table), *condition, *table.notes]


def mechanism_figure(table: MechanismTable, plan: PrivacyPlan) -> bytes:
    """Return a PNG file with the error over the steps of the best few."""
    curves = []
    for row in [row for row in table if not row.needs_sampling][:_CURVES]:
        std = row.error().per_step * row.noise_multiplier
        curves.append(Curve(f"{row.words}: {row.rms_std:.4g}", std))
    best = table.best
    smoothed = "smoothed " if best.workload.momentum else ""
    return error_curves_png(
        curves,
        ylabel=f"std of the noise in the {smoothed}running sum (clip norms)",
        title=f"epsilon {short_up(best.epsilon)} (replace-one "
        f"{rounded_up(plan.replace_one(best.delta))}) at delta {short_up(best.delta)}",
        legend="mechanism : rms over the steps",
    )
