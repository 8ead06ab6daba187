# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a Flower run, what bad clients do to it, and the clients' mod."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_cases import (
    CLIENTS,
    ROUNDS,
    LocalGrid,
    arrays,
    by_hand,
    client_app,
    every_round,
    fedavg,
    model,
    on_a_clock,
    private,
    record,
    same_bits,
    step_of,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.federated import AdaptiveClipping
from dpftrl_fast.federated.flower import AskClients, DPFTRLMod, dpftrl_mod
from dpftrl_fast.federated.flower.records import difference

# ---- Who takes part ----


def test_users_are_turned_away_before_they_train() -> None:
    plan = PrivacyPlan(0.3, 6.0, acc.SinglePass(3))
    strategy, grid = private(plan=plan), LocalGrid(client_app(), CLIENTS)
    result = strategy.start(grid, record(model()))
    assert sorted(grid.trained) == [(1, user) for user in range(CLIENTS)]
    assert set(strategy.turned_away[2]) == set(strategy.turned_away[3]) == set(range(CLIENTS))
    assert strategy.rounds_done == 3  # rounds with nobody are steps too
    same_bits(result.arrays, by_hand(3, users=lambda n: range(CLIENTS if n == 1 else 0), plan=plan))
    assert [result.train_metrics_clientapp[n]["turned_away"] for n in (1, 2, 3)] == [0, 5, 5]


def test_a_cohort_is_chosen_from_those_whose_turn_it_may_be() -> None:
    pattern = acc.MinSeparation(12, 4, 3)
    strategy = private(
        plan=PrivacyPlan(0.3, 8.0, pattern), cohort_size=3, report_goal=3, client_id=AskClients()
    )
    grid = LocalGrid(client_app(), 9)
    strategy.start(grid, record(model()))
    trained = grid.trained
    assert len(trained) == 12 * 3
    for user in range(9):
        rounds = [n for n, who in trained if who == user]
        assert len(rounds) <= 4
        assert all(b - a >= 3 for a, b in pairwise(rounds))
    assert not any(strategy.turned_away.values())
    queries = [m for m in grid.sent if m.metadata.message_type.startswith("query")]
    assert len(queries) == 9  # each node once in the run


def test_a_strategy_that_waits_for_users_who_cannot_come_gets_an_error(tmp_path: Path) -> None:
    named: dict[str, Any] = {
        "plan": PrivacyPlan(0.3, 6.0, acc.SinglePass(3)),
        "cohort_size": 3,
        "folder": tmp_path / "run",
    }
    with private(fedavg(min_available_nodes=3), **named, max_wait=0.5) as strategy:
        with pytest.raises(TimeoutError, match="got 2 of 5 connected ones"):
            strategy.start(LocalGrid(client_app(), CLIENTS), record(model()))
        assert strategy.rounds_done == 1
    with private(fedavg(), **named) as strategy:  # its minimum is 2
        grid = LocalGrid(client_app(), CLIENTS + 3)
        strategy.start(grid, record(model()))
        assert [n for n, _ in grid.trained] == [2, 2, 2, 3, 3]


def test_one_user_with_two_nodes_is_in_a_round_once() -> None:
    strategy = private(client_id=lambda node: f"user {node % 3}", report_goal=3)
    grid = LocalGrid(client_app(), CLIENTS, first=9 * 10**17)
    strategy.start(grid, record(model()))
    for n in range(1, ROUNDS + 1):
        users = [who % 3 for round_, who in grid.trained if round_ == n]
        assert sorted(users) == [0, 1, 2]
        assert len(strategy.turned_away[n]) == 2
        assert all("another node" in why for why in strategy.turned_away[n].values())
    small = private(client_id=lambda node: node % 3, cohort_size=3, report_goal=3)
    grid = LocalGrid(client_app(), CLIENTS, first=9 * 10**17)
    small.start(grid, record(model()))
    assert len(grid.trained) == 3 * ROUNDS
    assert not any(small.turned_away.values())


