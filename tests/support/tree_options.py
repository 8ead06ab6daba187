# SPDX-License-Identifier: Apache-2.0
"""Options of a test that name the fields of a tree, turned into a mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast import accounting as acc
from dpftrl_fast.mechanisms import Tree

_FIELDS = ("variant", "restart_every", "tree_lengths", "complete")


def with_tree(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with a `Tree` of those that are its fields, if there are any."""
    tree = {name: options[name] for name in _FIELDS if name in options}
    rest = {name: value for name, value in options.items() if name not in tree}
    return {**rest, "mechanism": Tree(**tree)} if tree else rest


def zeta_of(run: acc.Participation, **options: Any) -> int | float:
    """Return `sensitivity_squared` with the fields of the tree given by name."""
    return acc.sensitivity_squared(run, **with_tree(options))


def zeta_by_id(order: acc.FixedOrder, **options: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return `sensitivity_squared_by_id` with the fields of the tree given by name."""
    return acc.sensitivity_squared_by_id(order, **with_tree(options))
