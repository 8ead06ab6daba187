# SPDX-License-Identifier: Apache-2.0
"""Flower's SecAgg+: the bits of the open path, nodes that drop out, and nodes that send garbage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from secagg_cases import STAGES, SecureGrid, lost, secure  # first: it sets Flower's environment

from flower_cases import (  # isort: skip
    CLIENTS,
    ROUNDS,
    LocalGrid,
    arrays,
    by_hand,
    client_app,
    every_round,
    model,
    private,
    record,
    same_bits,
    step_of,
)
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import bytes_to_ndarray, ndarray_to_bytes
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.serverapp import strategy as flower
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.federated import AdaptiveClipping, Round, ServerDPFTRL
from dpftrl_fast.federated.flower import dpftrl_mod
from dpftrl_fast.federated.flower.secure_limbs import Limbs
from dpftrl_fast.mechanisms import Tree

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

LOG = "flwr.not_private"
EVERYBODY = tuple(range(CLIENTS))


def of_these(users: Sequence[int], rounds: int = 2, asked: int = CLIENTS) -> dict[str, Any]:
    """The model of rounds with these users' updates in the sum."""
    trained = {name: array for name, array in model().items() if array.dtype.kind == "f"}
    server = ServerDPFTRL(trained, plan=every_round(), report_goal=CLIENTS, noise_seed=3)
    for number in range(1, rounds + 1):
        now, sent = server.begin_round(range(asked)), {**model(), **server.parameters}
        for user in users:
            after = step_of(user, number, sent)
            assert now.add(user, {name: after[name] - sent[name] for name in trained}) is None
        server.end_round()
    return {**model(), **server.parameters}


def started(grid: SecureGrid, rounds: int = 2, **named: Any) -> Any:
    strategy = secure(**named)
    strategy.start(grid, record(model()), rounds)
    assert strategy.rounds_done == rounds
    return strategy


# ---- The bits of the open path ----


@pytest.mark.parametrize("mods", [(), (dpftrl_mod,)], ids=["model", "difference"])
def test_the_model_is_that_of_the_open_path_bit_for_bit(mods: tuple[Any, ...]) -> None:
    grid = SecureGrid(mods=mods)
    strategy = started(grid, ROUNDS, momentum=0.5)
    same_bits(strategy.arrays, by_hand(momentum=0.5))
    openly = private(momentum=0.5)
    openly.start(LocalGrid(client_app(), CLIENTS), record(model()))
    same_bits(strategy.arrays, arrays(openly.arrays))
    assert grid.stages == [*STAGES] * ROUNDS
    assert strategy.failures == {}
    assert strategy.epsilon_spent() == openly.epsilon_spent()


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("size", [1e-9, 0.02, 1e20])
def test_any_number_of_clients_and_size_of_update(count: int, size: float) -> None:
    def update(user: int, round_: int, sent: dict[str, Any]) -> dict[str, Any]:
        return step_of(user, round_, sent, size)

    strategy = started(SecureGrid(count, update=update), 1)
    same_bits(strategy.arrays, by_hand(1, update, lambda _: range(count)))


def test_adaptive_clipping_has_the_norms_of_the_clients() -> None:
    plan = PrivacyPlan(0.05, 6.0, acc.MinSeparation(4, 4, 1), Tree(restart_every=1, complete=True))
    clipping = AdaptiveClipping(noise_multiplier=5.0, learning_rate=1.0)
    strategy = secure(plan=plan, clipping=clipping)
    strategy.start(SecureGrid(), record(model()))
    same_bits(strategy.arrays, by_hand(plan=plan, clipping=clipping))
    assert strategy.server.clip_norm != 0.05


def test_the_server_receives_masked_vectors_only() -> None:
    seen: list[tuple[int, Any]] = []

    def watch(stage: str, user: int, reply: Message) -> Message:
        if stage == "collect_masked_vectors":
            content = reply.content
            assert all(not found for found in content.array_records.values())
            assert {*content.metric_records} == {"fitres.num_examples"}
            (_, vector) = content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
            seen.append((user, bytes_to_ndarray(vector)))
        return reply

    def nothing(user: int, round_: int, sent: dict[str, Any]) -> dict[str, Any]:
        return sent

    started(SecureGrid(fate=watch, update=nothing), 2)
    assert [user for user, _ in seen] == [*EVERYBODY] * 2
    vectors = np.array([vector for _, vector in seen])
    # All updates are zero. Unmasked, all vectors would be equal; masked, no two numbers are.
    assert np.unique(vectors).size == vectors.size
    assert vectors.std() == pytest.approx(2**32 / 12**0.5, rel=0.2)


