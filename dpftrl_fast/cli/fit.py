# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast fit``: a private linear model in one pass over a table."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dpftrl_fast.cli.output import (
    Json,
    facts_table,
    friendly,
    guarantee_facts,
    note,
    print_json,
    progress_bar,
    show,
    warn_of_large_delta,
)
from dpftrl_fast.cli.patterns import Variant, VariantOption
from dpftrl_fast.evaluation import metric_name, ridge_reference, scores
from dpftrl_fast.fitting import FitResult, FitSettings, fit, make_plan
from dpftrl_fast.model_file import check_target, save_model
from dpftrl_fast.plots import learning_curve_png
from dpftrl_fast.schema import Schema
from dpftrl_fast.tables import TableReader, validate

__all__ = ["Files", "Loss", "command", "run"]

_CURVE_POINTS = 120
_REPRODUCIBLE = "reproducible, not private: a noise seed was given"


class Loss(str, enum.Enum):
    """Losses of a linear model."""

    squared = "squared"
    huber = "huber"
    logistic = "logistic"
    hinge = "hinge"


@dataclass(frozen=True)
class Files:
    """What a run reads and writes."""

    data: Path
    schema: Schema
    out: Path
    test_public: Path | None = None
    delimiter: str | None = None
    force: bool = False
    these_rows_are_public: bool = False


