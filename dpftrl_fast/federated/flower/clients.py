# SPDX-License-Identifier: Apache-2.0
"""Users of Flower's nodes, as the accounting counts them."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from dpftrl_fast._validate import positive
from dpftrl_fast.federated.answers import last_lines
from dpftrl_fast.federated.flower.questions import NO_ANSWER, Answer, Questions
from dpftrl_fast.federated.ids import Client, client_id

_random = random.SystemRandom()
_log = logging.getLogger("flwr")

_LONGEST = 1000  # characters of a name, which nodes choose


@dataclass(frozen=True)
class AskClients:
    """Source of client ids: ask each node, before its first training, which user it belongs to.

    The client app answers with `answer_client_id`. Answers are trusted: a node that lies gets more
    rounds for its user than were declared, or uses up those of another. Where nodes are not
    trusted, map their authenticated node ids with a callable instead.

    Parameters
    ----------
    timeout : float, default 600
        Seconds for which a question is valid, and the longest wait for answers.

    Notes
    -----
    Nodes are asked in the background. A round begins as soon as enough users are known, where
    `cohort_size` says how many are. Otherwise it waits for the nodes that are asked for the first
    time: once half of them have answered, 8 times the median time to an answer, and 5 seconds at
    least. An answer that comes later counts from the next round on. A node that did not answer is
    not waited for again, and asked less and less often: one round later, then two, four, eight.

    Examples
    --------
    >>> AskClients(timeout=120.0)
    AskClients(timeout=120.0)
    """

    timeout: float = 600.0

    def __post_init__(self) -> None:
        positive("timeout", self.timeout)


ClientIdSource: TypeAlias = Literal["node"] | AskClients | Callable[[int], Client | None]


class NodeUsers:
    """The users of nodes, from `client_id` of `DPFTRLStrategy`, each looked up once.

    `clock` and `sleep` measure and pass the time in which nodes answer.
    """

    def __init__(
        self,
        source: ClientIdSource,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if source != "node" and not isinstance(source, AskClients) and not callable(source):
            raise TypeError(
                "client_id must be 'node', AskClients() or a callable, got "
                f"{source if isinstance(source, str) else type(source).__name__!r}"
            )
        self._source = source
        self._known: dict[int, Client] = {}
        self._why_not: dict[int, str] = {}
        self._tried: set[int] = set()  # nodes that were looked up in this round
        timeout = source.timeout if isinstance(source, AskClients) else 1.0
        self._questions = Questions(timeout, clock, sleep)

    def next_round(self) -> None:
        """Begin a round, in which a node without a user is asked once more if its turn has come."""
        self._questions.next_turn()
        self._tried = set()

    def forget_failures(self, node: int) -> None:
        """Forget that a node gave no user: it may be asked now, in this round too."""
        self._questions.forget(node)
        self._tried.discard(node)
        self._why_not.pop(node, None)

    @property
    def asks(self) -> bool:
        """True if the nodes are asked."""
        return isinstance(self._source, AskClients)

    def of(
        self,
        nodes: Sequence[int],
        grid: Grid,
        enough: Callable[[], bool] = lambda: False,
        timeout: float = float("inf"),
    ) -> dict[int, Client]:
        """Return the users of nodes, without nodes that have none or gave no valid answer yet.

        The first answer of a node stays valid for the lifetime of this object. Nodes that are asked
        are waited for until `enough` says so (see `AskClients`), for `timeout` seconds at most.
        """
        new = [node for node in dict.fromkeys(nodes) if node not in self._known]
        if not isinstance(self._source, AskClients):
            new = [node for node in new if node not in self._tried]
            self._tried.update(new)
            self._why_not.update(dict.fromkeys(new, "no answer"))
            for node, user in self._found(new):
                self._take(node, user)
            return self.known(nodes)
        for node in new:
            self._why_not.setdefault(node, NO_ANSWER)
        bad: list[int] = []
        self._questions.send(new, grid, self._known)
        slow = self._questions.wait(
            new, lambda answers: bad.extend(self._heard(answers)), enough, grid, timeout
        )
        if without := bad + slow:
            _log.warning(
                "%d of %d nodes did not name their user (answer_client_id): node %d, %s",
                *(len(without), len(set(nodes)), without[0], self._shown_reason(without[0])),
            )
        return self.known(nodes)

    def known(self, nodes: Iterable[int]) -> dict[int, Client]:
        """Return the known users of nodes."""
        return {node: self._known[node] for node in nodes if node in self._known}

    def why_not(self, node: int) -> str:
        """Return the reason why the user of a node is not known."""
        return f"its user is not known: {self._why_not.get(node, 'not asked')}"

    def _shown_reason(self, node: int) -> str:
        """Return the reason for the log, without the value that a node gave as its user."""
        return last_lines(self._why_not[node].split(", got ")[0])

    def _heard(self, answers: Iterable[Answer]) -> list[int]:
        """Take answers; return the nodes whose answer is none."""
        bad: list[int] = []
        for answer in answers:
            if answer.error is None:
                self._take(answer.node, answer.user)
            elif answer.node not in self._known:
                self._why_not[answer.node] = answer.error[-_LONGEST:]
            if answer.node not in self._known:
                self._questions.failed(answer.node)
                bad.append(answer.node)
        return bad

    def _take(self, node: int, user: object) -> None:
        if node in self._known:
            return
        try:
            client_id(user)
        except (TypeError, ValueError) as error:
            self._why_not[node] = str(error)
            return
        if isinstance(user, str) and len(user) > _LONGEST:
            self._why_not[node] = (
                f"a client's name must have at most {_LONGEST} characters, got {len(user)}"
            )
            return
        self._known.setdefault(node, cast(Client, user))  # of two threads the first one's

    def _found(self, nodes: Sequence[int]) -> Iterable[tuple[int, object]]:
        source = self._source
        if isinstance(source, str):
            # Node ids have 64 bits, ids of the accounting 63: a name has room for all of them.
            return [(node, f"node {node}") for node in nodes]
        assert callable(source)
        return [(node, source(node)) for node in nodes]


def distinct_users(
    nodes: Sequence[int], users: NodeUsers, grid: Grid
) -> tuple[dict[int, Client], dict[Client, str]]:
    """Return node to user, one node a user, and the reasons why other nodes are left out."""
    known = users.of(nodes, grid)
    asked: dict[int, Client] = {}
    away: dict[Client, str] = {}
    taken: set[int] = set()
    for node in dict.fromkeys(nodes):
        if node not in known:
            away[f"node {node}"] = users.why_not(node)
        elif client_id(known[node]) in taken:
            away[f"node {node}"] = "its user is in the round with another node"
        else:
            taken.add(client_id(known[node]))
            asked[node] = known[node]
    return asked, away


class OfferedNodes:
    """A grid that offers a strategy at most `size` random nodes of distinct, eligible users.

    Later calls offer the same nodes, as long as they are connected, and more up to `size`. It lives
    for one round, in which a node is asked for its user once. After `max_wait` seconds, without the
    time for asking nodes, a strategy that still waits for more nodes gets an error.
    """

    def __init__(
        self,
        grid: Grid,
        size: int,
        users: NodeUsers,
        eligible: Callable[[Sequence[Client]], NDArray[np.bool_]],
        max_wait: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grid, self._size, self._users, self._eligible = grid, size, users, eligible
        self._offered: list[int] = []
        self._clock, self._until = clock, clock() + max_wait

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are offered.

        Raises
        ------
        TimeoutError
            If there are fewer than `size`, and the strategy has waited long enough for more.
        """
        connected = list(self._grid.get_node_ids())
        users = self._users_of(connected)
        self._fill(users)
        if len(self._offered) < self._size and self._clock() > self._until:
            raise TimeoutError(
                f"expected {self._size} nodes whose users may take part in the next round, got "
                f"{len(self._offered)} of {len(connected)} connected ones "
                f"({len(connected) - len(users)} whose user is not known), and the strategy waits "
                "for more: lower its minima, connect more nodes and start again, or plan another "
                "run with more participations or less separation"
            )
        return list(self._offered)

    def _users_of(self, connected: Sequence[int]) -> dict[int, Client]:
        before, seen = self._clock(), -1

        def enough() -> bool:
            # No more than a look at numbers, until they change.
            nonlocal seen
            known = self._users.known(connected)
            if len(known) == seen or len(known) < self._size:
                return False
            seen = len(known)
            users = list(known.values())
            free = self._eligible(users)
            able = {client_id(user) for user, may in zip(users, free, strict=True) if may}
            return len(able) >= self._size

        users = self._users.of(connected, self._grid, enough)
        self._until += self._clock() - before
        return users

    def _fill(self, users: Mapping[int, Client]) -> None:
        self._offered = [node for node in self._offered if node in users]
        if len(self._offered) == self._size:
            return
        offered = set(self._offered)
        taken = {client_id(users[node]) for node in self._offered}
        others = [node for node in users if node not in offered]
        free = self._eligible([users[node] for node in others])
        candidates = [node for node, may in zip(others, free, strict=True) if may]
        _random.shuffle(candidates)
        for node in candidates:
            if len(self._offered) == self._size:
                break
            if (identity := client_id(users[node])) not in taken:
                taken.add(identity)
                self._offered.append(node)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)