# ---- Nodes that drop out ----


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("gone", [(1,), (0, 4)])
def test_who_drops_out_is_an_empty_slot(stage: str, gone: tuple[int, ...]) -> None:
    strategy = started(SecureGrid(fate=lost(stage, gone)))
    # In the last stage the masked updates are there already.
    left = EVERYBODY if stage == "unmask" else [u for u in EVERYBODY if u not in gone]
    assert strategy.failures == {}
    same_bits(strategy.arrays, of_these(left))


def test_drop_outs_at_all_stages_of_one_round() -> None:
    fates = [lost(stage, [user]) for user, stage in enumerate(STAGES)]

    def fate(stage: str, user: int, reply: Message) -> Message | None:
        found: Message | None = reply
        for each in fates:
            found = None if found is None else each(stage, user, reply)
        return found

    strategy = started(SecureGrid(9, fate=fate), reconstruction_threshold=0.5)
    assert strategy.failures == {}
    same_bits(strategy.arrays, of_these([3, 4, 5, 6, 7, 8], asked=9))


def test_fewer_shares_than_clients() -> None:
    options = {"num_shares": 5, "reconstruction_threshold": 3}
    strategy = started(SecureGrid(9, fate=lost("collect_masked_vectors", [4])), **options)
    assert strategy.failures == {}
    same_bits(strategy.arrays, of_these([u for u in range(9) if u != 4], asked=9))


def test_large_cohorts_share_keys_with_some() -> None:
    grid = SecureGrid(34, fate=lost("collect_masked_vectors", range(6)))
    strategy = started(grid, 1)
    same_bits(strategy.arrays, of_these(range(6, 34), 1, asked=34))
    asked = [
        len(message.content.config_records[RECORD_KEY_CONFIGS]) - 1
        for message in grid.sent
        if message.content.config_records.get(RECORD_KEY_CONFIGS, {}).get(Key.STAGE) == STAGES[1]
    ]
    assert asked == [31] * 34  # the keys that a client is sent, its own included


@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_a_round_is_a_step_of_nobody(stage: str) -> None:
    plan = PrivacyPlan(0.3, 6.0, acc.MinSeparation(4, 2, 2))
    strategy = secure(plan=plan)
    epsilon = plan.epsilon(1e-5)
    strategy.start(SecureGrid(fate=lost(stage, [0, 1, 2])), record(model()), 1)
    assert strategy.rounds_done == 1 and strategy.server.round is None
    assert list(strategy.failures) == [1]
    assert strategy.epsilon_spent() == epsilon
    # The whole cohort has taken part: it may not come again in the next round.
    assert not strategy.server.eligible(EVERYBODY).any()
    trained = {name: array for name, array in model().items() if array.dtype.kind == "f"}
    alone = ServerDPFTRL(trained, plan=plan, report_goal=CLIENTS, noise_seed=3)
    alone.begin_round(EVERYBODY)
    same_bits(strategy.arrays, {**model(), **alone.end_round()})


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_users_are_nobody(count: int) -> None:
    strategy = secure(
        strategy=None, plan=PrivacyPlan(0.3, 6.0, acc.MinSeparation(4, 4, 1)), cohort_size=5
    )
    strategy._settings.strategy.min_available_nodes = 0
    strategy._settings.strategy.min_train_nodes = 0
    grid = SecureGrid(count)
    strategy.start(grid, record(model()), 1)
    assert grid.stages == [] and strategy.rounds_done == 1
    assert list(strategy.failures) == [1] * count


# ---- Nodes that send garbage ----


def configs(change: Callable[[Any], Any]) -> Callable[[Message], Message]:
    def changed(reply: Message) -> Message:
        change(reply.content.config_records[RECORD_KEY_CONFIGS])
        return reply

    return changed


