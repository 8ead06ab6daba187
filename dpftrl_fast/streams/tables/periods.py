# SPDX-License-Identifier: Apache-2.0
"""`Periods`: the declared periods of a table over time, and the period of every event."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta, timezone
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import integer, real, shown

Ints = NDArray[np.int64]
Kind: TypeAlias = Literal["time", "integer", "float"]

#: Most periods of a table: errors of windows are computed for so many steps.
MOST_PERIODS = 2**26

_LARGEST = 2**62  # microseconds, or numbers, of any edge
_MICROSECONDS = {
    "W": 604_800_000_000,
    "D": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1000,
    "us": 1,
}
_NAMES = {
    "W": "week",
    "D": "day",
    "h": "hour",
    "m": "minute",
    "s": "second",
    "ms": "millisecond",
    "us": "microsecond",
}
_FINER = {"ns": 10**3, "ps": 10**6, "fs": 10**9, "as": 10**12}  # of them in a microsecond
_LENGTH = re.compile(r"(\d{1,9})?\s*(W|D|h|min|s|ms|us|w|d|H)")
_SPELLINGS = {"min": "m", "w": "W", "d": "D", "H": "h"}
_PLAIN = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?", re.ASCII)
_BLOCK = 4096  # texts that are parsed at once
_UNITS = "a unit from 'W' to 'as', such as datetime64[us]"


@dataclass(frozen=True)
class Periods:
    """`count` periods of one length: [start + i length, start + (i + 1) length), i = 0, 1, ...

    Attributes
    ----------
    kind : {"time", "integer", "float"}
        Times are microseconds since 1970; numbers are exact if start and length are integers.
    start, length : int or float
    count : int

    Examples
    --------
    >>> days = periods_of("2013-01-01", "1D", 365)
    >>> days.places(np.array(["2013-01-02T23:59", "2014-01-01", "NaT"], "datetime64[m]")).tolist()
    [1, -1, -1]
    >>> days.ended("2013-01-03"), days.edges(0, 1).astype(str).tolist()[1]
    (2, '2013-01-02T00:00:00.000000')
    """

    kind: Kind
    start: Any
    length: Any
    count: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-able data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Periods:
        """Return the periods of a dictionary of :meth:`to_dict`."""
        return cls(d["kind"], d["start"], d["length"], d["count"])

    def places(self, times: NDArray[Any]) -> Ints:
        """Return the number of each event's period, -1 outside of all and for an invalid time.

        Parameters
        ----------
        times : ndarray
            Of datetime64, of a unit of weeks or finer, for times; else of integers or floats.

        Raises
        ------
        TypeError
            If the dtype is another one: a public fact.
        """
        if self.kind == "time":
            if times.dtype.kind != "M" or np.datetime_data(times.dtype)[0] in ("generic", "Y", "M"):
                raise TypeError(f"times must have {_UNITS}, got dtype {times.dtype}")
            return self._of_times(times)
        if times.dtype.kind not in "iuf":
            raise TypeError(f"times must be numbers, as the start is, got dtype {times.dtype}")
        if self.kind == "float":
            return self._of_floats(times.astype(np.float64))
        if times.dtype.kind == "f":
            whole = np.floor(times.astype(np.float64))
            within = np.abs(whole) <= _LARGEST  # False for NaN
            return np.where(within, self._of_ticks(np.where(within, whole, 0).astype(np.int64)), -1)
        if times.dtype.kind == "u":  # those beyond the integers of 64 bits are beyond the end, too
            times = np.minimum(times.astype(np.uint64), np.uint64(np.iinfo(np.int64).max))
        return self._of_ticks(times.astype(np.int64))

    def _of_times(self, times: NDArray[Any]) -> Ints:
        unit, number = np.datetime_data(times.dtype)
        if number != 1:
            times = times.astype(f"datetime64[{unit}]")
        ticks = times.astype(np.int64)
        if unit in _FINER:
            never = np.isnat(times)
            return np.where(never, -1, self._of_ticks(ticks // _FINER[unit]))
        return self._of_ticks(ticks, _MICROSECONDS[unit])

    def _of_ticks(self, ticks: Ints, size: int = 1) -> Ints:
        """Return the periods of `ticks` of `size` each; those outside are found before products."""
        end = self.start + self.length * self.count
        low, high = -(-self.start // size), -(-end // size)  # first ticks from there on
        inside = (ticks >= low) & (ticks < high)
        offset = np.where(inside, ticks - low, 0) * size + (low * size - self.start)
        return np.where(inside, offset // self.length, -1)

    def _of_floats(self, times: NDArray[np.float64]) -> Ints:
        with np.errstate(all="ignore"):
            inside = (times >= self.start) & (times < self._edge(self.count))
            guess = np.floor((np.where(inside, times, self.start) - self.start) / self.length)
        found = np.clip(guess, 0, self.count - 1).astype(np.int64)
        # The quotient is rounded: the edges decide.
        found -= times < self._edge(found)
        found += times >= self._edge(found + 1)
        return np.where(inside, found, -1)

    def _edge(self, place: Any) -> Any:
        return self.start + place * self.length

    def ended(self, until: Any, name: str = "until") -> int:
        """Return how many periods end at `until` or before; `name` is of the argument."""
        at = self._at(until, name)
        if self.kind == "float":
            return int(np.searchsorted(self.edges(1, self.count), at, "right"))
        return int(min(max((math.floor(at) - self.start) // self.length, 0), self.count))

    def closed_by(self, until: Any) -> int:
        """Return how many periods a release at `until` has closed, all for None.

        Raises
        ------
        TypeError, ValueError
            If `until` is no time, or a period or more past the declared end.
        """
        if until is None:
            return self.count
        if not self._at(until, "until") < self._edge(self.count + 1):
            raise ValueError(
                f"until must be less than one period past {self.edge_words(self.count)}, the end "
                f"of the table, got {shown(until)}: nothing is closed"
            )
        return self.ended(until)

    def is_after(self, until: Any, place: int) -> bool:
        """Return whether `until` is after the start of a period; None is."""
        return until is None or bool(self._at(until, "until") > self._edge(place))

    def _at(self, until: Any, name: str) -> Any:
        """Return a time as the edges are: microseconds, or a number."""
        if self.kind == "time":
            return _moment(name, until, exact=False)
        if self.kind == "integer" and not isinstance(until, float):
            return integer(name, until)
        return real(name, until)

    def edges(self, first: int, last: int) -> NDArray[Any]:
        """Return the starts of periods first .. last, the last of which is the end of one."""
        places = np.arange(first, last + 1)
        if self.kind == "float":
            return np.asarray(self._edge(places.astype(np.float64)))
        edges: Ints = self.start + places * self.length
        return edges.astype("datetime64[us]") if self.kind == "time" else edges

    def edge_words(self, place: int) -> str:
        """Return the start of a period, which is the end of the one before, as text."""
        edge = self._edge(place)
        if self.kind != "time":
            return str(edge)
        text = str(np.datetime64(edge, "us")).removesuffix(".000000")
        return text.removesuffix("T00:00:00")

    @property
    def words(self) -> str:
        """The periods in a few words."""
        length = f"{self.length:g}"
        if self.kind == "time":
            for unit, size in _MICROSECONDS.items():
                if self.length % size == 0:
                    times = self.length // size
                    length = f"{times} {_NAMES[unit]}{'s' * (times > 1)}"
                    break
        return f"{self.count} periods of {length} from {self.edge_words(0)}"


def periods_of(start: Any, period: Any, count: Any) -> Periods:
    """Return the declared periods.

    Parameters
    ----------
    start : datetime64, datetime, date, str, int or float
        Start of the first period; times with a zone are taken in UTC.
    period : str, timedelta64, timedelta, int or float
        Length: for times "1D", "1h", "15min", "30s", "1W" and multiples; for numbers a number.
    count : int
        Number of periods, at most 2^26.

    Raises
    ------
    TypeError, ValueError
        If they are not that, or no whole microseconds.

    Examples
    --------
    >>> periods_of(0, 10, 3).places(np.array([-0.5, 0.0, 29.9, 30.0, np.nan])).tolist()
    [-1, 0, 2, -1, -1]
    """
    number = integer("periods", count, 1, MOST_PERIODS)
    if _is_number(start) and isinstance(period, (str, timedelta, np.timedelta64)):
        raise TypeError(
            "start and period must be a time and a length of time, or two numbers, got "
            f"start={shown(start)} and period={shown(period)}"
        )
    if _is_number(start):
        kind: Kind = "integer" if _is_integer(start) and _is_integer(period) else "float"
        if kind == "integer":
            first: Any = integer("start", start, -_LARGEST, _LARGEST)
            length: Any = integer("period", period, 1)
        else:
            first, length = real("start", start), real("period", period, above=0.0)
            ends = [first + place * length for place in (0, 1, number - 1, number)]
            if not (math.isfinite(ends[3]) and ends[0] < ends[1] and ends[2] < ends[3]):
                raise ValueError(
                    f"period must be so large that all edges are distinct floats, got {length!r} "
                    f"from {first!r}"
                )
    else:
        kind, first, length = "time", _moment("start", start), _length(period)
    if kind != "float" and first + length * number > _LARGEST:
        raise ValueError(f"the declared end must be at most 2^62, got {number} of {shown(period)}")
    return Periods(kind, first, length, number)


def parsed_times(cells: list[Any]) -> NDArray[np.datetime64]:
    """Return cells (text, dates, datetimes) as datetime64[us], NaT where a cell is no time.

    Examples
    --------
    >>> parsed_times(["2013-01-01", "2013-01-01T05:00Z", "now", None, 7]).astype(str).tolist()
    ['2013-01-01T00:00:00.000000', '2013-01-01T05:00:00.000000', 'NaT', 'NaT', 'NaT']
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning would reveal a value
        texts = [*{cell for cell in cells if type(cell) is str}]
        known: dict[str, int] = {}
        for start in range(0, len(texts), _BLOCK):
            known |= _parsed_texts(texts[start : start + _BLOCK])
        every = (known[cell] if type(cell) is str else _parsed(cell) for cell in cells)
        return np.fromiter(every, np.int64, len(cells)).view("datetime64[us]")


