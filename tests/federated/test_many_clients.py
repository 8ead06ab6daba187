# SPDX-License-Identifier: Apache-2.0
"""Rounds of very many clients: work grows as their number does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.federated import PrivateRounds

PLAN = PrivacyPlan(0.5, 3.0, SinglePass(4))


def rounds_of() -> PrivateRounds:
    return PrivateRounds([np.zeros(2)], plan=PLAN, report_goal=2)


class Counted(str):
    """A name that counts how often it is compared and hashed."""

    calls = 0

    def __eq__(self, other: object) -> bool:
        Counted.calls += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        Counted.calls += 1
        return str.__hash__(self)


def work(clients: list[Any], call: Any) -> int:
    Counted.calls = 0
    call(clients)
    return Counted.calls


def refused(clients: list[Any]) -> None:
    last = len(clients) - 1
    with pytest.raises(ValueError, match=f"at the places {last - 1} and {last}$"):
        rounds_of().begin_round(clients)


def turned_away(clients: list[Any]) -> None:
    rounds = rounds_of()
    rounds.begin_round([str(client) for client in clients])
    rounds.end_round()
    now = rounds.begin_round(clients)
    assert now.cohort == () and len(now.turned_away) == len(clients)
    reason = "took part in an earlier round, and the plan allows one participation"
    assert set(now.turned_away.values()) == {reason}


@pytest.mark.parametrize("call", [refused, turned_away, lambda c: rounds_of().begin_round(c)])
def test_twice_as_many_clients_are_twice_the_work(call: Any) -> None:
    counts = []
    for n in (1000, 2000):
        clients: list[Any] = [Counted(f"user {i}") for i in range(n)]
        if call is refused:
            clients[-1] = Counted(str(clients[-2]))
        counts.append(work(clients, call))
    assert counts[0] < 10 * 1000 and counts[1] < 2.2 * counts[0]


def test_each_name_is_hashed_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, seen = rounds_of(), []
    ids = rounds._cohorts._ids
    of = ids.of

    def counted(client: Any) -> int:
        seen.append(client)
        return of(client)

    monkeypatch.setattr(ids, "of", counted)
    rounds.begin_round(["a", Counted("b"), 3])
    rounds.end_round()
    assert len(seen) <= 3


def test_arrays_of_ids_are_ids() -> None:
    rounds = rounds_of()
    now = rounds.begin_round(np.array([5, 2**63 - 1], np.uint64))
    assert now.cohort == (5, 2**63 - 1)
    rounds.end_round()
    assert rounds.eligible(np.array(["5", "05"])).tolist() == [False, True]
    for wrong in (np.array([1, 2], "m8[ns]"), np.array([True]), np.array([1.0])):
        with pytest.raises(TypeError, match="a client must be an integer or a name"):
            rounds.begin_round(wrong)
