# SPDX-License-Identifier: Apache-2.0
"""`KeptTable`: a table over time whose state is kept in a folder."""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from dpftrl_fast._core import build_info
from dpftrl_fast._validate import shown
from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.accounting.guard.keyed_ids import KeyedIds
from dpftrl_fast.noise.process import process_mark
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.streams.call_journal import USER_KEY, CallJournal, Journaled
from dpftrl_fast.streams.running_sum import RunningSum, refuse_fork
from dpftrl_fast.streams.tables.bounding import Held, Rows, no_rows
from dpftrl_fast.streams.tables.figures import Floats, TableFigures
from dpftrl_fast.streams.tables.settings import CounterSettings

T = TypeVar("T", bound="KeptTable")


class KeptTable(Journaled, TableFigures):
    """The state of a table, a secret, and the folder that keeps it."""

    _kind = "dpftrl_fast.streams.PrivateCounter"
    _word = "table"
    _version = 2

    _guard: Guard | None
    _held: Held

    def _begin(
        self,
        settings: CounterSettings,
        plan: PrivacyPlan,
        keys: dict[str, str | int],
        user_key: bytes | None = None,
        **noise: Any,
    ) -> None:
        self._ids = KeyedIds(user_key)
        self._settings, self._plan, self._keys = settings, plan, keys
        self._since = [0] * len(keys)
        size = settings.size * (1 if settings.low is None else 2)
        self._rounds = noise.get("rounds", 12)
        noise_source = plan.noise(size, dtype="float64", **noise)
        self._running = RunningSum(noise_source, history=True)
        self._guard = plan.guard() if settings.unit == "user" else None
        self._held = Held(no_rows(), (), {})
        self._window_stds = {}
        self._lock = threading.RLock()
        self._journal: CallJournal | None = None
        self._unsaved = False  # events or keys that are not in the folder
        self._added = False  # whether `add` took a batch since the last release of this object
        self._interrupted = False
        self._process = process_mark()

    @abstractmethod
    def _close_periods(self, sums: Floats | None, count: int) -> None:
        """Close so many periods: their sums are written ahead, or were before."""

    # ---- The folder ----

    def save(self, folder: str | Path) -> None:
        """Keep this table in a folder from now on, so that a killed process can resume it.

        Parameters
        ----------
        folder : str or Path
            Empty or missing. It becomes **a secret** (mode 0700): it holds the noise key, un-noised
            sums and user ids. Delete it when the table is over.

        Raises
        ------
        ValueError
            If it is kept already, or the folder holds something.
        RuntimeError, OSError
            If the folder is in use, or cannot be written. If it holds the state all the same, this
            object takes no further call: open the folder.

        Notes
        -----
        `add` alone changes memory. All of it is on the disk when `release`, `checkpoint` or `close`
        returns; a ``with`` block that an error ends adds nothing more to it, as if the job was
        killed. A job that was killed anywhere is run again as it is: batches that the folder holds
        are skipped by their labels, and a release that had begun is completed by :meth:`open`, with
        the same noise on the same sums. The figures are those of a job that nothing stopped, bit
        for bit, under the same epsilon.

        Examples
        --------
        >>> import tempfile
        >>> from dpftrl_fast import PrivateCounter
        >>> folder = tempfile.mkdtemp()
        >>> days = PrivateCounter(["a", "b"], 365, 4.0, start="2013-01-01", period="1D")
        >>> days.save(folder)
        >>> days.close()
        >>> events = {"time": ["2013-01-01"], "key": ["a"]}
        >>> for attempt in range(2):  # the job of a day, run twice by mistake
        ...     with PrivateCounter.open(folder) as days:
        ...         days.add(events, batch="2013-01-01"), len(days.release("2013-01-02"))
        (True, 2)
        (False, 0)
        """
        with self._lock:
            self._refuse_unusable()
            self._keep_in(folder, self._state)
            self._unsaved = False

    @classmethod
    def open(
        cls: type[T],
        folder: str | Path,
        *,
        threads: int | None = None,
        allow_fork: bool = False,
    ) -> T:
        """Resume the table that a folder keeps; a release that was killed is completed.

        Parameters
        ----------
        folder : str or Path
            Of :meth:`save`.
        threads : int, optional
            Threads of the noise.
        allow_fork : bool
            Accept a folder that was copied. That voids the guarantee, unless the other copy is
            never used again; no epsilon is stated then.

        Raises
        ------
        ValueError
            If the folder holds no table, is damaged, or is a copy.
        RuntimeError
            If it is open elsewhere.
        OSError
            If it cannot be read and written.
        """
        return cls._opened(folder, threads, allow_fork=allow_fork)

    def _repeat(self, call: Mapping[str, Any]) -> None:
        self._close_periods(call["sums"], len(call["sums"]))

    def checkpoint(self) -> None:
        """Put all events that were added into the folder, which holds them when this returns.

        `release` and `close` do so, too.

        Raises
        ------
        ValueError
            If the table is not kept in a folder.
        OSError
            If it cannot be written; the state before is then still there.
        """
        with self._lock:
            self._refuse_unusable()
            if self._journal is None:
                raise ValueError("this table is kept in no folder: call save before")
            self._write()

    def _write(self) -> None:
        """Write the state if a folder keeps the table and lacks something."""
        if self._journal is not None and self._unsaved:
            self._journal.begin(self._state())
            self._unsaved = False

    def close(self) -> None:
        """Write what is missing and release the folder, if this table is kept in one.

        It takes no call after that.
        """
        with self._lock:
            if self._journal is None:
                return
            try:
                if not (self._interrupted or self._journal.unusable):
                    self._write()
            finally:
                self._journal.close()

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        """Close; after an error without what was added since the last write, as after a kill.

        The job is run again: events that were in the folder without the label of their batch would
        be added, and counted, twice.
        """
        if kind is not None and self._journal is not None:
            self._journal.close()
        self.close()

    def _refuse_unusable(self) -> None:
        refuse_fork(self._process, self._running.noise.reproducible)
        if self._journal is not None:
            self._journal.refuse_unusable()
        if self._interrupted:
            raise RuntimeError(
                "a release of this table was interrupted, so that its periods may be closed in "
                "part: keep tables in a folder, close this object and open the folder, which "
                "completes the release"
            )

    # ---- Batches ----

    def has_batch(self, label: str) -> bool:
        """Return whether a batch with this label was added."""
        return label in self._held.labels

    def is_stale_batch(self, label: str, until: Any = None) -> bool:
        """Return whether ``release(until)`` would close periods that this batch was not meant for.

        A job that was killed repeats its label before its periods are closed, or closes none. A
        label that was added before an earlier release and comes again with a later `until` is
        rather that of another file: its events would be skipped, and their periods closed.

        Parameters
        ----------
        label : str
            Of a batch.
        until : datetime64, datetime, str, int or float, optional
            As for `release`.

        Returns
        -------
        bool
            By public facts alone: labels, and the numbers of closed periods. False for a label that
            was not added, or before this number was kept in folders.

        Examples
        --------
        >>> from dpftrl_fast import PrivateCounter
        >>> days = PrivateCounter(["a"], 365, 4.0, start="2013-01-01", period="1D")
        >>> _ = days.add({"time": ["2013-01-01"], "key": ["a"]}, batch="today.csv")
        >>> days.is_stale_batch("today.csv", "2013-01-02")
        False
        >>> _ = days.release("2013-01-02")
        >>> [days.is_stale_batch("today.csv", f"2013-01-0{day}") for day in (2, 3)]
        [False, True]
        """
        ended = self._settings.periods.closed_by(until)
        with self._lock:
            closed = self._held.labels.get(label)
            return closed is not None and closed < self.periods_closed < ended

    def would_close(self, until: Any = None) -> int:
        """Return how many periods ``release(until)`` would close.

        Parameters
        ----------
        until : datetime64, datetime, str, int or float, optional
            As for `release`.

        Raises
        ------
        ValueError, TypeError
            If `release` would refuse it.

        Examples
        --------
        >>> from dpftrl_fast import PrivateCounter
        >>> days = PrivateCounter(["a"], 365, 4.0, start="2013-01-01", period="1D")
        >>> days.would_close("2013-01-03"), days.would_close("2013-12-31"), days.would_close()
        (2, 364, 365)
        >>> days.would_close("2014-12-31")
        Traceback (most recent call last):
        ...
        ValueError: until must be less than one period past 2014-01-01, the end of the table, got \
'2014-12-31': nothing is closed
        """
        ended = self._settings.periods.closed_by(until)
        with self._lock:
            return max(ended - self.periods_closed, 0)

    def _refuse_over(self) -> None:
        """Refuse events if all periods are closed: a public fact."""
        periods = self._settings.periods
        if self.periods_closed == periods.count:
            raise ValueError(
                f"the table is over: all {periods.count} periods, up to "
                f"{periods.edge_words(periods.count)}, are closed, so that no further event can "
                "count; nothing is added"
            )

    def _warn_of_late(self, until: Any) -> None:
        """Warn of a batch for periods that are closed, by the clock alone; not of a repeated one.

        A job that is run again adds nothing: `add` skips its batch.
        """
        closed = self.periods_closed
        if not self._added or closed == 0 or self._settings.periods.is_after(until, closed):
            return
        lost = "do not count" if self._settings.late == "drop" else "count in the next period"
        warnings.warn(
            f"no period is closed: until must be after {self._settings.periods.edge_words(closed)},"
            f" where the last released period ends, got {shown(until)}; events of closed periods "
            f"{lost}, so run missed periods in order",
            stacklevel=3,
        )

    # ---- State ----

    def _state(self) -> dict[str, Any]:
        self._held = self._held.bounded(*self._settings.limits)
        labels = sorted(self._held.labels)
        return {
            "version": self._version,
            "library": str(build_info()["version"]),
            "settings": self._settings.to_dict(),
            "plan": self._plan.to_dict(),
            "rounds": self._rounds,
            "keys": list(self._keys.values()),
            "since": list(self._since),
            "running": self._running.state_dict(),
            "guard": None if self._guard is None else self._guard.state_dict(),
            "held": self._held.rows._asdict(),
            "labels": labels,
            "label_periods": [self._held.labels[label] for label in labels],
            USER_KEY: self._ids.key,
        }

    @classmethod
    def _resumed(cls: type[T], state: Mapping[str, Any], threads: int | None) -> T:
        found = cls.__new__(cls)
        found._begin(
            CounterSettings.from_dict(state["settings"]),
            PrivacyPlan.from_dict(state["plan"]),
            {str(key): key for key in state["keys"]},
            user_key=state[USER_KEY],
            rounds=state["rounds"],
            threads=threads,
        )
        found._since = list(state["since"])
        found._running.load_state_dict(state["running"])
        if found._guard is not None:
            found._guard.load_state_dict(state["guard"])
        labels = state["labels"]
        closed = state.get("label_periods", [None] * len(labels))
        found._held = Held(Rows(**state["held"]), (), dict(zip(labels, closed, strict=True)))
        return found

    def __reduce__(self) -> Any:
        raise TypeError("a PrivateCounter holds un-noised sums and a secret key: it is not pickled")
