# SPDX-License-Identifier: Apache-2.0
"""Warnings of transformers that learn from private rows, in any pipeline around an estimator."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from estimator_cases import CLASSES, make, rows
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import RBFSampler
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares
from dpftrl_fast.preprocessing import BoundedScaler

every = pytest.mark.parametrize("cls", CLASSES)


class Custom(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer of a user's own, which does not say that it learns nothing."""

    def fit(self, X: Any, y: Any = None) -> Any:
        return self

    def transform(self, X: Any) -> Any:
        return X


class Stateless(Custom):
    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


def seen(pipeline: Any, X: Any, y: Any) -> list[str]:
    """Return the warnings of a fit about transformers."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        pipeline.fit(X, y)
    return [str(one.message) for one in found if "learns from private rows" in str(one.message)]


LEARN: dict[str, tuple[Any, list[str]]] = {
    "scaler": (StandardScaler(), ["'front' (StandardScaler)"]),
    "pca": (PCA(2), ["'front' (PCA)"]),
    "imputer": (SimpleImputer(), ["'front' (SimpleImputer)"]),
    "indicator": (
        SimpleImputer(strategy="constant", add_indicator=True, keep_empty_features=True),
        ["'front' (SimpleImputer)"],
    ),
    "columns that are empty": (
        SimpleImputer(strategy="constant", fill_value=0.0),
        ["'front' (SimpleImputer)"],
    ),
    "bins": (OneHotEncoder(), ["'front' (OneHotEncoder)"]),
    "rare": (
        OneHotEncoder(categories=[[0.0]] * 3, handle_unknown="ignore", min_frequency=2),
        ["'front' (OneHotEncoder)"],
    ),
    "kernel": (RBFSampler(gamma="scale"), ["'front' (RBFSampler)"]),
    "custom": (Custom(), ["'front' (Custom)"]),
    "nested": (make_pipeline(Normalizer(), PCA(2)), ["'front__pca' (PCA)"]),
    "union": (
        FeatureUnion([("a", StandardScaler()), ("b", Normalizer()), ("c", PCA(1))]),
        ["'front__a' (StandardScaler)", "'front__c' (PCA)"],
    ),
    "columns": (
        ColumnTransformer([("a", "passthrough", [0]), ("b", StandardScaler(), [1])]),
        ["'front__b' (StandardScaler)"],
    ),
    "remainder": (
        ColumnTransformer([("a", "drop", [0])], remainder=StandardScaler()),
        ["'front__remainder' (StandardScaler)"],
    ),
}
FINE: dict[str, Any] = {
    "bounds": BoundedScaler((-1, 1)),
    "function": FunctionTransformer(np.tanh),
    "normalizer": Normalizer(),
    "constant": SimpleImputer(strategy="constant", fill_value=0.0, keep_empty_features=True),
    "degree": PolynomialFeatures(2),
    "declared": OneHotEncoder(categories=[[0.0, 1.0]] * 3, handle_unknown="ignore"),
    "declared order": OrdinalEncoder(
        categories=[[0.0]] * 3, handle_unknown="use_encoded_value", unknown_value=-1
    ),
    "random": RBFSampler(gamma=0.5, random_state=0),
    "frozen": FrozenEstimator(StandardScaler().fit(np.eye(3))),
    "own": Stateless(),
    "none": "passthrough",
    "columns": ColumnTransformer([("a", "passthrough", [0]), ("b", Normalizer(), [1, 2])]),
}


@every
@pytest.mark.parametrize("kind", LEARN)
def test_a_transformer_that_learns_is_named_once(cls: Any, kind: str) -> None:
    X, y = rows(cls)
    step, names = LEARN[kind]
    (message,) = seen(Pipeline([("front", step), ("model", make(cls))]), X, y)
    assert message.startswith(", ".join(names) + " in front") and "BoundedScaler" in message
    assert not re.search(r"\d\.\d", message)  # no value of a row


@every
@pytest.mark.parametrize("kind", FINE)
def test_one_that_learns_nothing_is_not(cls: Any, kind: str) -> None:
    X, y = rows(cls)
    assert seen(Pipeline([("front", FINE[kind]), ("model", make(cls))]), X, y) == []


@every
def test_an_estimator_alone_says_nothing(cls: Any) -> None:
    X, y = rows(cls)
    StandardScaler().fit(X)
    assert seen(make(cls), X, y) == []


@every
def test_pipelines_around_pipelines(cls: Any) -> None:
    X, y = rows(cls)
    inner = make_pipeline(StandardScaler(), make(cls))
    (message,) = seen(make_pipeline(PCA(2), inner), X, y)
    assert "'standardscaler'" in message and "'pca'" in message


def test_transformed_targets() -> None:
    X, y = rows(DPFTRLLeastSquares)
    model = make(DPFTRLLeastSquares)
    (message,) = seen(TransformedTargetRegressor(model, transformer=StandardScaler()), X, y)
    assert message.startswith("'transformer' (StandardScaler)")
    assert seen(TransformedTargetRegressor(model, func=np.tanh, inverse_func=np.arctanh,
                                           check_inverse=False), X, y) == []  # fmt: skip


def test_each_fit_of_a_cross_validation_says_it() -> None:
    X, y = rows(DPFTRLClassifier)
    pipeline = make_pipeline(StandardScaler(), make(DPFTRLClassifier))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        cross_val_score(pipeline, X, y, cv=3)
    assert sum("learns from private rows" in str(one.message) for one in found) == 3


@every
def test_said_before_anything_is_spent(cls: Any) -> None:
    X, y = rows(cls)
    pipeline = make_pipeline(StandardScaler(), make(cls))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="learns from private rows"):
            pipeline.fit(X, y)
    assert not hasattr(pipeline[-1], "coef_")


@every
def test_the_words_do_not_depend_on_rows(cls: Any) -> None:
    X, y = rows(cls)
    other = X.copy()
    other[3] = 1e3
    pipeline = make_pipeline(StandardScaler(), make(cls))
    assert seen(pipeline, X, y) == seen(pipeline, other, y)
