# SPDX-License-Identifier: Apache-2.0
"""The app with all commands."""

from __future__ import annotations

from typing import Annotated

import typer

from dpftrl_fast import __version__
from dpftrl_fast.cli import (
    audit,
    bench,
    budget,
    demo,
    experiment,
    fit,
    guarantee,
    info,
    plan,
    plan_rounds,
    predict,
    schema,
)
from dpftrl_fast.cli.sums.command import command as sum_command

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # the boxes of rich cut long option names
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dpftrl-fast {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Fit models and sum streams with differential privacy (DP-FTRL)."""


app.command("fit")(fit.command)
app.command("predict")(predict.command)
app.command("sum")(sum_command)
app.command("epsilon")(guarantee.epsilon)
app.command("calibrate")(guarantee.calibrate)
app.command("plan")(plan.command)
app.command("plan-rounds")(plan_rounds.command)
app.command("audit")(audit.command)
app.command("demo")(demo.command)
app.command("bench")(bench.command)
app.command("info")(info.command)

_schema = typer.Typer(
    no_args_is_help=True, help="Draft or check the schema of a table.", rich_markup_mode=None
)
_schema.command("draft")(schema.draft)
_schema.command("check")(schema.check)
app.add_typer(_schema, name="schema")
_budget = typer.Typer(
    no_args_is_help=True, help="Make or show the budget of several fits.", rich_markup_mode=None
)
_budget.command("new")(budget.new)
_budget.command("show")(budget.show_budget)
app.add_typer(_budget, name="budget")
app.add_typer(experiment.group, name="experiment")
