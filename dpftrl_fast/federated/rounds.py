# SPDX-License-Identifier: Apache-2.0
"""`PrivateRounds`: cohorts, clipped sums, noise and the journal of a federated run.

The update rule is the caller's: `ServerDPFTRL`, or any strategy of another library.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import choice, flag, float_dtype, positive_integer, real
from dpftrl_fast.accounting import FixedOrder
from dpftrl_fast.accounting.guard.keyed_ids import user_key_or_none
from dpftrl_fast.federated.adaptive_clipping import AdaptiveClipping
from dpftrl_fast.federated.buffered_round import BufferedRound
from dpftrl_fast.federated.cohorts import Cohorts
from dpftrl_fast.federated.ids import Client
from dpftrl_fast.federated.model_state import refuse_model_state
from dpftrl_fast.federated.round import Round
from dpftrl_fast.federated.stated import Stated, with_facts
from dpftrl_fast.federated.sums.layout import Arrays, ModelLayout
from dpftrl_fast.federated.sums.private_sums import PrivateSums
from dpftrl_fast.federated.user_ledger import SPENT, LedgerTask
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

    `begin_round` starts a round with the clients that are connected: those that the plan does not
    allow now are turned away before they train, the others are the cohort, and all of them count as
    having taken part. Their updates are added one by one (:meth:`Round.add`), each clipped as a
    whole. `end_round` writes the sum ahead, adds the plan's noise and returns the result, which may
    be released.

    Parameters
    ----------
    parameters : mapping of str to ndarray, or sequence of ndarray
        The model, for names, shapes and dtypes. Running statistics (BatchNorm) are refused by name.
    plan : PrivacyPlan
        One step is one round, one record is one client. The clip norm is that of a whole update.
        The noise is that of its mechanism, of any kind.
    report_goal : int
        Divisor of the sums (B): fixed and public, however many clients answer.
    clipping : AdaptiveClipping, optional
        Adapts the clip norm to the updates at each restart of the plan's mechanism, which must
        have some.
    folder : str or Path, optional
        Folder that keeps the run (see docs/runs/resume.md): **a secret**. None keeps it in memory
        only: a run that is killed is then lost, and must not be started again with the same key.
    identity : mapping, optional
        More facts that identify the run, JSON-able; a folder of another run is refused.
    state : mapping, optional
        The caller's own state before round 1, for `state` (see there).
    spare_recoveries, recover, accept_epsilon
        As for :class:`dpftrl_fast.run.account.RunAccount`: ``recover=True`` abandons rounds that
        were written ahead and continues with fresh noise. Needed only where a file of the folder
        was lost, since a round's sum is kept until the next checkpoint. Not with `clipping`.
    allow_fork : bool
        Opens a folder that was copied, which voids the guarantee.
    memory, dtype, threads
        Of the noise, as for :class:`dpftrl_fast.TreeNoise`. Released values are float64, on a grid
        as coarse as the noise of `dtype` (see `dpftrl_fast.federated.sums.running_sum`).
    noise_seed : int or bytes, optional
        For tests: the run is then `reproducible`, not private.
    key : bytes, optional
        32 secret bytes, used for no other run; default from the operating system.
    ledger : LedgerTask, optional
        Task of a :class:`dpftrl_fast.federated.UserLedger`: users whose budget is spent in other
        tasks are turned away. Its guarantee must be that of this run.
    user_key : bytes, optional
        32 secret bytes that are kept outside of the folder: then the folder alone does not reveal
        who took part (see docs/federated/start.md). They are given again when the run resumes. Not
        with `FixedOrder`, whose plan is a list of its clients.

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
    **Formal guarantee.** Neighbours differ in one client, whose updates are replaced by zero in all
    rounds. All values that `end_round` and `replay` return, with the sequence of clip norms, are
    (epsilon, delta)-private for the epsilon of :meth:`epsilon`, which is that of `plan`, with spare
    recoveries and the estimates of `clipping`. The caller must ensure that a client id stands for
    one person, that the reasons for abandoning a round and the choice of the connected clients do
    not depend on updates, and that folder and key stay secret. Not covered: timing, and
    everything that clients reveal otherwise. Floating point: docs/guarantees/floating_point.md.

    The object holds un-noised sums and the key: it is not pickled. A folder's own key takes
    precedence over `key` and `noise_seed`.

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
    >>> round(rounds.epsilon(1e-6, neighbours="replace-one"), 3)
    4.887
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
        spare_recoveries: int = 0,
        recover: bool = False,
        accept_epsilon: tuple[float, float] | None = None,
        allow_fork: bool = False,
        memory: Memory = "stored",
        dtype: Literal["float32", "float64"] = "float32",
        threads: int | None = None,
        noise_seed: Seed = None,
        key: bytes | None = None,
        user_key: bytes | None = None,
        ledger: LedgerTask | None = None,
    ) -> None:
        recover, allow_fork = flag("recover", recover), flag("allow_fork", allow_fork)
        if noise_seed is not None and key is not None:
            raise ValueError("expected a noise_seed or a key, got both")
        if clipping is not None and (spare_recoveries or recover):
            raise ValueError(
                "adaptive clipping does not support spare_recoveries and recover, got one of them"
            )
        if ledger is not None and (
            noise_seed is not None or allow_fork or accept_epsilon is not None
        ):
            raise ValueError(
                "a ledger does not support noise_seed, allow_fork and accept_epsilon, got one of "
                "them: its guarantee would not be that of the task"
            )
        if ledger is not None and not isinstance(ledger, LedgerTask):
            raise TypeError(
                "ledger must be a task of a UserLedger, as ledger.task(label, plan) returns, got "
                f"{type(ledger).__name__}"
            )
        user_key = user_key_or_none("user_key", user_key)
        self._account = RunAccount(plan, spare_recoveries)
        if user_key is not None and isinstance(plan.participation, FixedOrder):
            raise ValueError(
                "user_key must be None with FixedOrder, whose plan lists its clients, got a key"
            )
        self._clipping = clipping
        self._goal = positive_integer("report_goal", report_goal)
        self._layout = ModelLayout(parameters)
        refuse_model_state(self._layout.names)
        self._cohorts = Cohorts(plan, user_key)
        self._dtype = float_dtype(dtype)
        self._sums = PrivateSums(
            plan,
            self._layout,
            self._goal,
            clipping,
            key_of_seed(noise_seed, name="noise_seed") if key is None else checked_key(key),
            dtype=self._dtype,
            memory=memory,
            threads=threads,
        )
        self._reproducible = noise_seed is not None
        self._run = secrets.token_hex(8)
        self._rounds_done = 0
        self._round: Round | None = None
        self._torn = self._closed = False
        self._turn = threading.RLock()
        self._state = state
        self._task = ledger
        self._claim, self._asked = secrets.token_hex(16), 0
        self._journal: RunJournal | None = None
        if folder is not None:
            facts = with_facts(identity, **self._identity())
            self._journal = RunJournal(folder, facts, allow_fork=allow_fork)
        try:
            if self._journal is not None:
                self._cohorts = Cohorts(plan, self._journal.user_key(user_key))
                self._begin(self._journal, recover, accept_epsilon, hidden=user_key is not None)
            if ledger is not None:
                ledger.claim(self._claim, self.guarantee, self._asked)
        except BaseException:
            if self._journal is not None:
                self._journal.close()
            raise

    # ---- The folder ----

    def _identity(self) -> dict[str, Any]:
        ledger = {} if self._task is None else {"ledger": self._task.identity}
        return {
            **ledger,
            "kind": "dpftrl_fast.federated",
            "plan": self.plan.to_dict(),
            "parameters": self._layout.fingerprint,
            "report_goal": self._goal,
            "clipping": None if self._clipping is None else self._clipping.to_dict(),
            "spare_restarts": self._account.spare_recoveries,
            "dtype": self._dtype,
        }

    def _begin(
        self,
        journal: RunJournal,
        recover: bool,
        accept_epsilon: tuple[float, float] | None,
        *,
        hidden: bool,
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
        if recover and journal.replaying:
            after = after.recovered(journal.last, journal.step + 1, accept_epsilon=accept_epsilon)
        self._run, self._reproducible = kept["run"], kept["reproducible"]
        self._rounds_done, self._state = kept["rounds_done"], kept["state"]
        if self._task is not None:
            self._claim, self._asked = kept["ledger"]["run"], kept["ledger"]["users"]
        self._cohorts.load_state_dict(kept["cohorts"])
        if hidden and not self._cohorts.keyed:
            raise ValueError(
                "user_key must be None for this folder, whose ids of users are those of an earlier "
                "version, without a key: it hides them only in a new run"
            )
        self._sums.load_state_dict(kept["sums"], self._account)
        if after is not self._account:
            self._account = after
            self._run = secrets.token_hex(8)  # the next rounds repeat numbers of earlier ones
            self._sums.recover(after)
            journal.recover(self._all_state())

    def _all_state(self) -> dict[str, Any]:
        ledger = {} if self._task is None else {"ledger": self._ledger_state(self._task)}
        return {
            **ledger,
            "run": self._run,
            "reproducible": self._reproducible,
            "rounds_done": self._rounds_done,
            "cohorts": self._cohorts.state_dict(),
            "sums": self._sums.state_dict(),
            "state": self._state,
        }

    def _ledger_state(self, task: LedgerTask) -> dict[str, Any]:
        return {"run": self._claim, "users": task.users}

    @property
    def state(self) -> Mapping[str, Any] | None:
        """The caller's own state as it was last kept: given at the beginning, or to `checkpoint`.

        When a program resumes, it is that of `rounds_done` rounds. The rounds since then, which
        were written ahead, come from `replay`.
        """
        return self._state

    @property
    def replaying(self) -> bool:
        """True while rounds that were written ahead are still to be replayed."""
        return self._journal is not None and self._journal.replaying

    def replay(self, release: Release = "sum") -> Iterator[Vector]:
        """Repeat, one by one, the rounds that were written ahead before a crash.

        No client is asked: the sum of each round was kept. To be exhausted before a round begins.

        Parameters
        ----------
        release : {"sum", "residual"}
            As for `end_round`; the same as before the crash.

        Yields
        ------
        ndarray of float64, shape (size,)
            As `end_round` returned, or would have returned.

        Raises
        ------
        ValueError
            If the sum of a round is missing or damaged.
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
                        "may have been released: recover=True abandons it (see docs/runs/resume.md)"
                    )
                value = self._take(kept["ids"], kept["sum"], kept["bits"], release, keep=False)
            yield value

    def checkpoint(self, state: Mapping[str, Any] | None = None) -> None:
        """Save the whole state between two rounds; without a folder, only the caller's own.

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

    # ---- A round ----

    def begin_round(self, clients: Iterable[Client]) -> Round:
        """Begin a round with those of the clients that the plan allows now.

        Where the plan determines the members of the round (`FixedOrder`, later epochs of
        `FixedEpochs`), the cohort is those of them that are connected, and the others are empty
        slots. Otherwise it is all eligible clients. It may be larger or smaller than the report
        goal.

        Parameters
        ----------
        clients : iterable of int or str
            Users (see `dpftrl_fast.federated.ids`), each once.

        Returns
        -------
        Round
            With the reasons for the clients that were turned away, which must not train.

        Raises
        ------
        RuntimeError
            If a round is open, or rounds are to be replayed.
        ValueError, TypeError
            If all declared rounds are done; if an entry is not a client id, or appears twice; if
            the run's sums could overflow their integers. Nothing is changed.
        """
        with self._turn:
            self._check_between()
            cohort = self._cohorts.choose(clients)
            self._sums.check_room(cohort.members.size)
            if self._task is not None:
                stay = self._task.charge(cohort.clients)
                cohort = self._cohorts.without(cohort, stay, SPENT)
            self._sums.sums.clear()
            number = self._rounds_done + 1
            # A round that was abandoned, or open when the program was killed, begins again with the
            # same token, so that clients which train already need not train twice. A late reply is
            # as good as one to the new attempt: it is of the same model and clip norm, it counts
            # for members of the new cohort only, once each, and no update of the old one was kept.
            self._round = Round(
                number,
                f"{self._run}-{number}",
                cohort,
                sums=self._sums.sums,
                clip_norm=self.clip_norm,
                adaptive=self._clipping is not None,
            )
            return self._round

    def begin_buffered_round(
        self, size: int, *, weights: Sequence[float] = (1.0,)
    ) -> BufferedRound:
        """Begin a round of the first `size` clients whose updates arrive, of older models too.

        Parameters
        ----------
        size : int
            Updates that the round takes. It may be ended earlier, for public reasons.
        weights : sequence of float
            Factors of a clipped update of the current model, of the model before, and so on, each
            in (0, 1]; updates of older models are refused.

        Returns
        -------
        BufferedRound

        Raises
        ------
        RuntimeError
            If a round is open, or rounds are to be replayed.
        ValueError, TypeError
            If an argument is not as above; if all declared rounds are done; if the plan's
            participation is neither `SinglePass` nor `MinSeparation`; if the run's sums could
            overflow their integers. Nothing is changed.
        """
        positive_integer("size", size)
        factors = tuple(real("each of weights", w, above=0.0, most=1.0) for w in weights)
        if not factors:
            raise ValueError("weights must have an entry for the current model, got none")
        with self._turn:
            self._check_between()
            self._cohorts.check_any_order()
            self._cohorts.check_left()
            self._sums.check_room(size)
            self._sums.sums.clear()
            now = BufferedRound(
                self._rounds_done + 1,
                self._run,
                size,
                factors,
                cohorts=self._cohorts,
                sums=self._sums.sums,
                clip_norm=self.clip_norm,
                task=self._task,
            )
            self._round = now
            return now

    def end_round(self, release: Release = "sum") -> Vector:
        """End the open round: write its sum ahead, add the noise, and return the noised result.

        The whole cohort has taken part, whoever answered. A round in which nobody answered is a
        step like any other.

        Parameters
        ----------
        release : {"sum", "residual"}
            Return the noised sum of all rounds so far over the report goal, (s_t + n_t)/B, or its
            change in this round, the round's noised mean update. Each follows from the other: both
            may be released.

        Returns
        -------
        ndarray of float64, shape (size,)

        Raises
        ------
        RuntimeError
            If no round is open, or an earlier one was interrupted.
        ValueError
            If `release` is neither.
        OSError
            If the sum cannot be written ahead: nothing was released, and `end_round` may be called
            again, but no more updates are accepted.
        """
        choice("release", release, ("sum", "residual"))
        with self._turn:
            self._check_whole()
            now = self._round
            if now is None:
                raise RuntimeError("expected an open round, got end_round before begin_round")
            bits = now._end("late: the round has ended")
            return self._take(now.members, self._sums.sums.total, bits, release, keep=True)

    def _take(self, ids: Ints, total: Ints, bits: int, release: Release, *, keep: bool) -> Vector:
        number, journal = self._rounds_done + 1, self._journal
        # An interruption from here on may leave journal, guard, sums and noise a step apart.
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

    def _check_between(self) -> None:
        self._check_whole()
        if self._round is not None:
            raise RuntimeError(
                f"expected end_round or abandon_round first, got an open round {self._round.number}"
            )
        if self.replaying:
            raise RuntimeError("expected replay() to be exhausted first: rounds were written ahead")

    @property
    def layout(self) -> ModelLayout:
        """Names, shapes and dtypes of the model."""
        return self._layout
