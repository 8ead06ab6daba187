# SPDX-License-Identifier: Apache-2.0
"""`KeptSum`: a running sum that is kept in a folder, and its state."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dpftrl_fast._core import build_info
from dpftrl_fast._validate import equal, integer, non_negative, probability, shown, step_count
from dpftrl_fast.accounting import Participation, SinglePass
from dpftrl_fast.accounting.statement.statement import Guarantee, Neighbours
from dpftrl_fast.noise.process import process_mark
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.streams.call_journal import CallJournal
from dpftrl_fast.streams.calls import Call
from dpftrl_fast.streams.contributions import Floats, rule_of
from dpftrl_fast.streams.errors import SumErrors
from dpftrl_fast.streams.running_sum import RunningSum, refuse_fork
from dpftrl_fast.streams.users import Users

_KIND = "dpftrl_fast.streams.PrefixSum"
_VERSION = 1

S = TypeVar("S", bound="KeptSum")


class KeptSum(SumErrors):
    """Common part of running sums: the calls, the folder that keeps them, and the plan's end."""

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

    # ---- The folder ----

    def save(
        self,
        folder: str | Path,
        *,
        checkpoint_every: int = 1,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep this sum in a folder from now on, so that a killed process can resume it.

        Parameters
        ----------
        folder : str or Path
            Empty or missing. It becomes **a secret** (mode 0700): it holds the noise key and the
            un-noised sum. Delete it when the stream is over.
        checkpoint_every : int
            The state is written after so many calls. All calls since then are kept, and repeated
            when the folder is opened after a crash.
        facts : mapping, optional
            Public facts of the stream, as JSON, that are kept beside it: see `facts`.

        Raises
        ------
        ValueError
            If it is kept already, or the folder holds something.
        RuntimeError, OSError
            If the folder is in use, or cannot be written. If it holds the state all the same, this
            object takes no further call: open the folder.

        Notes
        -----
        Every later call is on the disk before it returns. Killed at any point, :meth:`open` has
        either the state before the last call or the one after it: see `t`. The sums are those of a
        stream that nothing stopped, bit for bit, under the same epsilon.

        Examples
        --------
        >>> import tempfile
        >>> from dpftrl_fast import PrefixSum
        >>> folder = tempfile.mkdtemp()
        >>> sums = PrefixSum.calibrate(1, 365, epsilon=1.0, delta=1e-6, clip_norm=1.0)
        >>> sums.save(folder)
        >>> value = sums.add([[1.0], [0.0], [1.0]])
        >>> sums.close()
        >>> with PrefixSum.open(folder) as again:  # the next day
        ...     again.t, bool(again.value == value)
        (1, True)
        """
        with self._lock:
            self._refuse_unusable()
            if self._journal is not None:
                raise ValueError(f"this sum is kept in {self._journal.folder!r} already")
            journal = CallJournal(folder, _KIND, checkpoint_every=checkpoint_every)
            try:
                if journal.resume() is not None:
                    raise ValueError(
                        f"folder must be empty, {str(folder)!r} holds a running sum: PrefixSum.open"
                        " resumes it"
                    )
            except BaseException:
                journal.close()
                raise
            self._facts = dict(facts or {})
            try:
                journal.begin(self._state())
                self._journal = journal
            except BaseException:
                journal.close()
                if journal.has_begun:  # whoever opens the folder has the key, and continues alone
                    self._journal = journal
                raise

    @classmethod
    def open(
        cls: type[S],
        folder: str | Path,
        *,
        checkpoint_every: int = 1,
        threads: int | None = None,
        allow_fork: bool = False,
    ) -> S:
        """Resume the sum that a folder keeps, with all calls that were on the disk.

        Parameters
        ----------
        folder : str or Path
            Of :meth:`save`.
        checkpoint_every : int
            As for :meth:`save`.
        threads : int, optional
            As for the class.
        allow_fork : bool
            Accept a folder that was copied. That voids the guarantee, unless the other copy is
            never used again; no epsilon is stated then.

        Raises
        ------
        ValueError
            If the folder holds no running sum, is damaged, or is a copy.
        RuntimeError
            If it is open elsewhere.
        OSError
            If it cannot be read and written.

        Notes
        -----
        `t` tells which steps are taken: pass the records after them, and no other ones.
        """
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"folder must be one of PrefixSum.save, got {str(folder)!r}")
        journal = CallJournal(
            folder, _KIND, checkpoint_every=checkpoint_every, allow_fork=allow_fork
        )
        try:
            state = journal.resume()
            if state is None:
                raise ValueError(f"folder must hold a running sum, {str(folder)!r} holds none")
            found = cls._resumed(state, threads)
            found._journal = journal
            while (kept := journal.pending()) is not None:
                found._take(Call.from_dict(kept))
        except BaseException:
            journal.close()
            raise
        return found

    @classmethod
    def _resumed(cls: type[S], state: Mapping[str, Any], threads: int | None) -> S:
        if not equal(state.get("version"), _VERSION):
            raise ValueError(
                f"the state of a running sum must have version {_VERSION}, got "
                f"{shown(state.get('version'))}: open it with the version of dpftrl_fast that "
                "saved it"
            )
        found = cls.__new__(cls)
        plan = PrivacyPlan.from_dict(state["plan"])
        rule = rule_of(state["rule"].get("clip_norm"), state["rule"].get("bounds"), state["size"])
        users = Users(plan, state["surplus"])
        users.load_state_dict(state["users"])
        found._whole, found._keeps_history = state["whole"], state["history"]
        found._begin(plan, rule, users, {**state["settings"], "threads": threads})
        found._running.load_state_dict(state["running"])
        found._counting, found._facts = state["counting"], state["facts"]
        return found

    def _state(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "library": str(build_info()["version"]),
            "plan": self._plan.to_dict(),
            "rule": self._rule.to_dict(),
            "size": self._rule.unit.size,
            "surplus": self._users.surplus,
            "whole": self._whole,
            "history": self._keeps_history,
            "settings": {k: v for k, v in self._settings.items() if k != "threads"},
            "counting": self._counting,
            "facts": self._facts,
            "running": self._running.state_dict(),
            "users": self._users.state_dict(),
        }

    def close(self) -> None:
        """Release the folder, if this sum is kept in one; it takes no step after that."""
        with self._lock:
            if self._journal is not None:
                self._journal.close(self._state)

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- The end ----

    def extend(
        self,
        steps: int | None = None,
        *,
        participation: Participation | None = None,
        accept_epsilon: tuple[float, float],
    ) -> None:
        """Declare a later end, at an epsilon that is stated before.

        The noise continues: the sums are those of a stream that had the later end from the
        beginning. The epsilon of all steps together rises.

        Parameters
        ----------
        steps : int, optional
            The new number of steps of a single pass.
        participation : Participation, optional
            In place of `steps`: the longer pattern, of the same kind.
        accept_epsilon : (float, float)
            (epsilon, delta): the call is refused, with the figure, if the epsilon at delta would be
            larger.

        Raises
        ------
        ValueError
            If the epsilon is not accepted, the end is not a later one, or the mechanism's first
            steps would be others. Nothing is then changed.

        Notes
        -----
        The new end must be chosen from public facts: who extends a stream because of what was
        released has no epsilon for it. If it may go on without an end, declare ``steps=None`` at
        the beginning. A `PrivacyBudget` that was charged before knows nothing of the later end:
        charge the longest plan, before the first step.

        Examples
        --------
        >>> from dpftrl_fast import PrefixSum
        >>> sums = PrefixSum(1, 100, 1.0, 4.0)
        >>> before = sums.epsilon(1e-6)
        >>> sums.extend(200, accept_epsilon=(2.0, 1e-6))
        >>> sums.steps, before < sums.epsilon(1e-6) <= 2.0
        (200, True)
        """
        with self._lock:
            self._refuse_unusable()
            if participation is None:
                participation = SinglePass(step_count("steps", steps))
            elif steps is not None:
                raise TypeError("expected either steps or a participation, got both")
            most, delta = accepted(accept_epsilon)
            plan = self._plan.extended(participation)
            if plan.steps <= self.steps:
                raise ValueError(
                    f"steps must be more than the declared {self.steps}, got {plan.steps}"
                )
            epsilon = plan.epsilon(delta)
            if not epsilon <= most:
                raise ValueError(
                    f"accept_epsilon must be at least {epsilon!r} at delta {delta!r} for "
                    f"{plan.steps} steps, got {most!r}"
                )
            noise = plan.noise(self._rule.unit.size, **self._settings)
            noise.load_state_dict(self._running.noise.state_dict())
            users = Users(plan, self._users.surplus)
            users.continues(self._users)
            before = self._plan, self._users, self._running.noise
            self._running.continues(noise)
            self._plan, self._users = plan, users
            if self._journal is not None:
                try:
                    self._journal.begin(self._state())
                except BaseException:
                    self._plan, self._users, self._running.noise = before
                    raise

    # ---- Facts ----

    @property
    def plan(self) -> PrivacyPlan:
        """The plan, which made the noise and states the epsilon."""
        return self._plan

    @property
    def guarantee(self) -> Guarantee:
        """The plan's, for all declared steps; a folder that was forked has none: ValueError."""
        if self._journal is not None and self._journal.forked:
            raise ValueError(
                "no epsilon can be stated: this folder is a copy taken with allow_fork, and another"
                " run may have added the same noise to other sums"
            )
        return self._plan.guarantee

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


def accepted(given: Any) -> tuple[float, float]:
    """Return the pair (epsilon, delta) that a caller accepts."""
    expected = "accept_epsilon must be a pair (epsilon, delta)"
    if isinstance(given, str) or not hasattr(given, "__len__") or len(given) != 2:
        raise TypeError(f"{expected}, got {shown(given)}")
    return (
        non_negative("the epsilon of accept_epsilon", given[0]),
        probability("the delta of accept_epsilon", given[1]),
    )
