# SPDX-License-Identifier: Apache-2.0
"""`IdTable`: from ids of any size to places in dense arrays, many at a time.

A hash table with linear probing, at most half full, whose every operation goes over a whole array
of ids: the probes of all unresolved ids advance together, so that a step of 10^6 ids costs a few
passes of NumPy and not 10^6 calls.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_LEAST_SLOTS = 16


def grown(array: Ints, rows: int) -> Ints:
    """Return ``array``, or a copy of it with zeros behind, that has at least so many rows.

    Doubling makes it O(1) amortised work a row.

    Examples
    --------
    >>> grown(np.array([7, 8]), 3).tolist()
    [7, 8, 0, 0]
    """
    if rows <= len(array):
        return array
    larger = np.zeros((max(rows, 2 * len(array)), *array.shape[1:]), np.int64)
    larger[: len(array)] = array
    return larger


class IdTable:
    """Gives each id, a non-negative 64-bit integer, the next place 0, 1, 2, ... when it is added.

    Examples
    --------
    >>> table = IdTable()
    >>> table.add(np.array([40, 10]))
    >>> table.find(np.array([10, 11, 40])).tolist(), table.ids.tolist()
    ([1, -1, 0], [40, 10])
    """

    def __init__(self) -> None:
        self._size = 0
        self._ids: Ints = np.zeros(_LEAST_SLOTS // 2, np.int64)
        self._slots: Ints = np.full(_LEAST_SLOTS, -1, np.int64)  # the place in `ids`, or -1

    def __len__(self) -> int:
        return self._size

    @property
    def ids(self) -> Ints:
        """The ids in the order of their places; a view."""
        return self._ids[: self._size]

    def find(self, ids: Ints) -> Ints:
        """Return the place of each id, -1 if it has no place."""
        places = np.full(ids.size, -1, np.int64)
        at = self._first_slot(ids)
        left = np.arange(ids.size)
        while left.size:
            there = self._slots[at]
            hit = (there >= 0) & (self._ids[there] == ids[left])
            places[left[hit]] = there[hit]
            on = (there >= 0) & ~hit
            left, at = left[on], (at[on] + 1) & (self._slots.size - 1)
        return places

    def add(self, ids: Ints) -> None:
        """Give places to distinct ids without a place."""
        size = self._size + ids.size
        self._ids = grown(self._ids, size)
        self._ids[self._size : size] = ids
        if 2 * size > self._slots.size:
            self._slots = np.full(2 << (2 * size - 1).bit_length(), -1, np.int64)
            self._fill(np.arange(size))
        else:
            self._fill(np.arange(self._size, size))
        self._size = size

    def _fill(self, places: Ints) -> None:
        at = self._first_slot(self._ids[places])
        while places.size:
            free = self._slots[at] < 0
            self._slots[at[free]] = places[free]  # of several that claim one slot, one gets it
            on = self._slots[at] != places
            places, at = places[on], (at[on] + 1) & (self._slots.size - 1)

    def _first_slot(self, ids: Ints) -> Ints:
        # The finaliser of SplitMix64 (Steele, Lea and Flood 2014): neighbouring ids spread evenly.
        x = ids.astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((x ^ (x >> np.uint64(31))) & np.uint64(self._slots.size - 1)).astype(np.int64)