_NEVER = int(np.iinfo(np.int64).min)  # NaT


def _parsed_texts(texts: list[str]) -> dict[str, int]:
    """Return the time of each text: one by one only where a plain one is no time."""
    plain = [text for text in texts if _PLAIN.fullmatch(text)]
    try:
        times = np.array(plain, "datetime64[us]").astype(np.int64).tolist()
    except ValueError:  # a day that does not exist
        plain, times = [], []
    found = dict(zip(plain, times, strict=True))
    return found | {text: _parsed(text) for text in texts if text not in found}


def _parsed(cell: Any) -> int:
    try:
        found = _microseconds(cell)
    except Exception:  # of the cell's own class too
        return _NEVER
    return found if -_LARGEST <= found <= _LARGEST else _NEVER


def _microseconds(cell: Any, exact: bool = False) -> int:
    """Return a time as microseconds since 1970, rounded down; ValueError if it is none."""
    if hasattr(cell, "to_datetime64"):  # of pandas, in UTC
        cell = cell.to_datetime64()
    elif isinstance(cell, datetime) and cell.tzinfo is not None:
        cell = cell.astimezone(timezone.utc).replace(tzinfo=None)
    elif isinstance(cell, str):
        cell = str.strip(cell)
        if not cell[:1].isdigit():  # "now", which NumPy reads
            raise ValueError
        if cell[-1:] in "Zz" or (cell[-6:-5] in ("+", "-") and ":" in cell):
            return _microseconds(datetime.fromisoformat(cell))
    if not isinstance(cell, (str, date, np.datetime64)):
        raise ValueError
    moment = np.datetime64(cell)
    unit, number = np.datetime_data(moment.dtype)
    if np.isnat(moment) or unit == "generic":
        raise ValueError
    if unit in ("Y", "M"):
        moment, unit, number = moment.astype("datetime64[D]"), "D", 1
    ticks = int(moment.astype(np.int64)) * number
    if unit not in _FINER:
        return ticks * _MICROSECONDS[unit]
    if exact and ticks % _FINER[unit]:
        raise ValueError
    return ticks // _FINER[unit]


