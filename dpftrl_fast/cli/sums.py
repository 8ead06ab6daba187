# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast sum``: private running sums of a column."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import typer

from dpftrl_fast._validate import positive_integer
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.accounting.planner.choice import chosen_mechanism
from dpftrl_fast.cli.budget import budget_facts, opened_budget
from dpftrl_fast.cli.options import (
    Budget,
    BudgetFile,
    Data,
    Delimiter,
    Delta,
    Force,
    Json,
    MechanismName,
    MechanismOption,
    NoiseSeed,
)
from dpftrl_fast.cli.output import (
    facts_table,
    friendly,
    guarantee_facts,
    note,
    print_json,
    progress_bar,
    refuse_to_overwrite,
    show,
    warn_of_large_delta,
)
from dpftrl_fast.files import check_folder, write_files
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.streams.prefix_sum import PrefixSum
from dpftrl_fast.tables import TableReader, minibatches
from dpftrl_fast.tables.schema import Schema


@friendly
def command(
    data: Data,
    column: Annotated[str, typer.Option(help="Numeric column to sum.")],
    bounds: Annotated[
        tuple[float, float], typer.Option(help="Public bounds LOW HIGH; values are clipped.")
    ],
    rows: Annotated[int, typer.Option(help="Public number of row slots.")],
    out: Annotated[Path, typer.Option(help="CSV file to write.")],
    every: Annotated[int, typer.Option(help="Rows of a step: a sum is written after each.")] = 1,
    epsilon: Budget = 1.0,
    delta: Delta = 1e-6,
    mechanism: MechanismOption = MechanismName.auto,
    delimiter: Delimiter = None,
    budget: BudgetFile = None,
    noise_seed: NoiseSeed = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Write private running sums of a column, in file order.

    A missing or unparsable cell, or a slot beyond the end of the file, adds zero.
    """
    positive_integer("--every", every)
    refuse_to_overwrite(out, force=force)
    check_folder(out.parent)
    low, high = bounds
    # The target of a schema without features, in its own units.
    schema = Schema.from_dict(
        {
            "rows": rows,
            "target": {"name": column, "bounds": [low, high], "divisor": 1, "offset": 0},
            "columns": {},
            "intercept": True,
        }
    )
    table = TableReader(data, schema, delimiter=delimiter)
    largest = max(abs(low), abs(high))
    steps = -(-rows // every)
    passes = SinglePass(steps)
    plan = PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=delta,
        clip_norm=largest,
        participation=passes,
        mechanism=chosen_mechanism(mechanism.value, passes, epsilon, delta),
    )
    charged = opened_budget(budget, noise_seed, "sums are")
    warn_of_large_delta(delta, rows)
    if charged is not None:  # on the disk before a row is read
        label = f"sum of {column!r}, {rows:,} records, epsilon {epsilon!r}, {steps:,} steps"
        charged.spend(plan, label=label)
    running = PrefixSum(
        1, steps, largest, plan.noise_multiplier, mechanism=plan.mechanism, seed=noise_seed
    )
    text = io.StringIO()
    text.write("row,private_sum\n")
    with progress_bar("steps", quiet=json_) as progress:
        for step, batch in enumerate(minibatches(table, every), start=1):
            total = float(running.add(batch.target[:, None])[0])
            text.write(f"{min(step * every, rows)},{total!r}\n")
            if progress is not None:
                progress(step, steps)
    write_files(out.parent, {out.name: text.getvalue().encode()})
    if json_:
        print_json(
            {
                "epsilon": float(running.epsilon(delta)),
                "delta": delta,
                "neighbours": "one record replaced by zero",
                "epsilon_replace_one": plan.replace_one(delta),
                "mechanism": plan.mechanism.to_dict(),
                "noise_multiplier": plan.noise_multiplier,
                "sensitivity_squared": plan.sensitivity_squared,
                "rows": rows,
                "steps": steps,
                "private_sum": total,
                "marks": [] if noise_seed is None else ["reproducible, not private"],
                "out": str(out),
                **({} if charged is None else {"budget": budget_facts(charged)}),
            }
        )
        return
    show(facts_table({**guarantee_facts(plan, delta), "private sum of all rows": f"{total:.6g}"}))
    if noise_seed is not None:
        note("warning: reproducible, not private: a noise seed was given")
    show(f"wrote {out}")
    if charged is not None:
        show("", "Budget", *str(charged).splitlines()[:3])
