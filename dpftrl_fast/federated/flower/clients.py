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
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from dpftrl_fast._validate import positive
from dpftrl_fast.federated.flower.mod import CLIENT_ID_ACTION
from dpftrl_fast.federated.flower.records import CLIENT_ID, RECORD
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
        Seconds to wait for answers. A node that has not answered is turned away from the round, and
        asked again in a later one.
    """

    timeout: float = 600.0

    def __post_init__(self) -> None:
        positive("timeout", self.timeout)


ClientIdSource: TypeAlias = Literal["node"] | AskClients | Callable[[int], Client | None]


class NodeUsers:
    """The users of nodes, from `client_id` of `DPFTRLStrategy`, each looked up once."""

    def __init__(self, source: ClientIdSource) -> None:
        if source != "node" and not isinstance(source, AskClients) and not callable(source):
            raise TypeError(
                "client_id must be 'node', AskClients() or a callable, got "
                f"{source if isinstance(source, str) else type(source).__name__!r}"
            )
        self._source = source
        self._known: dict[int, Client] = {}
        self._why_not: dict[int, str] = {}

    def of(self, nodes: Sequence[int], grid: Grid) -> dict[int, Client]:
        """Return the users of nodes, without nodes that have none or gave no valid answer.

        The first answer of a node stays valid for the lifetime of this object.
        """
        new = [node for node in dict.fromkeys(nodes) if node not in self._known]
        self._why_not.update(dict.fromkeys(new, "no answer"))
        for node, user in self._found(new, grid):
            self._take(node, user)
        unknown = [node for node in new if node not in self._known]
        if unknown and isinstance(self._source, AskClients):
            _log.warning(
                "%d of %d nodes did not name their user (answer_client_id): node %d, %s",
                *(len(unknown), len(set(nodes)), unknown[0], self._why_not[unknown[0]]),
            )
        return self.known(nodes)

    def known(self, nodes: Iterable[int]) -> dict[int, Client]:
        """Return the known users of nodes."""
        return {node: self._known[node] for node in nodes if node in self._known}

    def why_not(self, node: int) -> str:
        """Return the reason why the user of a node is not known."""
        return f"its user is not known: {self._why_not.get(node, 'not asked')}"

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

    def _found(self, nodes: Sequence[int], grid: Grid) -> Iterable[tuple[int, object]]:
        source = self._source
        if isinstance(source, AskClients):
            return self._asked(nodes, grid, source.timeout)
        if isinstance(source, str):
            # Node ids have 64 bits, ids of the accounting 63: a name has room for all of them.
            return [(node, f"node {node}") for node in nodes]
        return [(node, source(node)) for node in nodes]

    def _asked(
        self, nodes: Sequence[int], grid: Grid, timeout: float
    ) -> Iterable[tuple[int, object]]:
        if not nodes:
            return
        query = f"{MessageType.QUERY}.{CLIENT_ID_ACTION}"
        messages = [Message(RecordDict(), dst_node_id=node, message_type=query) for node in nodes]
        asked = set(nodes)
        for reply in grid.send_and_receive(messages, timeout=timeout):
            node = reply.metadata.src_node_id
            if node not in asked:
                continue
            if reply.has_error():
                self._why_not[node] = f"error {reply.error.code}: {reply.error.reason}"[:_LONGEST]
                continue
            record = reply.content.config_records.get(RECORD)
            yield node, None if record is None else record.get(CLIENT_ID)


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
        self._met: set[int] = set()
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
        new = [node for node in connected if node not in self._met]
        self._met.update(new)
        before = self._clock()
        self._users.of(new, self._grid)
        self._until += self._clock() - before
        return self._users.known(connected)

    def _fill(self, users: Mapping[int, Client]) -> None:
        self._offered = [node for node in self._offered if node in users]
        taken = {client_id(users[node]) for node in self._offered}
        others = [node for node in users if node not in set(self._offered)]
        free = self._eligible([users[node] for node in others])
        candidates = [node for node, may in zip(others, free, strict=True) if may]
        _random.shuffle(candidates)
        for node in candidates:
            if len(self._offered) == self._size:
                break
            if client_id(users[node]) not in taken:
                taken.add(client_id(users[node]))
                self._offered.append(node)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)
