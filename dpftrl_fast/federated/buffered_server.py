# SPDX-License-Identifier: Apache-2.0
"""`BufferedServer`: asynchronous training, a step for every K updates that arrive (FedBuff)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dpftrl_fast._validate import choice, integer, positive_integer, real
from dpftrl_fast.federated.buffered_round import BufferedRound
from dpftrl_fast.federated.ids import Client
from dpftrl_fast.federated.server import ServerDPFTRL
from dpftrl_fast.federated.stated import Stated, with_facts
from dpftrl_fast.federated.sums.layout import Arrays
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

_DONE = "all declared rounds are done"


@dataclass(frozen=True)
class Ticket:
    """Answer to a client that would like to train.

    Attributes
    ----------
    client : int or str
        As it was named.
    token : str or None
        To be sent to the client with the model, and back with its update; None if the client may
        not train now.
    model : int
        Rounds that had ended when the model was made.
    reason : str or None
        Why the client may not train now.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> plan = PrivacyPlan(1.0, 4.0, accounting.MinSeparation(10, 3, 2))
    >>> server = BufferedServer({"w": np.zeros(2)}, plan=plan, buffer_size=2, max_staleness=5)
    >>> ticket = server.check_out("Hamlet")
    >>> ticket.client, ticket.model, ticket.token is None, ticket.reason
    ('Hamlet', 0, False, None)
    """

    client: Client
    token: str | None
    model: int
    reason: str | None = None


class BufferedServer(Stated):
    """Server that takes a step when K updates have arrived, whichever models they began from.

    No client waits for another one. A client asks for a `Ticket` (`check_out`), trains on the model
    of that moment, and sends its update when it is ready (`add`). The update is clipped, multiplied
    by a weight that decreases with its staleness, and added to the buffer. With the K-th update the
    server adds the noise of the plan and takes the step of `ServerDPFTRL`. This is FedBuff (Nguyen
    et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation").

    Parameters
    ----------
    parameters, folder, identity, **options
        As for `ServerDPFTRL`.
    plan : PrivacyPlan
        One step is one full buffer, one record one client: `SinglePass`, or `MinSeparation`, whose
        separation counts steps between two *arrivals* of a client.
    buffer_size : int
        K. Also the divisor of the sums (`report_goal`).
    max_staleness : int
        Steps that may pass while a client trains; an update of an older model is refused, and does
        not count as a participation.
    weight : {"sqrt", "constant"} or callable
        Weight of an update of staleness s: 1/sqrt(1 + s) (FedBuff's), 1, or ``weight(s)`` in
        (0, 1]. The weights are public.

    Raises
    ------
    TypeError, ValueError, RuntimeError, OSError
        If an argument is not as above, or as `ServerDPFTRL`.

    Notes
    -----
    **Formal guarantee.** Neighbours differ in one client, whose updates are replaced by zero; the
    same clients ask and arrive in the same order. Under this definition the guarantee is that of
    `ServerDPFTRL` with the same plan: in each step a client has at most one update, of a norm of at
    most the clip norm, which may be any function of earlier models, and its steps are those that
    the plan allows, since the plan is checked when an update *arrives*. An update that is not
    finite or does not fit takes its place in the buffer like any other. The caller must ensure
    that the order in which clients arrive, and the reasons to call `end_round` early, do not depend
    on their data: **a client whose data decide how long it trains can reveal something by the step
    in which it arrives.** Not covered: metrics of a round.

    A killed server resumes from its folder after the last step. The updates in the buffer are then
    gone, and nothing of them was released: clients may send them again, with the same tokens.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> plan = PrivacyPlan(1.0, 4.0, accounting.MinSeparation(10, 3, 2))
    >>> server = BufferedServer({"w": np.zeros(2)}, plan=plan, buffer_size=2, max_staleness=5)
    >>> tickets = {name: server.check_out(name) for name in ("Hamlet", "Ophelia", "Laertes")}
    >>> for name in ("Ophelia", "Hamlet", "Laertes"):
    ...     problem = server.add(name, {"w": np.array([0.6, 0.8])}, token=tickets[name].token)
    ...     assert problem is None
    >>> server.rounds_done, server.round.cohort
    (1, ('Laertes',))
    >>> server.check_out("Hamlet").reason
    'took part 3 times, or less than 2 rounds ago'
    >>> server.epsilon(1e-6) == plan.epsilon(1e-6)
    True
    """

    def __init__(
        self,
        parameters: Arrays,
        *,
        plan: PrivacyPlan,
        buffer_size: int,
        max_staleness: int = 20,
        weight: Literal["sqrt", "constant"] | Callable[[int], float] = "sqrt",
        folder: str | Path | None = None,
        identity: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._size = positive_integer("buffer_size", buffer_size)
        self._weights = _weights(weight, integer("max_staleness", max_staleness, 0, 10**4))
        self._server = ServerDPFTRL(
            parameters,
            plan=plan,
            report_goal=self._size,
            folder=folder,
            identity=with_facts(identity, weights=list(self._weights)),
            **options,
        )
        try:
            self._server._private._cohorts.check_any_order()
        except BaseException:
            self._server.close()
            raise
        self._adding = threading.RLock()

    @property
    def _private(self) -> Stated:
        return self._server._private

    @property
    def parameters(self) -> Any:
        """The current model, in the given structure and dtypes, as new arrays: may be released."""
        with self._adding:
            return self._server.parameters

    @property
    def done(self) -> bool:
        """True when all declared rounds have ended: no more updates are accepted."""
        return self.rounds_done == self.plan.steps

    def check_out(self, client: Client) -> Ticket:
        """Return the ticket of a client that would like to train on the current model.

        Nothing is reserved: the plan is checked again when the update arrives.

        Raises
        ------
        TypeError, ValueError
            If it is not a client.
        RuntimeError, OSError
            As `add`.
        """
        with self._adding:
            if (now := self._open()) is None:
                return Ticket(client, None, self.rounds_done, _DONE)
            reason = now.why_not(client)
            token = now.token if reason is None else None
            return Ticket(client, token, self.rounds_done, reason)

    def add(self, client: Client, update: Any, *, token: str) -> str | None:
        """Clip a client's update, weigh it and add it to the buffer; a full one takes the step.

        Parameters
        ----------
        client : int or str
            As it checked out.
        update : mapping of str to ndarray, or sequence of ndarray
            As for :meth:`Round.add`: the client's model minus the one that it was sent.
        token : str
            Of its ticket.

        Returns
        -------
        str or None
            None if the update is in the sum; otherwise the reason why not.

        Raises
        ------
        RuntimeError
            If the run is closed, or a step of it was interrupted.
        OSError
            If a step cannot be written ahead: nothing was released, the buffer is kept, and the
            next call tries again before it takes another update. Also if a checkpoint is due and
            cannot be written: then the step is done. If the ledger cannot be written, the update
            was not taken.
        """
        with self._adding:
            if (now := self._open()) is None:
                return _DONE
            reason = now.add(client, update, token=token)
            if now.full:
                self._server.end_round()
            return reason

    def end_round(self) -> Any:
        """Take a step with a buffer that is not full, for a public reason such as a deadline.

        Returns
        -------
        dict of str to ndarray, list or tuple of ndarray
            The new `parameters`.

        Raises
        ------
        RuntimeError, OSError
            As `add`; RuntimeError also if all declared rounds are done.
        """
        with self._adding:
            if self._server.round is None and self._open() is None:
                raise RuntimeError(f"expected a round to end, got none: {_DONE}")
            return self._server.end_round()

    def close(self) -> None:
        """Release the folder and discard the buffer; everything written is on disk already.

        A closed server takes no more calls that would change it.
        """
        with self._adding:
            self._server.close()

    def _open(self) -> BufferedRound | None:
        """Return the round that takes updates, None if all are done."""
        now = self._server.round
        if isinstance(now, BufferedRound):
            if not (now.full or now.ended):
                return now
            # Its step could not be written ahead, or the call that filled it was interrupted.
            self._server.end_round()
        if self.done:
            return None
        return self._server.begin_buffered_round(self._size, weights=self._weights)


def _weights(
    weight: Literal["sqrt", "constant"] | Callable[[int], float], max_staleness: int
) -> tuple[float, ...]:
    if not callable(weight):
        kind = choice("weight", weight, ("sqrt", "constant"))
        weight = _inverse_root if kind == "sqrt" else _one
    ages = range(max_staleness + 1)
    return tuple(real(f"weight({age})", weight(age), above=0.0, most=1.0) for age in ages)


def _inverse_root(staleness: int) -> float:
    return 1.0 / math.sqrt(1.0 + staleness)


def _one(staleness: int) -> float:
    return 1.0