def masked(change: Callable[[Any], Any]) -> Callable[[Message], Message]:
    def changed(found: Any) -> None:
        factor, vector = map(bytes_to_ndarray, found[Key.MASKED_PARAMETERS])
        found[Key.MASKED_PARAMETERS] = [
            ndarray_to_bytes(array) for array in change((factor.copy(), vector.copy()))
        ]

    return configs(changed)


def emptied(reply: Message) -> Message:
    reply.content = RecordDict()
    return reply


def of_a_stranger(reply: Message) -> Message:
    reply.metadata._src_node_id = 5  # type: ignore[attr-defined]
    return reply


GARBAGE: dict[str, tuple[str, Callable[[Message], Message]]] = {
    "no records": ("setup", emptied),
    "a key that is a number": ("setup", configs(lambda c: c.update({Key.PUBLIC_KEY_1: 3}))),
    "one key": ("setup", configs(lambda c: c.pop(Key.PUBLIC_KEY_2))),
    "a key that is none": ("setup", configs(lambda c: c.update({Key.PUBLIC_KEY_1: b"none"}))),
    "a stranger": ("setup", of_a_stranger),
    "no shares": ("share_keys", emptied),
    "too few shares": ("share_keys", configs(lambda c: c.update({Key.CIPHERTEXT_LIST: [b"x"]}))),
    "shares for strangers": (
        "share_keys",
        configs(lambda c: c.update({Key.DESTINATION_LIST: [1, 2, 3, 4]})),
    ),
    "no vector": ("collect_masked_vectors", emptied),
    "no bytes": (
        "collect_masked_vectors",
        configs(lambda c: c.update({Key.MASKED_PARAMETERS: [b"", b""]})),
    ),
    "too short": ("collect_masked_vectors", masked(lambda a: (a[0], a[1][:-1]))),
    "too long": ("collect_masked_vectors", masked(lambda a: (a[0], np.append(a[1], a[1])))),
    "two dimensions": ("collect_masked_vectors", masked(lambda a: (a[0], a[1][None]))),
    "no factor": ("collect_masked_vectors", masked(lambda a: (a[1],))),
    "floats": ("collect_masked_vectors", masked(lambda a: (a[0], a[1].astype(float)))),
    "above the modulus": ("collect_masked_vectors", masked(lambda a: (a[0], a[1] + 2**33))),
    "negative": ("collect_masked_vectors", masked(lambda a: (a[0], -1 - a[1]))),
    "no share": ("unmask", emptied),
    "shares of others": ("unmask", configs(lambda c: c.update({Key.NODE_ID_LIST: [1] * 5}))),
    "a share too few": ("unmask", configs(lambda c: c.update({Key.SHARE_LIST: [b"x"]}))),
}


@pytest.mark.parametrize("kind", list(GARBAGE))
def test_a_node_that_sends_garbage_has_dropped_out(kind: str) -> None:
    at, change = GARBAGE[kind]

    def fate(stage: str, user: int, reply: Message) -> Message:
        return change(reply) if (stage, user) == (at, 2) else reply

    strategy = started(SecureGrid(fate=fate), 1)
    assert strategy.failures == {}
    same_bits(strategy.arrays, of_these(EVERYBODY if at == "unmask" else [0, 1, 3, 4], 1))


POISON: dict[str, tuple[str, Callable[[Message], Message]]] = {
    "a key for shares that is none": (
        "setup",
        configs(lambda c: c.update({Key.PUBLIC_KEY_2: b"none"})),
    ),
    "shares that nobody can read": (
        "share_keys",
        configs(lambda c: c.update({Key.CIPHERTEXT_LIST: [b"x" * 40] * 4})),
    ),
    "a vector of its own": (
        "collect_masked_vectors",
        masked(lambda a: (a[0], a[1] ^ np.arange(a[1].size))),
    ),
    "random numbers": (
        "collect_masked_vectors",
        masked(lambda a: (a[0], np.random.default_rng(3).integers(0, 2**32, a[1].size))),
    ),
    "a factor of its own": ("collect_masked_vectors", masked(lambda a: (a[0] ^ 2**31, a[1]))),
    "a share that is none": (
        "unmask",
        configs(lambda c: c.update({Key.SHARE_LIST: [b"x" * 40] * 5})),
    ),
}


