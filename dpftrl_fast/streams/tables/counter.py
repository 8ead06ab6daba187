# SPDX-License-Identifier: Apache-2.0
"""`PrivateCounter`: private counts and sums of events by key and period, under one guarantee."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dpftrl_fast._validate import shown
from dpftrl_fast.accounting.planner.choice import MechanismChoice
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.streams.tables.events import read_events
from dpftrl_fast.streams.tables.figures import Floats
from dpftrl_fast.streams.tables.findings import event_findings
from dpftrl_fast.streams.tables.kept_table import KeptTable
from dpftrl_fast.streams.tables.mechanism import mechanism_of
from dpftrl_fast.streams.tables.period_sums import of_each_period, rows_of, sums_of
from dpftrl_fast.streams.tables.settings import checked_keys, settings_of

# The order of mechanisms is that of sqrt(zeta) times their error, for every budget.
_BUDGET = (1.0, 1e-6)


class PrivateCounter(KeptTable):
    """Private counts, and sums of a value, of events by key and period: a table over time.

    Events come in batches to `add`, which releases nothing. `release` closes the periods that are
    over and returns their figures with standard deviations and intervals. One epsilon covers the
    whole table, all periods and keys.

    Parameters
    ----------
    keys : list of str or int
        The declared keys, public: a figure is released for each of them in every period, whether
        it has events or not. Events of other keys never count. An integer and the text of its
        digits are one key.
    periods : int or None
        Declared number of periods, for which epsilon is stated: public, chosen before the data are
        seen, at most 2^26. None declares no end: 2^20 periods, which is 2,870 years of days. The
        totals of the first year then have 1.13 times the noise of a table of a year of days.
    noise_multiplier : float
        Standard deviation of the noise over the clip norm (sigma). `calibrate` chooses it for an
        epsilon.
    start : datetime64, datetime, str, int or float
        Start of the first period. With a number, times are numbers.
    period : str, timedelta64, timedelta, int or float
        Length of a period: "1D", "1h", "15min", "1W", or a number. Months are not of one length.
    unit : {"event", "user-period", "user"}, default "event"
        What neighbours differ in: one event; all events of one user that count in one period; or
        all events of one user, who counts in at most `user_periods` periods.
    user_periods, user_gap : int, default None and 1
        With unit="user": the most periods in which a user counts, the first ones; and the fewest
        periods from one of them to the next, 1 for no gap between.
    keys_per_period, events_per_key : int, default 1
        In one period a user counts in at most so many keys, and with at most so many events in
        each: those that arrive first. With the default of one event each a count is one of users.
        Both are 1 with unit="event".
    values : (low, high), optional
        Public bounds of the column of values, to which each value is clipped; sums of values are
        then released beside the counts. A value that is not a finite number counts as 0, clipped as
        any other. Values are rounded to 2^-16 of half the width.
    spare_keys : int, default 0
        Keys that `declare` may add later.
    figures : {"running", "period", "window"}, default "running"
        The figures that `release`, `table` and `plot` return, and that the mechanism is chosen for:
        totals from the first period on ("running"), counts of each period by itself ("period"), or
        totals of the last `window` periods. `table` and `plot` show the others on request, with
        their own errors.
    window : int, optional
        Periods of a window, with figures="window".
    late : {"drop", "next"}, default "drop"
        An event whose period is closed is dropped, or counts in the first period that is open.
    time, key, user, value : str, default "time", "key", "user", "value"
        Names of the columns. `user` is not read with unit="event", `value` not without `values`.
    mechanism : "auto", "tree" or Mechanism, optional
        In place of the one for the figures. With the noise multiplier of a plan pass the plan's.
    seed : None, int or bytes, optional
        For tests only: the figures are then `reproducible`, not private.
    rounds, threads
        As for `TreeNoise`.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Notes
    -----
    **Formal guarantee.** Neighbours differ in one unit, all of whose contributions are removed. All
    figures of all declared periods together have the stated epsilon. That a user came is private:
    surplus contributions are dropped without a word, and no message or attribute depends on the
    events. With late="next" a period of unit="user-period" is the one in which events count. The
    caller must pass each event once (with a label for each batch a repeated one is skipped), name
    users truly, and close periods by a public clock. Low-order bits of floating-point numbers are
    not covered.

    **Noise.** A unit contributes to one period at most c events with values of at most one
    half-width from the centre of the bounds, in each of m keys: norm sqrt(m) c, or with values
    sqrt(2 m) c, half of the budget (of mu squared) for each. Counts have noise of that norm times
    sigma times the mechanism's factor; sums sqrt(centre^2 + half-width^2) times as much, which is
    at most ``max(|low|, |high|)``. Sums are of whole numbers and exact, up to 2^53 over `periods`
    events in one period and key (2^37 with values); more are cut.

    The object holds un-noised sums, user ids and the key: it is a secret, and is not pickled;
    `save` keeps it in a folder. Only tables and pictures may be released. Calls from several
    threads take turns.

    Examples
    --------
    >>> import dpftrl_fast as dpf
    >>> days = dpf.PrivateCounter.calibrate(
    ...     ["EWR", "JFK"], 365, epsilon=1.0, delta=1e-6, start="2013-01-01", period="1D",
    ...     key="origin",
    ... )
    >>> days.add({"time": ["2013-01-01T05:15", "2013-01-01T05:29"], "origin": ["EWR", "LGA"]})
    True
    >>> table = days.release(until="2013-01-02")
    >>> len(table), *days.std()[[0, -1]].round(1).tolist()
    (2, 6.9, 12.9)
    >>> days.epsilon(1e-6) <= 1.0
    True
    """

    def __init__(
        self,
        keys: Iterable[str | int],
        periods: int | None,
        noise_multiplier: float,
        *,
        start: Any,
        period: Any,
        mechanism: MechanismChoice | None = None,
        seed: Seed = None,
        rounds: int = 12,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        declared = checked_keys(keys)
        settings = settings_of(
            len(declared), periods, {"start": start, "period": period, **options}
        )
        plan = PrivacyPlan(
            clip_norm=settings.clip_norm,
            noise_multiplier=noise_multiplier,
            participation=settings.participation,
            mechanism=mechanism_of(settings, mechanism, *_BUDGET),
        )
        self._begin(settings, plan, declared, seed=seed, rounds=rounds, threads=threads)

    @classmethod
    def calibrate(
        cls,
        keys: Iterable[str | int],
        periods: int | None,
        *,
        epsilon: float,
        delta: float,
        start: Any,
        period: Any,
        mechanism: MechanismChoice | None = None,
        seed: Seed = None,
        rounds: int = 12,
        threads: int | None = None,
        **options: Any,
    ) -> PrivateCounter:
        """Return the table with the least noise whose epsilon is at most `epsilon`.

        Parameters
        ----------
        epsilon : float
            Finite and > 0, for neighbours of which one has a unit removed.
        delta : float
            0 < delta < 1.
        keys, periods, start, period, mechanism, seed, rounds, threads
            As for the class.
        **options
            As for the class: unit="event", user_periods=None, user_gap=1, keys_per_period=1,
            events_per_key=1, values=None, spare_keys=0, figures="running", window=None,
            late="drop", time="time", key="key", user="user", value="value".

        Examples
        --------
        >>> hours = PrivateCounter.calibrate(
        ...     ["EWR"], 8760, epsilon=1.0, delta=1e-6, start="2013-01-01", period="1h",
        ...     unit="user", user_periods=24, figures="period", user="carrier",
        ... )
        >>> hours.epsilon(1e-6) <= 1.0, hours.std()[0].round(1).item()
        (True, 20.7)
        """
        declared = checked_keys(keys)
        settings = settings_of(
            len(declared), periods, {"start": start, "period": period, **options}
        )
        plan = PrivacyPlan.calibrate(
            epsilon=epsilon,
            delta=delta,
            clip_norm=settings.clip_norm,
            participation=settings.participation,
            mechanism=mechanism_of(settings, mechanism, epsilon, delta),
        )
        found = cls.__new__(cls)
        found._begin(settings, plan, declared, seed=seed, rounds=rounds, threads=threads)
        return found

    # ---- Events ----

    def add(self, events: Any, *, batch: str | None = None) -> bool:
        """Add events, in order of arrival; nothing is released.

        Parameters
        ----------
        events : DataFrame, Table, RecordBatch or mapping
            In memory, of pandas, polars or pyarrow, or a mapping from names to arrays or lists. A
            row is an event. One with an invalid time, key or user does not count; nor does one
            before the start, beyond the declared end, or of a key that is not declared. Events of a
            later period are held until that one is closed. `explain` tells the owner why events do
            not count.
        batch : str, optional
            A public label, such as the date. A batch whose label was added before is skipped, also
            if its events are others: False is returned, and they never count.

        Returns
        -------
        bool
            False if the batch was skipped.

        Raises
        ------
        TypeError, ValueError
            If events lacks a column, or one has a wrong dtype or length, or all periods are closed.
            No value of a row raises. Nothing is then changed.

        Examples
        --------
        >>> days = PrivateCounter(["a"], 365, 4.0, start="2013-01-01", period="1D")
        >>> events = {"time": ["2013-01-01", "2013-01-05", "?"], "key": ["a", "a", "a"]}
        >>> days.add(events, batch="first"), days.add(events, batch="first")
        (True, False)
        """
        label: Any = batch
        if label is not None and not (isinstance(label, str) and label):
            raise TypeError(f"batch must be a text that is not empty, got {shown(batch)}")
        with self._lock:
            self._refuse_unusable()
            places = {form: place for place, form in enumerate(self._keys)}
            found = read_events(events, self._settings.columns, self._settings.periods, places)
            if batch is not None and batch in self._held.labels:
                return False
            self._refuse_over()
            if found.users is not None:
                found = replace(found, users=self._ids.of_numbers(found.users))
            rows = rows_of(found, self._settings, self.periods_closed, self._since)
            held = self._held.plus(rows, batch, self.periods_closed)
            if held.is_long:
                held = held.bounded(*self._settings.limits)
            self._unsaved = self._added = True
            self._held = held  # last: an error before it leaves all events out
            return True

    def declare(self, keys: Iterable[str | int]) -> None:
        """Declare keys in place of spare ones; they count from the next period on.

        Parameters
        ----------
        keys : list of str or int
            From public facts, not from the events. Those that are declared already stay as they
            are. Their events of the present period, and any that were added before, never count.

        Raises
        ------
        TypeError, ValueError
            If they are not keys, or more than the spare ones. Nothing is then changed.

        Examples
        --------
        >>> days = PrivateCounter(["a"], 9, 4.0, start=0, period=1, spare_keys=1)
        >>> _ = days.release(until=3)
        >>> days.declare(["b"])
        >>> len(days.release(until=6)), days.table(keys=["b"])["period_start"].tolist()
        (5, [4, 5])
        """
        given = checked_keys(keys)
        with self._lock:
            self._refuse_unusable()
            fresh = {form: key for form, key in given.items() if form not in self._keys}
            spare = self._settings.size - len(self._keys)
            if len(fresh) > spare:
                raise ValueError(f"keys must be at most the {spare} spare ones, got {len(fresh)}")
            if fresh:
                self._since = [*self._since, *[self.periods_closed + 1] * len(fresh)]
                self._keys = {**self._keys, **fresh}
                self._unsaved = True
                self._write()

    # ---- Releases ----

    def release(self, until: Any = None) -> Any:
        """Close the periods that end at `until` or before, and return their figures.

        Parameters
        ----------
        until : datetime64, datetime, str, int or float, optional
            The time by a public clock, in UTC if it has a zone: never the time of the last event.
            None closes all declared periods: the stream is over. One call may close several.

        Returns
        -------
        DataFrame, or dict of arrays if pandas is not installed
            As `table`, of the periods that were closed by this call, which may be none: with
            figures="running", the default, each `count` is the total from the first period on.
            `table` has all of them, also those of a release that was killed.

        Raises
        ------
        ValueError, TypeError
            If until is no time, or a period or more past the declared end. Nothing is then changed.

        Warns
        -----
        UserWarning
            If a batch was added since the last release, and `until` is not after the end of the
            last closed period: events of closed periods do not count, so run missed days in order.
            This depends on the calls alone. A repeated batch, which `add` skips, does not warn.

        Examples
        --------
        >>> days = PrivateCounter(["a"], 365, 4.0, start="2013-01-01", period="1D")
        >>> len(days.release("2013-01-08T12:00")), len(days.release("2013-01-08T13:00"))
        (7, 0)
        """
        with self._lock:
            self._refuse_unusable()
            count = self.would_close(until)
            self._warn_of_late(until)
            self._write()
            closed = self.periods_closed
            if count:
                self._close_periods(None, count)
            self._added = False
            return self._table(closed)

    def _close_periods(self, sums: Floats | None, count: int) -> None:
        """Close so many periods: their sums are written ahead, or were before."""
        self._interrupted = True
        first = self.periods_closed
        held = self._held.bounded(*self._settings.limits)
        periods = of_each_period(held.rows, first, count)
        found = np.array([sums_of(rows, self._settings, self._guard) for rows in periods])
        call = {"sums": found if sums is None else sums}
        if self._journal is not None:
            self._journal.write_ahead(call)
        self._running.take_all(call["sums"], np.zeros(count, np.int64))
        rest = held.rows.period >= first + count
        self._held = held._replace(rows=held.rows.where(rest))
        if self._journal is not None:
            self._journal.done(self._state)
        self._interrupted = False

    # ---- Facts ----

    def explain(self, events: Any) -> dict[str, int]:
        """Return how many events count, and why others do not: **NOT private**.

        For the owner of the data, before anything is released; nothing is added. "Before bounding"
        is the number of events with a valid time, key and user. Those of them that are beyond the
        bounds of a user are dropped, and no interval covers them: if they are many, figures are too
        low, and fall from period to period with unit="user". Do not choose the bounds by these
        private numbers, but by public knowledge of how often somebody comes.

        Parameters
        ----------
        events : DataFrame, Table, RecordBatch or mapping, or an iterator of them
            As for `add`: all events of the table, since a user's bounds are over all periods.

        Examples
        --------
        >>> days = PrivateCounter(["a"], 365, 4.0, start="2013-01-01", period="1D")
        >>> found = days.explain({"time": ["2013-01-01", "soon", "2012-01-01"], "key": ["a"] * 3})
        >>> found["without a time"], found["outside of the periods"]
        (1, 1)
        """
        places = {form: place for place, form in enumerate(self._keys)}
        batches = events if isinstance(events, Iterator) else [events]
        guard = self._plan.guard() if self._settings.unit == "user" else None
        return event_findings(batches, self._settings, places, guard)

    @property
    def declared(self) -> dict[str, Any]:
        """The declared facts, as JSON-able data."""
        return self._settings.to_dict()

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read."""
        return [name for name in self._settings.columns.to_dict().values() if name is not None]

    @property
    def figures(self) -> str:
        """The figures that are released, in words: running totals, or counts of each period."""
        return self._settings.figures_words

    @property
    def bounding(self) -> str:
        """The contribution bounding, in words."""
        return self._settings.bounding_words

    @property
    def keys(self) -> list[str | int]:
        """The declared keys, in the order of the tables."""
        return list(self._keys.values())

    @property
    def periods(self) -> int:
        """Declared number of periods."""
        return self._settings.periods.count

    @property
    def unit(self) -> str:
        """The unit of privacy, in words."""
        return self._settings.unit_words

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: the figures are not private."""
        return self._running.noise.reproducible

    def promise(self, delta: float, *, replaced: str = "contributions") -> str:
        """Return lines of text: the epsilon at `delta` for both kinds of neighbours, rounded up."""
        lines = super().promise(delta, replaced=replaced).splitlines()
        for i, change in enumerate(("removed", "replaced by another's")):
            words = lines[i].partition(" (neighbours: ")[0]
            lines[i] = f"{words} (neighbours: {self.unit}, {change})"
        return "\n".join(lines)

    def describe(self, delta: float) -> str:
        """Return lines of text: epsilon at `delta`, unit, figures, bounding and mechanism.

        Examples
        --------
        >>> days = PrivateCounter(
        ...     ["a"], 365, 4.0, start="2013-01-01", period="1D", unit="user", user_periods=30
        ... )
        >>> print(days.describe(1e-6).splitlines()[0])
        epsilon 12.8 at delta 1e-06 (neighbours: all events of one user, who counts in at most 30 \
periods, removed)
        """
        facts = self._settings
        spare = facts.size - len(self._keys)
        return "\n".join(
            [
                self.promise(delta),
                f"{facts.periods.words}, {len(self._keys)} keys"
                + f" and {spare} spare" * (spare > 0),
                f"figures: {facts.figures_words}",
                facts.bounding_words,
                f"{self._plan.layout.describe()}; clip norm {self._plan.clip_norm:.6g}, noise "
                f"multiplier {self._plan.noise_multiplier:.6g}",
            ]
        )

    def __repr__(self) -> str:
        return (
            f"PrivateCounter({len(self._keys)} keys, {self._settings.periods.words}, "
            f"unit={self._settings.unit!r}, periods_closed={self.periods_closed}, "
            f"noise_multiplier={self._plan.noise_multiplier:g}"
            f"{', reproducible, not private' if self.reproducible else ''})"
        )
