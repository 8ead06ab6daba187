# SPDX-License-Identifier: Apache-2.0
"""`KeptSum`: a running sum that is kept in a folder, and its state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from dpftrl_fast._core import build_info
from dpftrl_fast._validate import non_negative, probability, shown, step_count
from dpftrl_fast.accounting import Participation, SinglePass
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.streams.call_journal import USER_KEY
from dpftrl_fast.streams.calls import Call
from dpftrl_fast.streams.contributions import rule_of
from dpftrl_fast.streams.sum_calls import SumCalls
from dpftrl_fast.streams.users import Users

S = TypeVar("S", bound="KeptSum")


class KeptSum(SumCalls):
    """Common part of running sums: the folder that keeps them, and a later end."""

    _kind = "dpftrl_fast.streams.PrefixSum"
    _word = "running sum"
    _version = 2

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
            given = dict(facts or {})
            self._keep_in(
                folder,
                lambda: {**self._state(), "facts": given},
                checkpoint_every=checkpoint_every,
            )
            self._facts = given

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
        return cls._opened(
            folder, threads, checkpoint_every=checkpoint_every, allow_fork=allow_fork
        )

    def _repeat(self, call: Mapping[str, Any]) -> None:
        self._take(Call.from_dict(call))

    @classmethod
    def _resumed(cls: type[S], state: Mapping[str, Any], threads: int | None) -> S:
        found = cls.__new__(cls)
        plan = PrivacyPlan.from_dict(state["plan"])
        rule = rule_of(state["rule"].get("clip_norm"), state["rule"].get("bounds"), state["size"])
        users = Users(plan, state["surplus"], state[USER_KEY])
        users.load_state_dict(state["users"])
        found._whole, found._keeps_history = state["whole"], state["history"]
        found._begin(plan, rule, users, {**state["settings"], "threads": threads})
        found._running.load_state_dict(state["running"])
        found._counting, found._facts = state["counting"], state["facts"]
        return found

    def _state(self) -> dict[str, Any]:
        return {
            "version": self._version,
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
            USER_KEY: self._users.ids.key,
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
        released has no epsilon for it. If it may have no end, declare ``steps=None`` at the
        beginning. A `PrivacyBudget` that was charged before knows nothing of the later end:
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
            users = Users(plan, self._users.surplus, self._users.ids.key)
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


def accepted(given: Any) -> tuple[float, float]:
    """Return the pair (epsilon, delta) that a caller accepts."""
    expected = "accept_epsilon must be a pair (epsilon, delta)"
    if isinstance(given, str) or not hasattr(given, "__len__") or len(given) != 2:
        raise TypeError(f"{expected}, got {shown(given)}")
    return (
        non_negative("the epsilon of accept_epsilon", given[0]),
        probability("the delta of accept_epsilon", given[1]),
    )
