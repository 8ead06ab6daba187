# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around the rounds of a Flower run: disks, networks, setups, copies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_cases import (
    CLIENTS,
    ROUNDS,
    LocalGrid,
    Wild,
    arrays,
    by_hand,
    client_app,
    every_round,
    fedavg,
    model,
    private,
    record,
    same_bits,
    step_of,
)
from flwr.app import ConfigRecord, Context, Error, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg

from dpftrl_fast.federated import AdaptiveClipping
from dpftrl_fast.federated.flower import (
    AskClients,
    DPFTRLMod,
    answer_client_id,
    dpftrl_mod,
)
from dpftrl_fast.federated.flower.clients import NodeUsers, OfferedNodes

# ---- The server's own troubles ----


@pytest.mark.parametrize("what", ["checkpoint", "end_round"])
def test_a_disk_that_is_full_for_a_while(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time: of a checkpoint the round is done then, else nothing of it has left."""
    strategy = private(checkpoint_every=1)
    strategy.open(record(model()))
    original, calls = getattr(strategy.server, what), []

    def full() -> Any:
        calls.append(strategy.rounds_done)
        if len(calls) == 2:
            raise OSError("no space left")
        return original()

    monkeypatch.setattr(strategy.server, what, full)
    grid = LocalGrid(client_app(), CLIENTS)
    with pytest.raises(OSError, match="no space left"):
        strategy.start(grid, record(model()))
    done = strategy.rounds_done
    assert done == (2 if what == "checkpoint" else 1)
    result = strategy.start(grid, record(model()))
    assert sorted(result.train_metrics_clientapp) == list(range(done + 1, ROUNDS + 1))
    same_bits(result.arrays, by_hand())


def test_what_a_lost_attempt_refused_is_not_counted_in_the_next() -> None:
    grid = LocalGrid(client_app(), CLIENTS)
    strategy = private(plan=every_round(1), report_metrics=True)

    def lost(replies: list[Message]) -> Any:
        if "arrays" not in replies[0].content:
            return replies
        grid.order = list
        replies[0].content = RecordDict()
        return Broken(replies)

    class Broken(list[Message]):
        def __iter__(self) -> Any:
            yield self[0]
            raise ConnectionError("the network is gone")

    grid.order = lost
    grid.send_and_receive = lambda messages, timeout=None: grid.order(  # type: ignore[method-assign]
        [grid.answer(message) for message in messages]
    )
    with pytest.raises(ConnectionError):
        strategy.start(grid, record(model()))
    assert len(strategy.refused[1]) == 1
    result = strategy.start(grid, record(model()))
    assert result.train_metrics_clientapp[1]["refused (not private)"] == 0
    assert strategy.refused == {1: {}}


def test_a_run_that_was_closed_does_not_go_on(tmp_path: Path) -> None:
    strategy, grid = private(folder=tmp_path / "run"), LocalGrid(client_app(), CLIENTS)
    with strategy:
        strategy.start(grid, record(model()), num_rounds=2)
    sent = len(grid.sent)
    with pytest.raises(RuntimeError, match="expected an open run, got a closed one"):
        strategy.start(grid, record(model()))
    with pytest.raises(RuntimeError, match="closed"):
        strategy.configure_train(3, record(model()), ConfigRecord(), grid)
    assert len(grid.sent) == sent  # nobody was asked
    same_bits(strategy.arrays, by_hand(2))


def test_nobody_is_asked_or_waited_for_after_the_last_round() -> None:
    strategy = private(plan=every_round(1), cohort_size=3, max_wait=0.1)
    grid = LocalGrid(client_app(), CLIENTS)
    strategy.start(grid, record(model()))
    sent = len(grid.sent)
    with pytest.raises(ValueError, match="got 2 of 1"):
        strategy.configure_train(2, record(model()), ConfigRecord(), grid)
    assert len(grid.sent) == sent


def test_a_copy_states_no_epsilon_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with private(folder=tmp_path / "run") as strategy:
        strategy.start(LocalGrid(client_app(), CLIENTS), record(model()), num_rounds=1)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with private(folder=tmp_path / "copy", allow_fork=True) as strategy:
        with caplog.at_level("INFO", logger="flwr"):
            result = strategy.start(LocalGrid(client_app(), CLIENTS), record(model()))
        assert strategy.rounds_done == ROUNDS
    assert not {"epsilon_spent", "epsilon_replace_one"} & {*result.train_metrics_clientapp[2]}
    assert "no epsilon can be stated" in caplog.text
    assert "epsilon 4" not in caplog.text


@pytest.mark.parametrize(
    "named",
    [{"clipping": AdaptiveClipping(noise_multiplier=20.0)}, {"spare_recoveries": 1}],
    ids=["estimates", "spare recoveries"],
)
def test_the_log_states_the_epsilon_of_the_whole_run(
    named: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    plan = every_round(restart_every=2)
    strategy = private(plan=plan, **named)
    strategy.open(record(model()))
    with caplog.at_level("INFO", logger="flwr"):
        strategy.summary()
    assert strategy.epsilon_spent() > plan.epsilon(1e-5)
    stated = [line for line in caplog.messages if "of the whole run" in line]
    assert len(stated) == 1
    assert float(stated[0].split("epsilon ")[1].split()[0]) >= strategy.epsilon_spent()


def test_no_key_is_in_what_an_error_report_shows() -> None:
    key = bytes(range(32))
    strategy = private(noise_seed=None, key=key)
    strategy.open(record(model()))
    for shown in (strategy, strategy._settings, strategy.server):
        assert repr(key) not in repr(shown)


# ---- Models ----


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("change", ["columns first", "big-endian", "float64", "float16"])
def test_models_come_back_in_any_layout_and_precision(change: str) -> None:
    def other(user: int, round_: int, sent: dict[str, Any]) -> dict[str, Any]:
        after = step_of(user, round_, sent)
        if change == "columns first":
            after["layer.weight"] = np.asfortranarray(after["layer.weight"])
        elif change == "big-endian":
            after["layer.weight"] = after["layer.weight"].astype(">f4")
        else:
            after["layer.weight"] = after["layer.weight"].astype(change)
        return after

    for mods in ((), (dpftrl_mod,)):
        strategy = private(plan=every_round(1))
        result = strategy.start(LocalGrid(client_app(other, mods), CLIENTS), record(model()))
        assert strategy.refused == {1: {}}
        if change == "float16":
            found, expected = arrays(result.arrays), by_hand(1, plan=every_round(1))
            for name, array in found.items():
                np.testing.assert_allclose(array, expected[name], atol=1e-3)
        else:
            same_bits(result.arrays, by_hand(1, plan=every_round(1)))


@pytest.mark.parametrize("dtype", ["complex64", "S3", "V2", "M8[s]"])
def test_arrays_that_can_neither_be_trained_nor_counted_are_refused(dtype: str) -> None:
    given = {**model(), "odd": np.zeros(2, dtype)}
    with pytest.raises(ValueError, match=r"array 'odd'.* got "):
        private().open(record(given))


@pytest.mark.parametrize("name", ["norm.running_mean", "norm.running_var", "bn/moving_variance"])
def test_running_statistics_are_refused_before_anybody_is_asked(name: str, tmp_path: Path) -> None:
    given = {**model(), name: np.ones(3, np.float32)}
    with private(folder=tmp_path / "run") as strategy:
        grid = LocalGrid(client_app(), CLIENTS)
        with pytest.raises(ValueError, match=rf"{name}.*GroupNorm"):
            strategy.start(grid, record(given), check=True)
    assert grid.sent == []
    assert not (tmp_path / "run").exists()
    counter = {**model(), "norm.num_batches_tracked": np.array(3)}  # an integer gets no noise
    strategy = private()
    strategy.open(record(counter))
    assert arrays(strategy.arrays)["norm.num_batches_tracked"] == 3


def test_switches_and_counters_stay_as_they_began() -> None:
    given = {"w": np.zeros(2, np.float32), "on": np.array([True]), "n": np.array(3, np.uint8)}
    strategy = private()
    strategy.open(record(given))
    assert {name: array.dtype.kind for name, array in arrays(strategy.arrays).items()} == {
        "w": "f",
        "on": "b",
        "n": "u",
    }


# ---- Wrapped strategies ----


@pytest.mark.parametrize("kind", [flower.FedAvgM, flower.FedAdam])
def test_a_new_run_does_not_begin_with_the_momentum_of_another(kind: Any) -> None:
    options = {"server_momentum": 0.9} if kind is flower.FedAvgM else {"eta": 0.1}
    inner = kind(fraction_evaluate=0.0, **options)
    first, second = (
        private(inner, aggregate="strategy")
        .start(LocalGrid(client_app(), CLIENTS), record(model()))
        .arrays
        for _ in range(2)
    )
    same_bits(first, arrays(second))


def test_what_a_strategy_remembers_does_not_say_which_run_it_is(tmp_path: Path) -> None:
    inner, named = Wild(), {"aggregate": "strategy", "folder": tmp_path / "run"}
    with private(inner, **named) as strategy:
        strategy.start(LocalGrid(client_app(), CLIENTS), record(model()), num_rounds=2)
    assert inner.calls == 2
    with private(inner, **named) as strategy:  # the same object, as in a notebook
        strategy.start(LocalGrid(client_app(), CLIENTS), record(model()))
        assert inner.calls == ROUNDS


def test_evaluation_that_fails_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    def odd(replies: list[Message]) -> list[Message]:
        for reply in replies[:1]:
            if "accuracy" in reply.content.get("metrics", {}):
                reply.content = RecordDict()
        return replies

    strategy = private(FedAvg(fraction_evaluate=1.0), report_metrics=True)
    grid = LocalGrid(client_app(), CLIENTS, order=odd)
    with caplog.at_level("WARNING", logger="flwr"):
        result = strategy.start(grid, record(model()))
    assert strategy.rounds_done == ROUNDS
    assert result.evaluate_metrics_clientapp == {}
    assert "cannot be aggregated" in caplog.text
    same_bits(result.arrays, by_hand())


def test_options_of_ones_own_do_not_take_the_place_of_the_model() -> None:
    with pytest.raises(TypeError, match="options must be those of ServerDPFTRL, got parameters"):
        private(parameters=model())


# ---- Nodes ----


def test_nodes_that_do_not_say_their_user_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """An app without `answer_client_id` trains nobody: every round is empty, and that is said."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise AssertionError

    strategy = private(plan=every_round(2))
    with caplog.at_level("WARNING", logger="flwr"):
        strategy.start(LocalGrid(app, CLIENTS), record(model()))
    for n in (1, 2):
        assert len(strategy.turned_away[n]) == CLIENTS
        assert all("its user is not known: error" in w for w in strategy.turned_away[n].values())
    said = [line for line in caplog.messages if "answer_client_id" in line]
    assert len(said) == 2
    assert "5 of 5 nodes" in said[0]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (True, "must be an integer or a name, got bool"),
        (2.5, "must be an integer or a name, got float"),
        (-1, r"must be in \[0, 2\^63\), got -1"),
        ("", "must not be empty"),
        ("x" * 5000, "at most 1000 characters, got 5000"),
    ],
    ids=["bool", "float", "negative", "empty", "long"],
)
def test_users_that_are_none(answer: Any, why: str) -> None:
    def spoilt(replies: list[Message]) -> list[Message]:
        for reply in replies:
            reply.content["dpftrl"] = ConfigRecord({"client-id": answer})
        return replies

    grid = LocalGrid(client_app(), 1, order=spoilt)
    users = NodeUsers(AskClients())
    assert users.of([grid.first], grid) == {}
    with pytest.raises(ValueError, match=why):  # as a pattern
        raise ValueError(users.why_not(grid.first))


