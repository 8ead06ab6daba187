# SPDX-License-Identifier: Apache-2.0
"""`BufferedRound`: a round whose cohort is the clients that arrive, of older models too."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpftrl_fast._validate import positive_integer
from dpftrl_fast.federated.cohorts import Cohort, Cohorts
from dpftrl_fast.federated.ids import Client
from dpftrl_fast.federated.round import ANSWERED, Ints, Round
from dpftrl_fast.federated.sums.round_sum import RoundSum
from dpftrl_fast.federated.user_ledger import SPENT, LedgerTask

_DIGITS = 20  # of a number of a round, and more
_NOBODY = np.zeros(0, np.int64)


class BufferedRound(Round):
    """An open round without a cohort: whoever arrives first is in it, until it is full.

    A client is admitted when its update arrives, if the plan allows it in this round. An update may
    be of an older model: it is clipped, and then multiplied by the weight of its staleness (rounds
    that have ended since its model was sent). An update that does not fit the model or is not
    finite is an arrival like any other: its slot stays empty. So nothing public depends on an
    update.

    Attributes
    ----------
    size : int
        Updates that the round takes.

    Notes
    -----
    As for :class:`Round`; `cohort` grows, `absent` is 0, and `token` belongs to the current model.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.federated import BufferedServer
    >>> plan = PrivacyPlan(1.0, 4.0, accounting.MinSeparation(10, 3, 2))
    >>> server = BufferedServer({"w": np.zeros(2)}, plan=plan, buffer_size=3, max_staleness=5)
    >>> token = server.check_out("Hamlet").token
    >>> server.add("Hamlet", {"w": np.array([0.6, 0.8])}, token=token)
    >>> server.round.number, server.round.size, server.round.cohort
    (1, 3, ('Hamlet',))
    """

    def __init__(
        self,
        number: int,
        run: str,
        size: int,
        weights: tuple[float, ...],
        *,
        cohorts: Cohorts,
        sums: RoundSum,
        clip_norm: float,
        task: LedgerTask | None = None,
    ) -> None:
        self._arrived: list[Client] = []
        nobody = Cohort((), {}, _NOBODY, 0, _NOBODY, cohorts.id_of)
        super().__init__(number, f"{run}-{number}", nobody, sums=sums, clip_norm=clip_norm)
        self.size = positive_integer("size", size)
        self._run, self._weights = run, weights
        self._cohorts, self._task = cohorts, task

    @property
    def cohort(self) -> tuple[Client, ...]:
        """The clients that have arrived, as they were named."""
        return tuple(self._arrived)

    @property
    def full(self) -> bool:
        """True when the round takes no more updates."""
        return len(self._arrived) >= self.size

    @property
    def members(self) -> Ints:
        """Ids of the clients that have arrived, ascending."""
        return np.array(sorted(self._answered), np.int64)

    def add_sum(self, *_: Any, **__: Any) -> str | None:
        """Refuse: a sum made elsewhere cannot be weighed by the staleness of its updates.

        Raises
        ------
        RuntimeError
            Always.
        """
        raise RuntimeError("a buffered round takes single updates, got add_sum: call add for each")

    def why_not(self, client: Client) -> str | None:
        """Return the reason why an update of a client would be refused now, None if it would not.

        Raises
        ------
        TypeError, ValueError
            If it is not a client.
        """
        problem = self._plan_refuses(client, self._identify(client))
        if problem is None and self._task is not None and not self._task.eligible([client])[0]:
            return SPENT
        return problem

    def _weight(self, token: object) -> float | str:
        text = token.rpartition("-")[2] if isinstance(token, str) else ""
        number = int(text) if text.isdecimal() and len(text) < _DIGITS else 0
        staleness = self.number - number
        if token == f"{self._run}-{number}" and number and 0 <= staleness < len(self._weights):
            return self._weights[staleness]
        oldest = max(1, self.number - len(self._weights) + 1)
        came = repr(token[:60]) if isinstance(token, str) else type(token).__name__
        return f"of another run, or older than the model of round {oldest}: got the token {came}"

    def _may_answer(self, client: Client, identity: int) -> str | None:
        problem = self._plan_refuses(client, identity)
        # The ledger has the client on the disk before its update is in the sum.
        if problem is None and self._task is not None and not self._task.charge([client])[0]:
            return SPENT
        return problem

    def _plan_refuses(self, client: Client, identity: int) -> str | None:
        if identity in self._answered:
            return ANSWERED
        if self.full:
            return "late: the round is full"
        return self._cohorts.why_not(client)

    def _answer(self, client: Client, identity: int) -> None:
        super()._answer(client, identity)
        self._arrived.append(client)
