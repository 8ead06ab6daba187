# SPDX-License-Identifier: Apache-2.0
"""Events of tables over time: periods of all kinds of times, frames of all packages."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpftrl_fast.streams.tables.events import EventColumns, read_events
from dpftrl_fast.streams.tables.periods import Periods, parsed_times, periods_of

START = "2013-01-01"

# ---- Periods ----


@pytest.mark.parametrize("unit", ["W", "D", "h", "m", "s", "ms", "us", "ns", "ps"])
@pytest.mark.parametrize(
    ("start", "period", "microseconds"),
    [
        ("2013-01-01", "1D", 86_400_000_000),
        ("1969-12-31T23:00", "1h", 3_600_000_000),
        ("1969-12-31T23:59:59.999999", np.timedelta64(7, "us"), 7),
    ],
)
def test_times_of_every_unit(unit: str, start: str, period: Any, microseconds: int) -> None:
    periods = periods_of(start, period, 40)
    first = np.datetime64(start, "us")
    around = first + np.arange(-3 * microseconds, 43 * microseconds, max(microseconds // 2, 1))
    times = around.astype(f"datetime64[{unit}]")
    far = np.array([np.iinfo(np.int64).max, np.iinfo(np.int64).min, 1 - 2**63, 0])
    times = np.concatenate([times, far.astype(times.dtype)])
    found = periods.places(times)
    per = {"W": 604_800_000_000, "D": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000}
    per |= {"s": 10**6, "ms": 1000, "us": 1}
    tick = Fraction(per.get(unit, 1)) / {"ns": 10**3, "ps": 10**6}.get(unit, 1)
    origin = int(first.astype(np.int64))
    for time, place in zip(times, found.tolist(), strict=True):
        wanted = -1
        if not np.isnat(time):
            exact = int(time.astype(np.int64)) * tick
            number = math.floor((exact - origin) / microseconds)
            wanted = number if 0 <= number < 40 else -1
        assert place == wanted, time


FLOATS = st.one_of(st.floats(), st.integers(-5, 50).map(lambda k: k * 0.1), st.integers(-9, 60))


@given(st.sampled_from([0.1, 0.3, 1.0, 7.5]), st.sampled_from([0.0, -0.3, 1e9]), FLOATS)
def test_numbers_are_in_the_period_of_the_edges(length: float, start: float, time: Any) -> None:
    periods = periods_of(start, length, 30)
    place = int(periods.places(np.array([float(time)]))[0])
    edges = periods.edges(0, 30)
    if place == -1:
        assert not edges[0] <= time < edges[-1]
    else:
        assert edges[place] <= time < edges[place + 1]
    if math.isfinite(time):
        assert periods.ended(float(time)) == sum(edge <= time for edge in edges[1:].tolist())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64", "float32", "float64"])
def test_whole_numbers(dtype: str) -> None:
    periods = periods_of(3, 5, 4)
    top = np.array([np.iinfo(dtype).max if dtype[0] in "iu" else np.inf], dtype)
    times = np.concatenate([np.arange(0, 30).astype(dtype), top])
    wanted = [(t - 3) // 5 if 3 <= t < 23 else -1 for t in range(30)]
    assert periods.places(times).tolist() == [*wanted, -1]
    assert [periods.ended(t) for t in (-9, 7, 8, 22.9, 23, 10**30)] == [0, 0, 1, 3, 4, 4]
    large = periods_of(2**61, 3, 2)
    assert large.places(np.array([2**61 - 1, 2**61 + 2, 2**61 + 3])).tolist() == [-1, 0, 1]


def test_the_clock() -> None:
    days = periods_of(START, timedelta(days=1), 365)
    zone = timezone(timedelta(hours=-5))
    for until, wanted in [
        ("2012-01-01", 0), ("2013-01-01T23:59:59", 0), ("2013-01-02", 1),
        (np.datetime64("2013-01-03T00:00:00.000000001", "ns"), 2), (date(2013, 1, 4), 3),
        (datetime(2013, 1, 4, 20, tzinfo=zone), 4), (pd.Timestamp("2013-01-05T01", tz="UTC"), 4),
        ("2013-01-05T23:30-01:00", 5), ("2013-01-05T00:00Z", 4), ("2013", 0), ("3000", 365),
    ]:  # fmt: skip
        assert days.ended(until) == wanted, until
    for wrong in ("now", "", "NaT", None, 7, b"2013", np.datetime64("NaT"), object(), "20x"):
        with pytest.raises(ValueError, match="until must be a time"):
            days.ended(wrong)


@pytest.mark.parametrize(
    ("start", "period", "words"),
    [
        (START, "1D", "9 periods of 1 day from 2013-01-01"),
        ("2013-01-01T06:00", "90min", "9 periods of 90 minutes from 2013-01-01T06:00:00"),
        (datetime(2013, 1, 1), pd.Timedelta("2h"), "9 periods of 2 hours from 2013-01-01"),
        (pd.Timestamp(START), "2W", "9 periods of 2 weeks from 2013-01-01"),
        (START, "1d", "9 periods of 1 day from 2013-01-01"),
        (START, "H", "9 periods of 1 hour from 2013-01-01"),
        (0, 10, "9 periods of 10 from 0"),
        (0.5, 0.25, "9 periods of 0.25 from 0.5"),
    ],
)
def test_periods_in_words_and_as_data(start: Any, period: Any, words: str) -> None:
    periods = periods_of(start, period, 9)
    assert periods.words == words
    assert Periods.from_dict(periods.to_dict()) == periods


@pytest.mark.parametrize(
    ("start", "period", "message"),
    [
        (START, "1M", "calendar months differ"),
        (START, "0D", "period must be a length of time"),
        (START, "-1D", "period must be a length of time"),
        (START, 5, "period must be a length of time"),
        (START, np.timedelta64(1, "ns"), "in whole microseconds"),
        (START, np.timedelta64(1, "M"), "period must be a length of time"),
        (START, np.timedelta64("NaT"), "period must be a length of time"),
        ("yesterday", "1D", "start must be a time"),
        (np.datetime64(1, "ns"), "1D", "start must be a time in whole microseconds"),
        (None, "1D", "start must be a time"),
        (
            0,
            "1D",
            "start and period must be a time and a length of time, or two numbers, got start=0",
        ),
        (0.0, float("nan"), "period must be"),
        (0, -1, "period must be an integer >= 1"),
        (1e16, 0.5, "distinct floats"),
        (0, 2**62, "the declared end must be at most 2^62"),
        (True, 1, "start must be a time"),
    ],
)
def test_wrong_periods_are_refused(start: Any, period: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        periods_of(start, period, 9)
    assert message in str(error.value)


def test_times_in_cells() -> None:
    zone = timezone(timedelta(hours=2))
    cells = [
        "2013-01-01T05:15", " 2013-01-01 05:15:00 ", datetime(2013, 1, 1, 5, 15), date(2013, 1, 1),
        np.datetime64("2013-01-01", "D"), pd.Timestamp("2013-01-01T05:15", tz="UTC"),
        datetime(2013, 1, 1, 7, 15, tzinfo=zone), "2013-01-01T07:15+02:00", "2013",
    ]  # fmt: skip
    wanted = np.array(["2013-01-01T05:15"] * 9, "datetime64[us]")
    wanted[[3, 4, 8]] = np.datetime64(START)
    assert (parsed_times(cells) == wanted).all()
    days = [f"2013-01-{day:02} 05:15" for day in range(40)] * 3  # some of which do not exist
    for part in (days, days[:20]):
        exact = [
            np.datetime64(d, "us") if 0 < int(d[8:10]) < 32 else np.datetime64("NaT") for d in part
        ]
        np.testing.assert_array_equal(parsed_times(part), np.array(exact))
    never = ["now", "today", "NaT", "", None, math.nan, 5, "13/01/2013", object(), pd.NaT, [1]]
    never += ["292277026597-01-01", np.datetime64(2**62, "W")]
    assert np.isnat(parsed_times(never)).all()


# ---- Frames ----

TIMES = np.array(["2013-01-01T05:15", "2013-01-02T00:00", "NaT", "2013-01-04"], "datetime64[s]")
KEYS = ["EWR", "JFK", None, "EWR"]
USERS = [7, 8, 9, 7]
VALUES = [1.5, np.nan, 2.0, -3.0]
COLUMNS = EventColumns("time", "key", "user", "value")


def frames() -> dict[str, Any]:
    plain = {"time": TIMES, "key": np.array(KEYS, object), "user": USERS, "value": VALUES}
    frame = pd.DataFrame(plain)
    table = pa.Table.from_pandas(frame)
    text = [None if np.isnat(t) else str(t) for t in TIMES]
    zoned = frame.assign(time=frame["time"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"))
    arrow = frame.assign(
        time=frame["time"].astype(pd.ArrowDtype(pa.timestamp("ms"))),
        key=frame["key"].astype(pd.ArrowDtype(pa.string())),
        user=frame["user"].astype(pd.ArrowDtype(pa.int64())),
        value=frame["value"].astype("Float64"),
    )
    named = frame.assign(user=["7", "8", "9", "7"], key=frame["key"].astype("category"))
    return {
        "arrays": plain,
        "lists": {**plain, "time": text, "key": KEYS, "value": [1.5, None, "2", -3]},
        "texts": {**plain, "time": np.array(["x" if t is None else t for t in text])},
        "pandas": frame,
        "pandas, text": frame.assign(time=text, user=frame["user"].astype("Int32")),
        "pandas, objects": frame.astype(object),
        "pandas, zone": zoned,
        "pandas, arrow": arrow,
        "pandas, categories": named,
        "series": {name: frame[name] for name in frame},
        "table": table,
        "table, zone": pa.Table.from_pandas(zoned),
        "table, dictionary": table.set_column(1, "key", table["key"].dictionary_encode()),
        "batch": table.to_batches()[0],
        "chunks": pa.concat_tables([table.slice(0, 1), table.slice(1)]),
        "float users": frame.assign(user=frame["user"].astype(float)),
        "unsigned users": frame.assign(user=frame["user"].astype("uint64")),
    }


@pytest.mark.parametrize("name", list(frames()))
def test_frames(name: str) -> None:
    days = periods_of(START, "1D", 3)
    found = read_events(frames()[name], COLUMNS, days, {"EWR": 0, "JFK": 1})
    assert found.places.tolist() == [0, 1, -1, -1]
    assert found.keys.tolist() == [0, 1, -1, 0]
    assert found.users is not None and found.users.tolist() == USERS
    np.testing.assert_array_equal(found.values, VALUES)


@pytest.mark.parametrize("kind", ["Datetime", "Date", "String", "zone"])
def test_frames_of_polars(kind: str) -> None:
    pl = pytest.importorskip("polars", reason="polars is optional")
    frame = pl.from_pandas(pd.DataFrame(frames()["arrays"]))
    if kind == "Date":
        frame = frame.with_columns(pl.col("time").cast(pl.Date), pl.col("user").cast(pl.String))
    if kind == "String":
        text = [None if np.isnat(t) else str(t) for t in TIMES]
        frame = frame.with_columns(pl.Series("time", text), pl.col("key").cast(pl.Categorical))
    if kind == "zone":
        frame = frame.with_columns(pl.col("time").dt.replace_time_zone("UTC"))
    days = periods_of(START, "1D", 3)
    found = read_events(frame, COLUMNS, days, {"EWR": 0, "JFK": 1})
    assert found.places.tolist() == [0, 1, -1, -1]
    assert found.keys.tolist() == [0, 1, -1, 0]
    assert found.users is not None and found.users.tolist() == USERS
    np.testing.assert_array_equal(found.values, VALUES)
    with pytest.raises(TypeError, match="data frame in memory"):
        read_events(frame.lazy(), COLUMNS, days, {})


@pytest.mark.parametrize("dates", [pa.date32(), pa.date64()])
def test_dates_of_arrow(dates: Any) -> None:
    table = pa.table({"time": pa.array([date(2013, 1, 2), None], dates), "key": ["a", "a"]})
    days = periods_of(START, "1D", 3)
    for frame in (table, table.to_batches()[0]):
        found = read_events(frame, EventColumns("time", "key", None, None), days, {"a": 0})
        assert found.places.tolist() == [1, -1]
        assert found.users is None and found.values is None


@pytest.mark.parametrize("empty", [{}, pd.DataFrame(), pa.table({})])
def test_columns_must_be_there_once(empty: Any) -> None:
    days = periods_of(START, "1D", 3)
    with pytest.raises(ValueError, match="must have one column 'time', got 0 of that name"):
        read_events(empty, COLUMNS, days, {})
    twice = pd.DataFrame([[1, 2]], columns=["time", "time"])
    with pytest.raises(ValueError, match="got 2 of that name"):
        read_events(twice, COLUMNS, days, {})


def test_a_missing_column_is_told_with_the_others_unless_they_may_be_a_row() -> None:
    days = periods_of(START, "1D", 3)
    columns = EventColumns("time", "key", "user", None)
    with pytest.raises(ValueError, match=r"'user', got 0 .* among 'time', 'key', 'who': user= is"):
        read_events({"time": [], "key": [], "who": []}, columns, days, {})
    rowlike = [{"2013-01-01": [], "Ann": []}, {"time": [], "key": [], "17": []}]
    for names in rowlike:  # a file without a header, whose first row became the names
        with pytest.raises(ValueError, match="got 0 of that name: ") as error:
            read_events(names, columns, days, {})
        assert "Ann" not in str(error.value) and "17" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("time", np.arange(4), "times must be times or text, as the start is, got dtype int64"),
        ("time", np.zeros(4, "m8[s]"), "times must be times or text"),
        ("time", np.zeros(4, "M8[M]"), "times must have a unit from 'W' to 'as'"),
        ("key", np.zeros(4, "M8[s]"), "keys must be text, integers or bool"),
        ("user", np.zeros(4, "M8[s]"), "users must be integers or text"),
        ("user", np.ones(4, bool), "users must be integers or text"),
        ("value", np.array(["1"] * 4, "S1"), "values must be numbers"),
        ("value", np.zeros(4, complex), "values must be numbers"),
        ("value", np.zeros((4, 1)), "column 'value' must have one dimension, got 2"),
        ("value", [1.0] * 5, "the columns of events must have one length, got"),
    ],
)
def test_wrong_columns_are_refused(name: str, column: Any, message: str) -> None:
    days = periods_of(START, "1D", 3)
    with pytest.raises((TypeError, ValueError)) as error:
        read_events({**frames()["arrays"], name: column}, COLUMNS, days, {})
    assert message in str(error.value)
    with pytest.raises(TypeError, match="times must be numbers, as the start is"):
        read_events(frames()["arrays"], COLUMNS, periods_of(0, 1, 3), {})


@pytest.mark.parametrize("start", [START, 0])
def test_columns_without_events_are_of_any_dtype(start: Any) -> None:
    """A frame that was made of empty lists has floats: refused, it told that nobody came."""
    names = ["time", "key", "user", "value"]
    frames = [
        pd.DataFrame({name: [] for name in names}, dtype=np.float64),
        pd.DataFrame({name: np.zeros(0, "timedelta64[s]") for name in names}),
        pa.table({name: pa.array([], pa.null()) for name in names}),
        {name: np.zeros(0, np.bool_) for name in names},
    ]
    periods = periods_of(start, "1D" if start else 1, 3)
    for frame in frames:
        found = read_events(frame, EventColumns(*names), periods, {"a": 0})
        assert found.places.size == found.keys.size == 0
        assert found.users is not None and found.users.size == 0
        assert found.values is not None and found.values.size == 0
    with pytest.raises(ValueError, match="one column 'key'"):
        read_events({"time": []}, EventColumns(*names), periods, {"a": 0})
