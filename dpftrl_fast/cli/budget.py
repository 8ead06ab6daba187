# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast budget new`` and ``budget show``: the epsilon of several fits on the same rows."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from dpftrl_fast.cli.options import Delta, Json
from dpftrl_fast.cli.output import friendly, print_json, show
from dpftrl_fast.run.budget import PrivacyBudget

File = Annotated[Path, typer.Argument(help="File of the budget.")]


class Neighbours(str, enum.Enum):
    """Replacements that an epsilon is for."""

    zero_out = "zero-out"
    replace_one = "replace-one"


@friendly
def new(
    file: File,
    epsilon: Annotated[float, typer.Option(help="Epsilon that all fits together may have.")],
    delta: Delta = 1e-6,
    neighbours: Annotated[
        Neighbours, typer.Option(help="One record (or user) replaced by zero or by another.")
    ] = Neighbours.zero_out,
    json_: Json = False,
) -> None:
    """Make the budget of a table, for `fit --budget` and `sum --budget`.

    One budget is for one table. An existing file is never overwritten.
    """
    if file.exists():
        raise FileExistsError(f"{str(file)!r} exists: a budget is never overwritten")
    budget = PrivacyBudget(epsilon, delta, path=file, neighbours=neighbours.value)
    _print(budget, json_=json_)


@friendly
def show_budget(file: File, json_: Json = False) -> None:
    """Print the fits that a budget has been charged with, and the rest."""
    _print(PrivacyBudget.open(file), json_=json_)


def opened_budget(path: Path | None, noise_seed: Any, release: str) -> PrivacyBudget | None:
    """Open the budget that a command's release is charged to; refuse a release with a seed."""
    if path is None:
        return None
    if noise_seed is not None:
        raise ValueError(f"--noise-seed is not supported with --budget: such {release} not private")
    return PrivacyBudget.open(path)


def budget_facts(budget: PrivacyBudget) -> dict[str, Any]:
    """Return the terms of a budget, and its state, for JSON."""
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "neighbours": budget.neighbours,
        "spent": budget.spent,
        "remaining": budget.remaining,
    }


def _print(budget: PrivacyBudget, *, json_: bool) -> None:
    if json_:
        print_json({**budget_facts(budget), "fits": [row._asdict() for row in budget.table()]})
    else:
        show(str(budget))
