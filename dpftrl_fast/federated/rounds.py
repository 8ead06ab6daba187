# SPDX-License-Identifier: Apache-2.0
"""`PrivateRounds`: cohorts, clipped sums, noise and the journal of a federated run.

What is done with what leaves a round (the update rule) is the caller's: `ServerDPFTRL`, or any
strategy of another library.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import choice, float_dtype, positive_integer
from dpftrl_fast.federated.adaptive_clipping import AdaptiveClipping
from dpftrl_fast.federated.cohorts import Cohorts
from dpftrl_fast.federated.ids import Client
from dpftrl_fast.federated.round import Round
from dpftrl_fast.federated.stated import Stated
from dpftrl_fast.federated.sums.layout import Arrays, ModelLayout
from dpftrl_fast.federated.sums.private_sums import PrivateSums
from dpftrl_fast.noise.arguments import Memory
from dpftrl_fast.noise.keys import Seed, checked_key, key_of_seed
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.run.journal import RunJournal

Release = Literal["sum", "residual"]
Vector = NDArray[np.float64]
Ints = NDArray[np.int64]


class PrivateRounds(Stated):
    """The private part of a federated run, without an update rule.

    A round begins with the clients that are there (`begin_round`): those that the plan does not
    allow now are turned away before they train, the others are the cohort, and all of them count as
    having taken part. Their updates come one by one (:meth:`Round.add`), each clipped as a whole.
    `end_round` writes the sum ahead, puts the tree's noise on it and returns what may leave.

    Parameters
    ----------
    parameters : mapping of str to ndarray, or sequence of ndarray
        The model, for names, shapes and dtypes.
    plan : PrivacyPlan
        One step is one round, one record is one client. The clip norm is that of a whole update.
    report_goal : int
        What sums are divided by (B): fixed and public, however many clients answer.
    clipping : AdaptiveClipping, optional
        Fits the clip norm to the updates at each restart; the plan must have some.
    folder : str or Path, optional
        Where the run is kept (see docs/resume.md): **a secret**. None keeps it in memory only: a
        run that is killed is then lost, and must not be begun again with the same key.
    identity : mapping, optional
        What else says which run this is, as JSON can hold it; a folder of another is refused.
    state : mapping, optional
        The caller's own state before round 1, for `state` (see there).
    spare_restarts, restart, accept_epsilon
        As for :class:`dpftrl_fast.run.account.RunAccount` and its `restarted`: ``restart=True``
        abandons rounds that were written ahead and goes on with fresh noise. Needed only where a
        file of the folder was lost, since a round's sum is kept until the next checkpoint. Not with
        `clipping`.
    allow_fork : bool
        Takes a folder that was copied, which voids the guarantee.
    memory, dtype, threads
        Of the noise, as for :class:`dpftrl_fast.TreeNoise`. What leaves is float64, on a grid that
        is as coarse as the noise of `dtype` (see `dpftrl_fast.federated.sums.running_sum`).
    noise_seed : int or bytes, optional
        For tests: the run is then `reproducible`, not private.
    key : bytes, optional
        32 secret bytes, used for no other run; default from the operating system.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or the folder is of another run, damaged or a copy.
    RuntimeError
        If the folder is in use.
    OSError
        If it cannot be read and written.

    Notes
    -----
    The object holds bare sums and the key: it is not pickled. A folder's own key goes before `key`
    and `noise_seed`.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> plan = PrivacyPlan(1.0, 4.0, accounting.SinglePass(10))
    >>> rounds = PrivateRounds([np.zeros(3, np.float32)], plan=plan, report_goal=2)
    >>> now = rounds.begin_round(["Hamlet", "Ophelia"])
    >>> now.add("Hamlet", [np.array([0.6, 0.8, 0.0], np.float32)])
    >>> now.add("Hamlet", [np.zeros(3, np.float32)])
    'answered already in this round'
    >>> rounds.end_round().shape, rounds.rounds_done, round(rounds.epsilon(1e-6), 3)
    ((3,), 1, 2.254)
    >>> rounds.eligible(["Hamlet", "Laertes"]).tolist()
    [False, True]
    """

    def __init__(
        self,
        parameters: Arrays,
        *,
        plan: PrivacyPlan,
        report_goal: int,
        clipping: AdaptiveClipping | None = None,
        folder: str | Path | None = None,
        identity: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        spare_restarts: int = 0,
        restart: bool = False,
        accept_epsilon: tuple[float, float] | None = None,
        allow_fork: bool = False,
        memory: Memory = "stored",
        dtype: Literal["float32", "float64"] = "float32",
        threads: int | None = None,
        noise_seed: Seed = None,
        key: bytes | None = None,
    ) -> None:
        if noise_seed is not None and key is not None:
            raise ValueError("expected a noise_seed or a key, got both")
        if clipping is not None and (spare_restarts or restart):
            raise ValueError(
                "adaptive clipping goes without spare_restarts and restart, got one of them"
            )
        self._account = RunAccount(plan, spare_restarts)
        self._clipping = clipping
        self._goal = positive_integer("report_goal", report_goal)
        self._layout = ModelLayout(parameters)
        self._cohorts = Cohorts(plan)
        self._dtype = float_dtype(dtype)
        self._sums = PrivateSums(
            plan,
            self._layout,
            self._goal,
            clipping,
            key_of_seed(noise_seed) if key is None else checked_key(key),
            dtype=self._dtype,
            memory=memory,
            threads=threads,
        )
        self._reproducible = noise_seed is not None
        self._run = secrets.token_hex(8)
        self._rounds_done = 0
        self._round: Round | None = None
        self._members: Ints = np.zeros(0, np.int64)  # of the open round
        self._torn = False
        self._turn = threading.RLock()
        self._state = state
        self._journal: RunJournal | None = None
        if folder is not None:
            self._journal = RunJournal(
                folder, {**self._identity(), **(identity or {})}, allow_fork=allow_fork
            )
            try:
                self._begin(self._journal, restart, accept_epsilon)
            except BaseException:
                self._journal.close()
                raise

    # ---- The folder ----

    def _identity(self) -> dict[str, Any]:
        return {
            "kind": "dpftrl_fast.federated",
            "plan": self.plan.to_dict(),
            "parameters": self._layout.fingerprint,
            "report_goal": self._goal,
            "clipping": None if self._clipping is None else self._clipping.to_dict(),
            "spare_restarts": self._account.spare_recoveries,
            "dtype": self._dtype,
        }

    def _begin(
        self, journal: RunJournal, restart: bool, accept_epsilon: tuple[float, float] | None
    ) -> None:
        kept = journal.resume()
        if kept is None:
            journal.checkpoint(self._all_state())
            return
        if journal.abandoned:
            self._account = RunAccount(
                self.plan, self._account.spare_recoveries, journal.abandoned, journal.start
            )
        after = self._account
        if restart and journal.replaying:
            after = after.recovered(journal.last, journal.step + 1, accept_epsilon=accept_epsilon)
        self._run, self._reproducible = kept["run"], kept["reproducible"]
        self._rounds_done, self._state = kept["rounds_done"], kept["state"]
        self._cohorts.load_state_dict(kept["cohorts"])
        self._sums.load_state_dict(kept["sums"], self._account)
        if after is not self._account:
            self._account = after
            self._run = secrets.token_hex(8)  # the next rounds have numbers that others had
            self._sums.restart(after)
            journal.recover(self._all_state())

    def _all_state(self) -> dict[str, Any]:
        return {
            "run": self._run,
            "reproducible": self._reproducible,
            "rounds_done": self._rounds_done,
            "cohorts": self._cohorts.state_dict(),
            "sums": self._sums.state_dict(),
            "state": self._state,
        }

    @property
    def state(self) -> Mapping[str, Any] | None:
        """The caller's own state as it was last kept: given at the beginning, or to `checkpoint`.

        After a restart of the program it is that of `rounds_done` rounds. The rounds since then,
        which were written ahead, come from `replay`.
        """
        return self._state

    @property
    def replaying(self) -> bool:
        """Whether rounds were written ahead that `replay` has not taken again."""
        return self._journal is not None and self._journal.replaying

    def replay(self, release: Release = "sum") -> Iterator[Vector]:
        """Take again, one by one, the rounds that were written ahead before a crash.

        No client is asked: what was kept of each is its sum. To be exhausted before a round begins.

        Parameters
        ----------
        release : {"sum", "residual"}
            As for `end_round`; the same as before the crash.

        Yields
        ------
        ndarray of float64, shape (size,)
            As `end_round` returned, or would have.

        Raises
        ------
        ValueError
            If what was kept of a round is missing or damaged.
        """
        choice("release", release, ("sum", "residual"))
        while self.replaying:
            with self._turn:
                assert self._journal is not None
                self._check_whole()
                kept = self._journal.kept()
                if kept is None:
                    raise ValueError(
                        f"the sum of round {self._rounds_done + 1} is missing from the folder, and "
                        "the round may have left: restart=True abandons it (see docs/resume.md)"
                    )
                value = self._take(kept["ids"], kept["sum"], kept["bits"], release, keep=False)
            yield value

    def checkpoint(self, state: Mapping[str, Any] | None = None) -> None:
        """Keep the whole state between two rounds; without a folder, only the caller's own.

        Parameters
        ----------
        state : mapping, optional
            The caller's own, after `rounds_done` rounds: dictionaries, lists, None, bool, int,
            float, str, bytes and ndarrays of numbers, nested.

        Raises
        ------
        RuntimeError
            If a round is open, or rounds are to be replayed.
        OSError
            If it cannot be written; the checkpoint before is then still there.
        """
        with self._turn:
            self._check_between()
            self._state = state
            if self._journal is not None:
                self._journal.checkpoint(self._all_state())

    def close(self) -> None:
        """Let the folder go; an open round is given up, what was written is on disk already."""
        with self._turn:
            if self._round is not None:
                self._give_up(self._round)
            if self._journal is not None:
                self._journal.close()

    def __enter__(self) -> PrivateRounds:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- A round ----

    def eligible(self, clients: Iterable[Client]) -> NDArray[np.bool_]:
        """Say of each client whether it may be in the next round.

        Raises
        ------
        TypeError, ValueError
            If one is no client.
        """
        with self._turn:
            return self._cohorts.eligible(clients)

    def begin_round(self, clients: Iterable[Client]) -> Round:
        """Begin a round with those of the clients that the plan allows now.

        Where the plan settles who is in the round (`FixedOrder`, later epochs of `FixedEpochs`),
        the cohort is those of them who are here, and the others are empty slots. Else it is all who
        are eligible. It may have more or fewer clients than the report goal.

        Parameters
        ----------
        clients : iterable of int or str
            Users (see `dpftrl_fast.federated.ids`), each once.

        Returns
        -------
        Round
            With the reasons for those that were turned away, who must not train.

        Raises
        ------
        RuntimeError
            If a round is open, or rounds are to be replayed.
        ValueError, TypeError
            If all declared rounds are done; if a client is none, or is there twice; if the run's
            sums could leave their integers. Nothing is changed.
        """
        with self._turn:
            self._check_between()
            cohort = self._cohorts.choose(clients)
            self._sums.check_room(cohort.members.size)
            self._members = cohort.members
            self._sums.sums.clear()
            number = self._rounds_done + 1
            self._round = Round(
                number,
                f"{self._run}-{number}",
                cohort,
                sums=self._sums.sums,
                clip_norm=self.clip_norm,
            )
            return self._round

    def end_round(self, release: Release = "sum") -> Vector:
        """End the open round: write its sum ahead, put noise on it, and return what may leave.

        All of the cohort has taken part, whoever answered. A round in which nobody did is a step
        like any other.

        Parameters
        ----------
        release : {"sum", "residual"}
            What to return: the noised sum of all rounds so far over the report goal,
            (s_t + n_t)/B, or what this round changed in it, the round's noised mean update. The one
            follows from the others: both may leave.

        Returns
        -------
        ndarray of float64, shape (size,)

        Raises
        ------
        RuntimeError
            If no round is open, or an earlier one was interrupted half-way.
        ValueError
            If `release` is neither.
        OSError
            If it cannot be written ahead: nothing has left, and the round is still open for another
            `end_round`, though not for updates.
        """
        choice("release", release, ("sum", "residual"))
        with self._turn:
            self._check_whole()
            now = self._round
            if now is None:
                raise RuntimeError("expected an open round, got end_round before begin_round")
            bits = now._end("late: the round has ended")
            return self._take(self._members, self._sums.sums.total, bits, release, keep=True)

    def abandon_round(self) -> None:
        """Give up the open round: nothing of it has left, nobody has taken part, it begins anew.

        For public reasons only, such as a lost network. A round that is given up for what came in,
        or for who answered, tells of it.

        Raises
        ------
        RuntimeError
            If no round is open, or one was interrupted half-way.
        """
        with self._turn:
            self._check_whole()
            if self._round is None:
                raise RuntimeError("expected an open round, got abandon_round before begin_round")
            self._give_up(self._round)

    def _give_up(self, now: Round) -> None:
        now._end("the round was abandoned")
        self._round = None

    def _take(self, ids: Ints, total: Ints, bits: int, release: Release, *, keep: bool) -> Vector:
        number, journal = self._rounds_done + 1, self._journal
        # Where this ends in between, journal, ledger, sums and noise may be a step apart.
        self._torn = True
        if journal is not None:
            kept = {"ids": ids, "sum": total, "bits": bits} if keep else None
            try:
                journal.write_ahead(number, journal.digest(number, ids, total, bits), kept)
            except Exception:  # refused as a whole; not so where an interrupt came
                self._torn = False
                raise
        self._cohorts.record(ids)
        self._sums.step(number, ids.size, total, bits)
        running = self._sums.running
        value = (running.value if release == "sum" else running.change) / self._goal
        self._rounds_done, self._round, self._torn = number, None, False
        return value

    def _check_whole(self) -> None:
        if self._torn:
            raise RuntimeError(
                "a round was interrupted half-way: go on from the folder, with a new object"
            )

    def _check_between(self) -> None:
        self._check_whole()
        if self._round is not None:
            raise RuntimeError(
                f"expected end_round or abandon_round first, got an open round {self._round.number}"
            )
        if self.replaying:
            raise RuntimeError("expected replay() to be exhausted first: rounds were written ahead")

    # ---- What is stated ----

    def _private(self) -> PrivateRounds:
        return self

    @property
    def layout(self) -> ModelLayout:
        """Names, shapes and dtypes of the model."""
        return self._layout
