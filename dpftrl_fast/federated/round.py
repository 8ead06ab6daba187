# SPDX-License-Identifier: Apache-2.0
"""`Round`: the clients of one round, and their updates, added one by one."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import integer
from dpftrl_fast.federated.cohorts import Cohort
from dpftrl_fast.federated.ids import Client, listed
from dpftrl_fast.federated.sums.grid import bits_of_sum
from dpftrl_fast.federated.sums.partial_sum import SumSpec
from dpftrl_fast.federated.sums.round_sum import RoundSum

Ints = NDArray[np.int64]

ANSWERED = "answered already in this round"
"""Reason for the second update of a client."""


class Round:
    """An open round: made by `begin_round`, ended by `end_round`.

    An invalid update is not an error: the client's slot stays empty, and the reason is returned and
    kept for the metrics. No other client replaces it, and the divisor stays the report goal, so
    that nothing public depends on an update.

    Attributes
    ----------
    number : int
        From 1.
    token : str
        Identifies run and round of an update; public. Clients receive it with the model and send it
        back. A round that is begun again has the same one: replies to an earlier attempt, which are
        of the same model, count for those who are in the new cohort, once each.
    cohort : tuple of int or str
        The clients that train, as they were named.
    turned_away : dict of client to str
        Clients that may not take part in this round, with the reason.
    absent : int
        Users that the plan has in this round and that are not connected: empty slots.
    without_update : int
        Clients in sums that sent zeros for want of an update. **Not private.**

    Notes
    -----
    Updates may be added from several threads; the sum has the same bits in any order.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.federated import PrivateRounds
    >>> plan = PrivacyPlan(1.0, 4.0, accounting.SinglePass(10))
    >>> rounds = PrivateRounds([np.zeros(2)], plan=plan, report_goal=2)
    >>> now = rounds.begin_round(["Hamlet", "Ophelia"])
    >>> now.number, now.cohort, now.turned_away
    (1, ('Hamlet', 'Ophelia'), {})
    >>> now.add("Hamlet", [np.array([0.6, 0.8])])
    >>> now.add("Ophelia", [np.array([np.nan, 0.0])])
    'update must be finite, got NaN or infinity'
    """

    def __init__(
        self,
        number: int,
        token: str,
        cohort: Cohort,
        *,
        sums: RoundSum,
        clip_norm: float,
        adaptive: bool = False,
    ) -> None:
        self.number, self.token = number, token
        self._cohort = cohort
        self.turned_away = dict(cohort.turned_away)
        self.absent = cohort.absent
        self._ids, self._identify = set(cohort.ids.tolist()), cohort.identify
        self._answered: set[int] = set()
        self._accepted = 0
        self.without_update = 0
        self._within = 0
        self._refused: dict[Any, str] = {}
        self._sums, self._clip_norm, self._adaptive = sums, clip_norm, adaptive
        self._ended: str | None = None
        self._turn = threading.Lock()

    @property
    def cohort(self) -> tuple[Client, ...]:
        """The clients that train, as they were named."""
        return self._cohort.clients

    @property
    def members(self) -> Ints:
        """Ids of all users that count as having taken part, absent ones too."""
        return self._cohort.members

    @property
    def ended(self) -> bool:
        """True when the round has ended: no more updates are accepted."""
        return self._ended is not None

    def add(self, client: Client, update: Any, *, token: object = None) -> str | None:
        """Clip a client's update and add it to the sum of the round.

        Parameters
        ----------
        client : int or str
            As it is named in `cohort`.
        update : mapping of str to ndarray, or sequence of ndarray
            The client's model after training minus the model that it was sent, in the structure of
            the model; float16, float32 or float64. It is neither kept nor changed. It must not be
            changed during the call, which reads it twice: for its norm, then to add it.
        token : str, optional
            The token that the client sent back; None where the transport guarantees that the update
            belongs to this run and round.

        Returns
        -------
        str or None
            None if the update is in the sum; otherwise the reason why not. Nothing changes for a
            client outside of the cohort or one that has answered already, for an update of another
            run or round, or for one that comes after the end. An update that does not fit the model
            or is not finite is an answer: its slot stays empty.
        """
        with self._turn:
            answers = len(self._answered)
            reason = self._add(client, update, token)
            name = _name(client)
            if reason is not None and (name not in self._refused or len(self._answered) > answers):
                self._refused[name] = reason  # the first reason stays
            return reason

    @property
    def sum_spec(self) -> SumSpec:
        """Clip norm, unit and layout of the round's sum, public: for sums made elsewhere."""
        return SumSpec(self.token, self._clip_norm, self._sums.unit, self._sums.layout)

    def add_sum(
        self,
        clients: Iterable[Client],
        total: Any,
        *,
        modulus_bits: int = 64,
        within: int | None = None,
        accepted: int | None = None,
        token: object = None,
    ) -> str | None:
        """Add a sum of clipped updates that was made elsewhere, for instance by a `PartialSum`.

        The result is that of `add` for each update, bit for bit.

        Parameters
        ----------
        clients : iterable of int or str
            The clients in the sum, as they are named in `cohort`.
        total : (size,) array of integers, or integer arrays in the structure of the model
            Sum of the updates, clipped and in units (see `sum_spec`), modulo 2^modulus_bits. It is
            neither kept nor changed.
        modulus_bits : int, default 64
            At least ``sum_spec.modulus_bits(len(clients))``.
        within : int, optional
            Number of updates within the clip norm minus those above it: required by
            `AdaptiveClipping`.
        accepted : int, optional
            Number of updates in the sum, where other clients sent zeros: counted in `metrics` and
            used for nothing else. Default: all.
        token : str, optional
            As for `add`; required by `AdaptiveClipping`, under which a sum of an earlier round may
            have another clip norm.

        Returns
        -------
        str or None
            None if the total is in the sum; otherwise the reason why not. Nothing changes if one of
            the clients is outside of the cohort, is named twice or has answered already, for a sum
            of another run or round, and after the end. A total that does not fit the model, or has
            a norm above that of so many clipped updates, is an answer: the slots of all its clients
            stay empty.

        Raises
        ------
        TypeError, ValueError
            If `clients` is no iterable, `modulus_bits` leaves no room for the sum of so many
            clients, or `within` or `token` is missing. Nothing changes.

        Notes
        -----
        **Formal guarantee.** As for `PrivateRounds`, if the clients, or the workers that sum for
        them, clip every update to the clip norm: the server cannot check it. It never sees a single
        update, and it adds the noise. A client that does not clip voids the guarantee of the
        clients that share its sum. Without `accepted`, `metrics` counts all clients of a sum as
        accepted.
        """
        named = listed(clients)
        bits = integer("modulus_bits", modulus_bits, 1, 64)
        least = bits_of_sum(self._clip_norm, self._sums.unit, len(named))
        if bits < least:
            raise ValueError(
                f"modulus_bits must be at least {least} for a sum of {len(named)} clients, got "
                f"{bits}"
            )
        if within is None and self._adaptive:
            raise ValueError("within must be given with adaptive clipping, got None")
        if token is None and self._adaptive:  # a sum may be of an earlier, larger clip norm
            raise ValueError("token must be given with adaptive clipping, got None")
        with self._turn:
            answers = len(self._answered)
            reason = self._add_sum(named, total, bits, within, accepted, token)
            for name in map(_name, named if reason is not None else ()):
                if name not in self._refused or len(self._answered) > answers:
                    self._refused[name] = str(reason)
            return reason

    def _add_sum(
        self,
        clients: list[Client],
        total: Any,
        bits: int,
        within: object,
        accepted: object,
        token: object,
    ) -> str | None:
        if isinstance(weight := self._weight_now(token), str):
            return weight
        if not clients:
            return "a sum must have at least one client, got none"
        identities = [self._open_slot(client) for client in clients]
        for place, found in enumerate(identities):
            if isinstance(found, str):  # without the name: reasons come into logs
                return f"the client at place {place} of the sum: {found}"
        members = {found for found in identities if isinstance(found, int)}
        if len(members) < len(clients):
            return "a client is named twice in the sum"
        self._answered.update(members)
        count = len(members)
        try:
            balance = 0 if within is None else integer("within", within, -count, count)
            updates = count if accepted is None else integer("accepted", accepted, 0, count)
            self._sums.add_total(total, count, modulus_bits=bits)
        except (TypeError, ValueError) as error:
            return str(error)
        self._accepted += updates
        self.without_update += count - updates
        self._within += balance
        return None

    def _weight_now(self, token: object) -> float | str:
        """Return the weight of what comes with a token now, or why it is refused."""
        return self._weight(token) if self._ended is None else self._ended

    def _open_slot(self, client: Client) -> int | str:
        """Return the id of a client that has not answered, or why it cannot."""
        try:
            identity = self._identify(client)
        except (TypeError, ValueError) as error:
            return str(error)
        problem = self._may_answer(client, identity)
        return identity if problem is None else problem

    def _add(self, client: Client, update: Any, token: object) -> str | None:
        if isinstance(weight := self._weight_now(token), str):
            return weight
        identity = self._open_slot(client)
        if isinstance(identity, str):
            return identity
        self._answer(client, identity)
        try:
            norm = self._sums.add(update, weight)
        except ValueError as error:  # it does not fit the model
            return str(error)
        if not math.isfinite(norm):
            return "update must be finite, got NaN or infinity"
        self._accepted += 1
        self._within += 1 if norm <= self._clip_norm else -1
        return None

    def _weight(self, token: object) -> float | str:
        """Return the weight of an update, at most 1, or the reason why its token is refused."""
        if token is None or (isinstance(token, str) and token == self.token):
            return 1.0
        came = repr(token[:60]) if isinstance(token, str) else type(token).__name__
        return f"of another run or round: expected the token {self.token!r}, got {came}"

    def _may_answer(self, client: Client, identity: int) -> str | None:
        """Return the reason why a client has no slot in the round, by ids alone."""
        if identity not in self._ids:
            return self.turned_away.get(client, "not in the cohort of this round")
        return ANSWERED if identity in self._answered else None

    def _answer(self, client: Client, identity: int) -> None:
        """Fill the slot of a client, whatever its update."""
        self._answered.add(identity)

    def refuse(self, client: Client, reason: str) -> None:
        """Record the reason why a client sends no update, such as an error of its own.

        Its slot stays empty unless an update comes; the first reason stays.
        """
        with self._turn:
            self._refused.setdefault(_name(client), reason)

    def metrics(self) -> dict[str, Any]:
        """Return counts of the round: computed from private data, NOT PRIVATE, not to be published.

        Returns
        -------
        dict
            ``"accepted"`` and ``"missing"`` (cohort members, refused or silent) as numbers,
            ``"refused"`` and ``"turned_away"`` as dictionaries of client to reason, ``"absent"``,
            and ``"private"``, False.
        """
        with self._turn:
            return {
                "round": self.number,
                "private": False,
                "accepted": self._accepted,
                "missing": len(self.cohort) - self._accepted,
                "absent": self.absent,
                "refused": dict(self._refused),
                "turned_away": dict(self.turned_away),
            }

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Round holds un-noised sums and is not copied nor pickled: two of one round would "
            "each take the update of a client"
        )

    def _end(self, reason: str) -> int:
        """End the round; return the number of updates within the clip norm minus those above it."""
        with self._turn:
            self._ended = reason
            return self._within

    def __repr__(self) -> str:
        return f"Round({self.number}, clients={len(self.cohort)}{', ended' * self.ended})"


def _name(client: Any) -> Any:
    """Return a client as a key of the metrics."""
    fits = isinstance(client, (int, str, np.integer)) and not isinstance(client, bool)
    return client if fits else f"of type {type(client).__name__}"