def test_nodes_without_a_user_are_not_asked() -> None:
    users = {0: 0, 1: None, 2: -5, 3: "", 4: 4}
    strategy = private(client_id=lambda node: users[node - 10**18])
    grid = LocalGrid(client_app(), CLIENTS)
    strategy.start(grid, record(model()))
    assert {user for _, user in grid.trained} == {0, 4}
    assert all(why.startswith("its user is not known") for why in strategy.turned_away[1].values())
    assert len(strategy.turned_away[1]) == 3


def test_nodes_that_answer_nonsense_or_nothing_are_asked_again() -> None:
    app, calls = client_app(), []

    def spoilt(replies: list[Message]) -> list[Message]:
        if (
            replies
            and "dpftrl" in replies[0].content
            and "client-id" in replies[0].content["dpftrl"]
        ):
            calls.append(len(replies))
            if len(calls) == 1:
                replies[0].content["dpftrl"] = ConfigRecord({"client-id": True})
                replies[1].content["dpftrl"] = ConfigRecord({"client-id": 1.5})
                replies[2] = Message(Error(0, "x"), reply_to=grid.sent[2])
                return replies[:4]
        return replies

    grid = LocalGrid(app, CLIENTS, order=spoilt)
    strategy = private()
    on_a_clock(strategy)
    strategy.start(grid, record(model()))
    assert calls == [5, 4]
    assert len(strategy.turned_away[1]) == 4
    assert not strategy.turned_away[2]


