# SPDX-License-Identifier: Apache-2.0
"""`from_schema`: a scaler and an estimator, with all bounds taken from declared facts."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

from sklearn.pipeline import Pipeline

from dpftrl_fast._validate import choice, shown
from dpftrl_fast.convex.method import default_method
from dpftrl_fast.linear_model.classifier import DPFTRLClassifier
from dpftrl_fast.linear_model.least_squares import DPFTRLLeastSquares
from dpftrl_fast.linear_model.regressor import DPFTRLRegressor
from dpftrl_fast.preprocessing.scaler import BoundedScaler, entries_of
from dpftrl_fast.tables.schema import LabelTarget, Schema

# Estimators of a numeric target.
_NUMERIC: dict[str, Any] = {"ftrl": DPFTRLRegressor, "least-squares": DPFTRLLeastSquares}


def from_schema(
    schema: Any,
    target: str | None = None,
    *,
    method: str = "auto",
    epsilon: float | None = 1.0,
    delta: float = 1e-6,
    **settings: Any,
) -> Pipeline:
    """Return a scikit-learn pipeline whose bounds are those of a schema.

    Labels get a `DPFTRLClassifier`, behind a `BoundedScaler`. A numeric target gets a
    `DPFTRLRegressor`, or where the noise of its sums is negligible for the declared number of rows,
    a `DPFTRLLeastSquares`. `x_norm_bound`, `y_bound` and `classes` are filled in.

    Parameters
    ----------
    schema : Schema, path or dict
        Declared facts, as ``dpftrl-fast schema draft`` drafts them; or, in short, a dict of columns
        with their bounds ``(low, high)`` or lists of categories, the target among them. "ignore"
        in place of the bounds leaves a column out.
    target : str, optional
        Name of the target, for a dict of columns.
    method : {"auto", "ftrl", "least-squares"}
        Estimator of a numeric target. "auto" needs the ``rows`` of a schema; a dict of columns in
        short declares none, and gets a `DPFTRLRegressor`. Intervals and `conf_int` need
        ``method="least-squares", intervals=True``.
    epsilon, delta, **settings
        Parameters of the estimator. Those given here are taken instead of the schema's.

    Returns
    -------
    sklearn.pipeline.Pipeline
        With the steps ``scaler`` and ``model``. `fit` takes a data frame and the targets, and
        protects single rows. Columns that are not declared are not used, with a warning, but for
        the target and those with "ignore".

    Raises
    ------
    TypeError, ValueError
        For a schema with a group column (a guarantee per user needs ``groups=``, which a pipeline
        does not pass on) or a weight column, for a parameter of the other method's estimator, and
        for what `BoundedScaler` and the estimator refuse.

    Notes
    -----
    Labels are text, unless all of them are written as whole numbers: these are integers. Give
    ``classes=`` where the labels of `y` are of another type, such as bool.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from dpftrl_fast.linear_model import from_schema
    >>> rng = np.random.default_rng(0)
    >>> rows = pd.DataFrame({"age": rng.uniform(20, 90, 20_000), "town": rng.choice(["A", "B"])})
    >>> rows["old"] = np.where(rows["age"] > 55, "yes", "no")
    >>> facts = {"age": (18, 90), "town": ["A", "B"], "old": ["no", "yes"]}
    >>> pipeline = from_schema(facts, "old", epsilon=1.0).fit(rows, rows["old"])
    >>> pipeline["model"].epsilon_ <= 1.0, bool(pipeline.score(rows, rows["old"]) > 0.9)
    (True, True)
    """
    facts, bounds, ignored = _facts(schema, target)
    if facts.group_column is not None:
        raise ValueError(
            f"schema must be without a group column, got {facts.group_column!r}: a pipeline "
            "protects rows; use BoundedScaler and an estimator with fit(X, y, groups=users)"
        )
    if facts.weight_column is not None:
        raise ValueError(
            f"schema must be without a weight column, got {facts.weight_column!r}: a pipeline "
            "takes weights as fit(X, y, model__sample_weight=weights)"
        )
    if not facts.columns:
        raise ValueError("schema must have at least one column besides the target, got none")
    scaler = BoundedScaler(bounds, ignored=[facts.target.name, *ignored])
    given: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "x_norm_bound": scaler.x_norm_bound,
        "fit_intercept": facts.intercept,
    }
    if isinstance(facts.target, LabelTarget):
        given["classes"] = _labels(facts.target.categories)
        model = DPFTRLClassifier(**given | settings)
    else:
        low, high = facts.target.low, facts.target.high
        given["y_bound"] = (low, high)
        method = _method(method, facts, given | settings)
        _check_settings(settings, method)
        model = _NUMERIC[method](**given | settings)
    return Pipeline([("scaler", scaler), ("model", model)])


def _method(method: str, facts: Schema, settings: Mapping[str, Any]) -> str:
    choice("method", method, ("auto", "ftrl", "least-squares"))
    if method != "auto":
        return method
    return default_method(
        facts.rows,
        facts.n_features,
        epsilon=settings["epsilon"],
        delta=settings["delta"],
        noise_multiplier=settings.get("noise_multiplier"),
    )


def _check_settings(settings: Mapping[str, Any], method: str) -> None:
    """Refuse parameters that only the estimator of the other method has."""
    chosen = _NUMERIC[method]
    own = inspect.signature(chosen).parameters
    for other, kind in _NUMERIC.items():
        for name in settings:
            if name not in own and name in inspect.signature(kind).parameters:
                raise TypeError(
                    f"{name} must come with method={other!r}, since it is a parameter of "
                    f"{kind.__name__}, got a {chosen.__name__}"
                )


def _facts(schema: Any, target: str | None) -> tuple[Schema, Any, list[str]]:
    """Return the declared facts, the bounds of the features, and the columns to ignore."""
    if isinstance(schema, (str, os.PathLike)):
        schema = Schema.load(os.fspath(schema))
    if isinstance(schema, Mapping) and target is None:
        schema = Schema.from_dict(schema)
    if isinstance(schema, Schema):
        facts = schema if target is None else schema.with_target(target)
        return facts, facts, []
    if not isinstance(schema, Mapping):
        raise TypeError(f"schema must be a Schema, its path or a dict, got {shown(schema)}")
    ignored = [
        name for name, entry in schema.items() if isinstance(entry, str) and entry == "ignore"
    ]
    bounds = {name: entry for name, entry in schema.items() if name not in ignored}
    if not isinstance(target, str) or target not in bounds:
        raise ValueError(
            f"target must be one of the columns that the facts declare, {shown([*bounds])}, got "
            f"{shown(target)}: declare its public bounds (low, high) or its labels there too"
        )
    entries = entries_of(bounds)
    # Pipelines take any number of rows; this one is not used.
    facts = Schema.from_dict(
        {"rows": 1, "target": {"name": target, **entries.pop(target)}, "columns": entries}
    )
    del bounds[target]
    return facts, bounds, ignored


def _labels(categories: tuple[str, ...]) -> list[Any]:
    try:
        numbers = [int(label) for label in categories]
    except ValueError:
        return [*categories]
    same = all(str(number) == label for number, label in zip(numbers, categories, strict=True))
    return numbers if same else [*categories]