@pytest.mark.parametrize("kind", list(POISON))
def test_no_node_can_end_the_run(kind: str) -> None:
    """Garbage of the right form can spoil the sum of a round; the round is still a step."""
    at, change = POISON[kind]

    def fate(stage: str, user: int, reply: Message) -> Message:
        return change(reply) if (stage, user) == (at, 2) else reply

    strategy = started(SecureGrid(fate=fate), 1)
    assert all(np.isfinite(array).all() for array in arrays(strategy.arrays).values())
    if kind != "a vector of its own":  # a small change of the sum cannot be told from an update
        assert list(strategy.failures) == [1]
        same_bits(strategy.arrays, of_these([], 1))


@pytest.mark.parametrize("call", range(4))
def test_an_error_of_the_grid_itself_leaves_the_round_open(call: int) -> None:
    grid, calls = SecureGrid(), 0

    def order(replies: list[Message]) -> list[Message]:
        nonlocal calls
        calls += 1
        if calls == 2 + call:  # the first call asks for users
            raise ConnectionError("no network")
        return replies

    grid.order = order
    strategy = secure()
    with pytest.raises(ConnectionError, match="no network"):
        strategy.start(grid, record(model()), 2)
    assert strategy.rounds_done == 0 and strategy.failures == {}
    strategy.start(grid, record(model()), 2)
    same_bits(strategy.arrays, of_these(EVERYBODY))


def test_the_second_reply_of_a_node_is_ignored() -> None:
    grid = SecureGrid(order=lambda replies: [*replies, *replies])
    same_bits(started(grid).arrays, of_these(EVERYBODY))


# ---- Neighbours ----


def fails(sent: dict[str, Any]) -> dict[str, Any]:
    raise RuntimeError("a row that cannot be read")


EXTREMES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "zero": lambda sent: sent,
    "nan": lambda sent: {**sent, "scale": np.array(np.nan, np.float32)},
    "huge": lambda sent: {**sent, "layer.bias": np.array([1e300, -1e300])},
    "another shape": lambda sent: {**sent, "layer.bias": np.zeros(3)},
    "nothing": lambda sent: {},
    "an error": fails,
}


