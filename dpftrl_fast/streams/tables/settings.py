# SPDX-License-Identifier: Apache-2.0
"""Declared facts of a table over time: keys, periods, the unit of privacy, and the bounding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from inspect import signature
from typing import Any, Literal, TypeAlias, get_args

from dpftrl_fast._validate import choice, integer, optional, positive_integer, real, shown
from dpftrl_fast.accounting import MinSeparation, Participation, SinglePass
from dpftrl_fast.streams.tables.events import EventColumns
from dpftrl_fast.streams.tables.periods import Periods, periods_of
from dpftrl_fast.tables.values import category_form

#: What neighbours differ in: one event, a user's events of one period, or all events of a user.
Unit: TypeAlias = Literal["event", "user-period", "user"]
#: Running totals, totals of single periods, or of the last `window` periods.
Figures: TypeAlias = Literal["running", "period", "window"]
#: An event of a closed period is dropped, or counts in the first open one.
Late: TypeAlias = Literal["drop", "next"]

#: Periods of a table without a declared end: 2,870 years of days, or 119 of hours.
NO_END = 1 << 20
#: A value is a whole number of these parts of half the width of its bounds.
PARTS = 1 << 16
# Sums of whole numbers are exact in float64 up to here.
_LARGEST_SUM = 1 << 53
_MOST_KEYS, _MOST_EVENTS = 1 << 24, 1 << 20


@dataclass(frozen=True)
class CounterSettings:
    """Public facts of a table, checked; `size` keys, declared or spare.

    `low` and `high` are the bounds of values, None where only events are counted.
    """

    periods: Periods
    columns: EventColumns
    size: int
    unit: Unit
    user_periods: int | None
    user_gap: int
    keys_per_period: int
    events_per_key: int
    low: float | None
    high: float | None
    figures: Figures
    window: int | None
    late: Late

    # ---- Privacy ----

    @property
    def participation(self) -> Participation:
        """Participation of a unit: a step is a period."""
        if self.user_periods is None:
            return SinglePass(self.periods.count)
        return MinSeparation(self.periods.count, self.user_periods, self.user_gap)

    @property
    def clip_norm(self) -> float:
        """L2 norm of the contribution of one unit to one period, rounded up.

        In each of at most m keys at most c events, with values of at most one half-width from the
        centre: sqrt(m) c, or sqrt(2 m) c with values. All are whole numbers of parts and their sums
        are exact, so that no margin is needed for rounding.
        """
        keys = min(self.keys_per_period, self.size)
        square = keys * self.events_per_key**2 * (1 if self.low is None else 2)
        root = math.isqrt(square)
        return float(root) if root * root == square else math.nextafter(square**0.5, math.inf)

    @property
    def most_events(self) -> int:
        """Events of one key and period that count at most, so that all sums are exact."""
        return _LARGEST_SUM // (self.periods.count * (1 if self.low is None else PARTS))

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """Keys of a user and period, and events in each, that count; None where nobody is named."""
        if self.unit == "event":
            return None, None
        return self.keys_per_period, self.events_per_key

    # ---- Values ----

    @property
    def centre(self) -> float:
        """The middle of the bounds of values."""
        return 0.0 if self.low is None or self.high is None else self.low / 2 + self.high / 2

    @property
    def half_width(self) -> float:
        """Half the width of the bounds of values."""
        return 0.0 if self.low is None or self.high is None else self.high / 2 - self.low / 2

    # ---- Words ----

    @property
    def unit_words(self) -> str:
        """The unit of privacy in words."""
        if self.unit == "event":
            return "one event"
        if self.unit == "user-period":
            return "all events of one user that count in one period"
        apart = "" if self.user_gap == 1 else f", {self.user_gap} or more apart"
        return f"all events of one user, who counts in at most {self.user_periods} periods{apart}"

    @property
    def bounding_words(self) -> str:
        """The contribution bounding in words."""
        values = "" if self.low is None else f", values clipped to [{self.low:g}, {self.high:g}]"
        if self.unit == "event":
            return f"each event counts in one key and period{values}"
        keys, events = self.keys_per_period, self.events_per_key
        return (
            f"in a period a user counts in at most {keys} key{'s' * (keys > 1)}, with at most "
            f"{events} event{'s' * (events > 1)} in each{values}; what is beyond is dropped, "
            "and the intervals do not cover it"
        )

    @property
    def counts_users(self) -> bool:
        """Whether a count is one of users: each counts once in a key and period."""
        return self.unit != "event" and self.events_per_key == 1

    @property
    def figures_words(self) -> str:
        """The figures that are released, in words."""
        kind = "counts" if self.low is None else "counts and sums"
        return {
            "running": f"running totals ({kind} since the start)",
            "period": f"{kind} of each period",
        }.get(self.figures, f"{kind} of the last {self.window} periods")

    # ---- State ----

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-able data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> CounterSettings:
        """Return the settings of a dictionary of :meth:`to_dict`."""
        given = {field.name: d[field.name] for field in fields(cls)}
        given["periods"] = Periods.from_dict(d["periods"])
        given["columns"] = EventColumns(**d["columns"])
        return cls(**given)


def counter_settings(
    keys: int,
    periods: int | None,
    *,
    start: Any,
    period: Any,
    unit: Unit = "event",
    user_periods: int | None = None,
    user_gap: int = 1,
    keys_per_period: int = 1,
    events_per_key: int = 1,
    values: tuple[float, float] | None = None,
    spare_keys: int = 0,
    figures: Figures = "running",
    window: int | None = None,
    late: Late = "drop",
    time: str = "time",
    key: str = "key",
    user: str = "user",
    value: str = "value",
) -> CounterSettings:
    """Return the settings of a table; see `PrivateCounter`. `keys` is their number.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described there.

    Examples
    --------
    >>> found = counter_settings(
    ...     3, 365, start=0, period=1, unit="user", user_periods=30, keys_per_period=2
    ... )
    >>> round(found.clip_norm, 4), found.participation.most_uses()
    (1.4142, 30)
    """
    kind = choice("unit", unit, get_args(Unit))
    if (kind == "user") != (user_periods is not None):
        raise ValueError(
            "user_periods must be given with unit='user', and only with it: in so many periods a "
            f"user counts; got unit={kind!r} and user_periods={shown(user_periods)}"
        )
    low = high = None
    if values is not None:
        low, high = _bounds(values)
    shown_figures = choice("figures", figures, get_args(Figures))
    count = periods_of(start, period, NO_END if periods is None else periods)
    width = checked_window(shown_figures, window, count.count)
    settings = CounterSettings(
        periods=count,
        columns=EventColumns(
            _name("time", time),
            _name("key", key),
            None if kind == "event" else _name("user", user),
            None if values is None else _name("value", value),
        ),
        size=keys + integer("spare_keys", spare_keys, 0, _MOST_KEYS),
        unit=kind,
        user_periods=optional(positive_integer, "user_periods", user_periods),
        user_gap=positive_integer("user_gap", user_gap),
        keys_per_period=integer("keys_per_period", keys_per_period, 1, _MOST_KEYS),
        events_per_key=integer("events_per_key", events_per_key, 1, _MOST_EVENTS),
        low=low,
        high=high,
        figures=shown_figures,
        window=width,
        late=choice("late", late, get_args(Late)),
    )
    given = (settings.user_gap, settings.keys_per_period, settings.events_per_key)
    if kind == "event" and given[1:] != (1, 1):
        raise ValueError(
            "keys_per_period and events_per_key must be 1 with unit='event', got "
            f"{given[1]} and {given[2]}: they bound what a user contributes"
        )
    if kind != "user" and given[0] != 1:
        raise ValueError(f"user_gap is for unit='user', got {given[0]} with unit={kind!r}")
    return settings


def settings_of(keys: int, periods: int | None, options: Mapping[str, Any]) -> CounterSettings:
    """Return `counter_settings` of the options of a `PrivateCounter`.

    Raises
    ------
    TypeError, ValueError
        Also if there is no option of a name.
    """
    known = list(signature(counter_settings).parameters)[2:]
    for name in options:
        if name not in known:
            raise TypeError(
                f"PrivateCounter takes no argument {name!r}; its options are {', '.join(known)}"
            )
    return counter_settings(keys, periods, **options)


def checked_window(figures: Figures, window: Any, periods: int) -> int | None:
    """Return the number of periods of a window, None for other figures.

    Raises
    ------
    TypeError, ValueError
        If it is given without need, or missing, or not in [1, periods].
    """
    if (figures == "window") != (window is not None):
        raise ValueError(
            f"window must be given with figures='window', and only with it, got figures="
            f"{figures!r} and window={shown(window)}"
        )
    return None if window is None else integer("window", window, 1, periods)


def checked_keys(keys: Any) -> dict[str, str | int]:
    """Return declared keys by the text that stands for each, in order.

    Raises
    ------
    TypeError, ValueError
        If they are not text or integers, there is none, or one is there twice.

    Examples
    --------
    >>> checked_keys(["EWR", 7])
    {'EWR': 'EWR', '7': 7}
    """
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise TypeError(f"keys must be a list of text or integers, got {shown(keys)}")
    found: dict[str, str | int] = {}
    for given in keys:
        form = category_form(given)
        whole = form is not None and form.lstrip("-").isdigit()
        if form is None or not (isinstance(given, str) or (whole and hasattr(given, "__index__"))):
            raise TypeError(f"keys must be text or integers, got {shown(given)}")
        if form in found:
            raise ValueError(f"keys must be distinct as text, got {shown(given)} twice")
        found[form] = form if isinstance(given, str) else int(form)
    if not 0 < len(found) <= _MOST_KEYS:
        raise ValueError(f"keys must hold 1 to 2^24 keys, got {len(found)}")
    return found


def _name(role: str, name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{role} must be the name of a column, got {shown(name)}")
    return name


def _bounds(values: Any) -> tuple[float, float]:
    expected = "values must be (low, high): two finite numbers, low below high"
    if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != 2:
        raise ValueError(f"{expected}, got {shown(values)}")
    low, high = (
        real(f"the {end} bound of values", given, least=-1e100, most=1e100)
        for end, given in zip(("low", "high"), values, strict=True)
    )
    if not high / 2 - low / 2 >= 1e-100:
        raise ValueError(f"{expected}, at least 2e-100 apart, got {shown(values)}")
    return low, high
