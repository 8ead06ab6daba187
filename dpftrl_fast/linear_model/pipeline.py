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
        with their bounds ``(low, high)`` or lists of categories, the target among them.
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
        With the steps ``scaler`` and ``model``. `fit` takes a data frame (other columns than the
        declared ones are left out) and the targets, and protects single rows.

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
    facts = _facts(schema, target)
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
    scaler = BoundedScaler(facts)
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
        squares = _method(method, facts, given | settings) == "least-squares"
        _check_settings(settings, squares)
        model = (DPFTRLLeastSquares if squares else DPFTRLRegressor)(**given | settings)
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


def _check_settings(settings: Mapping[str, Any], squares: bool) -> None:
    """Refuse parameters that only the estimator of the other method has."""
    both = {"ftrl": DPFTRLRegressor, "least-squares": DPFTRLLeastSquares}
    other = "ftrl" if squares else "least-squares"
    chosen = both.pop("least-squares" if squares else "ftrl")
    for name in settings:
        if name in inspect.signature(chosen).parameters:
            continue
        if name in inspect.signature(both[other]).parameters:
            raise TypeError(
                f"{name} must come with method={other!r}, since it is a parameter of "
                f"{both[other].__name__}, got a {chosen.__name__}"
            )


def _facts(schema: Any, target: str | None) -> Schema:
    if isinstance(schema, (str, os.PathLike)):
        schema = Schema.load(os.fspath(schema))
    if isinstance(schema, Mapping) and target is None:
        schema = Schema.from_dict(schema)
    if isinstance(schema, Schema):
        return schema if target is None else schema.with_target(target)
    if not isinstance(schema, Mapping):
        raise TypeError(f"schema must be a Schema, its path or a dict, got {shown(schema)}")
    if target is None or target not in schema:
        raise ValueError(f"target must be one of the columns, got {shown(target)}")
    entries = entries_of(schema)
    # Pipelines take any number of rows; this one is not used.
    return Schema.from_dict(
        {"rows": 1, "target": {"name": target, **entries.pop(target)}, "columns": entries}
    )


def _labels(categories: tuple[str, ...]) -> list[Any]:
    try:
        numbers = [int(label) for label in categories]
    except ValueError:
        return [*categories]
    same = all(str(number) == label for number, label in zip(numbers, categories, strict=True))
    return numbers if same else [*categories]