@pytest.mark.parametrize("kind", list(EXTREMES))
def test_a_user_moves_the_sum_by_at_most_the_clip_norm_and_nothing_else(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    totals: list[Any] = []
    add_sum = Round.add_sum

    def watched(self: Round, clients: Any, total: Any, **named: Any) -> Any:
        totals.append((list(clients), total.copy(), self.sum_spec, named["modulus_bits"]))
        return add_sum(self, clients, total, **named)

    monkeypatch.setattr(Round, "add_sum", watched)

    def run(change: Callable[[dict[str, Any]], dict[str, Any]]) -> tuple[Any, ...]:
        def update(user: int, round_: int, sent: dict[str, Any]) -> dict[str, Any]:
            return change(sent) if user == 3 else step_of(user, round_, sent)

        caplog.clear()
        grid = SecureGrid(update=update)
        with caplog.at_level(logging.DEBUG, "flwr"):
            strategy = secure()
            result = strategy.start(grid, record(model()), 1)
        records = [r for r in caplog.records if r.module not in CLIENTS_OWN]
        lines = [r.getMessage() for r in records if r.name != LOG]
        lines = [line for line in lines if "finished in" not in line]
        counts = [r.getMessage() for r in records if r.name == LOG]
        assert counts and all(line.endswith("(not private)") for line in counts)
        return grid.stages, lines, strategy.failures, str(result.train_metrics_clientapp)

    assert run(EXTREMES["zero"]) == run(EXTREMES[kind])
    (who, before, spec, bits), (again, after, _, _) = totals
    assert who == again == [*EVERYBODY]  # who is in the sum depends on no value
    difference = [((int(a) - int(b)) % 2**bits) for a, b in zip(after, before, strict=True)]
    signed = [x - 2**bits if x >= 2 ** (bits - 1) else x for x in difference]
    assert sum(x * x for x in signed) * spec.unit**2 <= spec.clip_norm**2
    assert any(signed) == (kind == "huge")


def test_a_round_is_unmasked_once_where_its_sum_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two sums that differ in who dropped out would reveal the update of one client."""
    strategy, grid = secure(), SecureGrid()
    strategy.open(record(model()))
    end_round, full = strategy.server.end_round, [False, True, False]

    def end() -> Any:
        if full.pop(0) if full else False:
            raise OSError("no space left")
        return end_round()

    monkeypatch.setattr(strategy.server, "end_round", end)
    with pytest.raises(OSError, match="no space left"):
        strategy.start(grid, record(model()), 2)
    assert strategy.rounds_done == 1
    stages = len(grid.stages)
    grid.fate = lost("collect_masked_vectors", [3])
    strategy.start(grid, record(model()), 2)
    assert len(grid.stages) == stages and strategy.rounds_done == 2
    same_bits(strategy.arrays, of_these(EVERYBODY))


def test_no_update_leaves_a_client_without_a_mask() -> None:
    """Flower's mod lets train messages of other types pass to the app, which answers openly."""

    class Named(flower.FedAvg):
        def configure_train(self, *args: Any) -> Any:
            messages = list(super().configure_train(*args))
            for message in messages:
                message.metadata.message_type = "train.own"
            return messages

    grid, strategy = SecureGrid(), secure(strategy=Named(fraction_evaluate=0.0))
    with pytest.raises(ValueError, match=r"must be of the type 'train' .* got 'train.own'"):
        strategy.start(grid, record(model()))
    assert {m.metadata.message_type for m in grid.sent} == {"query.dpftrl_client_id"}
    assert strategy.rounds_done == 0


CLIENTS_OWN = ("secure_mod", "secaggplus_mod")  # the log of a client's own machine


def test_no_log_tells_who_answered_unless_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    def lines(report: bool, gone: Sequence[int]) -> list[str]:
        caplog.clear()
        grid = SecureGrid(fate=lost("setup", gone) if gone else None)
        with caplog.at_level(logging.DEBUG, "flwr"):
            started(grid, report_metrics=report)
        found = [
            r.getMessage() for r in caplog.records if r.module not in CLIENTS_OWN and r.name != LOG
        ]
        return [line for line in found if "finished in" not in line and "Arrays" not in line]

    assert lines(False, []) == lines(False, [1]) == lines(False, [0, 1, 2])
    said = [r.getMessage() for r in caplog.records if r.name == LOG]
    assert "accepted 0 of 5 updates" in said[0] and "too few nodes completed" in said[0]
    assert all(line.endswith("(not private)") for line in said)
    assert not any("results and" in line for line in said)
    # Flower's own lines, of the protocol, are there with report_metrics only, and marked.
    assert not any("results and" in line for line in lines(True, []))
    said = [r.getMessage() for r in caplog.records if r.name == LOG]
    assert "aggregate_fit: received 5 results and 0 failures (not private)" in said
    assert all(line.endswith("(not private)") for line in said)


def test_the_log_states_the_guarantee_and_its_conditions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        secure().summary()
    text = caplog.text
    assert "epsilon 3.787 at delta 1e-05" in text
    assert "if every client clips its update" in text and "dropping out does not depend" in text


def test_a_check_trains_nobody() -> None:
    grid = SecureGrid()
    assert secure().check(grid, record(model())).ok
    assert grid.stages == ["setup"] and grid.trained == []
    same_bits(started(grid).arrays, of_these(EVERYBODY))
    assert not secure().check(SecureGrid(0), record(model())).ok


def test_a_protocol_that_halts_says_what_the_nodes_answer() -> None:
    grid = SecureGrid()
    grid.app = client_app()  # without the mods: it finds no model in the first stage
    strategy = started(grid, 1)
    assert "commonest error (5 of 5): stage setup: " in strategy.failures[1]
    assert strategy.failures[1].endswith("'config'")
    grid = SecureGrid(fate=lost("setup", range(4)))
    assert started(grid, 1).failures == {1: "too few nodes completed the protocol"}


@pytest.mark.parametrize("failing", [3, 5])
def test_apps_that_fail_are_no_accepted_updates(
    failing: int, caplog: pytest.LogCaptureFixture
) -> None:
    def update(user: int, number: int, sent: dict[str, Any]) -> dict[str, Any]:
        if user < failing:
            raise FileNotFoundError("data.csv")
        return step_of(user, number, sent)

    with caplog.at_level(logging.DEBUG, LOG):
        strategy = started(SecureGrid(update=update))
    same_bits(strategy.arrays, of_these(EVERYBODY[failing:]))
    first, second, last = [r.getMessage() for r in caplog.records if r.name == LOG]
    why = f"accepted {5 - failing} of 5 updates; commonest reason ({failing} of {failing}): the app"
    assert why in first and why in second and first.endswith("(not private)")
    assert f"accepted {10 - 2 * failing} of 10 updates" in last


def test_more_shares_than_users_are_one_for_each() -> None:
    strategy = started(SecureGrid(), num_shares=9)
    assert strategy.failures == {}
    same_bits(strategy.arrays, of_these(EVERYBODY))


# ---- Limbs ----


@settings(deadline=None)
@given(st.integers(1, 2**24), st.integers(8, 64), st.integers(0, 2**32))
def test_sums_of_limbs_do_not_wrap(clients: int, bits: int, seed: int) -> None:
    limbs = Limbs.of(clients, 3, bits)
    assert clients * 2**limbs.bits < 2**32 and limbs.bits * limbs.each >= bits
    rng = np.random.default_rng(seed)
    edges = rng.choice(np.array([0, 1, 2 ** (bits - 1), 2**bits - 1], np.uint64), (2, 3))
    # The first client once, the second as often as there is room.
    vectors = [limbs.cut(each, 1) for each in edges]
    assert all((v >= -limbs.centre).all() and (v < limbs.centre).all() for v in vectors)
    sums = vectors[0] + (clients - 1) * vectors[1]
    total, updates, within = limbs.joined(sums + rng.uniform(-0.003, 0.003), clients)
    for found, one, other in zip(total, *edges, strict=True):
        assert int(found) == (int(one) + (clients - 1) * int(other)) % 2**64
    assert within == updates == clients


def test_sums_that_no_clients_have() -> None:
    limbs = Limbs.of(5, 2, 36)
    low, high = -5 * limbs.centre, 5 * (limbs.centre - 1)
    for good in (low, high):
        limbs.joined(np.full(6, float(good)), 5)
    for bad in (low - 1, high + 1, np.nan, np.inf, 1e300):
        with pytest.raises(ValueError, match="sums of limbs must be in"):
            limbs.joined(np.full(6, float(bad)), 5)
    with pytest.raises(ValueError, match="must be whole numbers"):
        limbs.joined(np.array([0.0, 1.0, 2.0, 3.25, 1.0, 1.0]), 5)
    with pytest.raises(ValueError, match="must have shape"):
        limbs.joined(np.zeros(4), 5)
    with pytest.raises(ValueError, match="at most 16777216 clients"):
        Limbs.of(2**24 + 1, 2, 36)


# ---- Settings ----


@pytest.mark.parametrize(
    ("named", "error", "words"),
    [
        ({"num_shares": 4}, ValueError, "must be odd or a fraction"),
        ({"num_shares": 1}, ValueError, "num_shares must be an integer >= 3"),
        ({"num_shares": 1.5}, ValueError, "num_shares must be"),
        ({"num_shares": 0.0}, ValueError, "num_shares must be"),
        ({"num_shares": "all"}, TypeError, "num_shares must be"),
        ({"reconstruction_threshold": 1}, ValueError, "must be an integer >= 2"),
        ({"reconstruction_threshold": float("nan")}, ValueError, "reconstruction_threshold"),
        ({"num_shares": 5, "reconstruction_threshold": 5}, ValueError, "less than"),
    ],
)
def test_settings_are_refused(named: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        secure(**named)


def test_other_messages_pass_the_clients_mod() -> None:
    app = client_app()
    grid = LocalGrid(app, 1)
    content = RecordDict({"arrays": record(model()), "config": ConfigRecord({"server-round": 1})})
    message = Message(content, dst_node_id=grid.first, message_type="train")
    expected = grid.answer(message)
    from dpftrl_fast.federated.flower.secure_mod import clip_for_secagg_mod

    grid.app = client_app(mods=[clip_for_secagg_mod])
    same_bits(grid.answer(message).content["arrays"], arrays(expected.content["arrays"]))
