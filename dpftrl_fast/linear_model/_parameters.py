# SPDX-License-Identifier: Apache-2.0
"""What the constructor arguments of the estimators may be: one rule a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpftrl_fast._validate import norm_bound, positive_integer, real
from dpftrl_fast.noise.keys import key_of_seed

Rule = Callable[[str, Any], Any]


def check_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters, as Python numbers where they are numbers; refuse wrong ones.

    Parameters
    ----------
    parameters : mapping
        Names and values, as an estimator's ``get_params`` gives them. Names without a rule here are
        passed on as they are.

    Raises
    ------
    TypeError, ValueError
        If a value is not of its kind or out of its range, or not exactly one of `epsilon` and
        `noise_multiplier` is given.

    Examples
    --------
    >>> check_parameters({"epsilon": 1, "noise_multiplier": None, "delta": 1e-6, "loss": "huber"})
    {'epsilon': 1.0, 'noise_multiplier': None, 'delta': 1e-06, 'loss': 'huber'}
    """
    checked = {
        name: _RULES[name](name, value) if name in _RULES else value
        for name, value in parameters.items()
    }
    if (checked["epsilon"] is None) == (checked["noise_multiplier"] is None):
        came = "both" if checked["epsilon"] is not None else "neither"
        raise ValueError(f"exactly one of epsilon and noise_multiplier must be given, got {came}")
    return checked


def _real(**bounds: Any) -> Rule:
    return lambda name, value: real(name, value, **bounds)


def _bound(name: str, value: Any) -> float:
    # The range of the clip norms, for the same reason: no square of it leaves float64.
    try:
        return norm_bound("clip_norm", real(name, value))
    except ValueError:
        raise ValueError(
            f"{name} must be a finite number in [1e-100, 1e+100], got {value}"
        ) from None


def _or(other: Any, rule: Rule) -> Rule:
    """Return a rule that lets one other value pass: None or a word."""

    def check(name: str, value: Any) -> Any:
        if value is None or isinstance(value, str):
            if value == other:
                return value
            if other is not None:
                raise ValueError(f"{name} must be {other!r} or a number, got {value!r}")
        return rule(name, value)

    return check


def _one_of(*allowed: Any) -> Rule:
    def check(name: str, value: Any) -> Any:
        for choice in allowed:
            if type(value) is type(choice) and value == choice:
                return choice
        raise ValueError(f"{name} must be one of {list(allowed)}, got {value!r}")

    return check


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return bool(value)


def _verbosity(name: str, value: Any) -> int:
    if not isinstance(value, (bool, int, np.integer)):
        raise TypeError(f"{name} must be an integer >= 0, got {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{name} must be an integer >= 0, got {value}")
    return int(value)


def _learning_rate(name: str, value: Any) -> Any:
    if isinstance(value, str):
        if value in ("auto", "theory"):
            return value
        raise ValueError(f'{name} must be a number > 0, "auto" or "theory", got {value!r}')
    return real(name, value, above=0.0)


def _restart_every(name: str, value: Any) -> Any:
    return value if value is None else _or("auto", positive_integer)(name, value)


def _complete(name: str, value: Any) -> Any:
    return _one_of("auto", False, True, "all")(
        name, bool(value) if isinstance(value, np.bool_) else value
    )


def _noise_seed(name: str, value: Any) -> Any:
    try:
        key_of_seed(value)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("seed", name, 1)) from None
    return value


_RULES: dict[str, Rule] = {
    "epsilon": _or(None, _real(above=0.0)),
    "delta": _real(above=0.0, below=1.0),
    "noise_multiplier": _or(None, _real(above=0.0)),
    "batch_size": positive_integer,
    "epochs": positive_integer,
    "horizon": _or(None, positive_integer),
    "learning_rate": _learning_rate,
    "clip_norm": _bound,
    "momentum": _real(least=0.0, below=1.0),
    "l1": _real(least=0.0),
    "radius": _or(None, _bound),
    "x_norm_bound": _or(None, _bound),
    "y_bound": _or(None, _bound),
    "fit_intercept": _flag,
    "intercept_scaling": _bound,
    "shuffle": _flag,
    "threads": _or(None, positive_integer),
    "noise_seed": _noise_seed,
    "variant": _one_of("honaker", "vanilla"),
    "restart_every": _restart_every,
    "complete": _complete,
    "average": _one_of("tail", "all", "last"),
    "compute_regret": _flag,
    "verbose": _verbosity,
}
