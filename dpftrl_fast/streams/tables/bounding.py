# SPDX-License-Identifier: Apache-2.0
"""Contribution bounding: what counts of the events of a user in a period, in order of arrival."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dpftrl_fast.streams.tables.periods import Ints


class Rows(NamedTuple):
    """Events that count, added up for each period, user and key: **a secret**.

    `events` is their number and `values` the sum of their values, in whole units.
    """

    period: Ints
    user: Ints
    key: Ints
    events: Ints
    values: Ints

    def where(self, chosen: np.ndarray) -> Rows:
        """Return the rows of a mask or of places."""
        return Rows(*(column[chosen] for column in self))


def no_rows() -> Rows:
    """Return rows of no events."""
    return Rows(*(np.zeros(0, np.int64) for _ in Rows._fields))


def joined(parts: list[Rows]) -> Rows:
    """Return the rows of parts, one after the other."""
    return Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def bounded_rows(rows: Rows, most_keys: int | None, most_events: int | None) -> Rows:
    """Return what counts: one row for each period, user and key.

    Parameters
    ----------
    rows : Rows
        In order of arrival: results of this function first, then events, one a row.
    most_keys : int or None
        A user counts in so many keys of a period: those that came first.
    most_events : int or None
        And with so many events in each: those that came first.

    Notes
    -----
    A user's rows depend on the events of this user alone.

    Examples
    --------
    >>> zero, one = np.zeros(4, np.int64), np.ones(4, np.int64)
    >>> events = Rows(zero, zero, np.array([2, 1, 2, 3]), one, np.array([5, 6, 7, 8]))
    >>> found = bounded_rows(events, 2, 1)
    >>> found.key.tolist(), found.events.tolist(), found.values.tolist()
    ([1, 2], [1, 1], [6, 5])
    """
    if rows.period.size == 0:
        return rows
    # One number for period and key, below 2^50; stable sorts: equal ones as they came.
    cell = rows.period * (1 + rows.key.max()) + rows.key
    order = np.argsort(cell, kind="stable")
    if most_keys is not None:
        order = order[np.argsort(rows.user[order], kind="stable")]
    period, user, key, events, values = rows.where(order)
    starts = np.flatnonzero(changes(period, user, key))
    if most_events is not None:
        before = np.cumsum(events) - events
        sizes = np.diff(np.append(starts, events.size))
        counted = before - np.repeat(before[starts], sizes) < most_events
        events, values = events * counted, values * counted
    found = Rows(
        period[starts],
        user[starts],
        key[starts],
        np.add.reduceat(events, starts),
        np.add.reduceat(values, starts),
    )
    if most_keys is None:
        return found
    # The rows of a user and period are adjacent: those of few keys need no ranks.
    first = np.flatnonzero(changes(found.period, found.user))
    sizes = np.diff(np.append(first, starts.size))
    if int(sizes.max()) <= most_keys:
        return found
    group = np.repeat(np.arange(first.size), sizes)
    arrival = np.lexsort((order[starts], group))
    rank = np.empty(starts.size, np.int64)
    rank[arrival] = np.arange(starts.size) - np.repeat(first, sizes)
    return found.where(rank < most_keys)


def changes(*columns: Ints) -> np.ndarray:
    """Return where sorted rows differ from the one before; True for the first."""
    changed = np.zeros(columns[0].size, np.bool_)
    changed[:1] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return changed


class Held(NamedTuple):
    """Events of periods that are not closed, **a secret**, and the labels of the batches.

    `rows` are bounded, `added` are the events since; replaced as a whole, so that an interruption
    leaves a batch and its label either both out or both in. `labels` has the number of periods that
    were closed when each batch was added, None if that is not known.
    """

    rows: Rows
    added: tuple[Rows, ...]
    labels: Mapping[str, int | None]

    def plus(self, rows: Rows, label: str | None, closed: int) -> Held:
        """Return this with a batch more, added after so many closed periods."""
        labels = self.labels if label is None else {**self.labels, label: closed}
        return Held(self.rows, (*self.added, rows), labels)

    def bounded(self, most_keys: int | None, most_events: int | None) -> Held:
        """Return this with all events bounded."""
        if not self.added:
            return self
        rows = bounded_rows(joined([self.rows, *self.added]), most_keys, most_events)
        return Held(rows, (), self.labels)

    @property
    def is_long(self) -> bool:
        """Whether the added events should be bounded now, to keep memory and work small."""
        fresh = sum(part.period.size for part in self.added)
        return fresh > max(1 << 16, self.rows.period.size) or len(self.added) > 1 << 10
