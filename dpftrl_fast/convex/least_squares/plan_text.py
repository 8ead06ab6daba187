# SPDX-License-Identifier: Apache-2.0
"""A least-squares plan as a dictionary of plain data, and in words.

The dictionary has the fields of the plan, all of them, besides `format` and `version`;
`participation` is what `to_dict` of the pattern gives, and `complete` is false or "all". Version 1
is that of a tree, without the field `mechanism`; in version 2 this is what `to_dict` of it gives.
Version 3 is for several targets, sums of squares, or rows that are given weights: it has `targets`,
`squares`, `long_rows` and `mechanism`, which is "tree" or as in version 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpftrl_fast._validate import equal, shown
from dpftrl_fast.accounting.curve.rounding import text_up
from dpftrl_fast.accounting.participation import participation_from_dict
from dpftrl_fast.mechanisms import mechanism_from_dict
from dpftrl_fast.plan.plan_text import participation_words

_FORMAT = "dpftrl_fast.LeastSquaresPlan"
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
# Version 2 is for mechanisms other than a tree, version 3 for other sums.
_NAMES = {
    1: _FIELDS,
    2: (*_FIELDS, "mechanism"),
    3: (*_FIELDS, "mechanism", "targets", "squares", "long_rows"),
}


def fields_to_dict(plan: Any) -> dict[str, Any]:
    """Return a plan's fields as data that JSON can hold."""
    is_tree = plan.mechanism == "tree"
    other_sums = plan.targets > 1 or plan.squares > 0 or plan.long_rows != "scale"
    version = 3 if other_sums else 1 if is_tree else 2
    fields = {name: getattr(plan, name) for name in _NAMES[version]}
    found = {"format": _FORMAT, "version": version, **fields}
    if not is_tree:
        found["mechanism"] = plan.mechanism.to_dict()
    return {**found, "participation": plan.participation.to_dict()}


def fields_from_dict(d: Mapping[str, Any]) -> dict[str, Any]:
    """Read back the fields of a plan; keys that are missing or unknown are refused.

    Raises
    ------
    TypeError, ValueError
        If ``d`` is not a mapping, is of another format or version, or holds other keys.
    """
    if not isinstance(d, Mapping):
        raise TypeError(f"a plan must be a mapping, got {type(d).__name__}")
    if not equal(d.get("format"), _FORMAT):
        raise ValueError(f"format must be {_FORMAT!r}, got {shown(d.get('format'))}")
    version = d.get("version")
    if type(version) is not int or version not in _NAMES:
        raise ValueError(f"version must be 1, 2 or 3, got {shown(version)}")
    names = _NAMES[version]
    expected = sorted(["format", "version", *names])
    if sorted(map(str, d)) != expected:
        raise ValueError(f"a plan must have the keys {expected}, got {sorted(map(str, d))}")
    fields = {name: d[name] for name in names}
    if not equal(fields.get("mechanism", "tree"), "tree"):
        fields["mechanism"] = mechanism_from_dict(fields["mechanism"])
    fields["participation"] = participation_from_dict(fields["participation"])
    return fields


def plan_words(plan: Any, delta: float) -> str:
    """Return the guarantee at ``delta``, and the plan, in lines."""
    completed = ", completed after the last step" if plan.complete else ""
    first = "y x and y^2" if plan.squares else "y x"
    kind = f"one tree for {first}, one for x x^T{completed}; {plan.variant}"
    if plan.mechanism != "tree":
        kind = f"noise for {first} and for x x^T: {plan.mechanism.words}"
    each = f" of each of {plan.targets} targets" if plan.targets > 1 else ""
    constant = f", constant column {plan.constant!r}" if plan.constant else ""
    sigmas = (plan.bias.noise_multiplier, plan.covariance.noise_multiplier)
    return "\n".join(
        [
            plan.promise(delta, replaced="x and y"),
            f"{participation_words(plan.participation)}; {kind}",
            f"norm of x at most {plan.x_norm_bound:.6g}{constant}, |y| at most {plan.y_bound!r}"
            f" after scaling{each}, noise multipliers {sigmas[0]:.6g} and {sigmas[1]:.6g}, zeta"
            f" {text_up(plan.sensitivity_squared)} of each, mu {text_up(plan.mu)}",
        ]
    )
