# SPDX-License-Identifier: Apache-2.0
"""`TableFigures`: released counts and sums of a table over time, with their errors, as frames."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from statistics import NormalDist
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import choice, real, shown
from dpftrl_fast.accounting.statement.statement import PrivacyStatement
from dpftrl_fast.mechanisms.window_error import window_stds
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.streams.running_sum import RunningSum
from dpftrl_fast.streams.tables.settings import CounterSettings, Figures, checked_window
from dpftrl_fast.tables.values import category_form

Floats = NDArray[np.float64]


class TableFigures(PrivacyStatement):
    """All that is shown of a table: released figures, their standard deviations, their picture."""

    _settings: CounterSettings
    _plan: PrivacyPlan
    _running: RunningSum
    _keys: dict[str, str | int]  # by the text that stands for each
    _lock: threading.RLock
    _since: list[int]  # the first period in which each counts
    _window_stds: dict[int, Floats]  # of unit noise, by the width of the windows

    @property
    def periods_closed(self) -> int:
        """Periods that are closed, whose figures are released."""
        return self._running.noise.steps_taken

    @property
    def _released(self) -> Floats:
        """Released running sums of the closed periods, shape (periods closed, coordinates)."""
        return self._running.history[0]

    def std(
        self, figures: Figures | None = None, *, window: int | None = None, measure: str = "count"
    ) -> Floats:
        """Return the standard deviation of the noise in a figure of every declared period.

        Parameters
        ----------
        figures, window
            As for `table`.
        measure : {"count", "sum"}
            Counts, or sums of values.

        Returns
        -------
        ndarray of float64, shape (periods,)
            Exact for the mechanism, public, and the same for all keys. The rounding of released
            figures to a grid adds at most 3e-6 of it, and that of values at most 2^-17 of half the
            width of their bounds for each event. Bounding and clipping are no part of it.

        Examples
        --------
        >>> from dpftrl_fast import PrivateCounter
        >>> days = PrivateCounter(["a"], 365, 4.0, start="2013-01-01", period="1D")
        >>> days.std().round(1)[[0, -1]].tolist(), days.std("period").round(1)[[0, -1]].tolist()
        ([4.0, 7.4], [4.0, 4.5])
        """
        kind, width = self._chosen(figures, window)
        scale = 1.0
        if choice("measure", measure, ("count", "sum")) == "sum":
            self._refuse_without_values()
            scale = float(np.hypot(self._settings.centre, self._settings.half_width))
        steps = {"running": self._settings.periods.count, "period": 1}.get(kind, width or 1)
        if steps not in self._window_stds:
            self._window_stds[steps] = window_stds(self._plan.layout, steps)
        return float(self._running.noise.std) * scale * self._window_stds[steps]

    def table(
        self,
        figures: Figures | None = None,
        *,
        window: int | None = None,
        keys: Iterable[Any] | None = None,
        since: Any = None,
        level: float = 0.95,
    ) -> Any:
        """Return the released figures of all closed periods.

        Parameters
        ----------
        figures : {"running", "period", "window"}, optional
            Totals from the first period up to each, totals of single periods, or of the last
            `window` periods (of fewer at the beginning). By default those that the table is for.
            All of them come from the same released sums, so any may be shown.
        window : int, optional
            Periods of a window.
        keys : iterable, optional
            Keys to show; by default all.
        since : time or number, optional
            Show the periods that end after this time only.
        level : float
            Level of the intervals, 0 < level < 1, for each figure by itself.

        Returns
        -------
        DataFrame, or dict of arrays if pandas is not installed
            A row for each period and key, with the columns ``period_start``, ``period_end``,
            ``key``, ``count``, ``count_std``, ``count_low``, ``count_high``, and with values
            ``sum``, ``sum_std``, ``sum_low``, ``sum_high``. A key that was declared later has no
            row before its first period. Figures are not rounded, and may be negative. Intervals are
            of the *bounded* figures: they do not cover events that were dropped.

        Examples
        --------
        >>> from dpftrl_fast import PrivateCounter
        >>> days = PrivateCounter(["a", "b"], 365, 4.0, start="2013-01-01", period="1D")
        >>> _ = days.add({"time": ["2013-01-01"] * 99, "key": ["b"] * 99})
        >>> _ = days.release("2013-01-08")
        >>> table = days.table("window", window=7)
        >>> len(table["count"]), [*table][3:]
        (14, ['count', 'count_std', 'count_low', 'count_high'])
        """
        with self._lock:
            return self._table(self._first_of(since), figures, window, keys, level)

    def _table(
        self,
        first: int,
        figures: Figures | None = None,
        window: int | None = None,
        keys: Iterable[Any] | None = None,
        level: float = 0.95,
    ) -> Any:
        kind, width = self._chosen(figures, window)
        wide = NormalDist().inv_cdf((1 + real("level", level, above=0.0, below=1.0)) / 2)
        chosen = self._places_of(keys)
        last = len(self._released)  # fewer than the closed ones after an interruption
        first = min(first, last)
        places = np.repeat(np.arange(first, last), len(chosen))
        key = np.tile(chosen, last - first)
        there = places >= np.array(self._since, np.int64)[key]
        places, key = places[there], key[there]
        edges = self._settings.periods.edges(0, last)
        names = np.array(list(self._keys.values()), object)
        if len({type(name) for name in names}) == 1:  # a dtype that an empty table has, too
            names = np.array(names.tolist())
        columns: dict[str, Any] = {
            "period_start": edges[places],
            "period_end": edges[places + 1],
            "key": names[key],
        }
        for measure, values in self._measures(kind, width).items():
            std = self.std(kind, window=width, measure=measure)[places]
            value = values[places, key]
            columns |= {
                measure: value,
                f"{measure}_std": std,
                f"{measure}_low": value - wide * std,
                f"{measure}_high": value + wide * std,
            }
        return as_frame(columns)

    def plot(
        self,
        figures: Figures | None = None,
        *,
        window: int | None = None,
        keys: Iterable[Any] | None = None,
        since: Any = None,
        measure: str = "count",
        level: float = 0.95,
        title: str = "",
    ) -> bytes:
        """Return a PNG file with a line for each key, and the bands of its intervals.

        The point of a period stands at its start, as in the column ``period_start``. The legend
        names the level of the bands.

        Parameters
        ----------
        figures, window, keys, since, level
            As for `table`.
        measure : {"count", "sum"}
            Counts, or sums of values.
        title : str
            For example the guarantee.

        Raises
        ------
        ImportError
            If matplotlib is not installed (the extra ``plot``).
        ValueError
            If no period to show is closed.

        Examples
        --------
        >>> from dpftrl_fast import PrivateCounter
        >>> days = PrivateCounter(["a", "b"], 365, 4.0, start="2013-01-01", period="1D")
        >>> _ = days.release("2013-01-08")
        >>> days.plot("period")[1:4]
        b'PNG'
        """
        from dpftrl_fast.plots.bands import Band, bands_png

        kind, width = self._chosen(figures, window)
        if choice("measure", measure, ("count", "sum")) == "sum":
            self._refuse_without_values()
        first = self._first_of(since)
        if first >= self.periods_closed:
            raise ValueError("a picture is of closed periods, got none")
        wide = NormalDist().inv_cdf((1 + real("level", level, above=0.0, below=1.0)) / 2)
        with self._lock:  # a release of another thread must not come between
            values = self._measures(kind, width)[measure]
        std = wide * self.std(kind, window=width, measure=measure)[: len(values)]
        starts = self._settings.periods.edges(0, len(values))[:-1]
        bands, names = [], list(self._keys.values())
        for key in self._places_of(keys):
            start = max(self._since[key], first)
            line = values[start:, key]
            half = std[start:]
            bands.append(Band(str(names[key]), starts[start:], line, line - half, line + half))
        facts = self._settings
        name = facts.columns.value if measure == "sum" else "events"
        if measure == "count" and facts.counts_users:  # a total has a user of two periods twice
            name = "users" if kind == "period" else "users of each period,"
        words = {"running": "so far", "period": "a period"}.get(kind, f"in {width} periods")
        label = f"{name} {words}"
        return bands_png(
            bands, ylabel=label, title=title, legend=f"bands: {100 * level:.4g} % intervals"
        )

    def _measures(self, kind: Figures, width: int | None) -> dict[str, Floats]:
        """Return the figures of each measure, arrays of shape (periods closed, size)."""
        found = self._released
        if kind != "running":
            back = width or 1
            found = found.copy()
            found[back:] -= self._released[:-back]
        facts = self._settings
        counts = found[:, : facts.size]
        if facts.low is None:
            return {"count": counts}
        return {
            "count": counts,
            "sum": facts.half_width * found[:, facts.size :] + facts.centre * counts,
        }

    def _chosen(self, figures: Figures | None, window: int | None) -> tuple[Figures, int | None]:
        facts = self._settings
        if figures is None and window is None:
            return facts.figures, facts.window
        kind: Figures = "window"
        if figures is not None:
            kind = choice("figures", figures, get_args(Figures))
        return kind, checked_window(kind, window, facts.periods.count)

    def _first_of(self, since: Any) -> int:
        return 0 if since is None else self._settings.periods.ended(since, "since")

    def _places_of(self, keys: Iterable[Any] | None) -> NDArray[np.int64]:
        if keys is None:
            return np.arange(len(self._keys))
        places = {form: place for place, form in enumerate(self._keys)}
        found = []
        for key in [keys] if isinstance(keys, str) else keys:
            form = category_form(key)
            if form not in places:
                raise ValueError(f"keys must be declared ones, got {shown(key)}")
            found.append(places[form])
        return np.array(found, np.int64)

    def _refuse_without_values(self) -> None:
        if self._settings.low is None:
            raise ValueError("sums are of a table with values=(low, high), got one of counts only")


def as_frame(columns: dict[str, Any]) -> Any:
    """Return columns as a DataFrame if pandas is installed, else as they are."""
    if find_spec("pandas") is None:
        return columns
    return import_module("pandas").DataFrame(columns)
