# SPDX-License-Identifier: Apache-2.0
"""Queries for the users of nodes, sent without waiting for their replies."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dpftrl_fast.federated.flower.mod import CLIENT_ID_ACTION
from dpftrl_fast.federated.flower.records import CLIENT_ID, RECORD

_BATCH = 1000  # messages in a request to the SuperLink
_MOST_DOUBLINGS = 20
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds between two looks at the replies
_LEAST_PATIENCE, _PATIENCE = 5.0, 8.0  # seconds; times the median time to an answer
_REMEMBERED = 1000  # times to answers

NO_ANSWER = "no answer yet"
"""Reason of a node that was asked and has not answered."""


@dataclass(frozen=True)
class Answer:
    """Reply of a node to the query: the value that it gives as its user, or an error."""

    node: int
    user: Any
    error: str | None = None


@dataclass(frozen=True)
class _Open:
    node: int
    sent: float
    turn: int


class Questions:
    """Queries to nodes that are open, and the turn at which each node is asked again.

    A query is open until its reply is collected, or for `timeout` seconds. A node is waited for
    once: when that was in vain, it is slow, and its reply counts whenever it comes. A node that is
    slow, or gave no valid answer, is asked again one turn later, then two turns later, four, eight
    and so on. Calls may come from several threads.

    Parameters
    ----------
    timeout : float
        Seconds for which a query is valid, and the longest wait.
    clock, sleep : callable
        Seconds that have passed, and a pause.
    """

    def __init__(
        self,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout, self._clock, self._sleep = timeout, clock, sleep
        self._turn = 0
        self._open: dict[str, _Open] = {}
        self._asked: dict[int, float] = {}  # nodes of open queries, and when they were asked
        self._slow: set[int] = set()  # nodes that were waited for in vain
        self._answers, self._times = 0, deque[float](maxlen=_REMEMBERED)
        self._failures: dict[int, int] = {}
        self._due: dict[int, int] = {}  # turn at which a node that failed is asked again
        self._lock = threading.RLock()

    def next_turn(self) -> None:
        """Begin the next turn, a round."""
        with self._lock:
            self._turn += 1

    def send(self, nodes: Iterable[int], grid: Grid, known: Collection[int] = ()) -> None:
        """Send the query to those of the nodes that are due and have no open one, or are slow.

        Nodes that are `known` when it is their turn are left out.
        """
        with self._lock:
            due = [
                node
                for node in dict.fromkeys(nodes)
                if node not in known
                and (node not in self._asked or node in self._slow)
                and self._due.get(node, 0) <= self._turn
            ]
            for node in self._slow.intersection(due):  # nobody will wait for it
                self._failed(node)
            for start in range(0, len(due), _BATCH):
                self._push(due[start : start + _BATCH], grid)

    def _push(self, nodes: list[int], grid: Grid) -> None:
        query = f"{MessageType.QUERY}.{CLIENT_ID_ACTION}"
        messages = [
            Message(RecordDict(), dst_node_id=node, message_type=query, ttl=self._timeout)
            for node in nodes
        ]
        now = self._clock()
        sent = {str(number) for number in grid.push_messages(messages)}
        for message in messages:  # grids write the id into the message, and leave out failures
            number, node = message.metadata.message_id, message.metadata.dst_node_id
            if number in sent:
                self._open[number], self._asked[node] = _Open(node, now, self._turn), now
            else:
                self._failed(node)

    def collect(self, grid: Grid) -> list[Answer]:
        """Return the answers that have come, and errors for queries that are no longer valid."""
        with self._lock:
            answers: list[Answer] = []
            numbers, now = list(self._open), self._clock()
            for start in range(0, len(numbers), _BATCH):
                for reply in grid.pull_messages(numbers[start : start + _BATCH]):
                    query = self._open.pop(reply.metadata.reply_to_message_id, None)
                    if query is None:
                        continue
                    self._asked.pop(query.node, None)
                    answers.append(_answer(query.node, reply))
                    if query.turn == self._turn:  # others may have come long before
                        self._answers += 1
                        self._times.append(now - query.sent)
            for number in [
                n for n, query in self._open.items() if query.sent < now - self._timeout
            ]:
                query = self._open.pop(number)
                if self._asked.get(query.node) == query.sent:  # not asked again since
                    del self._asked[query.node]
                    if query.node not in self._slow:
                        answers.append(Answer(query.node, None, "no answer"))
            return answers

    def _failed(self, node: int) -> None:
        failures = self._failures[node] = self._failures.get(node, 0) + 1
        self._due[node] = self._turn + 2 ** min(failures - 1, _MOST_DOUBLINGS)

    def failed(self, node: int) -> None:
        """Record that the answer of a node was none: it is asked again, less and less often."""
        with self._lock:
            self._failed(node)

    def forget(self, node: int) -> None:
        """Forget that a node was slow or gave no valid answer: it may be asked now."""
        with self._lock:
            self._slow.discard(node)
            self._failures.pop(node, None)
            self._due.pop(node, None)

    def wait(
        self,
        nodes: Collection[int],
        take: Callable[[list[Answer]], None],
        enough: Callable[[], bool],
        grid: Grid,
        timeout: float = float("inf"),
    ) -> list[int]:
        """Pass answers to `take` until `enough` or all nodes have answered; return the slow nodes.

        Waited for are nodes with an open query that were not slow before, for `timeout` seconds at
        most. As soon as as many nodes have answered as are still waited for, that is 8 times the
        median time to an answer, and 5 seconds at least. The wait ends after `timeout` seconds.
        """
        end = self._clock() + timeout
        pause = _FIRST_PAUSE
        with self._lock:
            waiting = {node for node in nodes if node in self._asked} - self._slow
        while True:
            with self._lock:  # a node that has answered is taken before anybody asks it again
                take(self.collect(grid))
            if enough():
                return []
            with self._lock:
                waiting &= self._asked.keys()
                until = max((self._asked[node] for node in waiting), default=0.0)
                until = min(end, until + self._patience(len(waiting)))
                if not waiting or self._clock() >= until:
                    self._slow |= waiting
                    for node in waiting:
                        self._failed(node)
                    return sorted(waiting)
            self._sleep(min(pause, max(until - self._clock(), 0.0)))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _patience(self, waiting: int) -> float:
        """Return the seconds that a node has for its answer."""
        if not self._times or self._answers < waiting:
            return self._timeout
        usual = _PATIENCE * statistics.median(self._times)
        return min(self._timeout, max(_LEAST_PATIENCE, usual))


def _answer(node: int, reply: Message) -> Answer:
    if reply.has_error():
        return Answer(node, None, f"error {reply.error.code}: {reply.error.reason}")
    if reply.metadata.src_node_id != node:
        return Answer(node, None, "the reply of another node")
    record = reply.content.config_records.get(RECORD)
    return Answer(node, None if record is None else record.get(CLIENT_ID))
