# SPDX-License-Identifier: Apache-2.0
"""`SumCalls`: a running sum whose steps come in calls, and what is known of it."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpftrl_fast._validate import integer
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.accounting.statement.statement import Neighbours
from dpftrl_fast.noise.process import process_mark
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.streams.call_journal import CallJournal, Journaled
from dpftrl_fast.streams.calls import Call
from dpftrl_fast.streams.contributions import Floats
from dpftrl_fast.streams.errors import SumErrors
from dpftrl_fast.streams.running_sum import RunningSum, refuse_fork
from dpftrl_fast.streams.users import Users


class SumCalls(Journaled, SumErrors):
    """Common part of running sums: calls, written ahead where a folder keeps them, and facts."""

    _settings: dict[str, Any]
    _whole: bool
    _keeps_history: bool

    def _begin(
        self, plan: PrivacyPlan, rule: Any, users: Users, settings: dict[str, Any], **key: Any
    ) -> None:
        self._plan, self._rule, self._users, self._settings = plan, rule, users, settings
        self._running = RunningSum(
            plan.noise(rule.unit.size, **settings, **key), history=self._keeps_history
        )
        self._lock = threading.RLock()
        self._journal: CallJournal | None = None
        self._counting: bool | None = None
        self._interrupted = False
        self._facts: dict[str, Any] = {}
        self._process = process_mark()

    # ---- Calls ----

    def _refuse_unusable(self) -> None:
        refuse_fork(self._process, self.reproducible)
        if self._journal is not None:
            self._journal.refuse_unusable()
        if self._interrupted:
            raise RuntimeError(
                "a call was interrupted, so that the guard of users or the history of sums may not "
                "fit the steps taken: keep the stream in a folder, which takes the call again"
            )

    def _take(self, call: Call) -> Floats:
        """Take the steps of a call, written ahead where a folder keeps them."""
        if self._journal is not None:
            self._journal.write_ahead(call.to_dict())
        before = self._running.records
        released = self._apply(call)
        if self._journal is not None:
            self._journal.done(self._state)
        return self._shown(released, before + np.cumsum(call.records))

    def _apply(self, call: Call) -> Floats:
        # The noise's own position counts the steps: an interruption can lose records but not take
        # a step too many.
        self._interrupted = call.users is not None or self._keeps_history
        if call.users is None:
            self._users.record(None)
        for ids in call.users or []:
            self._users.record(ids)
        self._counting = call.counting
        if len(call.sums) == 1:
            released = self._running.take(call.sums[0], int(call.records[0]))[None]
        else:
            released = self._running.take_all(call.sums, call.records)
        self._interrupted = False
        return released

    def _shown(self, released: Floats, records: Any) -> Floats:
        found = self._rule.restored(released, records)
        return np.rint(found) if self._whole else found

    @abstractmethod
    def _state(self) -> Mapping[str, Any]:
        """Return the state for a folder: **a secret**."""

    # ---- Facts ----

    @property
    def value(self) -> Floats:
        """The private running sum that `add` last returned; zero before the first step."""
        value, records = self._running.released
        return self._shown(value.copy(), records)

    @property
    def values(self) -> Floats:
        """The private running sums of all steps, shape (t, size), with ``history=True``."""
        with self._lock:  # a step of another thread must not come between
            values, records = self._running.history
            return self._shown(values.copy(), records)

    def window(self, since: int, until: int | None = None) -> Floats:
        """Return the private sum over steps since + 1 .. until, with ``history=True``.

        Parameters
        ----------
        since, until : int
            0 <= since <= until <= t; until is t by default.

        Returns
        -------
        ndarray of float64, shape (size,)
            The running sum at `until` less that at `since`: its error is ``std(since=, until=)``.

        Raises
        ------
        TypeError, ValueError
            If a step is out of range, or no earlier sums are kept.

        Examples
        --------
        >>> from dpftrl_fast import PrefixSum
        >>> sums = PrefixSum(1, 365, 1.0, 4.0, history=True)
        >>> _ = sums.add_counts([[5], [6], [7]])
        >>> bool(sums.window(1) == sums.values[2] - sums.values[0])
        True
        """
        with self._lock:
            end = integer("until", self.t if until is None else until, 0, self.t)
            values = np.concatenate([np.zeros((1, self.size)), self.values])
        start = integer("since", since, 0, end)
        return np.asarray(values[end] - values[start])

    @property
    def size(self) -> int:
        """Length of a vector."""
        return self._running.noise.size

    @property
    def steps(self) -> int:
        """Declared number of steps; 2^46 without a declared end."""
        return self._plan.steps

    @property
    def has_end(self) -> bool:
        """Whether an end was declared."""
        return self._plan.participation != SinglePass.unbounded()

    def epsilon_at(self, t: int, delta: float, *, neighbours: Neighbours = "zero-out") -> float:
        """Return the epsilon of the sums of the first t steps, for a t fixed by public facts.

        See :meth:`dpftrl_fast.PrivacyPlan.epsilon_at`. :meth:`epsilon` covers every rule for
        stopping, this one does not.
        """
        self.guarantee  # noqa: B018 - a folder that was forked has none
        return self._plan.epsilon_at(t, delta, neighbours=neighbours)

    @property
    def t(self) -> int:
        """Steps taken."""
        return self._running.noise.steps_taken

    @property
    def records(self) -> int:
        """Records in the sum, those that count as zero too; 0 where counts are added."""
        return self._running.records

    @property
    def facts(self) -> dict[str, Any]:
        """Public facts that `save` was given."""
        return dict(self._facts)

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: the sums are not private."""
        return self._running.noise.reproducible

    @property
    def _noise_std(self) -> float:
        return self._running.noise.std

    def __reduce__(self) -> Any:
        raise TypeError("a PrefixSum holds an un-noised sum and a secret key and is not pickled")
