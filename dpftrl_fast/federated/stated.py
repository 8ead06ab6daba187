# SPDX-License-Identifier: Apache-2.0
"""`Stated`: the properties and calls that `PrivateRounds` and `ServerDPFTRL` share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.statement.statement import Guarantee, PrivacyStatement
from dpftrl_fast.federated.adaptive_clipping import AdaptiveClipping
from dpftrl_fast.federated.cohorts import Cohorts
from dpftrl_fast.federated.ids import Client
from dpftrl_fast.federated.round import Round
from dpftrl_fast.federated.sums.layout import ModelLayout
from dpftrl_fast.federated.sums.private_sums import PrivateSums
from dpftrl_fast.federated.user_ledger import LedgerTask
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.run.journal import RunJournal

RunT = TypeVar("RunT", bound="Stated")


class Stated(PrivacyStatement):
    """Plan, guarantee and position of a federated run."""

    _account: RunAccount
    _clipping: AdaptiveClipping | None
    _goal: int
    _layout: ModelLayout
    _cohorts: Cohorts
    _sums: PrivateSums
    _journal: RunJournal | None
    _task: LedgerTask | None
    _reproducible: bool
    _rounds_done: int
    _round: Round | None
    _torn: bool
    _closed: bool
    _turn: AbstractContextManager[Any]

    @property
    def _private(self) -> Stated:
        """The object that holds these fields."""
        return self

    @property
    def plan(self) -> PrivacyPlan:
        """The plan that made the noise."""
        return self.account.plan

    @property
    def account(self) -> RunAccount:
        """The plan with its spare recoveries, and the recoveries that happened.

        Its figures leave out the estimates of adaptive clipping; :meth:`epsilon` includes them.
        """
        return self._private._account

    @property
    def report_goal(self) -> int:
        """The public divisor of the sums."""
        return self._private._goal

    @property
    def clip_norm(self) -> float:
        """Norm that whole updates are clipped to in the current round: may be published."""
        return self._private._sums.clip_norm

    @property
    def rounds_done(self) -> int:
        """Number of rounds that have ended."""
        return self._private._rounds_done

    @property
    def round(self) -> Round | None:
        """The open round."""
        return self._private._round

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: whoever guesses the seed can remove the noise."""
        return self._private._reproducible

    @property
    def forked(self) -> bool:
        """True if the folder is a copy opened with ``allow_fork``: no guarantee holds."""
        journal = self._private._journal
        return journal is not None and journal.forked

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the whole declared run, for its users.

        It includes spare recoveries and the estimates of adaptive clipping, and is the same before,
        during and after the run. A forked run has none: ValueError.
        """
        if self.forked:
            raise ValueError(
                "no epsilon can be stated: this folder is a copy opened with allow_fork, and "
                "another run may have added the same noise to other sums"
            )
        clipping = self._private._clipping
        return self.account.guarantee if clipping is None else clipping.composition(self.plan)

    # ---- Calls ----

    def eligible(self, clients: Iterable[Client]) -> NDArray[np.bool_]:
        """Return for each client whether it may take part in the next round.

        Raises
        ------
        TypeError, ValueError
            If an entry is not a client id.
        """
        private = self._private
        with private._turn:
            if private._task is None:
                return private._cohorts.eligible(clients)
            given = list(clients)
            return private._cohorts.eligible(given) & private._task.eligible(given)

    def abandon_round(self) -> None:
        """Discard the open round: nothing of it was released, nobody took part, it begins again.

        For public reasons only, such as a lost network. A round that is abandoned because of the
        updates that came in, or of the clients that answered, reveals something about them.

        Raises
        ------
        RuntimeError
            If no round is open, or one was interrupted.
        """
        private = self._private
        with private._turn:
            private._check_whole()
            if private._round is None:
                raise RuntimeError("expected an open round, got abandon_round before begin_round")
            private._discard()

    def _discard(self) -> None:
        if self._round is not None:
            self._round._end("the round was abandoned")
            self._round = None

    def _check_whole(self) -> None:
        private = self._private
        if private._closed:
            kept = private._journal is not None
            way = "open its folder with a new object" if kept else "it was kept in memory only"
            raise RuntimeError(f"this run is closed: {way}")
        if private._torn:
            raise RuntimeError(
                "a round was interrupted half-way: resume from the folder, with a new object"
            )

    def close(self) -> None:
        """Release the folder and discard an open round; everything written is on disk already.

        A closed run takes no more calls that would change it.
        """
        private = self._private
        with private._turn:
            private._discard()
            private._closed = True
            if private._journal is not None:
                private._journal.close()

    def __enter__(self: RunT) -> RunT:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(rounds_done={self.rounds_done}, rounds={self.plan.steps}, "
            f"size={self._private._layout.size}, report_goal={self.report_goal}"
            f"{', reproducible, not private' if self.reproducible else ''}"
            f"{', forked: the guarantee is void' if self.forked else ''})"
        )

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} holds un-noised sums and a secret key and is not pickled"
        )


def with_facts(identity: Mapping[str, Any] | None, **own: Any) -> dict[str, Any]:
    """Return facts of a caller, and a run's own ones, that identify it.

    Raises
    ------
    ValueError
        If the caller gives one of the run's own.

    Examples
    --------
    >>> with_facts({"source": "phones"}, rounds=3)
    {'rounds': 3, 'source': 'phones'}
    """
    more = dict(identity or {})
    if both := sorted({*own} & {*more}):
        raise ValueError(
            f"identity must have more facts than the run's own, got {', '.join(both)} again"
        )
    return {**own, **more}
