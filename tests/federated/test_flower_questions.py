# SPDX-License-Identifier: Apache-2.0
"""Nodes that are slow to name their user, or silent, do not hold up a Flower run."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from flower_cases import (
    Clock,
    LocalGrid,
    client_app,
    every_round,
    fedavg,
    model,
    on_a_clock,
    private,
    record,
)
from flwr.app import ConfigRecord, Message, RecordDict

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.federated.flower import AskClients
from dpftrl_fast.federated.flower.clients import NodeUsers, OfferedNodes

NEVER = float("inf")


class SlowGrid(LocalGrid):
    """A grid on a clock, whose nodes answer queries after `delay(partition)` seconds."""

    def __init__(self, count: int, clock: Clock, delay: Callable[[int], float]) -> None:
        super().__init__(client_app(), count)
        self.clock, self.delay = clock, delay
        self.due: dict[str, float] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = list(super().push_messages(sent := list(messages)))
        for number, message in zip(numbers, sent, strict=True):
            wait = self.delay(message.metadata.dst_node_id - self.first)
            self.due[number] = self.clock() + wait
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return super().pull_messages([n for n in message_ids if self.due[n] <= self.clock()])

    def asked(self) -> Counter[int]:
        """Number of queries to each partition."""
        return Counter(
            m.metadata.dst_node_id - self.first
            for m in self.sent
            if m.metadata.message_type.startswith("query")
        )


def silent_last(partition: int) -> float:
    return NEVER if partition == 5 else 0.1


def on_clock(delay: Callable[[int], float], count: int = 6) -> tuple[Clock, SlowGrid, NodeUsers]:
    clock = Clock()
    return clock, SlowGrid(count, clock, delay), NodeUsers(AskClients(), clock, clock.sleep)


def test_a_silent_node_costs_a_run_no_time() -> None:
    """6 nodes, one of them silent, a cohort of 2, 3 rounds: 43 s at a timeout of 12 s, before."""
    strategy = private(plan=every_round(3), cohort_size=2, report_goal=2)
    clock = on_a_clock(strategy)
    grid = SlowGrid(6, clock, silent_last)
    strategy.start(grid, record(model()))
    assert clock.now < 3
    assert [n for n, _ in grid.trained] == [1, 1, 2, 2, 3, 3]
    assert grid.asked() == Counter(range(6))


@pytest.mark.parametrize("size", [None, 6], ids=["no cohort_size", "a cohort of all"])
def test_where_all_nodes_are_wanted_a_silent_one_is_waited_for_once(size: int | None) -> None:
    plan = PrivacyPlan(0.3, 99.0, acc.MinSeparation(40, 40, 1))
    strategy = private(fedavg(min_available_nodes=2), plan=plan, cohort_size=size, report_goal=5)
    clock = on_a_clock(strategy)
    grid = SlowGrid(6, clock, silent_last)
    strategy.start(grid, record(model()))
    assert 4 < clock.now < 6
    assert Counter(n for n, _ in grid.trained) == dict.fromkeys(range(1, 41), 5)
    # In rounds 1, 2, 4, 8, 16 and 32.
    assert grid.asked() == {**dict.fromkeys(range(5), 1), 5: 6}


def test_without_any_answer_the_wait_is_the_timeout_and_happens_once() -> None:
    clock, grid, users = on_clock(lambda _: NEVER)
    nodes = list(grid.get_node_ids())
    for _ in range(3):
        users.next_round()
        assert users.of(nodes, grid) == {}
        assert 600 <= clock.now < 601
    assert "no answer yet" in users.why_not(nodes[0])


def test_a_late_answer_counts_in_the_next_round() -> None:
    clock, grid, users = on_clock(lambda partition: 30.0 if partition == 2 else 0.1)
    nodes = list(grid.get_node_ids())
    users.next_round()
    assert len(users.of(nodes, grid)) == 5
    clock.now += 60
    users.next_round()
    before = clock.now
    assert users.of(nodes, grid)[nodes[2]] == 2
    assert clock.now == before


def test_nodes_that_answer_at_a_steady_rate_are_all_waited_for() -> None:
    clock, grid, users = on_clock(lambda partition: 3.0 * (partition + 1), count=100)
    assert len(users.of(list(grid.get_node_ids()), grid)) == 100
    assert 300 <= clock.now < 302


def test_a_query_is_valid_for_the_timeout_and_sent_again_after_it() -> None:
    """Also to a node that was not waited for, since enough others had answered."""
    clock, grid, _ = on_clock(silent_last)
    users = NodeUsers(AskClients(20.0), clock, clock.sleep)
    nodes = list(grid.get_node_ids())
    for _ in range(2):
        users.next_round()
        users.of(nodes, grid, lambda: len(users.known(nodes)) == 5)
    assert {m.metadata.ttl for m in grid.sent} == {20.0}
    assert grid.asked()[5] == 1
    clock.now += 21.0
    for asked in (1, 2):
        users.next_round()
        users.of(nodes, grid, lambda: True)
        assert grid.asked()[5] == asked
    assert "no answer" in users.why_not(nodes[5])


def test_a_reply_of_another_node_and_messages_that_were_not_sent_name_no_user() -> None:
    grid = LocalGrid(client_app(), 3)

    def swapped(replies: list[Message]) -> list[Message]:
        first, second = replies[0].metadata, replies[1].metadata
        first.__dict__["_reply_to_message_id"], second.__dict__["_reply_to_message_id"] = (
            second.reply_to_message_id,
            first.reply_to_message_id,
        )
        return replies

    grid.order = swapped
    users = NodeUsers(AskClients())
    nodes = list(grid.get_node_ids())
    assert users.of(nodes, grid) == {nodes[2]: 2}
    assert "the reply of another node" in users.why_not(nodes[0])

    class Drops(LocalGrid):
        """As Flower's grids: ids of messages that were not stored are left out, or None."""

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            _, *others = super().push_messages(messages)
            return [None, *others]  # type: ignore[list-item]

    grid = Drops(client_app(), 3)
    users = NodeUsers(AskClients())
    assert users.of(nodes, grid) == {nodes[1]: 1, nodes[2]: 2}
    users.next_round()
    assert set(users.of([nodes[0]], LocalGrid(client_app(), 3))) == {nodes[0]}


