# SPDX-License-Identifier: Apache-2.0
"""Number of fits of private estimators in one call of scikit-learn, known before the first of them.

The counts are upper bounds: a search of folds fits every row in all folds but one. Numbers of rows,
columns and classes are public, as in a single fit.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.model_selection import ParameterGrid, check_cv

from dpftrl_fast.accounting import noise_multiplier

#: `epsilon`, `noise_multiplier` and `delta` of a private estimator, as they were given.
Noise: TypeAlias = tuple[Any, Any, Any]
#: How often private estimators are fitted, by their noise.
Fits: TypeAlias = "Counter[Noise]"

# Parameters of scikit-learn's estimators and of ours that change the count or the noise.
_CHANGING = {
    *("epsilon", "noise_multiplier", "delta", "estimator", "estimators", "base_estimator"),
    *("final_estimator", "regressor", "steps", "cv", "ensemble", "refit", "n_estimators", "order"),
    *("code_size", "step", "n_features_to_select", "min_features_to_select", "threshold"),
}


class Uncounted(Exception):
    """The number of fits is not known beforehand."""


def private_parts(value: Any, is_private: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield the private estimators in an estimator, itself included.

    Examples
    --------
    >>> from sklearn.feature_selection import RFE
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import Pipeline
    >>> steps = Pipeline([("scale", "passthrough"), ("fit", RFE(Ridge()))])
    >>> [*private_parts(steps, lambda value: isinstance(value, Ridge))]
    [Ridge()]
    """
    if is_private(value):
        yield value
    elif isinstance(value, BaseEstimator):
        for held in value.get_params(deep=False).values():
            yield from private_parts(held, is_private)
    elif isinstance(value, (list, tuple)):
        for held in value:
            yield from private_parts(held, is_private)


