# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast epsilon`` and ``calibrate``: guarantees of a single pass, without any data."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dpftrl_fast import accounting
from dpftrl_fast.accounting.support import untruncated_delta
from dpftrl_fast.cli.output import (
    Json,
    facts_table,
    friendly,
    guarantee_facts,
    print_json,
    rounded_up,
    show,
)
from dpftrl_fast.fitting import replace_one_epsilon
from dpftrl_fast.plan import PrivacyPlan

__all__ = ["calibrate", "epsilon"]

Steps = Annotated[int | None, typer.Option(help="Declared steps, or --rows and --batch-size.")]
RowsOption = Annotated[int | None, typer.Option(help="Declared row slots.")]
Batch = Annotated[int, typer.Option(help="Rows a step, with --rows.")]
Delta = Annotated[float, typer.Option(help="Delta of the guarantee.")]


@friendly
def epsilon(
    noise_multiplier: Annotated[float, typer.Option(help="Sigma, in units of the clip norm.")],
    steps: Steps = None,
    rows: RowsOption = None,
    batch_size: Batch = 1,
    delta: Delta = 1e-6,
    json_: Json = False,
) -> None:
    """State the epsilon of a single pass with a given noise multiplier."""
    plan = PrivacyPlan(
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        participation=accounting.SinglePass(_steps(steps, rows, batch_size)),
    )
    _report(plan, delta, json_)


@friendly
def calibrate(
    epsilon: Annotated[float, typer.Option(help="Budget, for one record replaced by zero.")],
    steps: Steps = None,
    rows: RowsOption = None,
    batch_size: Batch = 1,
    delta: Delta = 1e-6,
    json_: Json = False,
) -> None:
    """Find the smallest noise multiplier of a single pass that keeps a budget."""
    plan = PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=delta,
        clip_norm=1.0,
        participation=accounting.SinglePass(_steps(steps, rows, batch_size)),
    )
    _report(plan, delta, json_)


def _steps(steps: int | None, rows: int | None, batch_size: int) -> int:
    if (steps is None) == (rows is None):
        raise ValueError("expected exactly one of --steps and --rows")
    if steps is not None:
        return steps
    assert rows is not None  # one of the two, see above
    if not (rows >= 1 and batch_size >= 1):
        raise ValueError(f"rows and batch size must be >= 1, got {rows} and {batch_size}")
    return -(-rows // batch_size)


def _report(plan: PrivacyPlan, delta: float, json_: bool) -> None:
    zeta = plan.sensitivity_squared
    epsilon = plan.epsilon(delta)  # refuses a delta that is not above the floor
    exact = untruncated_delta(delta, zeta, plan.delta_floor)
    rdp = accounting.epsilon(plan.noise_multiplier, zeta, exact, method="rdp")
    facts: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "neighbours": "one record replaced by zero",
        "epsilon_replace_one": replace_one_epsilon(plan, delta),
        "epsilon_rdp": rdp,
        "noise_multiplier": plan.noise_multiplier,
        "sensitivity_squared": zeta,
        "steps": plan.steps,
        "delta_floor": plan.delta_floor,
    }
    if json_:
        print_json(facts)
        return
    lines = guarantee_facts(plan, delta)
    del lines["clip norm"]
    lines["epsilon by RDP"] = f"{rounded_up(rdp)}  (the looser accounting of the paper)"
    show(facts_table(lines))