def test_clients_say_their_user_as_they_have_it() -> None:
    for user, expected in ((np.int64(3), 3), ("Lear", "Lear"), (7, 7)):
        app = ClientApp()
        answer_client_id(app, lambda _, user=user: user)  # type: ignore[misc]
        grid = LocalGrid(app, 1)
        assert NodeUsers(AskClients()).of([grid.first], grid) == {grid.first: expected}
    app = ClientApp()
    answer_client_id(app, lambda _: -4)
    grid = LocalGrid(app, 1)
    users = NodeUsers(AskClients())
    assert users.of([grid.first], grid) == {}
    assert "got -4" in users.why_not(grid.first)


def test_a_slow_node_is_asked_once_a_round_and_is_not_waited_for_again() -> None:
    """Nor does the time of asking count as the strategy's waiting."""
    now = [0.0]

    def slow(replies: list[Message]) -> list[Message]:
        now[0] += 600.0
        return replies[1:]

    grid = LocalGrid(client_app(), CLIENTS, order=slow)

    def sleep(pause: float) -> None:
        now[0] += pause

    users = NodeUsers(AskClients(), lambda: now[0], sleep)
    offered = OfferedNodes(
        grid, CLIENTS, users, lambda u: np.ones(len(u), bool), 300.0, clock=lambda: now[0]
    )
    for _ in range(3):
        assert len(offered.get_node_ids()) == CLIENTS - 1
    assert len(grid.sent) == CLIENTS
    now[0] += 301.0
    with pytest.raises(TimeoutError, match=r"got 4 of 5 connected ones \(1 whose user is not know"):
        offered.get_node_ids()


