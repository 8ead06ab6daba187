# SPDX-License-Identifier: Apache-2.0
"""Asynchronous rounds: who counts, with which weight, and what leaves."""

from __future__ import annotations

import itertools
import math
import random
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, FixedOrder, MinSeparation, SinglePass
from dpftrl_fast.federated import (
    AdaptiveClipping,
    BufferedServer,
    PrivateRounds,
    ServerDPFTRL,
)
from dpftrl_fast.federated.buffered_round import BufferedRound
from dpftrl_fast.federated.sums.round_sum import RoundSum
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.run.step_log import StepLog

KEY = bytes(range(32))
MODEL = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3)}
SIZE, GOAL = 9, 3
PLAN = PrivacyPlan(0.5, 2.0, MinSeparation(8, 3, 2))
LATE = "took part 3 times, or less than 2 rounds ago"
LAST = "all declared rounds are done"


def update_of(seed: int, scale: float = 1.0) -> dict[str, NDArray[Any]]:
    vector = np.random.default_rng(seed).normal(size=SIZE) * scale
    return {"w": vector[:6].reshape(2, 3).astype(np.float32), "b": vector[6:]}


def made(plan: PrivacyPlan = PLAN, **options: Any) -> BufferedServer:
    return BufferedServer(
        MODEL, plan=plan, **{"buffer_size": GOAL, "key": KEY, "threads": 1, **options}
    )


def total(server: BufferedServer) -> NDArray[np.int64]:
    """The un-noised sum of the open round."""
    return server._private._sums.sums.total.copy()


