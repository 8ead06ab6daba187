# SPDX-License-Identifier: Apache-2.0
"""Numbers of events that count in a table, and why others do not: NOT private."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpftrl_fast.streams.tables.events import column_of, read_events, times_of
from dpftrl_fast.streams.tables.settings import CounterSettings


def event_findings(
    events: Any, settings: CounterSettings, keys: Mapping[str, int]
) -> dict[str, int]:
    """Return how many events there are of each kind, for the owner of the data only.

    `keys` has the number of each declared key, by its form as text. Bounding, late events and the
    participation of users are no part of it.
    """
    found = read_events(events, settings.columns, settings.periods, keys)
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
