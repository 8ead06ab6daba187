# SPDX-License-Identifier: Apache-2.0
"""Options of a test that name the fields of a tree, turned into a mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpftrl_fast.mechanisms import Tree

_FIELDS = ("variant", "restart_every", "tree_lengths", "complete")


def with_tree(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with a `Tree` of those that are its fields, if there are any."""
    tree = {name: options[name] for name in _FIELDS if name in options}
    rest = {name: value for name, value in options.items() if name not in tree}
    return {**rest, "mechanism": Tree(**tree)} if tree else rest
