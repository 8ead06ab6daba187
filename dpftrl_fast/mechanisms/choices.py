# SPDX-License-Identifier: Apache-2.0
"""The named choices of a run, and the checks of their names."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

#: How prefixes are put together from the nodes of the tree.
Variant: TypeAlias = Literal["vanilla", "honaker"]
#: What a plan can state its epsilon for: all nodes that can be read, or the prefixes alone.
PlanBound: TypeAlias = Literal["exact", "released"]
#: Completion that fits any number of trees: none, before each restart, or of all trees.
Completion: TypeAlias = bool | Literal["all"]


def check_variant(variant: Any) -> None:
    """Raise if this is no name of a variant."""
    if variant not in ("vanilla", "honaker"):
        raise ValueError(f'variant must be "vanilla" or "honaker", got {variant!r}')


def check_plan_bound(bound: Any) -> None:
    """Raise if this is no name of a bound that a plan can have."""
    if bound not in ("exact", "released"):
        raise ValueError(f'bound must be "exact" or "released", got {bound!r}')
