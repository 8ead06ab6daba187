# SPDX-License-Identifier: Apache-2.0
"""Rules that check the settings of a private linear fit, one for each name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpftrl_fast._validate import (
    LARGEST_NORM,
    choice,
    flag,
    integer,
    non_negative,
    norm_bound,
    optional,
    positive,
    positive_integer,
    probability,
    real,
)
from dpftrl_fast.accounting.planner.choice import check_choice
from dpftrl_fast.noise.keys import key_of_seed

Rule = Callable[[str, Any], Any]


def check_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as plain Python values; those without a rule are passed on unchecked.

    Raises
    ------
    TypeError, ValueError
        If a value breaks the rule of its name, or not exactly one of `epsilon` and
        `noise_multiplier` is given.

    Examples
    --------
    >>> check_settings({"epsilon": 1, "noise_multiplier": None, "delta": 1e-6, "loss": "huber"})
    {'epsilon': 1.0, 'noise_multiplier': None, 'delta': 1e-06, 'loss': 'huber'}
    """
    checked = {
        name: _RULES[name](name, value) if name in _RULES else value
        for name, value in values.items()
    }
    if (checked["epsilon"] is None) == (checked["noise_multiplier"] is None):
        came = "both" if checked["epsilon"] is not None else "neither"
        raise ValueError(f"exactly one of epsilon and noise_multiplier must be given, got {came}")
    return checked


def _bounded(**bounds: Any) -> Rule:
    return lambda name, value: real(name, value, **bounds)


def _or_none(rule: Rule) -> Rule:
    return lambda name, value: optional(rule, name, value)


def _one_of(*allowed: Any) -> Rule:
    return lambda name, value: choice(name, value, allowed)


def _or_word(rule: Rule, *words: str) -> Rule:
    """Accept these words besides the values of a rule."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return rule(name, value)
        if value in words:
            return value
        listed = ", ".join(map(repr, words))
        raise ValueError(f"{name} must be {listed} or a number, got {value!r}")

    return check


def _target_bounds(name: str, value: Any) -> Any:
    """Return the bounds of one target, or of a list those of each of several targets."""
    if not isinstance(value, (list, np.ndarray)):
        return _bounds(name, value)
    if len(value) == 0:
        raise ValueError(f"{name} must be a number, (low, high), or a list of such, got no entries")
    found = [_bounds(f"{name}[{k}]", one) for k, one in enumerate(value)]
    return found if len(found) > 1 else found[0]


def _bounds(name: str, value: Any) -> float | tuple[float, float]:
    """Return a bound b > 0, or bounds (low, high) with low < high."""
    if isinstance(value, list):
        value = tuple(value)
    if not isinstance(value, tuple):
        return norm_bound(name, value)
    if len(value) != 2:
        raise ValueError(f"{name} must be a number or (low, high), got {len(value)} numbers")
    low, high = (
        real(f"{name}[{i}]", bound, least=-LARGEST_NORM, most=LARGEST_NORM)
        for i, bound in enumerate(value)
    )
    norm_bound(f"the width of {name}", high - low)  # refuses low >= high
    return low, high


def _verbosity(name: str, value: Any) -> int:
    return int(value) if isinstance(value, (bool, np.bool_)) else integer(name, value, 0)


def _noise_seed(name: str, value: Any) -> Any:
    key_of_seed(value, name=name)  # a wrong one is refused here
    return value


_RULES: dict[str, Rule] = {
    "epsilon": _or_none(positive),
    "delta": probability,
    "noise_multiplier": _or_none(positive),
    "batch_size": _or_word(positive_integer, "auto"),
    "epochs": _or_word(positive_integer, "auto"),
    "horizon": _or_none(positive_integer),
    "learning_rate": _or_word(positive, "auto", "theory"),
    "clip_norm": _or_word(norm_bound, "auto"),
    "loss_param": _or_none(real),
    "momentum": _or_word(_bounded(least=0.0, below=1.0), "auto"),
    "l1": non_negative,
    "radius": _or_none(norm_bound),
    "x_norm_bound": _or_none(norm_bound),
    "y_bound": _or_none(_target_bounds),
    "fit_intercept": flag,
    "intercept_scaling": norm_bound,
    "split": probability,
    "alpha": non_negative,
    "intervals": flag,
    "sample_weight_bound": norm_bound,
    "long_rows": _one_of("scale", "weight"),
    "ridge_factor": positive,
    "solve_every": _or_none(positive_integer),
    "shuffle": flag,
    "threads": _or_none(positive_integer),
    "noise_seed": _noise_seed,
    "mechanism": lambda name, value: check_choice(value),
    "variant": _one_of("honaker", "vanilla"),
    "bound": _one_of("released", "exact"),
    "restart_every": _or_none(_or_word(positive_integer, "auto")),
    "complete": _one_of("auto", False, True, "all"),
    "average": _one_of("tail", "all", "last"),
    "compute_regret": flag,
    "verbose": _verbosity,
}
