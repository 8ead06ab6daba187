# SPDX-License-Identifier: Apache-2.0
"""`explain`: the numbers of events that bounding drops, against loops of plain Python."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from table_oracle import Event, Facts, columns, oracle

import dpftrl_fast as dpf

COUNTED = "that count, before bounding"
DROPPED = "of these, beyond the bounds of a user (they are dropped)"


@pytest.mark.parametrize(
    "kind",
    [
        Facts(unit="user", user_periods=2),
        Facts(unit="user", user_periods=2, user_gap=2, keys_per_period=2, events_per_key=3),
        Facts(unit="user-period", user_periods=None, user_gap=1, keys_per_period=2),
        Facts(unit="user-period", user_periods=None, user_gap=1, events_per_key=2, values=(0, 5)),
    ],
)
def test_events_beyond_the_bounds_are_counted_over_all_batches(kind: Facts) -> None:
    rng = np.random.default_rng(8)
    batches = [
        [
            Event(t, key, user, 1.0)
            for t, key, user in zip(
                rng.integers(-1, 13, 60), rng.choice(["a", "b", "c", "other"], 60),
                [None, *range(9)] * 6, strict=True,
            )
        ]
        for _ in range(4)
    ]  # fmt: skip
    table = kind.counter(4.0)
    found = table.explain(iter(map(columns, batches)))
    kept = sum(sum(period[:3]) for period in oracle(kind, [*batches, 12]))
    assert found["events"] == 240 and 0 < kept < found[COUNTED]
    assert found[DROPPED] == found[COUNTED] - kept
    assert table.explain(columns(list(chain(*batches)))) == found
    assert table.periods_closed == 0 and len(table.release(2)) == 3
    apart = sum(table.explain(columns(batch))[DROPPED] for batch in batches)
    assert apart < found[DROPPED]  # bounds are over all batches


def test_no_user_is_bounded_where_one_event_is_protected() -> None:
    table = Facts(unit="event", user_periods=None, user_gap=1).counter(4.0)
    found = table.explain(columns([Event(0, "a", 1, None)] * 9))
    assert DROPPED not in found and found[COUNTED] == 9


def test_a_bound_below_the_truth_makes_counts_fall_as_explain_says() -> None:
    """The same ten users come on each of ten days, and count on the first three of them."""
    events: dict[str, Any] = {"time": np.repeat(np.arange(10), 10), "key": ["a"] * 100}
    events["user"] = list(range(10)) * 10
    table = dpf.PrivateCounter(
        ["a"], 10, 1e-3, start=0, period=1, unit="user", user_periods=3, figures="period", seed=1
    )
    assert table.explain(events)[DROPPED] == 70
    table.add(events)
    assert np.rint(table.release()["count"]).tolist() == [10] * 3 + [0] * 7
    assert table.bounding.endswith("is dropped, and the intervals do not cover it")
