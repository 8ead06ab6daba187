# SPDX-License-Identifier: Apache-2.0
"""A least-squares plan as a dictionary of plain data, and in words.

The dictionary, version 1, has the fields of the plan, all of them, besides `format` and `version`;
`participation` is what `to_dict` of the pattern gives, and `complete` is false or "all".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpftrl_fast.accounting.curve.rounding import text_up
from dpftrl_fast.accounting.participation import participation_from_dict
from dpftrl_fast.plan.plan_text import participation_words

_HEAD = {"format": "dpftrl_fast.LeastSquaresPlan", "version": 1}
_FIELDS = (
    "x_norm_bound",
    "y_bound",
    "noise_multiplier",
    "participation",
    "split",
    "complete",
    "variant",
    "bound",
    "constant",
)


def fields_to_dict(plan: Any) -> dict[str, Any]:
    """Return a plan's fields as data that JSON can hold."""
    fields = {name: getattr(plan, name) for name in _FIELDS}
    return {**_HEAD, **fields, "participation": plan.participation.to_dict()}


def fields_from_dict(d: Mapping[str, Any]) -> dict[str, Any]:
    """Read back the fields of a plan; keys that are missing or unknown are refused.

    Raises
    ------
    TypeError, ValueError
        If ``d`` is not a mapping, is of another format or version, or holds other keys.
    """
    if not isinstance(d, Mapping):
        raise TypeError(f"a plan must be a mapping, got {type(d).__name__}")
    for name, value in _HEAD.items():
        if type(d.get(name)) is not type(value) or d[name] != value:
            raise ValueError(f"{name} must be {value!r}, got {d.get(name)!r}")
    if set(d) != {*_HEAD, *_FIELDS}:
        expected = sorted([*_HEAD, *_FIELDS])
        raise ValueError(f"a plan must have the keys {expected}, got {sorted(map(str, d))}")
    fields = {name: d[name] for name in _FIELDS}
    fields["participation"] = participation_from_dict(fields["participation"])
    return fields


def plan_words(plan: Any, delta: float) -> str:
    """Return the guarantee at ``delta``, and the plan, in lines."""
    completed = ", completed after the last step" if plan.complete else ""
    constant = f", constant column {plan.constant!r}" if plan.constant else ""
    sigmas = (plan.bias.noise_multiplier, plan.covariance.noise_multiplier)
    return "\n".join(
        [
            plan.promise(delta, replaced="x and y"),
            f"{participation_words(plan.participation)}; one tree for y x, one for x x^T"
            f"{completed}; {plan.variant}",
            f"norm of x at most {plan.x_norm_bound!r}{constant}, |y| at most {plan.y_bound!r},"
            f" noise multipliers {sigmas[0]:.6g} and {sigmas[1]:.6g}, zeta"
            f" {text_up(plan.sensitivity_squared)} of each, mu {text_up(plan.mu)}",
        ]
    )
