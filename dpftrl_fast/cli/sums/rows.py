# SPDX-License-Identifier: Apache-2.0
"""Private running sums of a column, in file order: the rows of ``dpftrl-fast sum``."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import positive_integer, real
from dpftrl_fast.cli.output import guarantee_facts, progress_bar, warn_of_large_delta
from dpftrl_fast.cli.sums.output import SumOptions
from dpftrl_fast.cli.validation import show_validation
from dpftrl_fast.mechanisms.window_error import window_stds
from dpftrl_fast.streams.prefix_sum import PrefixSum
from dpftrl_fast.tables import TableReader, minibatches
from dpftrl_fast.tables.frames import csv_lines
from dpftrl_fast.tables.schema import Schema

# Rows that are read and summed at a time.
_ROWS = 1 << 16


class Missing(str, enum.Enum):
    """The number that a cell without one counts as."""

    zero = "zero"
    middle = "middle"


@dataclass(frozen=True)
class RowSums:
    """Options of a sum of rows, as they were given."""

    column: str | None
    bounds: tuple[float, float] | None
    rows: int | None
    every: int
    missing: Missing | None


def sum_rows(options: SumOptions, sums: RowSums) -> None:
    """Write the private running sums of a column."""
    every = positive_integer("--every", sums.every)
    real("--level", options.level, above=0.0, below=1.0)
    column, bounds, rows = _declared(sums)
    schema = _schema(column, *bounds, rows)
    if options.validate_only:
        show_validation(TableReader(options.data, schema, **options.csv), json_=options.json)
        return
    options.check_out()
    every = min(every, schema.rows)
    middle = not bounds[0] <= 0.0 <= bounds[1]
    if sums.missing is not None:
        middle = sums.missing is Missing.middle
    facts = {
        "column": column, "bounds": list(bounds), "rows": rows, "every": every,
        "missing": "middle" if middle else "zero",
    }  # fmt: skip
    table = TableReader(options.data, schema, **options.csv)
    if options.continues:
        assert options.folder is not None
        with PrefixSum.open(options.folder) as running:
            _refuse_others(running, facts, options)
            _run(options, running, table, every, middle, None)
        return
    running = _new(options, bounds, -(-rows // every), middle)
    warn_of_large_delta(options.delta, rows)
    label = f"sum of {column!r}, {rows:,} records, epsilon {options.epsilon!r}, "
    charged = options.charge(running.plan, f"{label}{running.steps:,} steps")
    if options.folder is not None:
        running.save(options.folder, facts=facts)
    with running:
        _run(options, running, table, every, middle, charged)


def _declared(sums: RowSums) -> tuple[str, tuple[float, float], int]:
    if sums.column is None or sums.bounds is None or sums.rows is None:
        needed = {"--column": sums.column, "--bounds": sums.bounds, "--rows": sums.rows}
        name = next(name for name, value in needed.items() if value is None)
        raise ValueError(
            f"{name} is needed for a sum of rows in file order; --time counts events by period"
        )
    return sums.column, sums.bounds, sums.rows


def _new(options: SumOptions, bounds: tuple[float, float], steps: int, middle: bool) -> PrefixSum:
    ways: dict[str, Any] = {"clip_norm": max(map(abs, bounds)), "bounds": None}
    if middle:
        ways = {"clip_norm": None, "bounds": bounds}
    mechanism: Any = options.mechanism
    return PrefixSum.calibrate(
        1,
        steps,
        epsilon=options.epsilon,
        delta=options.delta,
        mechanism=mechanism,
        seed=options.noise_seed,
        history=True,
        **ways,
    )


def _refuse_others(running: PrefixSum, facts: dict[str, Any], options: SumOptions) -> None:
    """Refuse other options than those with which the folder was begun."""
    for name, value in facts.items():
        if running.facts.get(name) != value:
            raise ValueError(
                f"--{name} must be as in the first run of {str(options.folder)!r}, "
                f"{running.facts.get(name)!r}, got {value!r}"
            )
    options.check_continued(running.epsilon(options.delta))


def _run(
    options: SumOptions,
    running: PrefixSum,
    table: TableReader,
    every: int,
    middle: bool,
    charged: Any,
) -> None:
    rows, steps = table.schema.rows, running.steps
    with progress_bar("steps", quiet=options.json) as progress:
        for records in _steps(table, every, running.t, whole=options.folder is not None):
            running.add_steps(records)
            if progress is not None:
                progress(running.t, steps)
    values = running.values[:, 0]
    std = running.std(until=1)[0] * _relative_std(running)
    wide = NormalDist().inv_cdf((1 + options.level) / 2)
    ends = np.minimum(np.arange(1, running.t + 1) * every, rows)
    lines = csv_lines(ends, values, std, values - wide * std, values + wide * std)
    options.write(b"row,private_sum,std,low,high\n" + lines)
    plan, delta = running.plan, options.delta
    last = f"{values[-1]:.6g}" if len(values) else "none yet"
    bars = f" +- {wide * std[-1]:.3g} ({options.level:.0%} interval)" if len(values) else ""
    told = {**guarantee_facts(plan, delta)}
    told["a cell that is no number"] = "counts as zero"
    if middle:
        told["a cell that is no number"] = (
            "counts as the middle of the bounds, which 'replaced by zero' means here"
        )
    if running.t == steps:
        told["private sum of all rows"] = f"{last}{bars}"
    else:
        told["steps so far"] = f"{running.t:,} of {steps:,}"
        told["private sum so far"] = f"{last}{bars}"
    options.conclude(
        {
            "epsilon": float(running.epsilon(delta)),
            "delta": delta,
            "neighbours": "one record replaced by "
            + ("the middle of the bounds" if middle else "zero"),
            "epsilon_replace_one": plan.replace_one(delta),
            "mechanism": plan.mechanism.to_dict(),
            "noise_multiplier": plan.noise_multiplier,
            "sensitivity_squared": plan.sensitivity_squared,
            "rows": rows,
            "steps": steps,
            "steps_taken": running.t,
            "private_sum": float(values[-1]) if len(values) else None,
            "std": float(std[-1]) if len(values) else None,
        },
        told,
        running.reproducible,
        charged,
    )


def _relative_std(running: PrefixSum) -> NDArray[np.float64]:
    """Return the noise in the sum after each step taken, over that after the first."""
    found = window_stds(running.plan.layout, running.steps)
    return np.asarray(found[: running.t] / found[0])


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


def _steps(
    table: TableReader, every: int, taken: int, *, whole: bool
) -> Iterator[NDArray[np.float64]]:
    """Yield the records of the steps after those taken, arrays of shape (steps, every, 1).

    Slots without a row are NaN. Of a daily job only steps that are `whole` in the file are
    taken: row slots are public.
    """
    rows = table.schema.rows
    size = every * max(1, _ROWS // every)
    begin = seen = 0
    for batch in minibatches(table, size):
        given, end = len(batch), min(begin + size, rows)
        values = np.full(end - begin, np.nan)
        values[:given] = np.where(batch.valid, batch.target, np.nan)
        if whole and begin + given < rows:
            values = values[: given // every * every]
        # The last step of all may have fewer slots.
        values = np.append(values, np.full(-len(values) % every, np.nan))
        fresh = values.reshape(-1, every, 1)[max(0, taken - begin // every) :]
        if len(fresh):
            yield fresh
        begin, seen = end, seen + given
    if whole and seen < min(taken * every, rows):
        raise ValueError(
            f"DATA must hold all rows of the job so far, at least {min(taken * every, rows)}, got "
            f"{seen}: append new rows to the same file"
        )