def test_a_node_with_two_messages_is_asked_and_trains_once() -> None:
    class Twice(FedAvg):
        def configure_train(self, *args: Any, **named: Any) -> Any:
            messages = list(super().configure_train(*args, **named))
            return [*messages, *messages]

    strategy = private(Twice(fraction_evaluate=0.0), plan=every_round(1))
    grid = LocalGrid(client_app(), CLIENTS)
    result = strategy.start(grid, record(model()))
    assert len(grid.sent) == 2 * CLIENTS  # a question and a model each
    same_bits(result.arrays, by_hand(1, plan=every_round(1)))


def test_an_error_of_flowers_own_is_that_of_the_node_it_speaks_for() -> None:
    """Flower answers from node 1 for nodes that are gone, with the id of the message."""

    def gone(replies: list[Message]) -> list[Message]:
        if not replies or "arrays" not in replies[0].content:
            return replies
        sent = grid.sent[-len(replies) :]
        for k, message in enumerate(sent):
            message.metadata.__dict__["_message_id"] = f"id {k}"
        return [flowers_error(sent[k].metadata) for k in (0, 1)] + replies[2:]

    grid = LocalGrid(client_app(), CLIENTS, order=gone)
    strategy = private(plan=every_round(1), report_metrics=True)
    result = strategy.start(grid, record(model()))
    assert len(strategy.refused[1]) == 2
    assert set(strategy.refused[1]) < set(range(CLIENTS))
    assert all("error 3: node is gone" in why for why in strategy.refused[1].values())
    metrics = result.train_metrics_clientapp[1]
    assert metrics["refused (not private)"] == metrics["missing (not private)"] == 2


