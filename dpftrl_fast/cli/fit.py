# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast fit``: a private linear model of a table."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from dpftrl_fast.cli.fit_run import Files, run, show_validation
from dpftrl_fast.cli.output import Json, friendly
from dpftrl_fast.cli.patterns import Bound, Variant, VariantOption
from dpftrl_fast.fitting import FitSettings, LeastSquaresSettings, Settings
from dpftrl_fast.tables import TableReader
from dpftrl_fast.tables.schema import Schema


class Method(str, enum.Enum):
    """How a model is fitted."""

    ftrl = "ftrl"
    least_squares = "least-squares"


class Task(str, enum.Enum):
    """What is predicted."""

    regression = "regression"
    classification = "classification"
    multinomial = "multinomial"


class Loss(str, enum.Enum):
    """Losses of a linear model."""

    squared = "squared"
    huber = "huber"
    epsilon_insensitive = "epsilon_insensitive"
    quantile = "quantile"
    logistic = "logistic"
    hinge = "hinge"
    multinomial = "multinomial"


# Why least squares does not take what belongs to ftrl.
_SOLVED = "its models are solved for, there is no step along a gradient"
_NOT_OF_LEAST_SQUARES = {
    "epochs": "its sums hold all there is in the rows after one pass; another only adds noise",
    "learning_rate": _SOLVED,
    "momentum": _SOLVED,
    "l1": "its models are solved for with a ridge; ftrl has an L1 penalty",
    "clip_norm": "it clips rows and targets, not gradients: see --x-norm-bound and the schema",
    "loss": "its loss is the squared error",
    "loss_param": "its loss is the squared error",
    "bound": "its plan covers the running sums, which are all that it uses",
}


@friendly
def command(
    data: Annotated[
        Path, typer.Argument(help="The rows: .csv, .tsv, .txt (also .gz) or .parquet.")
    ],
    schema: Annotated[Path, typer.Option(help="Declared facts, .yaml or .json.")],
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("model"),
    method: Annotated[
        Method, typer.Option(help="DP-FTRL, or least squares by two trees (regression).")
    ] = Method.ftrl,
    task: Annotated[Task | None, typer.Option(help="Default: what the target asks for.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget; 1 unless --noise-multiplier is given.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")] = 1e-6,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="The noise itself, instead of --epsilon.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rows a step; users with --group-column.")] = 256,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the rows, in the same order; default 1.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="1/lambda; default 1.")] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="Bound on every row's (user's) gradient; default 1.")
    ] = None,
    loss: Annotated[
        Loss | None, typer.Option(help="Default: squared, logistic or multinomial, by the task.")
    ] = None,
    loss_param: Annotated[
        float | None,
        typer.Option(help="Where huber turns linear (1), the epsilon (0.1), the quantile (0.5)."),
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum, 0 <= m < 1; default 0.")] = None,
    l1: Annotated[float | None, typer.Option(help="Weight of the L1 penalty; default 0.")] = None,
    radius: Annotated[float | None, typer.Option(help="Radius of an L2 ball.")] = None,
    x_norm_bound: Annotated[
        float | None, typer.Option(help="Instead of the schema's row_norm_bound; public.")
    ] = None,
    split: Annotated[
        float | None, typer.Option(help="Least squares: share of mu^2 for y x; default 0.35.")
    ] = None,
    ridge_factor: Annotated[
        float | None, typer.Option(help="Least squares: ridge in units of the noise; default 2.")
    ] = None,
    variant: VariantOption = Variant.honaker,
    bound: Annotated[
        Bound | None,
        typer.Option(help="What zeta covers; default exact, for several epochs released."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Predict this declared numeric column instead.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Row slots, instead of the schema's; public.")
    ] = None,
    group_column: Annotated[
        str | None, typer.Option(help="Whose row it is: the guarantee is then for users.")
    ] = None,
    users: Annotated[
        int | None, typer.Option(help="Most users, instead of the schema's; public.")
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
    """Fit a differentially private linear model of DATA.

    The guarantee is for one record (with --group-column: one user) replaced by zero. Nothing is
    released before the last step.
    """
    declared = _declared(
        Schema.load(schema),
        rows=rows,
        target=target,
        task=None if task is None else task.value,
        x_norm_bound=x_norm_bound,
        group_column=group_column,
        users=users,
    )
    if validate_only:
        show_validation(TableReader(data, declared, delimiter=delimiter), json_=json_)
        return
    settings = _settings(
        method,
        {
            "epsilon": 1.0 if epsilon is None and noise_multiplier is None else epsilon,
            "delta": delta,
            "noise_multiplier": noise_multiplier,
            "batch_size": batch_size,
            "radius": radius,
            "variant": variant.value,
            "noise_seed": noise_seed,
        },
        {
            "epochs": epochs,
            "learning_rate": learning_rate,
            "clip_norm": clip_norm,
            "loss": None if loss is None else loss.value,
            "loss_param": loss_param,
            "momentum": momentum,
            "l1": l1,
            "bound": None if bound is None else bound.value,
        },
        {"split": split, "ridge_factor": ridge_factor},
    )
    files = Files(data, declared, out, test_public, delimiter, force, these_rows_are_public)
    run(files, settings, json_=json_)


def _declared(
    schema: Schema,
    *,
    rows: int | None,
    target: str | None,
    task: str | None,
    x_norm_bound: float | None,
    group_column: str | None,
    users: int | None,
) -> Schema:
    """Return the schema with what the options say instead."""
    if rows is not None:
        schema = schema.with_rows(rows)
    if target is not None:
        schema = schema.with_target(target)
    if task is not None:
        schema = schema.with_task(task)
    if x_norm_bound is not None:
        schema = schema.with_row_norm_bound(x_norm_bound)
    group_column = schema.group_column if group_column is None else group_column
    if group_column is not None:
        schema = schema.with_groups(group_column, users)
    elif users is not None:
        raise ValueError("--users needs --group-column, the column that says whose row it is")
    return schema


def _settings(
    method: Method, common: dict[str, Any], ftrl: dict[str, Any], least_squares: dict[str, Any]
) -> Settings:
    """Return the settings of a method from the options that were given; refuse the other's."""
    ftrl = {name: value for name, value in ftrl.items() if value is not None}
    least_squares = {name: value for name, value in least_squares.items() if value is not None}
    if method is Method.ftrl:
        for name in least_squares:
            raise ValueError(f"{_option(name)} is for --method least-squares, got --method ftrl")
        return FitSettings(**common, **ftrl)
    for name, value in ftrl.items():
        if (name, value) != ("epochs", 1):
            raise ValueError(
                f"{_option(name)} cannot be had with --method least-squares: "
                f"{_NOT_OF_LEAST_SQUARES[name]}"
            )
    return LeastSquaresSettings(**common, **least_squares)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
