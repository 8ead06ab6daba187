# SPDX-License-Identifier: Apache-2.0
"""Warning of several fits on the same rows, before the first of them.

Meta-estimators and searches know nothing of privacy. Before their first fit they clone the
estimator or ask for its tags, in the calling process, so both inspect their callers: the outermost
of them that fits private estimators several times is warned of once, with the epsilon of all fits
together. Inside a privacy budget, which counts them, nothing is said.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.model_selection._search import BaseSearchCV

from dpftrl_fast.accounting import epsilon
from dpftrl_fast.accounting.curve.rounding import short_up, text_up
from dpftrl_fast.linear_model.callers.budgets import budgets_of, carried_by
from dpftrl_fast.linear_model.callers.counts import (
    Counting,
    Fits,
    one_mu_squared,
    private_parts,
)
from dpftrl_fast.run.budget_share import kept_for_floors

_METHODS = {"fit", "fit_transform", "fit_predict", "partial_fit"}
_FUNCTIONS = {
    "cross_validate",
    "cross_val_score",
    "cross_val_predict",
    "learning_curve",
    "validation_curve",
    "permutation_test_score",
}
_SELECTION = "sklearn.model_selection._validation"
#: Local name in the frame of a call that was looked at: whether it makes several fits.
_MARK = "_dpftrl_fast_several_fits"
_DRAWN = (
    ". An ensemble draws rows with replacement or by weights: no epsilon is stated for a row that "
    "it draws several times"
)


def announce(estimator: Any, private: type) -> bool:
    """Warn of several fits in the calls that clone or look at an estimator, once for each call.

    `private` is the base of the private estimators.

    Returns
    -------
    bool
        Whether such a call is running, here or where the estimator comes from.

    Raises
    ------
    ValueError
        If a search has a `noise_seed`: its scores would select a model by known noise. Inside a
        privacy budget, if an ensemble draws rows several times, or by un-noised weights.

    Examples
    --------
    >>> from dpftrl_fast.linear_model import DPFTRLRegressor
    >>> announce(DPFTRLRegressor(), DPFTRLRegressor)  # no search, no warning
    False
    """

    def is_private(value: Any) -> bool:
        return isinstance(value, private)

    calls = [*_calls(is_private)]
    if calls and budgets_of(estimator):
        for _, frame in calls:
            _refuse_resampling(frame.f_locals, is_private)
    if carried_by(estimator).announced is not None:
        return True
    for depth, frame in reversed(calls):
        local = frame.f_locals
        if local.get(_MARK) is None:
            caller = local.get("self")
            if isinstance(caller, BaseSearchCV):
                _refuse_seed(caller, is_private)
            local[_MARK] = True  # in CPython it stays with the frame; counting asks for tags, too
            try:
                local[_MARK] = _warn(frame, is_private, depth, silent=bool(budgets_of(estimator)))
            except BaseException:  # a filter has made it an error, which a caller may swallow
                local[_MARK] = None
                raise
        if local[_MARK]:
            return True
    return False


def _warn(frame: FrameType, is_private: Any, depth: int, *, silent: bool) -> bool:
    """Return whether a call makes several fits, and warn of them unless silent."""
    fits = _fits(frame, is_private)
    several = fits is None or sum(fits.values()) > 1
    if several and not silent:
        drawn = _drawing(frame.f_locals, is_private) is not None
        words = _words(_name(frame), None if drawn else fits) + _DRAWN * drawn
        warnings.warn(words, UserWarning, stacklevel=depth + 1)
    return several


def _calls(is_private: Any) -> Iterator[tuple[int, FrameType]]:
    """Yield the callers that fit private estimators, with the `stacklevel` that shows their own."""
    frame: FrameType | None = sys._getframe(2)
    depth = 2
    held: list[FrameType] = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("sklearn.", "joblib.", "dpftrl_fast.")):
            for one in held:
                yield depth, one
            held = []
        name = frame.f_code.co_name
        function = module == _SELECTION and name in _FUNCTIONS
        if function or (name in _METHODS and _holds(frame.f_locals.get("self"), is_private)):
            held.append(frame)
        frame, depth = frame.f_back, depth + 1
    for one in held:
        yield depth, one


def _holds(caller: Any, is_private: Any) -> bool:
    """Return whether a caller is a meta-estimator around private estimators."""
    if not isinstance(caller, BaseEstimator) or is_private(caller):
        return False
    try:
        return any(True for _ in private_parts(caller, is_private))
    except Exception:  # an estimator whose parameters cannot be read
        return False


def _fits(frame: FrameType, is_private: Any) -> Fits | None:
    """Return the fits that a call makes, None if their number is not known beforehand."""
    local, counting = frame.f_locals, Counting(is_private)
    try:
        if "self" in local:
            return counting.fits(local["self"], local.get("X"), local.get("y", local.get("Y")))
        return counting.fits_of_function(frame.f_code.co_name, local)
    except Exception:  # Uncounted, or of arguments that scikit-learn itself will refuse
        return None


def _name(frame: FrameType) -> str:
    caller = frame.f_locals.get("self")
    return frame.f_code.co_name if caller is None else type(caller).__name__


def _refuse_seed(search: Any, is_private: Any) -> None:
    grid = getattr(search, "param_grid", getattr(search, "param_distributions", {}))
    names = {name for part in ([grid] if isinstance(grid, dict) else grid) for name in part}
    seeds = [one.noise_seed for one in private_parts(search.estimator, is_private)]
    if any(seed is not None for seed in seeds) or any(
        name.split("__")[-1] == "noise_seed" for name in names
    ):
        raise ValueError(
            "noise_seed must be None in a search, got one: the scores would select a model by "
            "known noise"
        )


def _refuse_resampling(local: Mapping[str, Any], is_private: Any) -> None:
    found = _drawing(local, is_private)
    if found is not None:
        raise ValueError(
            f"{type(found).__name__} must take each row at most once inside a privacy budget, got "
            "one that draws rows with replacement or by weights, so that a row may have more than "
            "its share: use a bagging ensemble with bootstrap=False and without sample_weight"
        )


def _drawing(local: Mapping[str, Any], is_private: Any) -> Any:
    """Return an ensemble in a call that draws rows several times or by their weights, or None."""
    caller = local.get("self")
    if hasattr(caller, "bootstrap") and local.get("sample_weight") is not None:
        return caller  # whether it draws a row depends on the weights of all
    return _resampling([caller, local.get("estimator")], is_private)


def _resampling(value: Any, is_private: Any) -> Any:
    """Return an ensemble of private estimators that may take a row several times, or None."""
    if isinstance(value, BaseEstimator) and _holds(value, is_private):
        if getattr(value, "bootstrap", False) or type(value).__name__.startswith("AdaBoost"):
            return value
        value = [*value.get_params(deep=False).values()]
    if isinstance(value, (list, tuple)):
        found = (_resampling(held, is_private) for held in value)
        return next((one for one in found if one is not None), None)
    return None


def _words(name: str, fits: Fits | None) -> str:
    number, total = "several fits", ""
    if fits is not None:
        number = f"up to {sum(fits.values())} fits"
        total = _total(fits)
    return (
        f"{name} makes {number} on the same rows: each fit adds its mu^2, so that N equal fits "
        f"have sqrt(N) times the mu of one{total} (dpftrl_fast.accounting.compose), while epsilon_ "
        "is that of a single fit. Scores are computed from rows without noise: they, and a "
        "selection by them, are not private. Call it inside `with dpftrl_fast.PrivacyBudget(epsilon"
        ", delta):`, which counts the fits and refuses those beyond the budget"
    )


def _total(fits: Fits) -> str:
    """Return the epsilon of all fits together, where it follows from that of each."""
    deltas = {delta for _, _, delta in fits}
    if len(deltas) > 1 or any(given is None for given, _, _ in fits):
        return ""
    (delta,) = deltas
    square = sum(count * one_mu_squared(given, delta) for (given, _, _), count in fits.items())
    number, mu = sum(fits.values()), square**0.5
    zero = epsilon(1.0, square, delta - kept_for_floors(number, delta, mu))
    other = epsilon(1.0, 4 * square, delta - kept_for_floors(number, delta, 2 * mu))
    each = " and ".join(sorted({short_up(given) for given, _, _ in fits}))
    return (
        f", and fits of epsilon {each} together up to epsilon {text_up(zero)} at delta {delta!r} "
        f"(replace-one: {text_up(other)})"
    )