def _moment(name: str, value: Any, *, exact: bool = True) -> int:
    with warnings.catch_warnings(), suppress(Exception):  # of the value's own class too
        warnings.simplefilter("ignore")
        found = _microseconds(value, exact)
        if -_LARGEST <= found <= _LARGEST:
            return found
    raise ValueError(
        f"{name} must be a time in whole microseconds, such as '2013-01-01', got {shown(value)}"
    )


def _length(period: Any) -> int:
    expected = (
        "period must be a length of time in whole microseconds, such as '1D', '1h', '15min' or a "
        "timedelta (calendar months differ in length)"
    )
    found, exact = 0, True
    if isinstance(period, str) and (match := _LENGTH.fullmatch(period)):
        unit = _SPELLINGS.get(match[2], match[2])
        found = int(match[1] or 1) * _MICROSECONDS[unit]
    elif isinstance(period, (timedelta, np.timedelta64)):
        length = np.timedelta64(period)
        unit, number = np.datetime_data(length.dtype)
        ticks = 0 if np.isnat(length) else int(length.astype(np.int64)) * number
        if unit in _MICROSECONDS:
            found = ticks * _MICROSECONDS[unit]
        elif unit in _FINER:
            found, exact = ticks // _FINER[unit], ticks % _FINER[unit] == 0
    if not (found > 0 and exact):
        raise ValueError(f"{expected}, got {shown(period)}")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_, np.timedelta64))


def _is_integer(value: Any) -> bool:
    return (
        _is_number(value)
        and not isinstance(value, (float, np.floating))
        and hasattr(value, "__index__")
    )