def test_two_threads_lose_no_answer() -> None:
    class Paused(LocalGrid):
        """A grid whose replies come one look later."""

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            time.sleep(0.001)
            return list(super().pull_messages(list(message_ids)[:7]))

    grid, users = Paused(client_app(), 120), NodeUsers(AskClients(), sleep=lambda _: None)
    nodes = list(grid.get_node_ids())
    found: list[dict[int, Any]] = []
    halves: list[Sequence[int]] = [nodes[:80], nodes[40:]]
    threads = [
        threading.Thread(target=lambda h=half: found.append(users.of(h, grid)))  # type: ignore[misc]
        for half in halves
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(len(users) for users in found) == [80, 80]
    assert len(grid.sent) == 120


def test_a_value_that_is_no_user_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def odd(replies: list[Message]) -> list[Message]:
        for reply in replies:
            reply.content = RecordDict({"dpftrl": ConfigRecord({"client-id": -4916012345})})
        return replies

    grid = LocalGrid(client_app(), 2, order=odd)
    users = NodeUsers(AskClients())
    with caplog.at_level("INFO", logger="flwr"):
        users.of(list(grid.get_node_ids()), grid)
    assert "2 of 2 nodes did not name their user" in caplog.text
    assert "must be in [0, 2^63)" in caplog.text
    assert "4916012345" not in caplog.text


def test_a_callable_is_asked_once_a_round_for_a_node_without_a_user() -> None:
    calls: list[int] = []
    users = NodeUsers(lambda node: calls.append(node))
    offered = OfferedNodes(
        LocalGrid(client_app(), 3), 3, users, lambda u: np.ones(len(u), bool), 100.0
    )
    for turn in (1, 2):
        for _ in range(3):
            assert offered.get_node_ids() == []
        assert len(calls) == 3 * turn
        users.next_round()


def seconds(count: int) -> float:
    """Least processor time of offering half of so many nodes, twice."""
    times = []
    for _ in range(3):
        grid: Any = LocalGrid(client_app(), count)
        users = NodeUsers(lambda node: node)
        offered = OfferedNodes(grid, count // 2, users, lambda u: np.ones(len(u), bool), 1e6)
        begin = time.process_time()
        first = offered.get_node_ids()
        connected = [node for node in grid.get_node_ids() if node != first[0]]
        grid.get_node_ids = lambda nodes=connected: nodes
        second = offered.get_node_ids()
        times.append(time.process_time() - begin)
        assert len(first) == len(second) == count // 2
    return min(times)


def test_offering_nodes_takes_time_in_proportion_to_their_number() -> None:
    seconds(1000)
    assert seconds(64_000) < 60 * seconds(4_000)  # 16 times; where it is quadratic, 256 times


def test_many_nodes_are_asked_in_requests_of_a_bounded_size() -> None:
    sizes: list[int] = []

    class Sized(LocalGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            sizes.append(len(sent := list(messages)))
            return super().push_messages(sent)

    grid, users = Sized(client_app(), 2500), NodeUsers(AskClients())
    assert len(users.of(list(grid.get_node_ids()), grid)) == 2500
    assert sizes == [1000, 1000, 500]


def test_a_cohort_waits_for_users_who_may_take_part_now() -> None:
    """Users who answer first are not enough if the plan turns them away."""
    plan = PrivacyPlan(0.3, 6.0, acc.SinglePass(2))
    strategy = private(plan=plan, cohort_size=3, report_goal=3, max_wait=0.5)
    clock = on_a_clock(strategy)
    grid = SlowGrid(6, clock, lambda partition: 0.1 if partition < 3 else 2.0)
    strategy.start(grid, record(model()))
    assert [sorted(user for n, user in grid.trained if n == k) for k in (1, 2)] == [
        [0, 1, 2],
        [3, 4, 5],
    ]
