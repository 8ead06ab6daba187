# SPDX-License-Identifier: Apache-2.0
"""Warning of several fits on the same rows, before the first of them.

Meta-estimators and searches know nothing of privacy. Before their first fit they clone the
estimator or ask for its tags in the calling process, or joblib clones or pickles it there for their
workers. All of these inspect the running calls: the outermost of them that fits private estimators
several times is warned of once, with the epsilon of all fits together. A fit in a worker whose
calls are not seen warns that its epsilon cannot be added to those of the others. Inside a privacy
budget, which counts all of them, nothing is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import FrameType
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.model_selection._search import BaseSearchCV

from dpftrl_fast.accounting import epsilon
from dpftrl_fast.accounting.curve.rounding import short_up, text_up
from dpftrl_fast.linear_model.callers.budgets import Place, budgets_of, carried_by
from dpftrl_fast.linear_model.callers.counts import (
    Counting,
    Fits,
    one_mu_squared,
    private_parts,
)
from dpftrl_fast.linear_model.callers.frames import (
    Call,
    calls_elsewhere,
    calls_here,
    holds,
    in_worker,
)
from dpftrl_fast.run.budget import this_process
from dpftrl_fast.run.budget_share import kept_for_floors

#: Local name in the frame of a call that was looked at: whether it makes several fits.
_MARK = "_dpftrl_fast_several_fits"
_DRAWN = (
    ". An ensemble draws rows with replacement or by weights: no epsilon is stated for a row that "
    "it draws several times"
)


def announce(estimator: Any, private: type) -> Place | None:
    """Warn of several fits in the calls that clone or look at an estimator, once for each call.

    `private` is the base of the private estimators.

    Returns
    -------
    (process, thread), optional
        Where such a call is running: here, or where the estimator comes from.

    Raises
    ------
    ValueError
        If a search has a `noise_seed`: its scores would select a model by known noise. Inside a
        privacy budget, if an ensemble draws rows several times, or by un-noised weights.

    Examples
    --------
    >>> from dpftrl_fast.linear_model import DPFTRLRegressor
    >>> announce(DPFTRLRegressor(), DPFTRLRegressor) is None  # no search, no warning
    True
    """

    def is_private(value: Any) -> bool:
        return isinstance(value, private)

    calls = calls_here(is_private)
    if calls and budgets_of(estimator):
        for call in calls:
            _refuse_resampling(call.frame.f_locals, is_private)
    carried = carried_by(estimator).announced
    if carried is not None:
        return carried
    return _announced(calls, estimator, is_private) or announce_to_worker(estimator, private)


def announce_to_worker(estimator: Any, private: type) -> Place | None:
    """Warn of several fits in the calls for whose workers joblib clones or pickles an estimator.

    Returns
    -------
    (process, thread), optional
        Where such a call is running, in this process.

    Examples
    --------
    >>> from dpftrl_fast.linear_model import DPFTRLRegressor
    >>> announce_to_worker(DPFTRLRegressor(), DPFTRLRegressor) is None  # joblib is not running
    True
    """

    def is_private(value: Any) -> bool:
        return isinstance(value, private)

    return _announced(calls_elsewhere(estimator, is_private), estimator, is_private)


def announce_in_worker(estimator: Any, private: type) -> None:
    """Warn of a fit in a worker, beside others that are neither seen nor counted.

    Examples
    --------
    >>> from dpftrl_fast.linear_model import DPFTRLRegressor
    >>> announce_in_worker(DPFTRLRegressor(), DPFTRLRegressor)  # no worker, no warning
    """
    if in_worker() and not budgets_of(estimator) and announce(estimator, private) is None:
        warnings.warn(
            "this fit is in a worker, which does not see the fits of other workers: each fit on "
            "the same rows adds its mu^2, so that N equal fits have sqrt(N) times the mu of one, "
            "while epsilon_ is that of this fit, and no total can be stated here. Make the "
            "estimators with budget=dpftrl_fast.PrivacyBudget(epsilon, delta, path=FILE), whose "
            "file counts the fits of all processes and refuses those beyond the budget",
            UserWarning,
            stacklevel=4,
        )


def _announced(calls: list[Call], estimator: Any, is_private: Any) -> Place | None:
    """Warn of calls that make several fits, the outermost first, and return where one runs."""
    for call in reversed(calls):
        local = call.frame.f_locals
        if local.get(_MARK) is None:
            caller = local.get("self")
            if isinstance(caller, BaseSearchCV):
                _refuse_seed(caller, is_private)
            local[_MARK] = True  # in CPython it stays with the frame; counting asks for tags, too
            try:
                local[_MARK] = _warn(call, is_private, silent=bool(budgets_of(estimator)))
            except BaseException:  # a filter has made it an error, which a caller may swallow
                local[_MARK] = None
                raise
        if local[_MARK]:
            return this_process(), call.thread
    return None


def _warn(call: Call, is_private: Any, *, silent: bool) -> bool:
    """Return whether a call makes several fits, and warn of them unless silent."""
    fits = _fits(call.frame, is_private)
    several = fits is None or sum(fits.values()) > 1
    if several and not silent:
        drawn = _drawing(call.frame.f_locals, is_private) is not None
        words = _words(_name(call.frame), None if drawn else fits) + _DRAWN * drawn
        shown = call.outer  # the line that made the call, which may run in another thread
        warnings.warn_explicit(
            words,
            UserWarning,
            filename=shown.f_code.co_filename,
            lineno=shown.f_lineno,
            module=shown.f_globals.get("__name__"),
            registry=shown.f_globals.setdefault("__warningregistry__", {}),
        )
    return several


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
    if isinstance(value, BaseEstimator) and holds(value, is_private):
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