def flat(model: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    return np.concatenate([array.ravel().astype(np.float64) for array in model.values()])


# ---- Weights, and the same bits as rounds with a cohort ----


def test_clients_that_are_never_stale_are_a_cohort() -> None:
    buffered = made(momentum=0.9)
    rounds = ServerDPFTRL(MODEL, plan=PLAN, report_goal=GOAL, momentum=0.9, key=KEY, threads=1)
    for number in range(PLAN.steps):
        clients = [f"{number % 2}-{k}" for k in range(GOAL)] if number < 6 else [f"x{number}"]
        tickets = [buffered.check_out(client) for client in clients]
        now = rounds.begin_round(clients)
        for ticket, client in zip(tickets, clients, strict=True):
            assert ticket.model == number and ticket.reason is None
            update = update_of(number * 10 + len(client))
            assert now.add(client, update) is None
            assert buffered.add(client, update, token=str(ticket.token)) is None
        if number >= 6:
            buffered.end_round()
        expected = rounds.end_round()
        assert buffered.rounds_done == number + 1
        for name, array in buffered.parameters.items():
            assert np.array_equal(array, expected[name])
    assert buffered.done and buffered.check_out("z").reason == LAST
    assert buffered.add("z", update_of(0), token="any") == LAST
    with pytest.raises(RuntimeError, match="expected a round to end, got none: all declared"):
        buffered.end_round()


@pytest.mark.parametrize("weight", ["sqrt", "constant", lambda age: 0.25**age])
def test_an_update_counts_by_its_staleness(weight: Any) -> None:
    server = made(PrivacyPlan(0.5, 2.0, SinglePass(8)), weight=weight, max_staleness=3)
    late = [server.check_out(f"late {k}") for k in range(6)]
    of = {"sqrt": lambda age: 1 / math.sqrt(1 + age), "constant": lambda age: 1.0}.get(
        weight, weight
    )
    for age in range(5):
        token = str(late[age].token)
        update = update_of(age, 10.0)
        problem = server.add(f"late {age}", update, token=token)
        if age > 3:
            assert problem is not None and "older than the model of round 2" in problem
            assert server.round is not None and server.round.cohort == ()
            break
        assert problem is None
        vector, unit = flat(update), server._private._sums.sums.unit
        expected = vector * (0.5 * of(age) / np.linalg.norm(vector) / unit)
        # The clip norm's margin is 2^-20 of it.
        assert np.abs(total(server) - expected).max() <= 1 + 2.0**-19 * np.abs(expected).max()
        for k in range(GOAL - 1):
            fresh = server.check_out(f"{age} {k}")
            assert server.add(f"{age} {k}", update_of(0), token=str(fresh.token)) is None
        assert server.rounds_done == age + 1


@pytest.mark.parametrize("age", [0, 1, 7, 19])
@pytest.mark.parametrize("scale", [1e-300, 0.01, 1.0, 1e30])
def test_no_update_moves_a_sum_by_more_than_its_weight(age: int, scale: float) -> None:
    weights = tuple(1 / math.sqrt(1 + a) for a in range(20))
    rounds = PrivateRounds(MODEL, plan=PLAN, report_goal=GOAL, key=KEY, threads=1)
    now = rounds.begin_buffered_round(GOAL, weights=weights)
    for seed in range(20):
        now._sums.clear()
        now._sums.add(update_of(seed, scale), weights[age])
        norm = sum(Fraction(int(x)) ** 2 for x in now._sums.total) * Fraction(now._sums.unit) ** 2
        assert norm <= (Fraction(0.5) * Fraction(weights[age])) ** 2 or age == 0
        assert norm <= Fraction(0.5) ** 2


# ---- Who is in a round ----


def test_tokens_that_are_refused() -> None:
    server = made(PrivacyPlan(0.5, 2.0, SinglePass(8)), max_staleness=2)
    first = str(server.check_out("a").token)
    run, _, number = first.rpartition("-")
    assert number == "1"
    for token in (
        *(f"{run}-{k}" for k in (-1, 0, 2, 3)),
        *(f"{run}-01", f"{run}-+1", f"{run}- 1", f"{run}-1 ", f"{run[:-1]}-1", run, ""),
        *(1, None, b"x", [first]),
    ):
        problem = server.add("a", update_of(0), token=token)  # type: ignore[arg-type]
        assert problem is not None and problem.startswith("of another run, or older")
    assert total(server).any() == 0 and server.round is not None and server.round.cohort == ()
    for step in range(3):
        for k in range(GOAL):
            assert server.add(f"{step} {k}", update_of(0), token=first) is None
    assert server.rounds_done == 3
    assert "of another run, or older" in str(server.add("a", update_of(0), token=first))


def test_the_plan_is_checked_when_an_update_arrives() -> None:
    """Random arrivals: the steps of each client are as far apart as was declared."""
    chances, plan = random.Random(3), PrivacyPlan(0.5, 2.0, MinSeparation(30, 4, 5))
    server = made(plan, buffer_size=4, max_staleness=6)
    steps: dict[int, list[int]] = {}
    training: list[tuple[int, str]] = []
    refused = set()
    while not server.done:
        client = chances.randrange(25)
        ticket = server.check_out(client)
        assert (ticket.token is None) == (ticket.reason is not None)
        if ticket.token is not None:
            training.append((client, ticket.token))
        if training and chances.random() < 0.45:
            client, token = training.pop(chances.randrange(len(training)))
            number = server.rounds_done + 1
            problem = server.add(client, update_of(client), token=token)
            if problem is None:
                steps.setdefault(client, []).append(number)
            else:
                refused.add(problem.split(",")[0].split("(")[0])
        elif not training:
            server.end_round()
    assert {"took part 4 times", "of another run", "answered already in this round"} <= refused
    sizes = np.bincount([number for taken in steps.values() for number in taken])
    assert sizes[1:].max() == 4
    for taken in steps.values():
        assert len(taken) <= 4
        assert all(b - a >= 5 for a, b in itertools.pairwise(taken))


def test_a_bad_update_takes_its_place() -> None:
    bad: list[Any] = [
        {"w": np.full((2, 3), np.nan, np.float32), "b": np.zeros(3)},
        {"w": np.zeros((2, 3), np.float32)},
        None,
    ]
    server, other = made(), made()
    tokens = [str(s.check_out("a").token) for s in (server, other)]
    for k, update in enumerate(bad):
        problem = server.add(f"{k}", update, token=tokens[0])
        assert problem is not None
        assert other.add(f"{k}", update_of(1, 1e30), token=tokens[1]) is None
    # The same step, and the same clients wait: nothing public tells the two apart.
    assert server.rounds_done == other.rounds_done == 1
    for client in ("0", "1", "2", "3"):
        tickets = server.check_out(client), other.check_out(client)
        assert tickets[0].reason == tickets[1].reason
        assert (tickets[0].token is None) == (tickets[1].token is None) == (client != "3")


def test_one_client_changes_the_sums_by_its_own_updates_only() -> None:
    """Neighbours: the other runs have the same arrivals, with one client's updates replaced."""

    def play(of_victim: Any) -> tuple[list[NDArray[np.int64]], list[tuple[Any, ...]]]:
        server = made(max_staleness=4)
        steps, cohorts, refused = [np.zeros(SIZE, np.int64)], [], 0
        tokens = {k: str(server.check_out(k).token) for k in range(12)}
        for k in [3, 0, 7, 1, 2, 5, 3, 4, 6, 0, 3, 8, 7]:
            server.check_out(k)
            now = server.round
            assert now is not None
            refused += server.add(k, of_victim if k == 3 else update_of(k), token=tokens[k]) == LATE
            if now.ended:
                steps.append(server._private._sums.running._sum.copy())
                cohorts.append(now.cohort)
        assert refused == 1 and len(cohorts) == 4
        return [b - a for a, b in itertools.pairwise(steps)], cohorts

    zero = {name: np.zeros_like(array) for name, array in MODEL.items()}
    nothing, who = play(zero)
    assert [3 in clients for clients in who] == [True, False, True, False]
    unit = made()._private._sums.sums.unit
    for update in (update_of(9, 1e20), {**zero, "b": np.array([np.inf, 0, 0])}, None):
        sums, cohorts = play(update)
        assert cohorts == who
        for one, other, clients in zip(sums, nothing, cohorts, strict=True):
            moved = float(np.linalg.norm((one - other) * unit))
            assert moved <= (0.5 if 3 in clients else 0.0)


def test_names_that_are_one_user() -> None:
    server = made()
    token = str(server.check_out(7).token)
    assert server.add(7, update_of(0), token=token) is None
    assert server.add("7", update_of(0), token=token) == "answered already in this round"
    assert server.check_out("7").reason == "answered already in this round"
    for client in (True, 1.5, "", -1):
        assert server.add(client, update_of(0), token=token) is not None  # type: ignore[arg-type]
        with pytest.raises((TypeError, ValueError)):
            server.check_out(client)  # type: ignore[arg-type]
    assert server.round is not None and server.round.cohort == (7,)


# ---- Folders ----


@pytest.mark.parametrize("again", ["check_out", "end_round"])
def test_a_step_that_cannot_be_written_keeps_the_buffer(
    again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, whole = tmp_path / "run", made()
    server = made(folder=folder)
    tokens = [str(s.check_out("a").token) for s in (server, whole)]
    for k in range(GOAL - 1):
        assert server.add(k, update_of(k), token=tokens[0]) is None
        assert whole.add(k, update_of(k), token=tokens[1]) is None

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(StepLog, "append", full)
        for call in range(3):
            with pytest.raises(OSError, match="No space left"):
                server.add(2, update_of(2), token=tokens[0])
            assert server.rounds_done == 0, call
    assert whole.add(2, update_of(2), token=tokens[1]) is None
    if again == "end_round":
        server.end_round()
    assert server.check_out(2).reason == LATE
    assert server.rounds_done == 1
    for name, array in server.parameters.items():
        assert np.array_equal(array, whole.parameters[name])
    server.close()
    with made(folder=folder) as resumed:
        assert resumed.rounds_done == 1
        assert resumed.add(4, update_of(4), token=tokens[0]) is None  # of a process before
        for name, array in resumed.parameters.items():
            assert np.array_equal(array, whole.parameters[name])


def test_a_buffer_that_was_filled_by_an_interrupted_call_takes_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else every client would be turned away for good: nobody has a ticket for a full round."""
    server = made(buffer_size=1)
    ticket = server.check_out("b")

    def interrupt(*_: Any) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RoundSum, "add", interrupt)
        with pytest.raises(KeyboardInterrupt):
            server.add("b", update_of(1), token=str(ticket.token))
    assert isinstance(server.round, BufferedRound) and server.round.full
    assert server.check_out("c").token is not None
    assert server.rounds_done == 1 and not server.eligible(["b"])[0]


def test_a_closed_server_logs_its_counts(caplog: pytest.LogCaptureFixture) -> None:
    server = made(buffer_size=1)
    server.add("a", update_of(1), token=str(server.check_out("a").token))
    with caplog.at_level("INFO"):
        server.close()
    assert "Rounds 1 to 1: accepted 1 of 1 updates (not private)" in caplog.text


def test_a_folder_of_other_weights_is_refused(tmp_path: Path) -> None:
    made(folder=tmp_path / "run").close()
    for options in ({"max_staleness": 3}, {"weight": "constant"}, {"buffer_size": 4}):
        with pytest.raises(ValueError, match="another run"):
            made(folder=tmp_path / "run", **options)
    with made(folder=tmp_path / "run") as server:
        assert server.rounds_done == 0
    for call in (lambda: server.check_out("a"), lambda: server.add("a", {}, token="b")):
        with pytest.raises(RuntimeError, match="closed"):
            call()


@pytest.mark.parametrize("name", ["weights", "update", "plan"])
def test_facts_of_the_run_are_its_own(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"more facts than the run's own, got {name} again"):
        made(folder=tmp_path / "run", identity={name: 3})


def test_threads() -> None:
    plan = PrivacyPlan(0.5, 2.0, SinglePass(50))
    models = []
    for workers in (1, 8):
        server = made(plan, buffer_size=8, weight="constant", max_staleness=60)
        token = str(server.check_out("x").token)
        names = [f"{k}" for k in range(8 * 20)]

        def work(of: list[str], server: BufferedServer = server, token: str = token) -> None:
            for name in of:
                assert server.add(name, update_of(1), token=token) is None

        threads = [threading.Thread(target=work, args=(names[k::workers],)) for k in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.rounds_done == 20
        models.append(flat(server.parameters))
    assert np.array_equal(*models)


def test_the_clip_norm_may_adapt() -> None:
    plan = PrivacyPlan(
        0.5, 2.0, MinSeparation(8, 3, 2), mechanism=Tree(restart_every=2, complete=True)
    )
    server = made(plan, clipping=AdaptiveClipping(noise_multiplier=5.0, learning_rate=1.0))
    assert server.epsilon(1e-6) > plan.epsilon(1e-6)
    norms = []
    for number in range(8):
        for k in range(GOAL):
            name = f"{number % 2} {k}" if number < 6 else f"{number} {k}"
            ticket = server.check_out(name)
            assert server.add(name, update_of(k, 100.0), token=str(ticket.token)) is None
        norms.append(server.clip_norm)
    assert server.done and len(set(norms)) == 4


# ---- Refusals ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"buffer_size": 0}, "buffer_size must be an integer >= 1"),
        ({"max_staleness": -1}, "max_staleness must be an integer"),
        ({"weight": "linear"}, "weight must be one of"),
        ({"weight": lambda age: 1.0 + age}, r"weight\(1\) must be"),
        ({"weight": lambda age: 0.0}, r"weight\(0\) must be"),
        ({"weight": lambda age: math.nan}, r"weight\(0\) must be"),
        ({"plan": PrivacyPlan(0.5, 2.0, FixedEpochs(4, 2))}, "buffered rounds must have a plan"),
        ({"plan": PrivacyPlan(0.5, 2.0, FixedOrder([1, 2]))}, "got FixedOrder"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        made(**options)


def test_refusals_of_a_round() -> None:
    rounds = PrivateRounds(MODEL, plan=PLAN, report_goal=GOAL)
    for size, weights, words in (
        (0, (1.0,), "size must be"),
        (2, (), "weights must have an entry"),
        (2, (1.0, 1.5), "each of weights must be"),
        (10**12, (1.0,), "must have at most"),
    ):
        with pytest.raises(ValueError, match=words):
            rounds.begin_buffered_round(size, weights=weights)
    assert rounds.round is None
    now = rounds.begin_buffered_round(2)
    with pytest.raises(RuntimeError, match="takes single updates, got add_sum"):
        now.add_sum(["a"], np.zeros(SIZE, np.int64))
    with pytest.raises(RuntimeError, match="got an open round 1"):
        rounds.begin_buffered_round(2)