@friendly
def command(
    data: Annotated[
        Path, typer.Argument(help="The rows: .csv, .tsv, .txt (also .gz) or .parquet.")
    ],
    schema: Annotated[Path, typer.Option(help="Declared facts, .yaml or .json.")],
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("model"),
    epsilon: Annotated[
        float | None, typer.Option(help="Budget; 1 unless --noise-multiplier is given.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")] = 1e-6,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="The noise itself, instead of --epsilon.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rows a step.")] = 256,
    learning_rate: Annotated[float, typer.Option(help="1/lambda.")] = 1.0,
    clip_norm: Annotated[float, typer.Option(help="Bound on every row's gradient.")] = 1.0,
    loss: Annotated[
        Loss | None, typer.Option(help="Default: squared, or logistic for categories.")
    ] = None,
    huber_threshold: Annotated[float, typer.Option(help="Where the Huber loss is linear.")] = 1.0,
    momentum: Annotated[float, typer.Option(help="Momentum, 0 <= m < 1.")] = 0.0,
    l1: Annotated[float, typer.Option(help="Weight of the L1 penalty.")] = 0.0,
    radius: Annotated[float | None, typer.Option(help="Radius of an L2 ball.")] = None,
    variant: VariantOption = Variant.honaker,
    target: Annotated[
        str | None, typer.Option(help="Predict this declared numeric column instead.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Row slots, instead of the schema's; public.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="For CSV.")] = None,
    test_public: Annotated[
        Path | None,
        typer.Option(help="Test rows that you call public: metric and learning curve."),
    ] = None,
    these_rows_are_public: Annotated[
        bool,
        typer.Option(
            "--these-rows-are-public",
            help="Also score a non-private ridge fit of DATA on the test rows, as a yardstick.",
        ),
    ] = False,
    validate_only: Annotated[
        bool,
        typer.Option(
            "--validate",
            help="Only look at the values, for the owner of the data; prints counts, NOT private.",
        ),
    ] = False,
    noise_seed: Annotated[
        int | None, typer.Option(help="For tests: the result is reproducible, not private.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a model.")] = False,
    json_: Json = False,
) -> None:
    """Fit a differentially private linear model in one pass over DATA.

    The guarantee is for one record replaced by zero. Nothing is released before the last step.
    """
    declared = Schema.load(schema)
    if rows is not None:
        declared = declared.with_rows(rows)
    if target is not None:
        declared = declared.with_target(target)
    if validate_only:
        _show_validation(TableReader(data, declared, delimiter=delimiter), json_)
        return
    settings = FitSettings(
        epsilon=1.0 if epsilon is None and noise_multiplier is None else epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
        learning_rate=learning_rate,
        clip_norm=clip_norm,
        loss=None if loss is None else loss.value,
        loss_param=huber_threshold,
        momentum=momentum,
        l1=l1,
        radius=radius,
        variant=variant.value,
        noise_seed=noise_seed,
    )
    files = Files(data, declared, out, test_public, delimiter, force, these_rows_are_public)
    run(files, settings, json_=json_)


def run(files: Files, settings: FitSettings, *, json_: bool) -> dict[str, Any]:
    """Fit, score, save and print; shared with the demo."""
    check_target(files.out, force=files.force)
    schema = files.schema
    settings.loss_for(schema)
    if files.these_rows_are_public and (files.test_public is None or schema.task != "regression"):
        raise ValueError(
            "--these-rows-are-public compares with a ridge regression on the test rows: "
            "it needs --test-public and a numeric target"
        )
    table = TableReader(files.data, schema, delimiter=files.delimiter)
    test = None
    if files.test_public is not None:
        _check_test(files)
        test = TableReader(files.test_public, schema, delimiter=files.delimiter)
    plan = make_plan(schema, settings)
    promised = guarantee_facts(plan, settings.delta)
    if not json_:
        show(facts_table(promised))
    warn_of_large_delta(settings.delta, schema.rows)
    began = time.perf_counter()
    with progress_bar("steps", quiet=json_) as progress:
        result = fit(
            table,
            settings,
            curve_points=0 if test is None else _CURVE_POINTS,
            progress=progress,
        )
    seconds = time.perf_counter() - began
    reference = None
    if files.these_rows_are_public:
        reference = ridge_reference(TableReader(files.data, schema, delimiter=files.delimiter))
    measured: dict[str, float] | None = None
    plot: dict[str, bytes] = {}
    if test is not None:
        measured, plot = _measure(result, test, reference, str(promised["epsilon"]))
    private_scores = None if measured is None else _without_reference(measured)
    facts = save_model(files.out, result, scores=private_scores, extra=plot, force=files.force)
    if json_:
        metric = metric_name(schema)
        print_json(
            {**facts, "metric": metric, "scores": measured, "out": str(files.out),
             "seconds": round(seconds, 3)}
        )  # fmt: skip
    else:
        _show_result(result, schema, measured, files.out, plot, seconds)
    return facts


def _check_test(files: Files) -> None:
    """Fail before the private rows are touched, not after, if the test rows give no metric."""
    learning_curve_png([0, 1], [0, 1], [0, 1])  # matplotlib is there and works
    assert files.test_public is not None
    test = TableReader(files.test_public, files.schema, delimiter=files.delimiter)
    scores(test, np.zeros((1, files.schema.n_features)))


def _measure(
    result: FitResult, test: TableReader, reference: np.ndarray[Any, Any] | None, promised: str
) -> tuple[dict[str, float], dict[str, bytes]]:
    """Score the released iterates on public rows and draw the learning curve."""
    curve = result.curve
    models = [result.tail[None], result.average[None], result.last[None]]
    if reference is not None:
        models.append(reference[None])
    fixed = sum(len(model) for model in models)
    value = scores(test, np.concatenate([*models, curve.last, curve.average]))
    measured = {
        "tail average": float(value[0]),
        "average": float(value[1]),
        "last": float(value[2]),
    }
    if reference is not None:
        measured["non-private ridge"] = float(value[3])
    points = len(curve.steps)
    png = learning_curve_png(
        curve.steps,
        value[fixed : fixed + points],
        value[fixed + points :],
        tail=measured["tail average"],
        reference=measured.get("non-private ridge"),
        metric=metric_name(result.schema),
        title=f"epsilon {promised.split()[0]}, delta {result.settings.delta:g}"
        + (" (reproducible, not private)" if result.reproducible else ""),
    )
    return measured, {"learning_curve.png": png}


def _without_reference(measured: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in measured.items() if name != "non-private ridge"}


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
        if "non-private ridge" in measured:
            lines[f"{name}, non-private ridge"] += "  (NOT private: DATA was called public)"
        show("", facts_table(lines, "On the test rows, which were called public"))
    if result.reproducible:
        note(f"warning: {_REPRODUCIBLE}")
    written = ", ".join(str(out / name) for name in ("model.npz", "model.json", *plot))
    show("", f"{result.steps:,} steps in {seconds:.1f} s; wrote {written}")


def _show_validation(table: TableReader, json_: bool) -> None:
    report = validate(table)
    if json_:
        print_json(report)
        return
    columns = {
        name: ", ".join(f"{count:,} {what}" for what, count in found.items())
        for name, found in report["columns"].items()
    }
    show(
        report["label"],
        facts_table(
            {
                "rows declared": report["rows_declared"],
                "rows in the file": report["rows_in_file"],
                "invalid rows (they count as zero)": report["rows_invalid"],
                **columns,
            }
        ),
    )