def flowers_error(sent: Metadata) -> Message:
    made = Message(Error(3, "node is gone"), reply_to=Message(RecordDict(), 1, "train"))
    made.metadata.__dict__["_src_node_id"] = 1
    made.metadata.__dict__["_reply_to_message_id"] = sent.message_id
    return made


def test_what_made_a_slot_empty_is_what_is_said() -> None:
    def twice(replies: list[Message]) -> list[Message]:
        bad = [r for r in replies if "arrays" in r.content and r.metadata.src_node_id == grid.first]
        for reply in bad:
            reply.content["arrays"]["scale"] = record({"x": np.array(np.nan, np.float32)})["x"]
        return [*replies, *bad]

    grid = LocalGrid(client_app(), CLIENTS, order=twice)
    strategy = private(plan=every_round(1))
    strategy.start(grid, record(model()))
    assert strategy.refused == {1: {0: "update must be finite, got NaN or infinity"}}


@pytest.mark.parametrize("spoilt", ["a value", "no answer", "an error"])
def test_no_log_and_no_metric_tells_of_a_reply_unless_asked_for(
    spoilt: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever one client does, the result is the same by default, and so is the log but for the
    lines that end in "(not private)", which one logger writes."""

    def spoil(replies: list[Message]) -> list[Message]:
        kept = []
        for reply in replies:
            if "arrays" in reply.content and reply.metadata.src_node_id == grid.first + 2:
                if spoilt == "no answer":
                    continue
                if spoilt == "an error":
                    sent = next(m for m in grid.sent if m.metadata.dst_node_id == grid.first + 2)
                    reply = Message(Error(3, "secret reason"), reply_to=sent)
                else:
                    reply.content["arrays"]["scale"] = record({"x": np.float32(np.nan)})["x"]
            kept.append(reply)
        return kept

    def told(reporting: bool) -> tuple[list[str], dict[str, Any]]:
        caplog.clear()
        strategy = private(fedavg(), plan=every_round(1), report_metrics=reporting)
        with caplog.at_level("INFO", logger="flwr"):
            result = strategy.start(grid, record(model()))
        marked = {e.name for e in caplog.records if e.getMessage().endswith("(not private)")}
        assert marked <= {"flwr.not_private"}
        named = [e for e in caplog.records if e.name == "flwr.not_private"]
        assert all(e.getMessage().endswith("(not private)") for e in named)
        lines = [e.getMessage() for e in caplog.records if reporting or e not in named]
        return lines, dict(result.train_metrics_clientapp[1])

    grid = LocalGrid(client_app(), CLIENTS)
    good, bad = LocalGrid(client_app(), CLIENTS), LocalGrid(client_app(), CLIENTS, order=spoil)
    grid = good
    lines, metrics = told(False)
    assert metrics["asked"] == CLIENTS and not any("not private" in name for name in metrics)
    assert f"Round 1: {CLIENTS} users asked, 0 turned away, report goal 5" in lines
    grid = bad
    again, same = told(False)
    assert [x for x in again if "finished" not in x] == [x for x in lines if "finished" not in x]
    assert same == metrics
    shown, marked = told(True)
    assert marked["missing (not private)"] == 1 and marked["accepted (not private)"] == CLIENTS - 1
    refusals = [line for line in shown if "refused" in line and "update of" in line]
    assert f"Rounds 1 to 1: accepted {CLIENTS - 1} of {CLIENTS} updates (not private)" in shown
    assert len(refusals) == (0 if spoilt == "no answer" else 1)
    assert all(f"update of node {grid.first + 2} refused" in line for line in refusals)


def test_a_round_without_users_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    strategy = private(client_id=lambda node: None, plan=every_round(1))
    strategy.start(LocalGrid(client_app(), CLIENTS), record(model()))
    (entry,) = [e for e in caplog.records if "users asked" in e.getMessage()]
    assert entry.levelname == "WARNING"
    assert f"0 users asked, {CLIENTS} turned away" in entry.getMessage()


def test_a_late_reply_to_an_abandoned_attempt_is_one_to_the_new_one() -> None:
    """The token stays: members of the new cohort count once, with the same bits; others do not."""
    start, config = record(model()), ConfigRecord()

    def first() -> tuple[Any, LocalGrid, list[Message]]:
        strategy, grid = private(plan=every_round(1)), LocalGrid(client_app(), CLIENTS)
        return strategy, grid, list(strategy.configure_train(1, start, config, grid))

    strategy, grid, old = first()
    late = [grid.answer(message) for message in old]
    nodes = list(grid.get_node_ids())[:2]
    grid.get_node_ids = lambda: nodes  # type: ignore[method-assign]
    new = list(strategy.configure_train(1, start, config, grid))
    assert {message.metadata.dst_node_id for message in new} == set(nodes)
    replies = [grid.answer(message) for message in new]
    found, _ = strategy.aggregate_train(1, [*late, *replies])
    assert len(strategy.refused[1]) == CLIENTS  # two doubles, and all others, who were not asked
    whys = list(strategy.refused[1].values())
    assert whys.count("answered already in this round") == 2
    assert whys.count("was not asked in this round") == CLIENTS - 2

    other, grid, _ = first()
    grid.get_node_ids = lambda: nodes  # type: ignore[method-assign]
    again = [grid.answer(m) for m in other.configure_train(1, start, config, grid)]
    assert len(again) == 2
    same_bits(other.aggregate_train(1, again)[0], arrays(found))


def test_a_reply_without_a_token_is_refused() -> None:
    def none(replies: list[Message]) -> list[Message]:
        for reply in replies:
            if "arrays" in reply.content:
                reply.metadata.group_id = None  # type: ignore[assignment]
        return replies

    strategy = private(plan=every_round(1))
    strategy.start(LocalGrid(client_app(), CLIENTS, order=none), record(model()))
    assert len(strategy.refused[1]) == CLIENTS
    assert all("of another run or round" in why for why in strategy.refused[1].values())


@pytest.mark.parametrize("norm", [float("nan"), float("inf"), -1.0, 0.0])
def test_a_client_that_clips_refuses_a_norm_that_is_none(norm: float) -> None:
    grid = LocalGrid(client_app(mods=[DPFTRLMod(clip=True)]), 1)
    content = RecordDict(
        {
            "arrays": record(model()),
            "config": ConfigRecord({"server-round": 1}),
            "dpftrl": ConfigRecord({"token": "x", "clip-norm": norm}),
        }
    )
    reply = grid.answer(Message(content, dst_node_id=grid.first, message_type="train"))
    assert reply.has_error()
    assert "clip_norm must be a finite number in" in str(reply.error.reason)


def test_fractions_and_minima_of_the_wrapped_strategy_choose_and_weigh_nothing() -> None:
    """Whoever is chosen, and whatever a client says it has: the divisor is the goal."""
    few = private(fedavg(fraction_train=0.2, min_train_nodes=3), plan=every_round(1))
    grid = LocalGrid(client_app(), CLIENTS)
    result = few.start(grid, record(model()))
    chosen = sorted(user for _, user in grid.trained)
    assert len(chosen) == 3
    same_bits(
        result.arrays,
        by_hand(1, users=lambda _: chosen, plan=every_round(1)),  # type: ignore[arg-type,return-value]
    )
