# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast plan-rounds``: the plan of a federated training from its population."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dpftrl_fast.cli.options import Delta, Force, Json
from dpftrl_fast.cli.output import (
    facts_table,
    friendly,
    guarantee_facts,
    note,
    print_json,
    refuse_to_overwrite,
    rounded_up,
    show,
    warn_of_large_delta,
)
from dpftrl_fast.cli.patterns import Bound, BoundOption
from dpftrl_fast.files import check_folder
from dpftrl_fast.mechanisms.workload import Workload


class Users(str, enum.Enum):
    """Rules by which users come again."""

    any_time = "any-time"
    passes = "passes"


class RoundsMechanisms(str, enum.Enum):
    """Mechanisms of a federated training."""

    auto = "auto"
    tree = "tree"
    each_pass = "tree-each-pass"


class Kind(str, enum.Enum):
    """Neighbours that a budget is for."""

    zero_out = "zero-out"
    replace_one = "replace-one"


@friendly
def command(
    population: Annotated[int, typer.Option(help="Users who can be asked during the training.")],
    rounds: Annotated[int, typer.Option(help="Rounds of the training.")],
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Epsilon to keep for one user. Without it: --report-goal, --noise-ratio."
        ),
    ] = None,
    delta: Delta = 1e-6,
    report_goal: Annotated[int | None, typer.Option(help="Divisor of the sums.")] = None,
    most_reports: Annotated[
        int | None, typer.Option(help="Largest report goal that the server can take.")
    ] = None,
    noise_ratio: Annotated[
        float | None,
        typer.Option(help="Noise multiplier over report goal: find the smallest goal for it."),
    ] = None,
    error: Annotated[
        float | None,
        typer.Option(help="Noise in the model, in clip norms: find the smallest goal for it."),
    ] = None,
    momentum: Annotated[float, typer.Option(help="Momentum of the server.")] = 0.0,
    mechanism: Annotated[
        RoundsMechanisms,
        typer.Option(help="Noise of least error, the best tree, or a new tree after each pass."),
    ] = RoundsMechanisms.auto,
    participation: Annotated[
        Users,
        typer.Option(help="Users come again when they like, or in the order of the first pass."),
    ] = Users.any_time,
    answers: Annotated[float, typer.Option(help="Share of the asked users that answer.")] = 0.9,
    neighbours: Annotated[
        Kind, typer.Option(help="Neighbours that --epsilon is for.")
    ] = Kind.zero_out,
    bound: BoundOption = Bound.released,
    clip_norm: Annotated[float, typer.Option(help="L2 norm that updates are clipped to.")] = 1.0,
    goal: Annotated[
        list[int] | None,
        typer.Option(help="Report goal of a row of the table; repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the plan.")] = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Plan federated rounds from a population, for a budget.

    Prints the cohorts, the noise and its guarantee, a table of other report goals, and the call
    that makes the server.
    """
    from dpftrl_fast.federated.plan_rounds import plan_rounds

    if out is not None:
        refuse_to_overwrite(out, force=force)
        check_folder(out.parent)
    found = plan_rounds(
        population,
        rounds,
        epsilon,
        delta,
        report_goal=report_goal,
        most_reports=most_reports,
        noise_ratio=noise_ratio,
        error=error,
        clip_norm=clip_norm,
        workload=Workload(momentum),
        mechanism=(
            "tree each pass" if mechanism is RoundsMechanisms.each_pass else mechanism.value
        ),
        participation="passes" if participation is Users.passes else "any time",
        answers=answers,
        neighbours=neighbours.value,
        bound=bound.value,
    )
    rows = found.alternatives(goal)
    if out is not None:
        found.plan.save(out)
    if json_:
        table = [{name: row.to_dict()[name] for name in _COLUMNS} for row in rows]
        print_json({**found.to_dict(), "alternatives": table, "out": out and str(out)})
        return
    warn_of_large_delta(delta, population, "user")
    facts = {
        "report goal": f"{found.report_goal:,}  (divisor of the sums)",
        "cohort": f"{found.cohort_size:,}  (users to ask a round, if {100 * answers:g} % answer)",
        "rounds": f"{rounds:,}  ({found.rounds_per_pass:,} with disjoint cohorts)",
        "noise of the mean": f"{found.noise_ratio:.4g}  (noise multiplier over report goal)",
        "noise in the model": f"{found.error:.4g}  (clip norms; root mean square over rounds)",
    }
    if found.epsilon_zero_out is None:
        note(f"warning: no epsilon can be stated at delta {delta!r}, the noise is too small")
    else:
        facts |= guarantee_facts(found.plan, delta, "user")
    loaded = "plan" if out is None else f"PrivacyPlan.load({str(out)!r})"
    code = found.code.replace("plan=plan", f"plan={loaded}")
    heading = [
        "report goals: cohort, least distance and most participations of a user, noise, its",
        "ratio to the goal, its error in the model, epsilon",
    ]
    show(facts_table(facts), "", *heading, _table(rows, found.report_goal), "", code)
    if out is not None:
        show(f"wrote {out}")


_COLUMNS = (
    "report_goal", "cohort_size", "min_separation", "participations", "noise_multiplier",
    "noise_ratio", "error", "epsilon", "epsilon_replace_one",
)  # fmt: skip


def _table(rows: Sequence[Any], goal: int) -> Table:
    shown = Table(box=None, pad_edge=False)
    for heading in (
        "goal", "cohort", "apart", "times", "sigma", "ratio", "error", "epsilon", "replace-one"
    ):  # fmt: skip
        shown.add_column(heading, justify="right")
    for row in rows:
        losses = (row.epsilon_zero_out, row.epsilon_replace_one)
        shown.add_row(
            f"{row.report_goal:,}",
            f"{row.cohort_size:,}",
            f"{row.min_separation:,}",
            f"{row.participations:,}",
            f"{row.plan.noise_multiplier:.6g}",
            f"{row.noise_ratio:.3g}",
            f"{row.error:.3g}",
            *("none" if loss is None else rounded_up(loss, 3) for loss in losses),
            style="bold" if row.report_goal == goal else None,
        )
    return shown
