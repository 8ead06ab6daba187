# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast audit``: canaries in a private linear model, and the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dpftrl_fast._validate import positive_integer
from dpftrl_fast.cli.fit import Loss, Method, Task
from dpftrl_fast.cli.options import (
    Decimal,
    Delimiter,
    Delta,
    Encoding,
    Json,
    MechanismName,
    MechanismOption,
    Thousands,
)
from dpftrl_fast.cli.output import friendly, note, print_json, show
from dpftrl_fast.convex.settings import LOSSES
from dpftrl_fast.tables import TableReader
from dpftrl_fast.tables.schema import NumericColumn, Schema

_ROWS, _CLASSES = 4096, 3
_NOT_PRIVATE = (
    "NOT private: the canaries are copies of the row with the largest gradient, found in the file"
)


@friendly
def command(
    data: Annotated[
        Path | None,
        typer.Argument(help="Rows to take the canary from; by default it is synthetic."),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Declared facts of the table, .yaml or .json.")
    ] = None,
    method: Annotated[
        Method, typer.Option(help="Estimator: by DP-FTRL, or least squares from two sums.")
    ] = Method.ftrl,
    task: Annotated[
        Task | None, typer.Option(help="Task; by default that of the schema, or regression.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Epsilon to keep; 1 unless --noise-multiplier is given.")
    ] = None,
    delta: Delta = 1e-6,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise multiplier sigma, instead of --epsilon.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(help="Public number of rows; by default the schema's, or 4096."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rows of a step.")] = 256,
    clip_norm: Annotated[float, typer.Option(help="Bound on the gradient of a row.")] = 1.0,
    loss: Annotated[
        Loss | None, typer.Option(help="Loss; default squared, logistic or multinomial, by task.")
    ] = None,
    loss_param: Annotated[
        float | None,
        typer.Option(help="Parameter of huber (1), epsilon_insensitive (0.1) or quantile (0.5)."),
    ] = None,
    momentum: Annotated[float, typer.Option(help="Momentum, 0 <= m < 1.")] = 0.0,
    mechanism: MechanismOption = MechanismName.auto,
    label_flip: Annotated[
        bool, typer.Option("--label-flip", help="Flip the labels of canaries (replace-one).")
    ] = False,
    canaries: Annotated[int | None, typer.Option(help="Canaries of a run.")] = None,
    runs: Annotated[int | None, typer.Option(help="Runs with keys of their own.")] = None,
    confidence: Annotated[float, typer.Option(help="One minus the rate of false alarms.")] = 0.999,
    coin_seed: Annotated[
        int | None, typer.Option(help="Seed of the coins that include canaries.")
    ] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    plot: Annotated[Path | None, typer.Option(help="PNG file for the scores.")] = None,
    json_: Json = False,
) -> None:
    """Audit the private linear models of this installation.

    Canaries are inserted by the toss of coins; their best scores are compared with the stated
    guarantee. The exit status is 1 if it is violated.
    """
    from dpftrl_fast.audit import audit_estimator

    if (data is None) != (schema is None):
        raise ValueError("DATA and --schema must be given together, got one of them")
    declared = None if schema is None else _declared(Schema.load(schema), task, rows)
    kind = (task or Task.regression).value if declared is None else declared.task
    estimator, chosen = _estimator(
        kind,
        declared,
        method,
        {
            "epsilon": 1.0 if epsilon is None and noise_multiplier is None else epsilon,
            "delta": delta,
            "noise_multiplier": noise_multiplier,
            "mechanism": mechanism.value,
        },
        {
            "clip_norm": clip_norm,
            "loss": loss and loss.value,
            "loss_param": loss_param,
            "momentum": momentum,
        },
    )
    record = None
    if data is not None and declared is not None:
        from dpftrl_fast.audit.tables import largest_record

        table = TableReader(
            data,
            declared,
            delimiter=delimiter,
            encoding=encoding,
            decimal=decimal,
            thousands=thousands,
        )
        record = largest_record(table, loss=chosen, loss_param=loss_param)
    total = (_ROWS if rows is None else rows) if declared is None else declared.rows
    positive_integer("--rows", total)
    result = audit_estimator(
        estimator,
        steps=-(-total // positive_integer("--batch-size", batch_size)),
        label_flip=label_flip,
        record=record,
        canaries=canaries,
        runs=runs,
        confidence=confidence,
        random_state=coin_seed,
    )
    if plot is not None:
        result.plot(plot)
    if json_:
        print_json({**result.to_dict(), "private": record is None})
    else:
        show(result.describe())
        if record is not None:
            note(_NOT_PRIVATE)
    if result.violated:
        raise typer.Exit(1)


def _declared(schema: Schema, task: Task | None, rows: int | None) -> Schema:
    if task is not None:
        schema = schema.with_task(task.value)
    return schema if rows is None else schema.with_rows(rows)


def _estimator(
    task: str,
    schema: Schema | None,
    method: Method,
    budget: dict[str, Any],
    ftrl: dict[str, Any],
) -> tuple[Any, str]:
    """Return the estimator, and its loss."""
    try:
        from dpftrl_fast.linear_model import (
            DPFTRLClassifier,
            DPFTRLLeastSquares,
            DPFTRLRegressor,
        )
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise ValueError(
            "an audit runs the estimators, which need scikit-learn: "
            "pip install 'dpftrl-fast[sklearn]'"
        ) from None
    # Encoded rows have a constant column and a norm of at most 1.
    rows: dict[str, Any] = {} if schema is None else {"fit_intercept": False}
    if method is Method.least_squares:
        if task != "regression":
            raise ValueError(f"least squares needs a numeric target, got a {task} task: use ftrl")
        given = {"clip_norm": 1.0, "loss": None, "loss_param": None, "momentum": 0.0}
        for name in ftrl:
            if ftrl[name] != given[name]:
                option = "--" + name.replace("_", "-")
                raise ValueError(f"{option} is not supported by least squares")
        bound = 1.0
        if schema is not None and isinstance(schema.target, NumericColumn):
            bound = schema.target.largest
        return DPFTRLLeastSquares(**budget, x_norm_bound=1.0, y_bound=bound, **rows), "squared"
    chosen = ftrl["loss"] or next(iter(LOSSES[task]))
    if chosen not in LOSSES[task]:
        raise ValueError(f"--loss must be one of {', '.join(LOSSES[task])}, got {chosen!r}")
    options = {**budget, **ftrl, **rows, "loss": chosen}
    if task == "regression":
        return DPFTRLRegressor(**options), chosen
    if options.pop("loss_param") is not None:
        raise ValueError(f"--loss-param is not supported by {chosen}")
    classes = 2 if task == "classification" else (_CLASSES if schema is None else schema.outputs)
    return DPFTRLClassifier(**options, classes=list(range(classes))), chosen
