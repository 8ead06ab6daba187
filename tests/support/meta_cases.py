# SPDX-License-Identifier: Apache-2.0
"""Calls of scikit-learn that fit private estimators, with the number of their fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from estimator_cases import make, rows
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_selection import RFE, RFECV, SelectFromModel, SequentialFeatureSelector
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    permutation_test_score,
    validation_curve,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.multioutput import MultiOutputRegressor, RegressorChain
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor

EPSILON = 0.1


class Case(NamedTuple):
    """A call, its fits (-1: it depends), and the most that are announced (None: not known)."""

    call: Callable[[], Any]
    fits: int
    most: int | None = 0  # 0: as many as are made


X, Y = rows(DPFTRLRegressor)
TWO = (X[:, 0] > 0).astype(np.int64)
THREE = np.digitize(X[:, 0], [-0.2, 0.2])


def regressor(**changed: Any) -> Any:
    return make(DPFTRLRegressor, epsilon=EPSILON, **changed)


def classifier(**changed: Any) -> Any:
    return make(DPFTRLClassifier, epsilon=EPSILON, **changed)


def squares() -> Any:
    return make(DPFTRLLeastSquares, epsilon=EPSILON)


def search(estimator: Any, grid: dict[str, Any], **options: Any) -> Any:
    return GridSearchCV(estimator, grid, cv=3, error_score="raise", **options)


def stack(**options: Any) -> Any:
    return StackingRegressor([("a", regressor()), ("b", squares())], cv=3, **options)


def drawn(**options: Any) -> Any:
    pipeline = make_pipeline(FunctionTransformer(), regressor())
    grid = {"dpftrlregressor__momentum": [0.0, 0.5]}
    return RandomizedSearchCV(pipeline, grid, n_iter=2, cv=3, error_score="raise", **options)


CASES: dict[str, Case] = {
    "cross_validate": Case(lambda: cross_validate(regressor(), X, Y, cv=3), 3),
    "cross_val_score": Case(lambda: cross_val_score(squares(), X, Y, cv=4), 4),
    "cross_val_predict": Case(lambda: cross_val_predict(classifier(), X, TWO, cv=3), 3),
    "learning_curve": Case(
        lambda: learning_curve(regressor(), X, Y, cv=3, train_sizes=[0.5, 1.0]), 6
    ),
    "validation_curve": Case(
        lambda: validation_curve(
            regressor(), X, Y, cv=3, param_name="epsilon", param_range=[0.1, 0.2]
        ),
        6,
    ),
    "permutation_test_score": Case(
        lambda: permutation_test_score(regressor(), X, Y, cv=3, n_permutations=2), 9
    ),
    "GridSearchCV": Case(lambda: search(squares(), {"epsilon": [0.1, 0.2]}).fit(X, Y), 7),
    "GridSearchCV, no refit": Case(
        lambda: search(regressor(), {"momentum": [0.0, 0.5]}, refit=False).fit(X, Y), 6
    ),
    "RandomizedSearchCV": Case(lambda: drawn().fit(X, Y), 7),
    "TunedThresholdClassifierCV": Case(
        lambda: TunedThresholdClassifierCV(classifier(), cv=3).fit(X, TWO), 4
    ),
    "OneVsRestClassifier": Case(lambda: OneVsRestClassifier(classifier()).fit(X, THREE), 3),
    "OneVsOneClassifier": Case(
        lambda: OneVsOneClassifier(classifier(batch_size=5)).fit(X, THREE), 3
    ),
    "OutputCodeClassifier": Case(
        lambda: OutputCodeClassifier(classifier(), code_size=2, random_state=1).fit(X, THREE),
        -1,
        6,
    ),
    "CalibratedClassifierCV": Case(
        lambda: CalibratedClassifierCV(classifier(), cv=3, ensemble=True).fit(X, TWO), 3
    ),
    "CalibratedClassifierCV, one": Case(
        lambda: CalibratedClassifierCV(classifier(), cv=3, ensemble=False).fit(X, TWO), 4
    ),
    "BaggingRegressor": Case(
        lambda: BaggingRegressor(regressor(), n_estimators=4, bootstrap=False).fit(X, Y), 4
    ),
    "BaggingClassifier": Case(
        lambda: BaggingClassifier(
            classifier(), n_estimators=2, bootstrap=False, max_samples=0.5
        ).fit(X, TWO),
        2,
    ),
    "StackingRegressor": Case(lambda: stack(final_estimator=squares()).fit(X, Y), 9),
    "StackingRegressor, other final": Case(lambda: stack().fit(X, Y), 8),
    "VotingRegressor": Case(
        lambda: VotingRegressor([("a", regressor()), ("b", squares())]).fit(X, Y), 2
    ),
    "VotingClassifier": Case(
        lambda: VotingClassifier([("a", classifier()), ("b", classifier())]).fit(X, TWO), 2
    ),
    "RFE": Case(lambda: RFE(regressor(), n_features_to_select=1).fit(X, Y), 3),
    "RFECV": Case(lambda: RFECV(regressor(), cv=3).fit(X, Y), -1, 13),
    "SequentialFeatureSelector": Case(
        lambda: SequentialFeatureSelector(regressor(), n_features_to_select=1, cv=3).fit(X, Y),
        9,
        None,
    ),
    "MultiOutputRegressor": Case(
        lambda: MultiOutputRegressor(regressor()).fit(X, np.column_stack([Y, Y])), 2
    ),
    "RegressorChain": Case(lambda: RegressorChain(squares()).fit(X, np.column_stack([Y, Y, Y])), 3),
    "GridSearchCV of OneVsRest": Case(
        lambda: search(
            OneVsRestClassifier(classifier(batch_size=5)), {"estimator__epsilon": [0.1, 0.2]}
        ).fit(X, THREE),
        21,
    ),
    "cross_val_score of a stack": Case(lambda: cross_val_score(stack(), X, Y, cv=2), 16),
    "Pipeline of a selection": Case(
        lambda: make_pipeline(SelectFromModel(squares()), regressor()).fit(X, Y), 2
    ),
}

#: Wrappers that fit once: no warning.
SINGLE: dict[str, Callable[[], Any]] = {
    "estimator": lambda: regressor().fit(X, Y),
    "Pipeline": lambda: make_pipeline(FunctionTransformer(), regressor()).fit(X, Y),
    "TransformedTargetRegressor": lambda: TransformedTargetRegressor(regressor()).fit(X, Y),
    "SelectFromModel": lambda: SelectFromModel(regressor()).fit(X, Y),
    "OneVsRest of two": lambda: OneVsRestClassifier(classifier()).fit(X, TWO),
    "FixedThresholdClassifier": lambda: FixedThresholdClassifier(classifier()).fit(X, TWO),
}
