# SPDX-License-Identifier: Apache-2.0
"""`Cohorts`: the clients that may be in the next round, by the plan and past participation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting import FixedEpochs, FixedOrder, MinSeparation, SinglePass
from dpftrl_fast.accounting.guard.keyed_ids import KeyedIds
from dpftrl_fast.accounting.guard.state import guard_state
from dpftrl_fast.federated.ids import KEYED, Client, ClientIds, client_id, listed
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

Ints = NDArray[np.int64]

# States of version 1 have no version, those before version 3 no check value of a key.
_IDS, _CHECK = "ids_version", "ids_check"
_PLAIN, _KEYED = 2, KEYED


@dataclass(frozen=True)
class Cohort:
    """The clients of one round, and those turned away, with the reason.

    `members` are the ids of all users that count as having taken part: the clients, and the
    `absent` ones, whom the plan has in the round and that are not connected. `ids` are those of the
    clients, in their order, as `identify` has them.
    """

    clients: tuple[Client, ...]
    turned_away: Mapping[Client, str]
    members: Ints
    absent: int
    ids: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    identify: Callable[[Client], int] = client_id


class Cohorts:
    """Selection of cohorts that the plan allows, with a record of past participation.

    Parameters
    ----------
    plan : PrivacyPlan
        Of the run. A `FixedOrder` is itself a list of its clients, whose ids stay plain.
    key : bytes, optional
        32 secret bytes, under which the ids are hashed; default fresh ones, for a run in memory.

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> cohorts = Cohorts(PrivacyPlan(1.0, 2.0, accounting.SinglePass(3)))
    >>> cohorts.record(cohorts.choose(["Lear", "Kent"]).members)
    >>> cohorts.choose(["Kent", "Edgar"]).clients
    ('Edgar',)
    """

    def __init__(self, plan: PrivacyPlan, key: bytes | None = None) -> None:
        self._pattern = plan.participation
        self._guard = plan.guard()
        self._keyed = KeyedIds(key)
        listed = isinstance(self._pattern, FixedOrder)
        self._ids = ClientIds(_PLAIN) if listed else ClientIds(_KEYED, self._keyed)

    @property
    def keyed(self) -> bool:
        """Whether the ids of the run are under its key."""
        return self._ids.version == _KEYED

    def eligible(self, clients: Iterable[Client]) -> NDArray[np.bool_]:
        """Return for each client whether it may be in the next round."""
        return self._guard.eligible(self._ids.of_all(listed(clients)))

    def choose(self, clients: Iterable[Client]) -> Cohort:
        """Return the cohort of the next round out of the connected clients.

        Raises
        ------
        ValueError, TypeError
            If all declared rounds are done; if an entry is not a client id, or appears twice.
        """
        guard, given = self._guard, listed(clients)
        self.check_left()
        ids = self._ids.of_all(given)
        _refuse_twice(given)
        allowed = guard.eligible(ids)
        first = np.zeros(ids.size, np.bool_)  # of several with one id
        first[np.unique(ids, return_index=True)[1]] = True
        turned_away = dict.fromkeys(_where(~allowed, given), self._why_not())
        same = "has the same id as another client of this round"
        turned_away.update(dict.fromkeys(_where(allowed & ~first, given), same))
        cohort = ids[allowed & first]
        members = guard.expected()
        absent = 0
        if members is None:
            members = np.sort(cohort)
        else:
            absent = int(np.unique(members).size) - cohort.size
        clients = tuple(_where(allowed & first, given))
        return Cohort(clients, turned_away, members, absent, cohort, self._ids.of)

    def without(self, cohort: Cohort, stay: NDArray[np.bool_], reason: str) -> Cohort:
        """Return a cohort with those of its clients that stay; the others are turned away."""
        if bool(stay.all()):
            return cohort
        clients, ids = list(cohort.clients), cohort.ids[stay]
        turned_away = {
            **cohort.turned_away,
            **dict.fromkeys(_where(~stay, clients), reason),
        }
        fixed = self._guard.expected() is not None
        return replace(
            cohort,
            clients=tuple(_where(stay, clients)),
            turned_away=turned_away,
            members=cohort.members if fixed else np.sort(ids),
            absent=cohort.absent + int(np.sum(~stay)) if fixed else 0,
            ids=ids,
        )

    def check_left(self) -> None:
        """Refuse a round after the last declared one."""
        if self._guard.steps_taken == self._guard.steps:
            raise ValueError(
                f"all {self._guard.steps} declared rounds are done: the epsilon is stated for no "
                "more"
            )

    def check_any_order(self) -> None:
        """Refuse a plan under which clients may not take part in the order in which they arrive."""
        if not isinstance(self._pattern, (SinglePass, MinSeparation)):
            raise ValueError(
                "buffered rounds must have a plan of SinglePass or MinSeparation, under which "
                f"clients arrive in any order, got {type(self._pattern).__name__}"
            )

    def id_of(self, client: Client) -> int:
        """Return the id by which a client is counted in this run.

        Raises
        ------
        TypeError, ValueError
            If it is not a client.
        """
        return self._ids.of(client)

    def why_not(self, client: Client) -> str | None:
        """Return the reason why a client may not take part in the next round, None if it may."""
        return None if self.eligible([client])[0] else self._why_not()

    def record(self, members: Ints) -> None:
        """Count a cohort as having taken part in the next round."""
        self._guard.admit(members)

    def _why_not(self) -> str:
        pattern = self._pattern
        if isinstance(pattern, SinglePass):
            return "took part in an earlier round, and the plan allows one participation"
        if isinstance(pattern, (FixedOrder, FixedEpochs)):
            return "not one of the users that the plan has in this round"
        return (
            f"took part {pattern.most_participations} times, or less than {pattern.min_separation} "
            "rounds ago"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return past participation. Who has the key too can test guesses of who took part."""
        state, version = self._guard.state_dict(), self._ids.version
        if version == 1:
            return state
        more = {_CHECK: self._keyed.check_value} if version == _KEYED else {}
        return {**state, _IDS: version, **more}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of the same plan; a run keeps the version of ids that it began with.

        Raises
        ------
        ValueError
            If it is not of this plan, or not of this key. Nothing is then changed.
        """
        version = state.get(_IDS, 1)
        if version not in (1, _PLAIN, _KEYED):
            raise ValueError(f"state's {_IDS} must be at most {_KEYED}, got {version!r}")
        if version == _KEYED and not self._keyed.fits(state.get(_CHECK)):
            raise ValueError("user_key must be that of the run, which began with another or none")
        if version > 1:
            state = {name: state[name] for name in state if name not in (_IDS, _CHECK)}
        self._guard.load_state_dict(guard_state(state))
        self._ids = ClientIds(version, self._keyed if version == _KEYED else None)


def _refuse_twice(clients: list[Client]) -> None:
    if len(set(clients)) == len(clients):
        return
    places: dict[Client, int] = {}
    for place, client in enumerate(clients):
        if (before := places.setdefault(client, place)) != place:
            raise ValueError(
                f"clients must be distinct, got one twice: at the places {before} and {place}"
            )


def _where(chosen: NDArray[np.bool_], clients: list[Client]) -> Iterable[Client]:
    return compress(clients, chosen.tolist())
