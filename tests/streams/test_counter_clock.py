# SPDX-License-Identifier: Apache-2.0
"""Clocks of a table: one past its end, one that goes back, events after the end, repeated jobs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_oracle import Event, Facts, columns

import dpftrl_fast as dpf

#: Start, period, the end of ten periods, the last clock that is taken, the first that is not.
CLOCKS: list[tuple[Any, Any, Any, Any, Any]] = [
    ("2026-03-01", "1D", "2026-03-11", "2026-03-11T23:59", "2026-03-12"),
    ("2026-03-01", "1h", "2026-03-01T10:00:00", "2026-03-01T10:59:59", date(2026, 3, 15)),
    (0, 2, 20, 21.99, 22),
    (0, 2, 20, 21, 22.0),
    (0.5, 0.1, 1.5, 1.59, 1.7),
]


def state_of(table: dpf.PrivateCounter) -> list[Any]:
    state = table._state()
    return [repr({**state, "held": {k: v.tolist() for k, v in state["held"].items()}})]


@pytest.mark.parametrize(("start", "period", "end", "last", "beyond"), CLOCKS)
def test_a_clock_past_the_end_closes_nothing(
    start: Any, period: Any, end: Any, last: Any, beyond: Any
) -> None:
    """A mistyped date closed all periods for ever, and all later days counted nothing."""
    for until in (end, last, None):
        table, other = (
            dpf.PrivateCounter(["a"], 10, 4.0, start=start, period=period, seed=1) for _ in range(2)
        )
        for each in (table, other):
            each.add({"time": [start], "key": ["a"]}, batch="first")
        before = state_of(table)
        calls: list[Callable[[Any], Any]] = [table.release, table.would_close]
        calls.append(lambda until, table=table: table.is_stale_batch("first", until))
        for call in calls:
            with pytest.raises(ValueError, match=r"until must be less than one period past") as e:
                call(beyond)
            assert f"{end}, the end of the table, got " in str(e.value)
            assert str(e.value).endswith(": nothing is closed")
        assert state_of(table) == before and table.periods_closed == 0
        assert table.would_close(until) == 10
        assert table.release(until).equals(other.release(end))  # the next right call
        assert table.would_close(until) == 0 and len(table.release(until)) == 0


@pytest.mark.parametrize("late", ["drop", "next"])
def test_a_table_that_is_over_takes_no_events(late: str, tmp_path: Path) -> None:
    told = []
    wrong: list[Any] = [[], [Event(0, "a", 1, None)], [Event(11, "c", 7, None)] * 50]
    for events in wrong:
        table = Facts(late=late).counter(4.0)
        table.add(columns(wrong[1]), batch="first")
        shown = table.release()
        for label in ("second", None):
            with pytest.raises(
                ValueError, match=r"the table is over: all 6 periods, up to 12,"
            ) as e:
                table.add(columns(events), batch=label)
            told.append(str(e.value))
        assert not table.has_batch("second") and table.table().equals(shown)
        assert not table.add(columns(events), batch="first")  # a job that is run again
    assert len(set(told)) == 1  # whatever the rows hold


def job(folder: Path, day: int, **more: Any) -> tuple[bool, int]:
    with dpf.PrivateCounter.open(folder) as table:
        added = table.add(columns([Event(day, "a", day, None)]), batch=f"day {day}")
        return added, len(table.release(2 * (day // 2) + 2)["count"])


def test_a_period_that_comes_after_a_later_one_is_told(tmp_path: Path) -> None:
    """Its figure was noise about zero, without a word."""
    folder = tmp_path / "table"
    table = Facts().counter(4.0)
    table.save(folder)
    table.close()
    assert job(folder, 0) == (True, 3)
    assert job(folder, 4) == (True, 6)  # two periods: day 2 was missed
    assert job(folder, 4) == (False, 0)  # run again after a crash: quiet
    words = r"no period is closed: until must be after 6, .*, got 4; .* do not count, so run missed"
    with pytest.warns(UserWarning, match=words) as caught:
        assert job(folder, 2) == (True, 0)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert job(folder, 2) == (False, 0)
    assert job(folder, 6) == (True, 3)


def test_the_warning_is_of_calls_alone() -> None:
    """Not of rows, of clocks within an open period, or of a release without a batch."""
    for events in ([], [Event(0, "a", 1, None)], [Event(5, "a", 1, None)]):
        table = Facts(late="next").counter(4.0)
        table.add(columns(events))
        assert len(table.release(1)) == 0  # nothing is closed before
        assert len(table.release(4)) == 6
        assert len(table.release(2)) == 0  # no batch since
        table.add(columns(events))
        assert len(table.release(4.5)) == 0  # within the open period
        table.add(columns(events))
        with pytest.warns(UserWarning, match="count in the next period"):
            table.release(4)
        assert len(table.release(4)) == 0  # told once
        table.add(columns(events))
        before = state_of(table)
        with warnings.catch_warnings(), pytest.raises(UserWarning):
            warnings.simplefilter("error")
            table.release(3)
        assert state_of(table) == before
        assert len(table.release(6)) == 3


def test_a_clock_may_close_several_periods_with_the_same_figures() -> None:
    tables = [dpf.PrivateCounter(["a"], 9, 4.0, start=0, period=1, seed=3) for _ in range(2)]
    for table in tables:
        table.add({"time": np.arange(9), "key": ["a"] * 9})
    assert tables[0].would_close(7.5) == 7
    tables[0].release(7.5)
    for until in range(1, 8):
        assert tables[1].would_close(until) == 1
        tables[1].release(until)
    assert tables[0].table().equals(tables[1].table())