def test_a_node_is_a_user_by_default_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    strategy = private(client_id=None)
    grid = LocalGrid(client_app(), CLIENTS, first=2**64 - 10)
    with caplog.at_level("WARNING", logger="flwr"):
        strategy.start(grid, record(model()))
    assert "not for a person" in caplog.text
    assert "reproducible, not private" in caplog.text
    assert len(grid.trained) == CLIENTS * ROUNDS


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("inf"), float("nan")])
def test_a_timeout_is_a_finite_time(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be a finite number > 0"):
        AskClients(timeout)


# ---- Bad clients ----


def content(**records: Any) -> RecordDict:
    return RecordDict(records)


def spoilt_array(good: Any, **changes: Any) -> ArrayRecord:
    fields = {"dtype": good.dtype, "shape": good.shape, "stype": good.stype, "data": good.data}
    return Array(**{**fields, **changes})


def first_of(reply: Message, change: Callable[[dict[str, Any]], Any]) -> RecordDict:
    found = arrays(reply.content["arrays"])
    replaced = change(found)
    return content(arrays=record(found if replaced is None else replaced))


def header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (117 - len(text)) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def broken(data: bytes) -> Callable[[Message], RecordDict]:
    def change(reply: Message) -> RecordDict:
        bad = reply.content["arrays"].copy()
        bad["layer.weight"] = spoilt_array(bad["layer.weight"], data=data)
        return content(arrays=bad)

    return change


BAD: dict[str, tuple[Callable[[Message], Any], str]] = {
    "an error": (lambda r: Error(2, "no data" + "!" * 9999), "reports error 2: no data!!"),
    "nothing": (lambda r: content(), "expected one ArrayRecord, got 0"),
    "two records": (
        lambda r: content(a=r.content["arrays"], b=r.content["arrays"]),
        "expected one ArrayRecord, got 2",
    ),
    "a name less": (lambda r: first_of(r, lambda a: {"scale": a["scale"]}), "lacks 'layer.weight'"),
    "a name more": (lambda r: first_of(r, lambda a: a.update(x=a["scale"])), "has 'x' too"),
    "a shape": (
        lambda r: first_of(r, lambda a: a.update(scale=np.zeros(3, np.float32))),
        "'scale' must have shape (), got (3,)",
    ),
    "a shape that would broadcast": (
        lambda r: first_of(r, lambda a: a.update({"layer.bias": np.zeros(1)})),
        "'layer.bias' must have shape (2,), got (1,)",
    ),
    "integers": (
        lambda r: first_of(r, lambda a: a.update(scale=np.array(3))),
        "'scale' must be of float16, float32 or float64, got int64",
    ),
    "complex numbers": (
        lambda r: first_of(r, lambda a: a.update(scale=np.array(1j))),
        "'scale' must be of float16",
    ),
    "NaN": (
        lambda r: first_of(r, lambda a: a.update(scale=np.array(np.nan, np.float32))),
        "must be finite",
    ),
    "infinity": (
        lambda r: first_of(r, lambda a: a.update({"layer.bias": np.array([np.inf, 0])})),
        "must be finite",
    ),
    "cut bytes": (broken(b"\x93NUMPY"), "array 'layer.weight'"),
    "no array": (broken(b"\x80\x04."), "array 'layer.weight'"),
    "a header that promises more": (broken(header(f"({2**40},)")), "expected the bytes of"),
    "a header below zero": (broken(header("(-1,)") + b"1234"), "expected the bytes of"),
    "too many bytes": (broken(header("(2, 3)") + bytes(25)), "expected the bytes of"),
    "objects": (broken(header("(1,)", "|O") + bytes(8)), "expected an array of numbers"),
    "a long header": (broken(header("(" + "1," * 40 + ")")[:-1] + b"\n"), "layer.weight"),
    "another version": (broken(b"\x93NUMPY\x07\x00" + bytes(64)), "version 1 or 2"),
    "a foreign serialisation": (
        lambda r: content(
            arrays=ArrayRecord(
                {
                    name: spoilt_array(array, stype="pickle")
                    for name, array in r.content["arrays"].items()
                }
            )
        ),
        "serialised as 'numpy.ndarray', got 'pickle'",
    ),
    "the token of another run": (
        lambda r: content(arrays=r.content["arrays"], dpftrl=ConfigRecord({"token": "ab-1"})),
        "of another run or round",
    ),
    "no token in the mod's record": (
        lambda r: content(arrays=r.content["arrays"], dpftrl=ConfigRecord({"update": "model"})),
        "of another run or round",
    ),
    "a token that is no text": (
        lambda r: content(arrays=r.content["arrays"], dpftrl=ConfigRecord({"token": [1, 2]})),
        "of another run or round",
    ),
}


@pytest.mark.parametrize(("change", "why"), BAD.values(), ids=BAD)
def test_a_bad_reply_is_an_empty_slot(change: Callable[[Message], Any], why: str) -> None:
    def spoil(replies: list[Message]) -> list[Message]:
        for k, reply in enumerate(replies):
            if reply.metadata.src_node_id == grid.first + 2 and "arrays" in reply.content:
                made = change(reply)
                if isinstance(made, Error):
                    replies[k] = Message(made, reply_to=sent_to(grid, reply))
                else:
                    reply.content = made
        return replies

    grid = LocalGrid(client_app(), CLIENTS, order=spoil)
    strategy = private(plan=every_round(2), report_metrics=True)
    result = strategy.start(grid, record(model()))
    for n in (1, 2):
        assert list(strategy.refused[n]) == [2]
        assert why in strategy.refused[n][2]
        assert len(strategy.refused[n][2]) <= 4005
        metrics = result.train_metrics_clientapp[n]
        assert metrics["accepted (not private)"] == CLIENTS - 1
        assert metrics["refused (not private)"] == metrics["missing (not private)"] == 1

    # The others' updates, the divisor and the noise are what they would be with a silent client.
    silent = private(plan=every_round(2))
    grid = LocalGrid(
        client_app(),
        CLIENTS,
        order=lambda rs: [
            r for r in rs if r.metadata.src_node_id != grid.first + 2 or "arrays" not in r.content
        ],
    )
    same_bits(silent.start(grid, record(model())).arrays, arrays(result.arrays))
    assert silent.refused == {1: {}, 2: {}}


def sent_to(grid: LocalGrid, reply: Message) -> Message:
    node = reply.metadata.src_node_id
    return next(m for m in grid.sent if m.metadata.dst_node_id == node)


def test_replies_of_another_round_of_strangers_and_double_ones_are_refused() -> None:
    kept: list[Message] = []

    def more(replies: list[Message]) -> list[Message]:
        if not replies or "arrays" not in replies[0].content:
            return replies
        replies = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
        late, kept[:] = kept[:1], replies[:1]
        stranger = Message(
            RecordDict(dict(replies[0].content)), dst_node_id=0, message_type="train"
        )  # its sender is the server's own node
        return [stranger, *late, *replies, replies[-1]]

    for mods in ((), (dpftrl_mod,)):
        kept.clear()
        strategy = private(plan=every_round(3), report_metrics=True)
        result = strategy.start(
            LocalGrid(client_app(mods=mods), CLIENTS, order=more), record(model())
        )
        same_bits(result.arrays, by_hand(3, plan=every_round(3)))
        assert set(strategy.refused[1].values()) == {
            "was not asked in this round",
            "answered already in this round",
        }
        assert any("of another run or round" in why for why in strategy.refused[2].values())
        assert result.train_metrics_clientapp[3]["accepted (not private)"] == CLIENTS


def test_a_round_whose_replies_never_come_begins_anew() -> None:
    strategy = private()
    grid = LocalGrid(client_app(), CLIENTS)

    def lost(replies: list[Message]) -> list[Message]:
        if replies and "arrays" in replies[0].content and strategy.rounds_done == 1:
            grid.order = list
            raise ConnectionError("the network is gone")
        return replies

    grid.order = lost
    with pytest.raises(ConnectionError):
        strategy.start(grid, record(model()))
    assert strategy.rounds_done == 1
    result = strategy.start(grid, record(model()))
    assert sorted(result.train_metrics_clientapp) == [2, 3, 4]
    same_bits(result.arrays, by_hand())


# ---- The mod ----


def test_the_mod_lets_all_other_messages_pass() -> None:
    seen: list[Message] = []

    def last(message: Message, context: Any) -> Message:
        seen.append(message)
        return message

    plain = Message(content(arrays=record(model())), dst_node_id=1, message_type="train")
    asks = Message(
        content(dpftrl=ConfigRecord({"token": "x", "clip-norm": 1.0})),
        dst_node_id=1,
        message_type="evaluate",
    )
    for message in (plain, asks):
        assert dpftrl_mod(message, None, last) is message  # type: ignore[arg-type]
    assert seen == [plain, asks]


def test_an_app_that_fails_under_the_mod_is_an_empty_slot() -> None:
    def fails(user: int, round_: int, sent: dict[str, Any]) -> dict[str, Any]:
        if user == 1:
            raise RuntimeError("out of battery")
        return {"scale": sent["scale"]} if user == 3 else step_of(user, round_, sent)

    strategy = private(plan=every_round(1))
    strategy.start(LocalGrid(client_app(fails, (dpftrl_mod,)), CLIENTS), record(model()))
    assert "out of battery" in strategy.refused[1][1]
    assert "lacks 'layer.weight'" in strategy.refused[1][3]
    assert set(strategy.refused[1]) == {1, 3}


def test_half_precision_is_a_difference_in_float32() -> None:
    start = {"w": np.array([1.0, 1000.0], np.float16)}
    assert difference({"w": np.array([1.001, 1001.0], np.float16)}, start)["w"].dtype == np.float32


def test_clients_do_not_clip_where_the_norm_follows_their_updates() -> None:
    named: dict[str, Any] = {
        "plan": every_round(restart_every=2),
        "clipping": AdaptiveClipping(noise_multiplier=20.0),
    }
    grid = LocalGrid(client_app(mods=[dpftrl_mod]), CLIENTS)
    strategy = private(**named)
    strategy.start(grid, record(model()))
    assert not any(strategy.refused.values())
    assert strategy.server.clip_norm != 0.3
    assert strategy.epsilon_spent() > every_round(restart_every=2).epsilon(1e-5)
    clipping = private(**named)
    clipping.start(LocalGrid(client_app(mods=[DPFTRLMod(clip=True)]), CLIENTS), record(model()))
    assert all("expected a clip norm" in why for why in clipping.refused[1].values())
    assert len(clipping.refused[1]) == CLIENTS


def test_wrong_calls_of_the_mod() -> None:
    with pytest.raises(TypeError, match="clip must be a bool, got int"):
        DPFTRLMod(clip=1)  # type: ignore[arg-type]
    assert repr(DPFTRLMod(clip=True)) == "DPFTRLMod(clip=True)"
