# SPDX-License-Identifier: Apache-2.0
"""Run of ``fit`` from its files to its output; shared with the demo."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from dpftrl_fast.accounting.curve.rounding import short_up
from dpftrl_fast.cli.budget import budget_facts, opened_budget
from dpftrl_fast.cli.output import (
    facts_table,
    guarantee_facts,
    note,
    print_json,
    progress_bar,
    rounded_up,
    show,
    warn_of_large_delta,
)
from dpftrl_fast.convex.glm.outlook import LearningWarning
from dpftrl_fast.fitting import (
    FitResult,
    RunSettings,
    Settings,
    fit,
    make_plan,
    outlook,
    resolve,
)
from dpftrl_fast.fitting.evaluation import metric_name, ridge_reference, scores
from dpftrl_fast.fitting.intervals import LEVEL, Intervals
from dpftrl_fast.fitting.model_file import check_target, save_model
from dpftrl_fast.fitting.run import ResolvedSettings
from dpftrl_fast.plots import learning_curve_png
from dpftrl_fast.tables import CsvOptions, TableReader
from dpftrl_fast.tables.csv_slots import STANDARD_INPUT
from dpftrl_fast.tables.schema import Schema

_CURVE_POINTS = 120
_CURVE_SOLVES = 30  # points of least squares, a system of equations each
_REPRODUCIBLE = "reproducible, not private: a noise seed was given"
_NO_INTERVALS = (
    "the noise is too large for confidence intervals: take tighter public bounds, more rows, a "
    "larger epsilon or fewer columns, and leave one category of each categorical column undeclared"
)
_NAMES = {"tail": "tail average", "average": "average", "last": "last"}
_RIDGE = "non-private ridge"


@dataclass(frozen=True)
class Files:
    """Files that a run reads and writes."""

    data: Path
    schema: Schema
    out: Path
    test_public: Path | None = None
    csv: CsvOptions = field(default_factory=CsvOptions)
    force: bool = False
    these_rows_are_public: bool = False
    budget: Path | None = None


def run(
    files: Files,
    settings: Settings,
    *,
    class_weight: Mapping[str, float] | None = None,
    json_: bool,
) -> dict[str, Any]:
    """Fit, score, save and print."""
    check_target(files.out, force=files.force)
    schema = files.schema
    if files.these_rows_are_public and (files.test_public is None or schema.task != "regression"):
        raise ValueError(
            "--these-rows-are-public needs --test-public and a numeric target: it compares with a "
            "ridge regression on the test rows"
        )
    settings = resolve(schema, settings)
    _refuse_second_pass(files, settings)
    table = TableReader(files.data, schema, **files.csv)
    plan = make_plan(schema, settings)
    budget = opened_budget(files.budget, settings.noise_seed, "a fit is")
    test = None
    if files.test_public is not None:
        _check_test(files)
        test = _public(files.test_public, files)
    if not json_:
        show(facts_table(guarantee_facts(plan, settings.delta, schema.unit)))
        show(facts_table(_settings_facts(settings, schema)))
    for reason in outlook(schema, settings, plan):
        note(f"warning: {LearningWarning(reason)}")
    per_user = schema.group_column is not None
    warn_of_large_delta(settings.delta, schema.units, "user" if per_user else "row")
    points = _CURVE_POINTS if settings.method == "ftrl" else _CURVE_SOLVES
    if budget is not None:
        budget.spend(plan, label=_label(settings, schema))  # on the disk before a row is read
    began = time.perf_counter()
    with progress_bar("steps", quiet=json_) as progress:
        result = fit(
            table,
            settings,
            plan=plan,
            class_weight=class_weight,
            curve_points=0 if test is None else points,
            progress=progress,
        )
    seconds = time.perf_counter() - began
    reference = None
    if files.these_rows_are_public:
        reference = ridge_reference(_public(files.data, files))
    measured: dict[str, float] | None = None
    plot: dict[str, bytes] = {}
    if test is not None:
        measured, plot = _measure(result, test, reference)
    private_scores = None if measured is None else _without_reference(measured)
    facts = save_model(files.out, result, scores=private_scores, extra=plot, force=files.force)
    if json_:
        metric = metric_name(schema)
        print_json(
            {**facts, "metric": metric, "scores": measured, "out": str(files.out),
             "seconds": round(seconds, 3),
             **({} if budget is None else {"budget": budget_facts(budget)})}
        )  # fmt: skip
    else:
        _show_result(result, schema, measured, files.out, plot, seconds)
        if budget is not None:
            show("", "Budget", *str(budget).splitlines()[:3])
    return facts


def _settings_facts(settings: ResolvedSettings, schema: Schema) -> dict[str, Any]:
    """Return the settings of a run that follow from public facts where they are not given."""
    facts: dict[str, Any] = {"method": settings.method, "batch size": f"{settings.batch_size:,}"}
    if isinstance(settings, RunSettings):
        facts |= {
            "epochs": settings.epochs,
            "momentum": f"{settings.momentum:g}",
            "learning rate": f"{settings.learning_rate:.4g}",
        }
    scale = f"{schema.row_scale:.4g}"
    if schema.row_norm_bound is None:
        scale += "  (the largest norm within the declared bounds)"
    return facts | {"rows divided by": scale}


def _label(settings: ResolvedSettings, schema: Schema) -> str:
    """Return public facts of a fit, for the table of a budget."""
    epochs = settings.epochs if isinstance(settings, RunSettings) else 1
    noise = f"epsilon {settings.epsilon!r}"
    if settings.epsilon is None:
        noise = f"noise multiplier {settings.noise_multiplier!r}"
    return (
        f"fit {settings.method}, {schema.units:,} {schema.unit}s, {noise}, batch size "
        f"{settings.batch_size}, epochs {epochs}"
    )


def _refuse_second_pass(files: Files, settings: ResolvedSettings) -> None:
    """Refuse options that read a file twice if it is the standard input."""
    again = {
        "--epochs": getattr(settings, "epochs", 1) > 1,
        "--group-column": files.schema.group_column is not None,
        "--these-rows-are-public": files.these_rows_are_public,
    }
    if str(files.data) == STANDARD_INPUT and any(again.values()):
        options = ", ".join(name for name, given in again.items() if given)
        raise ValueError(f"- is read once, got {options}: write the rows into a file")
    if str(files.test_public) == STANDARD_INPUT:
        raise ValueError("--test-public must be a file, which is read twice, got -")


def _check_test(files: Files) -> None:
    """Fail before the private rows are read, not after, if the test rows give no metric."""
    learning_curve_png([0, 1], [0, 1], [0, 1])  # fails without matplotlib
    assert files.test_public is not None
    outputs, p = files.schema.outputs, files.schema.n_features
    scores(_public(files.test_public, files), np.zeros((1, p) if outputs == 1 else (1, outputs, p)))


def _public(path: Path, files: Files) -> TableReader:
    """Open a table that the user called public; its users do not matter."""
    return TableReader(path, files.schema.without_groups(), **files.csv)


def _measure(
    result: FitResult, test: TableReader, reference: np.ndarray[Any, Any] | None
) -> tuple[dict[str, float], dict[str, bytes]]:
    """Score the released iterates on public rows and draw the learning curve."""
    curve, delta = result.curve, result.settings.delta
    names = [_NAMES[kind] for kind in result.coefficients]
    models = [model[None] for model in result.coefficients.values()]
    if reference is not None:
        names.append(_RIDGE)
        models.append(reference[None])
    models += [curve.last] if curve.average is None else [curve.last, curve.average]
    value = scores(test, np.concatenate(models))
    measured = {name: float(value[i]) for i, name in enumerate(names)}
    lines = value[len(names) :].reshape(-1, len(curve.steps))
    png = learning_curve_png(
        curve.steps,
        *lines,
        tail=measured.get(_NAMES["tail"]),
        reference=measured.get(_RIDGE),
        metric=metric_name(result.schema),
        title=f"epsilon {rounded_up(result.epsilon(delta))} (replace-one "
        f"{rounded_up(result.replace_one(delta))}), delta {short_up(delta)}"
        + (" (reproducible, not private)" if result.reproducible else ""),
    )
    return measured, {"learning_curve.png": png}


def _without_reference(measured: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in measured.items() if name != _RIDGE}


def _show_result(
    result: FitResult,
    schema: Schema,
    measured: dict[str, float] | None,
    out: Path,
    plot: dict[str, bytes],
    seconds: float,
) -> None:
    if measured is not None:
        name = metric_name(schema)
        lines = {f"{name}, {kind}": f"{value:.4f}" for kind, value in measured.items()}
        if _RIDGE in measured:
            lines[f"{name}, {_RIDGE}"] += "  (NOT private: DATA was called public)"
        show("", "On the public test rows", facts_table(lines))
    if result.intervals is not None:
        show("", _intervals_table(result.intervals))
        if not result.intervals.reliable:
            note(f"warning: {_NO_INTERVALS}")
    if result.reproducible:
        note(f"warning: {_REPRODUCIBLE}")
    written = ", ".join(str(out / name) for name in ("model.npz", "model.json", *plot))
    count = f"{result.steps:,} step" + "s" * (result.steps != 1)
    show("", f"{count} in {seconds:.1f} s; wrote {written}")


def _intervals_table(found: Intervals) -> Table:
    """Return estimates with their errors, in the units of the columns."""
    table = Table(box=None, pad_edge=False, title="Without a ridge", title_justify="left")
    table.add_column("feature", style="bold", overflow="fold")
    for heading in ("estimate", "standard error", f"{LEVEL:.0%} interval", ""):
        table.add_column(heading, justify="right")
    rows = zip(found.names, found.estimate, found.stderr, found.ends, strict=True)
    for name, *numbers, ends in rows:
        table.add_row(name, *(f"{number:.4g}" for number in (*numbers, *ends)))
    return table
