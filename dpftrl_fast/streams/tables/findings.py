# SPDX-License-Identifier: Apache-2.0
"""Numbers of events that count in a table, and why others do not: NOT private."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.streams.tables.bounding import Rows, bounded_rows, joined, no_rows
from dpftrl_fast.streams.tables.events import Events, column_of, read_events, times_of
from dpftrl_fast.streams.tables.period_sums import of_each_period, rows_of, sums_of
from dpftrl_fast.streams.tables.settings import CounterSettings


def event_findings(
    batches: Iterable[Any], settings: CounterSettings, keys: Mapping[str, int], guard: Guard | None
) -> dict[str, int]:
    """Return how many events there are of each kind, for the owner of the data only.

    `keys` has the number of each declared key, by its form as text; `guard` is a fresh one, of who
    may count in a period. Late events are no part of it: the batches are all that there is.
    """
    total: dict[str, int] = {}
    rows = [no_rows()]
    for events in batches:
        found = read_events(events, settings.columns, settings.periods, keys)
        for name, count in _kinds(events, found, settings).items():
            total[name] = total.get(name, 0) + count
        if settings.unit != "event":
            rows.append(rows_of(found, settings, 0, [0] * len(keys)))
    if settings.unit != "event":
        total["of these, beyond the bounds of a user (they are dropped)"] = _dropped(
            joined(rows), settings, guard
        )
    return total


def _kinds(events: Any, found: Events, settings: CounterSettings) -> dict[str, int]:
    times = times_of(column_of(events, settings.columns, "time"), settings.periods)
    known = ~np.isnat(times) if times.dtype.kind == "M" else ~np.isnan(times.astype(np.float64))
    counts = (found.places >= 0) & (found.keys >= 0)
    kinds = {
        "events": known.size,
        "without a time": np.count_nonzero(~known),
        "outside of the periods": np.count_nonzero(known & (found.places < 0)),
        "of a key that is not declared": np.count_nonzero(found.keys < 0),
    }
    if found.users is not None:
        kinds["without a user"] = np.count_nonzero(found.users < 0)
        counts &= found.users >= 0
    if found.values is not None and settings.low is not None and settings.high is not None:
        finite = np.isfinite(found.values)
        values = np.where(finite, found.values, settings.low)
        outside = (values < settings.low) | (values > settings.high)
        kinds["with a value that is no number (it counts as 0)"] = np.count_nonzero(~finite)
        kinds["with a value outside of the bounds (it is clipped)"] = np.count_nonzero(outside)
    kinds["that count, before bounding"] = np.count_nonzero(counts)
    return {name: int(count) for name, count in kinds.items()}


def _dropped(rows: Rows, settings: CounterSettings, guard: Guard | None) -> int:
    """Return the number of events that bounding drops."""
    bounded = bounded_rows(rows, *settings.limits)
    periods = of_each_period(bounded, 0, int(rows.period.max(initial=-1)) + 1)
    sums = [sums_of(period, settings, guard) for period in periods]
    counted = sum(float(one[: settings.size].sum()) for one in sums)
    return rows.period.size - int(counted)
