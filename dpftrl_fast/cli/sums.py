# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast sum``: private running sums of a column."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dpftrl_fast._validate import positive_integer
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.accounting.planner.choice import chosen_mechanism
from dpftrl_fast.cli.budget import budget_facts, opened_budget
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
from dpftrl_fast.cli.validation import show_validation
from dpftrl_fast.files import check_folder, write_files
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.streams.prefix_sum import PrefixSum
from dpftrl_fast.tables import CsvOptions, TableReader, minibatches
from dpftrl_fast.tables.csv_slots import STANDARD_INPUT
from dpftrl_fast.tables.frames import csv_lines
from dpftrl_fast.tables.schema import Schema

_STANDARD_OUTPUT = "-"
# Rows that are read and written at a time.
_ROWS = 1 << 16


@friendly
def command(
    data: Data,
    column: Annotated[str, typer.Option(help="Numeric column to sum.")],
    bounds: Annotated[
        tuple[float, float], typer.Option(help="Public bounds LOW HIGH; values are clipped.")
    ],
    rows: Annotated[int, typer.Option(help="Public number of row slots.")],
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write; - is the standard output.")
    ] = None,
    every: Annotated[int, typer.Option(help="Rows of a step: a sum is written after each.")] = 1,
    epsilon: Budget = 1.0,
    delta: Delta = 1e-6,
    mechanism: MechanismOption = MechanismName.auto,
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
    """Write private running sums of a column, in file order.

    A missing or unparsable cell, or a slot beyond the end of the file, adds zero.
    """
    positive_integer("--every", every)
    csv = CsvOptions(delimiter=delimiter, encoding=encoding, decimal=decimal, thousands=thousands)
    low, high = bounds
    schema = _schema(column, low, high, rows)
    every = min(every, schema.rows)
    if validate_only:
        show_validation(TableReader(data, schema, **csv), json_=json_)
        return
    if out is None:
        raise ValueError("--out is needed: a CSV file to write, or - for the standard output")
    printed = str(out) == _STANDARD_OUTPUT
    if not printed:
        refuse_to_overwrite(out, force=force)
        _refuse_input(out, data)
        check_folder(out.parent)
    table = TableReader(data, schema, **csv)
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
    lines, total = [b"row,private_sum\n"], 0.0
    done = 0
    with progress_bar("steps", quiet=json_) as progress:
        for values, count in _steps(table, every):
            sums = [
                float(running.add(values[i * every : (i + 1) * every])[0]) for i in range(count)
            ]
            ends = np.arange(done + 1, done + count + 1) * every
            lines.append(csv_lines(np.minimum(ends, rows), np.array(sums)))
            done, total = done + count, sums[-1]
            if progress is not None:
                progress(done, steps)
    if printed:
        sys.stdout.write(b"".join(lines).decode())
    else:
        write_files(out.parent, {out.name: b"".join(lines)})
    facts = sys.stderr if printed else sys.stdout
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
            },
            file=facts,
        )
        return
    told = {**guarantee_facts(plan, delta), "private sum of all rows": f"{total:.6g}"}
    show(facts_table(told), file=facts)
    if noise_seed is not None:
        note("warning: reproducible, not private: a noise seed was given")
    if not printed:
        show(f"wrote {out}")
    if charged is not None:
        show("", "Budget", *str(charged).splitlines()[:3], file=facts)


def _schema(column: str, low: float, high: float, rows: int) -> Schema:
    """Return the schema whose target is the column in its own units; it has no features."""
    return Schema.from_dict(
        {
            "rows": rows,
            "target": {"name": column, "bounds": [low, high], "divisor": 1, "offset": 0},
            "columns": {},
            "intercept": True,
        }
    )


def _refuse_input(out: Path, data: Path) -> None:
    """Raise ValueError if the output would replace the rows."""
    if out.exists() and str(data) != STANDARD_INPUT and data.exists() and out.samefile(data):
        raise ValueError(f"--out must be another file than DATA, got {str(out)!r} for both")


def _steps(table: TableReader, every: int) -> Iterator[tuple[Any, int]]:
    """Yield the values of many steps, as a column, and the number of these steps.

    Step i has the rows from i * every on; those of the last steps may be absent.
    """
    size = every * max(1, _ROWS // every)
    left = table.schema.rows
    for batch in minibatches(table, size):
        yield batch.target[:, None], -(-min(size, left) // every)
        left -= size
