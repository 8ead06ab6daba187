# SPDX-License-Identifier: Apache-2.0
"""Realised values: the squared sensitivity of each id's participations so far.

For trees: a participation at leaf t lies under one node of each level. Under those that can be read
(last leaf at most the end of the tree) one participation more adds (c + 1)^2 - c^2 = 2c + 1, where
c participations of the same id were there before; c is kept for the nodes above the last one only,
since a later one under another node finds it empty. So a participation costs O(log T).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.guard.id_table import grown
from dpftrl_fast.accounting.guard.state import integers_from
from dpftrl_fast.mechanisms import Layout, TreeLayout

Ints = NDArray[np.int64]

_CHUNK = 1 << 16


class RealisedValues(Protocol):
    """Values of the ids by their places in the table of a guard; `largest` is the largest value."""

    largest: int

    def values(self, size: int) -> Ints:
        """Return the values at the first `size` places, not a copy."""

    def record(self, step: int, times: Ints, places: Ints, last: Ints, size: int) -> None:
        """Count a step: times by place, the last step of each before, and the size of the table."""

    def entries(self, size: int) -> dict[str, Ints]:
        """Return the entries "values" and "node_counts" of a state, copies."""

    def read(self, state: Mapping[str, Any], size: int) -> RealisedValues:
        """Return new values from the entries of a state; raise if they are broken."""


@singledispatch
def realised_values(layout: Layout) -> RealisedValues:
    """Return a counter of realised values; registered for the type of each layout."""
    raise TypeError(f"no realised values are registered for layouts of {type(layout).__name__}")


class TreeValues:
    """Realised values of a tree."""

    def __init__(self, layout: TreeLayout) -> None:
        self.largest = 0
        self._layout = layout
        self._levels: Ints = np.arange(layout.tallest.bit_length())
        self._values: Ints = np.zeros(0, np.int64)
        # By place and level: participations under the node above the last one.
        self._counts: Ints = np.zeros((0, self._levels.size), np.int64)

    def values(self, size: int) -> Ints:
        """Return the values at the first `size` places, not a copy."""
        return self._values[:size]

    def record(self, step: int, times: Ints, places: Ints, last: Ints, size: int) -> None:
        """Count a step."""
        self._values, self._counts = grown(self._values, size), grown(self._counts, size)
        tree, t = self._layout.locate(step)
        leaf = t - 1
        # Leaf of the participation before; -1, under no node, if it was in an earlier tree.
        before = np.maximum(last - (step - t), 0) - 1
        end = self._layout.run_of(tree).end
        nodes = leaf >> self._levels
        readable = (nodes + 1) << self._levels <= end
        for i in range(0, places.size, _CHUNK):
            at = places[i : i + _CHUNK]
            more = times[i : i + _CHUNK, np.newaxis]
            same = before[i : i + _CHUNK, np.newaxis] >> self._levels == nodes
            counts = np.where(same, self._counts[at], 0)
            self._values[at] += np.sum(more * (2 * counts + more), axis=1, where=readable)
            self._counts[at] = counts + more
            self.largest = max(self.largest, int(self._values[at].max()))

    def entries(self, size: int) -> dict[str, Ints]:
        """Return the entries of a state, copies."""
        return {"values": self._values[:size].copy(), "node_counts": self._counts[:size].copy()}

    def read(self, state: Mapping[str, Any], size: int) -> TreeValues:
        """Return new values from the entries of a state; raise if they are broken."""
        found = TreeValues(self._layout)
        found._values = integers_from(state, "values", (size,), low=1)
        found._counts = integers_from(state, "node_counts", (size, self._levels.size), low=1)
        if not bool(np.all(found._counts[:, 1:] >= found._counts[:, :-1])):
            raise ValueError("state's node_counts must never fall with the level, got some that do")
        found.largest = int(found._values.max(initial=0))
        return found


realised_values.register(TreeLayout, TreeValues)