class Counting:
    """Counts the fits of private estimators, which `is_private` recognises, in another's `fit`.

    Examples
    --------
    >>> from dpftrl_fast.linear_model import DPFTRLClassifier
    >>> from sklearn.multiclass import OneVsRestClassifier
    >>> counting = Counting(lambda value: isinstance(value, DPFTRLClassifier))
    >>> counting.fits(OneVsRestClassifier(DPFTRLClassifier()), [[0], [1], [2]], [0, 1, 2])
    Counter({(1.0, None, 1e-06): 3})
    """

    def __init__(self, is_private: Callable[[Any], bool]) -> None:
        self._is_private = is_private

    def fits(self, estimator: Any, X: Any, y: Any) -> Fits:
        """Return how often each private estimator is fitted in ``estimator.fit(X, y)``, at most.

        Raises
        ------
        Uncounted
            If that is not known beforehand.
        """
        if self._is_private(estimator):
            return Counter([(estimator.epsilon, estimator.noise_multiplier, estimator.delta)])
        if next(private_parts(estimator, self._is_private), None) is None:
            return Counter()
        for kind in type(estimator).__mro__:
            if kind.__module__.startswith("sklearn.") and kind.__name__ in _RULES:
                return _RULES[kind.__name__](self, estimator, X, y)
        raise Uncounted

    def fits_of_function(self, name: str, local: Mapping[str, Any]) -> Fits:
        """Return the same for a function of `sklearn.model_selection`, from its arguments."""
        estimator, X, y = local["estimator"], local["X"], local["y"]
        if name == "validation_curve":
            values = [{local["param_name"]: value} for value in local["param_range"]]
            one = sum(self._candidates(estimator, values, X, y), Counter[Noise]())
        else:
            one = self.fits(estimator, X, y)
        number = _folds(local["cv"], X, y, estimator)
        if name == "learning_curve":
            number *= np.size(local["train_sizes"])
        elif name == "permutation_test_score":
            number *= local["n_permutations"] + 1
        return _times(one, number)

    def _candidates(
        self, estimator: Any, candidates: Iterable[Mapping[str, Any]], X: Any, y: Any
    ) -> list[Fits]:
        """Return the fits of each candidate; a copy is made, since a clone would be announced."""
        base = self.fits(estimator, X, y)
        return [
            self.fits(copy.deepcopy(estimator).set_params(**one), X, y)
            if any(name.split("__")[-1] in _CHANGING or "__" not in name for name in one)
            else base
            for one in candidates
        ]

    # ---- Rules of estimators ----

    def _search(self, search: Any, X: Any, y: Any) -> Fits:
        if hasattr(search, "param_grid"):
            each = self._candidates(search.estimator, ParameterGrid(search.param_grid), X, y)
        else:
            drawn = search.param_distributions
            for one in [drawn] if isinstance(drawn, dict) else drawn:
                if any(name.split("__")[-1] in _CHANGING for name in one):
                    raise Uncounted
            each = [self.fits(search.estimator, X, y)] * search.n_iter
        number = _folds(search.cv, X, y, search.estimator)
        total = _times(sum(each, Counter[Noise]()), number)
        return total + max(each, key=_weight) if search.refit else total

    def _stacking(self, stacking: Any, X: Any, y: Any) -> Fits:
        final = self._each([stacking.final_estimator], X, y)
        if stacking.cv == "prefit":
            return final
        base = self._each([one for _, one in stacking.estimators], X, y)
        number = 1 + _folds(stacking.cv, X, y, stacking)
        return _times(base, number) + final

    def _each(self, estimators: Iterable[Any], X: Any, y: Any) -> Fits:
        held = [one for one in estimators if isinstance(one, BaseEstimator)]
        return sum((self.fits(one, X, y) for one in held), Counter[Noise]())

    def _rounds(self, selector: Any, X: Any, y: Any) -> Fits:
        """Return the fits of RFE and RFECV, which take features away from round to round."""
        features = int(np.shape(X)[1])
        cross = hasattr(selector, "min_features_to_select")
        least = selector.min_features_to_select if cross else selector.n_features_to_select
        if least is None:
            least = features // 2
        elif 0 < least < 1:
            least = int(features * least)
        step = selector.step if selector.step >= 1 else max(1, int(selector.step * features))
        rounds = 1 + -(-max(0, features - int(least)) // int(step))
        folds = _folds(selector.cv, X, y, selector.estimator) if cross else 0
        number = rounds * (1 + folds) + cross  # the last one on the chosen features
        return _times(self.fits(selector.estimator, X, y), number)

    def _tuned(self, tuned: Any, X: Any, y: Any) -> Fits:
        if isinstance(tuned.cv, (str, float)):
            raise Uncounted
        number = _folds(tuned.cv, X, y, tuned.estimator) + bool(tuned.refit)
        return _times(self.fits(tuned.estimator, X, y), number)

    def _calibrated(self, calibrated: Any, X: Any, y: Any) -> Fits:
        number = _folds(calibrated.cv, X, y, calibrated.estimator)
        return _times(
            self.fits(calibrated.estimator, X, y), number + (calibrated.ensemble is not True)
        )

    def _bagged(self, ensemble: Any, X: Any, y: Any) -> Fits:
        return _times(self.fits(ensemble.estimator, X, y), ensemble.n_estimators)

    def _outputs(self, several: Any, X: Any, y: Any) -> Fits:
        return _times(self.fits(_held(several), X, y), int(np.shape(y)[1]))

    def _classes(self, several: Any, X: Any, y: Any) -> Fits:
        labels = np.asarray(y)
        k = int(labels.shape[1]) if labels.ndim == 2 else int(np.unique(labels).size)
        number = k if k > 2 or labels.ndim == 2 else 1
        if hasattr(several, "code_size"):
            number = int(k * several.code_size)
        return _times(self.fits(several.estimator, X, y), number)

    def _pairs(self, several: Any, X: Any, y: Any) -> Fits:
        k = int(np.unique(np.asarray(y)).size)
        return _times(self.fits(several.estimator, X, y), k * (k - 1) // 2)

    def _steps(self, pipeline: Any, X: Any, y: Any) -> Fits:
        return self._each([step for _, step in pipeline.steps], X, y)

    def _votes(self, voting: Any, X: Any, y: Any) -> Fits:
        return self._each([one for _, one in voting.estimators], X, y)

    def _one(self, wrapper: Any, X: Any, y: Any) -> Fits:
        return self.fits(_held(wrapper), X, y)


def _held(estimator: Any) -> Any:
    for name in ("estimator", "base_estimator", "regressor"):
        held = getattr(estimator, name, None)
        if isinstance(held, BaseEstimator):
            return held
    raise Uncounted


_RULES: dict[str, Callable[[Counting, Any, Any, Any], Fits]] = {
    "GridSearchCV": Counting._search,
    "RandomizedSearchCV": Counting._search,
    "Pipeline": Counting._steps,
    "VotingClassifier": Counting._votes,
    "VotingRegressor": Counting._votes,
    "StackingClassifier": Counting._stacking,
    "StackingRegressor": Counting._stacking,
    "TransformedTargetRegressor": Counting._one,
    "SelectFromModel": Counting._one,
    "FixedThresholdClassifier": Counting._one,
    "TunedThresholdClassifierCV": Counting._tuned,
    "CalibratedClassifierCV": Counting._calibrated,
    "RFE": Counting._rounds,
    "RFECV": Counting._rounds,
    "BaggingClassifier": Counting._bagged,
    "BaggingRegressor": Counting._bagged,
    "AdaBoostClassifier": Counting._bagged,
    "AdaBoostRegressor": Counting._bagged,
    "MultiOutputClassifier": Counting._outputs,
    "MultiOutputRegressor": Counting._outputs,
    "ClassifierChain": Counting._outputs,
    "RegressorChain": Counting._outputs,
    "OneVsRestClassifier": Counting._classes,
    "OneVsOneClassifier": Counting._pairs,
    "OutputCodeClassifier": Counting._classes,
}


def _folds(cv: Any, X: Any, y: Any, estimator: Any) -> int:
    if not (cv is None or isinstance(cv, (int, list, tuple)) or hasattr(cv, "get_n_splits")):
        raise Uncounted  # an iterator, which counting would use up
    found: int = check_cv(cv, y, classifier=is_classifier(estimator)).get_n_splits(X, y)
    return found


def _times(fits: Fits, number: int) -> Fits:
    return Counter({noise: count * int(number) for noise, count in fits.items()})


def _weight(fits: Fits) -> float:
    """Return a number that grows with the mu^2 of fits, at one delta."""
    return sum(
        count * (1 / sigma**2 if epsilon is None else one_mu_squared(epsilon, delta))
        for (epsilon, sigma, delta), count in fits.items()
    )


def one_mu_squared(epsilon: float, delta: float) -> float:
    """Return mu^2 of a run with all of (epsilon, delta).

    Examples
    --------
    >>> round(one_mu_squared(1.0, 1e-6) ** 0.5, 4)
    0.2367
    """
    return float(noise_multiplier(epsilon, delta, 1) ** -2)
