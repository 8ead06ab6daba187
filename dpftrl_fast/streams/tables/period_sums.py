# SPDX-License-Identifier: Apache-2.0
"""Un-noised sums of a period from its events: the ones that count, and their parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.streams.tables.bounding import Rows, changes
from dpftrl_fast.streams.tables.events import Events
from dpftrl_fast.streams.tables.periods import Ints
from dpftrl_fast.streams.tables.settings import PARTS, CounterSettings


def rows_of(events: Events, settings: CounterSettings, closed: int, since: Sequence[int]) -> Rows:
    """Return the events that may count, one a row, in order of arrival.

    Parameters
    ----------
    events : Events
    settings : CounterSettings
    closed : int
        Periods that are closed.
    since : sequence of int
        The first period in which each key counts.
    """
    place = events.places
    if settings.late == "next" and closed < settings.periods.count:
        place = np.where((place >= 0) & (place < closed), closed, place)
    first = np.append(np.array(since, np.int64), 0)  # the last for keys of number -1
    counts = (place >= closed) & (events.keys >= 0) & (place >= first[events.keys])
    users = np.zeros(place.size, np.int64) if events.users is None else events.users
    counts &= users >= 0
    parts = np.zeros(place.size, np.int64)
    if events.values is not None:
        parts = parts_of(events.values, settings)
    return Rows(place, users, events.keys, np.ones(place.size, np.int64), parts).where(counts)


def parts_of(values: NDArray[np.float64], settings: CounterSettings) -> Ints:
    """Return clipped values, less the centre, in whole parts of half a width, -2^16 to 2^16."""
    low, high = settings.low or 0.0, settings.high or 0.0
    inside = np.clip(np.where(np.isfinite(values), values, 0.0), low, high)
    centred = np.rint((inside - settings.centre) / settings.half_width * PARTS)
    return np.clip(centred, -PARTS, PARTS).astype(np.int64)


def of_each_period(rows: Rows, first: int, count: int) -> list[Rows]:
    """Return the rows of each of so many periods, in the order that they have."""
    order = np.argsort(rows.period, kind="stable")
    ends = np.searchsorted(rows.period[order], np.arange(first, first + count + 1))
    return [rows.where(order[ends[i] : ends[i + 1]]) for i in range(count)]


def sums_of(rows: Rows, settings: CounterSettings, guard: Guard | None) -> NDArray[np.float64]:
    """Return the un-noised sums of the next period, and record in the guard who counts in it.

    Parameters
    ----------
    rows : Rows
        The bounded events of the period.
    settings : CounterSettings
    guard : Guard or None
        None where a user may count in every period.

    Returns
    -------
    ndarray of float64, shape (size,) or (2 size,)
        Events of each key, then sums of their values in half-widths: whole numbers of parts.
    """
    if guard is not None:
        order = np.argsort(rows.user, kind="stable")
        starts = np.flatnonzero(changes(rows.user[order]))
        users = rows.user[order[starts]]
        eligible = guard.eligible(users)
        guard.admit(users[eligible])
        rows = rows.where(order[np.repeat(eligible, np.diff(np.append(starts, order.size)))])
    most = settings.most_events
    events, values = np.zeros(settings.size, np.int64), np.zeros(settings.size, np.int64)
    np.add.at(events, rows.key, rows.events)
    counted = np.minimum(events, most).astype(np.float64)
    if settings.low is None:
        return counted
    np.add.at(values, rows.key, rows.values)
    return np.concatenate([counted, np.clip(values, -most * PARTS, most * PARTS) / PARTS])
