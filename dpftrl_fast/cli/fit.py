# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast fit``: a private linear model of a table."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from dpftrl_fast.cli.fit_run import Files, run
from dpftrl_fast.cli.options import (
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
from dpftrl_fast.cli.output import friendly
from dpftrl_fast.cli.patterns import Bound, Variant, VariantOption
from dpftrl_fast.cli.validation import show_validation
from dpftrl_fast.fitting import FitSettings, LeastSquaresSettings, Settings, method_for
from dpftrl_fast.fitting.weights import check_class_weight
from dpftrl_fast.tables import CsvOptions, TableReader
from dpftrl_fast.tables.csv_slots import STANDARD_INPUT
from dpftrl_fast.tables.schema import Schema


class Method(str, enum.Enum):
    """Methods of a fit."""

    auto = "auto"
    ftrl = "ftrl"
    least_squares = "least-squares"


class Task(str, enum.Enum):
    """Kinds of prediction."""

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


@friendly
def command(
    data: Data,
    schema: Annotated[Path, typer.Option(help="Declared facts of the table, .yaml or .json.")],
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("model"),
    method: Annotated[
        Method,
        typer.Option(
            help="DP-FTRL, or least squares from two sums (a numeric target); by default the one "
            "that suits the public facts."
        ),
    ] = Method.auto,
    task: Annotated[Task | None, typer.Option(help="Task; by default that of the target.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Epsilon to keep; 1 unless --noise-multiplier is given.")
    ] = None,
    delta: Delta = 1e-6,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise multiplier sigma, instead of --epsilon.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Rows of a step; users with --group-column. Default: automatic."),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Passes over the rows, in the same order. Default: automatic."),
    ] = None,
    learning_rate: Annotated[
        str | None, typer.Option(help="1/lambda, auto or theory; default auto.")
    ] = None,
    clip_norm: Annotated[
        float | None,
        typer.Option(help="Bound on the gradient of a row (or user). Default: automatic."),
    ] = None,
    loss: Annotated[
        Loss | None, typer.Option(help="Loss; default squared, logistic or multinomial, by task.")
    ] = None,
    loss_param: Annotated[
        float | None,
        typer.Option(help="Parameter of huber (1), epsilon_insensitive (0.1) or quantile (0.5)."),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help="Momentum, 0 <= m < 1. Default: automatic.")
    ] = None,
    l1: Annotated[float | None, typer.Option(help="Weight of the L1 penalty; default 0.")] = None,
    radius: Annotated[
        float | None, typer.Option(help="Radius of an L2 ball that holds the coefficients.")
    ] = None,
    x_norm_bound: Annotated[
        float | None, typer.Option(help="Public bound, instead of the schema's row_norm_bound.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Least squares: weight of a ridge penalty; default 0.")
    ] = None,
    intervals: Annotated[
        bool,
        typer.Option(
            "--confidence-intervals",
            help="Least squares: print standard errors and intervals of the coefficients.",
        ),
    ] = False,
    split: Annotated[
        float | None, typer.Option(help="Least squares: share of mu^2 for y x; default 0.35.")
    ] = None,
    ridge_factor: Annotated[
        float | None, typer.Option(help="Least squares: ridge in units of the noise; default 2.")
    ] = None,
    mechanism: MechanismOption = MechanismName.auto,
    variant: VariantOption = Variant.honaker,
    bound: Annotated[
        Bound | None,
        typer.Option(help="Scope of zeta: the running sums (released, default) or all nodes."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Declared numeric column to predict instead.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Public number of row slots, instead of the schema's.")
    ] = None,
    group_column: Annotated[
        str | None, typer.Option(help="Column with the user of each row, for a guarantee per user.")
    ] = None,
    users: Annotated[
        int | None, typer.Option(help="Public maximum of users, instead of the schema's.")
    ] = None,
    weight: Annotated[
        str | None, typer.Option(help="Numeric column with the private weight of each row.")
    ] = None,
    sample_weight_bound: Annotated[
        float | None,
        typer.Option(
            "--weight-bound", help="Least squares: public bound on the weights; default 1."
        ),
    ] = None,
    class_weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=WEIGHT", help="Public weight of a label's rows; may be repeated."
        ),
    ] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    budget: BudgetFile = None,
    test_public: Annotated[
        Path | None,
        typer.Option(help="Public test rows, for a metric and a learning curve."),
    ] = None,
    these_rows_are_public: Annotated[
        bool,
        typer.Option(
            "--these-rows-are-public",
            help="Compare with a non-private ridge fit of DATA on the test rows.",
        ),
    ] = False,
    validate_only: Validate = False,
    noise_seed: NoiseSeed = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Fit a private linear model of a table.

    The guarantee is for one record (with --group-column: one user) replaced by zero. Nothing is
    released before the last step.
    """
    given = {name: getattr(value, "value", value) for name, value in locals().items()}
    given["intervals"] = intervals or None  # a flag that is not given
    declared = _declared(Schema.load(schema), given)
    labels = check_class_weight(declared, _class_weight(class_weight))
    csv = CsvOptions(delimiter=delimiter, encoding=encoding, decimal=decimal, thousands=thousands)
    if validate_only:
        show_validation(TableReader(data, declared, **csv), json_=json_)
        return
    chosen = _method(method, declared, given)
    if chosen is Method.ftrl and epochs is None and str(data) == STANDARD_INPUT:
        given["epochs"] = 1  # it is read once
    settings = _settings(chosen, {**given, "learning_rate": _rate(learning_rate)})
    files = Files(data, declared, out, test_public, csv, force, these_rows_are_public, budget)
    run(files, settings, class_weight=labels, json_=json_)


def _class_weight(texts: list[str] | None) -> dict[str, float] | None:
    """Return the weights in texts "label=weight", None for none."""
    found: dict[str, float] = {}
    for text in texts or []:
        label, equals, weight = text.rpartition("=")
        try:
            number = float(weight)
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(f"--class-weight must be LABEL=WEIGHT, got {text!r}")
        if label in found:
            raise ValueError(f"--class-weight must name each label once, got {label!r} twice")
        found[label] = number
    return found or None


def _rate(text: str | None) -> float | str | None:
    if text is None or text in ("auto", "theory"):
        return text
    try:
        return float(text)
    except ValueError:
        expected = "--learning-rate must be a number, auto or theory"
        raise ValueError(f"{expected}, got {text!r}") from None


def _declared(schema: Schema, given: Mapping[str, Any]) -> Schema:
    """Return the schema, changed by the options that were given."""
    if given["rows"] is not None:
        schema = schema.with_rows(given["rows"])
    if given["target"] is not None:
        schema = schema.with_target(given["target"])
    if given["task"] is not None:
        schema = schema.with_task(given["task"])
    if given["x_norm_bound"] is not None:
        schema = schema.with_row_norm_bound(given["x_norm_bound"])
    group_column = given["group_column"]  # an empty name is given too, and refused
    if group_column is None:
        group_column = schema.group_column
    if group_column is not None:
        schema = schema.with_groups(group_column, given["users"])
    elif given["users"] is not None:
        raise ValueError("--users needs --group-column")
    return schema if given["weight"] is None else schema.with_weights(given["weight"])


_FTRL, _LEAST_SQUARES = (
    {field.name for field in fields(cls)} for cls in (FitSettings, LeastSquaresSettings)
)


def _method(method: Method, schema: Schema, given: Mapping[str, Any]) -> Method:
    """Return the method: the one asked for, or that of the options given, or the default one."""
    if method is not Method.auto:
        return method
    names = {name for name, value in given.items() if value is not None}
    if names & (_LEAST_SQUARES - _FTRL):
        return Method.least_squares
    if names & (_FTRL - _LEAST_SQUARES) or given["batch_size"] is not None:
        return Method.ftrl
    multiplier = given["noise_multiplier"]
    epsilon = given["epsilon"]
    if epsilon is None and multiplier is None:
        epsilon = 1.0
    found = method_for(schema, epsilon=epsilon, delta=given["delta"], noise_multiplier=multiplier)
    return Method(found)


def _settings(method: Method, given: Mapping[str, Any]) -> Settings:
    """Return the settings of a method from the options that were given; refuse the other's."""
    given = {name: value for name, value in given.items() if value is not None}
    if method is Method.least_squares and given.get("epochs") == 1:
        del given["epochs"]
    for name in sorted(given.keys() & (_FTRL ^ _LEAST_SQUARES)):
        if method is Method.ftrl and name in _LEAST_SQUARES:
            raise ValueError(f"{_option(name)} needs --method least-squares")
        if method is Method.least_squares and name in _FTRL:
            raise ValueError(f"{_option(name)} is not supported by least squares")
    if "noise_multiplier" in given:
        given.setdefault("epsilon", None)
    settings: Settings = (FitSettings if method is Method.ftrl else LeastSquaresSettings).of(given)
    return settings


def _option(name: str) -> str:
    other = {"intervals": "--confidence-intervals", "sample_weight_bound": "--weight-bound"}
    return other.get(name, "--" + name.replace("_", "-"))
