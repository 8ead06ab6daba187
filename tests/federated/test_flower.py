# SPDX-License-Identifier: Apache-2.0
"""`DPFTRLStrategy` against the server it stands on and Flower's own steps; metrics; going on."""

from __future__ import annotations

import contextlib
import random
import threading
from dataclasses import replace
from fractions import Fraction
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
    smooth_step,
    step_of,
)
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy
from mechanism_cases import TOEPLITZ

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.federated.flower import DPFTRLMod, DPFTRLStrategy, dpftrl_mod
from dpftrl_fast.federated.flower.mod import _clip
from dpftrl_fast.federated.flower.records import array_record
from dpftrl_fast.federated.flower.settings import StrategySettings
from dpftrl_fast.federated.flower.wrapped import StrategyUpdate
from dpftrl_fast.federated.sums.layout import ModelLayout
from dpftrl_fast.rounding import clip_limit

# ---- The step ----


@pytest.mark.parametrize("mods", [(), (dpftrl_mod,), (DPFTRLMod(clip=True),)], ids=str)
def test_it_is_the_server_bit_for_bit_with_the_mod_and_without(mods: tuple[Any, ...]) -> None:
    shuffled = LocalGrid(client_app(mods=mods), CLIENTS, order=lambda r: random.sample(r, len(r)))
    strategy = private(momentum=0.5)
    result = strategy.start(shuffled, record(model()))
    same_bits(result.arrays, by_hand(momentum=0.5))
    assert strategy.rounds_done == ROUNDS
    assert strategy.refused == {n: {} for n in range(1, ROUNDS + 1)}


def test_whole_updates_are_clipped_whoever_clips() -> None:
    def huge(user: int, round_: int, sent: dict[str, Any]) -> dict[str, Any]:
        return step_of(user, round_, sent, size=50.0)

    results = []
    for mods in ((), (dpftrl_mod,), (DPFTRLMod(clip=True),)):
        strategy = private(plan=every_round(1))
        grid = LocalGrid(client_app(huge, mods), CLIENTS)
        results.append(arrays(strategy.start(grid, record(model())).arrays))
    for name in ("layer.weight", "layer.bias", "scale"):
        np.testing.assert_array_equal(results[0][name], results[1][name])
        np.testing.assert_allclose(results[2][name], results[1][name], atol=1e-6)
    same_bits(record(results[0]), by_hand(1, huge, plan=every_round(1)))


def test_what_a_clipping_client_sends_has_at_most_the_clip_norm() -> None:
    def huge(user: int, round_: int, sent: dict[str, Any]) -> dict[str, Any]:
        return step_of(user, round_, sent, size=10.0 ** (user - 3))

    norms: list[float] = []

    def seen(replies: list[Message]) -> list[Message]:
        for reply in replies:
            if "arrays" in reply.content:
                found = arrays(reply.content["arrays"])
                assert list(found) == ["layer.weight", "layer.bias", "scale"]
                norms.append(
                    float(np.sqrt(sum(np.sum(np.square(a, dtype=float)) for a in found.values())))
                )
        return replies

    grid = LocalGrid(client_app(huge, (DPFTRLMod(clip=True),)), CLIENTS, order=seen)
    private(plan=every_round(1)).start(grid, record(model()))
    assert len(norms) == CLIENTS
    assert max(norms) <= 0.3
    assert 0 < np.count_nonzero(np.array(norms) > 0.2999) < CLIENTS


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("aggregate", ["server", "strategy"])
def test_a_round_less_its_noise_is_federated_averaging(aggregate: Any) -> None:
    def still(user: int, round_: int, sent: dict[str, Any]) -> dict[str, Any]:
        return dict(sent)

    made = []
    for update in (step_of, still):
        strategy = private(plan=every_round(1), aggregate=aggregate)
        made.append(
            arrays(strategy.start(LocalGrid(client_app(update), CLIENTS), record(model())).arrays)
        )
    # The same noise in both, so their difference has none.
    trained = [step_of(user, 1, model()) for user in range(CLIENTS)]
    for name in ("layer.weight", "layer.bias", "scale"):
        mean = np.mean([np.asarray(t[name], float) for t in trained], axis=0)
        change = made[0][name].astype(float) - made[1][name]
        np.testing.assert_allclose(change, mean - model()[name], atol=3e-7)


FLOWERS: list[tuple[Strategy, dict[str, Any]]] = [
    (fedavg(), {}),
    (flower.FedProx(fraction_evaluate=0.0, proximal_mu=0.1), {}),
    (
        flower.FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.5, server_momentum=0.9),
        {"learning_rate": 0.5, "momentum": 0.9},
    ),
    (
        flower.FedAdam(fraction_evaluate=0.0, eta=0.03, beta_1=0.8, beta_2=0.95, tau=1e-2),
        {"optimizer": "adam", "learning_rate": 0.03, "betas": (0.8, 0.95), "eps": 1e-2},
    ),
]


@pytest.mark.parametrize("name", ["two taps", "two buffers", "a buffer, in blocks"])
def test_the_noise_is_of_the_plans_mechanism(name: str) -> None:
    plan = replace(every_round(), mechanism=TOEPLITZ[name])
    found = private(plan=plan).start(LocalGrid(client_app(smooth_step), CLIENTS), record(model()))
    same_bits(found.arrays, by_hand(update=smooth_step, plan=plan))
    assert not np.array_equal(
        arrays(found.arrays)["layer.bias"], by_hand(update=smooth_step)["layer.bias"]
    )


@pytest.mark.parametrize(
    ("strategy", "options"), FLOWERS, ids=[type(s).__name__ for s, _ in FLOWERS]
)
def test_a_wrapped_step_is_the_servers_step(strategy: Strategy, options: dict[str, Any]) -> None:
    plan = every_round(restart_every=2, complete=True)
    inside = private(strategy, aggregate="strategy", plan=plan)
    grid = LocalGrid(client_app(smooth_step), CLIENTS)
    found = arrays(inside.start(grid, record(model())).arrays)
    expected = by_hand(update=smooth_step, plan=plan, **options)
    for name, array in found.items():
        assert array.dtype == model()[name].dtype
        np.testing.assert_allclose(array, expected[name], atol=1e-6)


@pytest.mark.parametrize(
    "kind",
    [
        flower.FedAvg,
        flower.FedAvgM,
        flower.FedAdagrad,
        flower.FedAdam,
        flower.FedYogi,
        lambda **named: flower.FedAvgM(server_momentum=0.7, server_learning_rate=0.3, **named),
    ],
)
def test_a_wrapped_step_is_that_of_flower_with_one_client(kind: Any) -> None:
    layout = ModelLayout({"w": np.zeros((2, 2)), "b": np.zeros(())})
    start = np.array([0.5, -1.0, 2.0, 0.0, 3.0])
    update, alone = StrategyUpdate(kind(), layout, start), kind(weighted_by_key="examples")
    current, rng = start, np.random.default_rng(8)
    grid = LocalGrid(client_app(), 2)
    for n in range(1, 5):
        value = rng.normal(size=5)
        alone.configure_train(n, record(layout.unflatten(current)), ConfigRecord(), grid)
        content = RecordDict(
            {
                "arrays": record(layout.unflatten(current + value)),
                "metrics": MetricRecord({"examples": 17}),
            }
        )
        reply = Message(content, dst_node_id=1, message_type="train")
        current = layout.flatten(arrays(alone.aggregate_train(n, [reply])[0]))
        update.step(value)
        np.testing.assert_array_equal(update.theta, current)
        if n == 2:  # what it remembers is all there is to remember
            state = update.state_dict()
            update = StrategyUpdate(kind(), layout, start)
            update.load_state_dict(state)


def test_a_strategy_of_ones_own_makes_the_step() -> None:
    strategy = private(Wild(), aggregate="strategy")
    found = arrays(strategy.start(LocalGrid(client_app(), CLIENTS), record(model())).arrays)
    assert np.abs(found["layer.weight"]).max() < 0.5
    assert strategy.strategy.calls == ROUNDS  # type: ignore[attr-defined]


def test_metrics_functions_of_ones_own_do_not_meet_the_synthetic_reply() -> None:
    def losses(contents: list[RecordDict], key: str) -> MetricRecord:
        return MetricRecord(
            {"loss": float(np.mean([c["metrics"]["train_loss"] for c in contents]))}
        )

    inner = fedavg(train_metrics_aggr_fn=losses)
    strategy = private(inner, aggregate="strategy", report_metrics=True)
    result = strategy.start(LocalGrid(client_app(), CLIENTS), record(model()))
    assert result.train_metrics_clientapp[1]["loss (not private)"] == pytest.approx(0.5)
    assert inner.train_metrics_aggr_fn is losses


# ---- Metrics ----


CLIPPED = {
    "a square overflows": [np.array([1e160, 3.0])],
    "the sum of squares overflows": [np.full(4, 1e154)],
    "the largest float64": [np.array([np.finfo(np.float64).max] * 3)],
    "the largest float32": [np.array([np.finfo(np.float32).max] * 4, np.float32)],
    "float16": [np.array([60000.0, 3.0], np.float16), np.array(2.0, np.float16)],
    "two dtypes": [np.array([1e200]), np.array([1e30, 1e-45], np.float32)],
    "nothing and one": [np.zeros(0), np.array([2.0])],
    "just above": [np.full(1000, np.float32(1.0 / 1000**0.5) * np.float32(1 + 2e-6), np.float32)],
}


def true_norm(update: dict[str, Any]) -> Fraction:
    """Return the squared norm, exactly."""
    return sum(
        (Fraction(float(x)) ** 2 for array in update.values() for x in np.asarray(array).ravel()),
        Fraction(0),
    )


@pytest.mark.parametrize("norm", [1.0, 1e-100, 1e-44, 1e100, 1e30], ids=str)
@pytest.mark.parametrize("parts", CLIPPED.values(), ids=list(CLIPPED))
def test_no_finite_update_is_sent_above_the_clip_norm(parts: list[Any], norm: float) -> None:
    update = {f"w{k}": array.copy() for k, array in enumerate(parts)}
    before = true_norm(update)
    _clip(update, clip_limit(norm))
    assert true_norm(update) <= Fraction(norm) ** 2
    assert [a.dtype for a in update.values()] == [a.dtype for a in parts]
    assert [a.shape for a in update.values()] == [a.shape for a in parts]
    if before <= Fraction(clip_limit(norm)) ** 2:
        assert all(np.array_equal(a, b) for a, b in zip(update.values(), parts, strict=True))
    elif norm == 1.0:  # by no more than to the limit
        assert true_norm(update) > Fraction(1 - 2e-3) ** 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_subnormal_update_is_clipped_or_sent_as_it_is(dtype: Any) -> None:
    tiny = np.full(5, np.finfo(dtype).smallest_subnormal)
    update = {"w": tiny.copy()}
    _clip(update, clip_limit(1e-45))
    assert true_norm(update) <= Fraction(1e-45) ** 2
    _clip(again := {"w": tiny.copy()}, clip_limit(1.0))
    assert np.array_equal(again["w"], tiny)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_of_an_update_that_is_not_finite_only_that_is_sent(value: float) -> None:
    update = {"a": np.array([value, 1e9]), "b": np.array([7.0], np.float32), "c": np.zeros(())}
    _clip(update, clip_limit(1.0))
    assert all(np.isnan(array).all() for array in update.values())
    assert update["b"].dtype == np.float32 and update["c"].shape == ()


def test_nothing_of_the_clients_is_reported_unless_asked_for() -> None:
    grid = LocalGrid(client_app(), CLIENTS)
    strategy = private(FedAvg(fraction_evaluate=1.0))
    result = strategy.start(grid, record(model()))
    assert {m.metadata.message_type for m in grid.sent} == {"train", "query.dpftrl_client_id"}
    assert result.evaluate_metrics_clientapp == {}
    metrics = result.train_metrics_clientapp[2]
    assert set(metrics) == {
        "round",
        "epsilon_spent",
        "epsilon_replace_one",
        "delta",
        "report_goal",
        "asked",
        "turned_away",
    }
    assert metrics["round"] == 2
    assert metrics["epsilon_spent"] == every_round().epsilon(1e-5) == strategy.epsilon_spent()
    other = every_round().epsilon(1e-5, neighbours="replace-one")
    assert (
        metrics["epsilon_replace_one"] == other == strategy.epsilon_spent(neighbours="replace-one")
    )
    assert strategy.epsilon_spent(1e-4) == every_round().epsilon(1e-4)

    shown = private(FedAvg(fraction_evaluate=1.0), report_metrics=True)
    result = shown.start(LocalGrid(client_app(), CLIENTS), record(model()))
    assert result.train_metrics_clientapp[1]["train_loss (not private)"] == pytest.approx(0.5)
    (name,) = result.evaluate_metrics_clientapp[1]
    assert name == "accuracy (not private)"


def test_metrics_that_do_not_fit_together_do_not_end_the_run() -> None:
    def odd(replies: list[Message]) -> list[Message]:
        for reply in replies[:1]:
            if "metrics" in reply.content:
                reply.content["metrics"] = MetricRecord({"other": 1})
        return replies

    strategy = private(report_metrics=True)
    grid = LocalGrid(client_app(), CLIENTS, order=odd)
    result = strategy.start(grid, record(model()))
    assert "train_loss (not private)" not in result.train_metrics_clientapp[1]
    same_bits(result.arrays, by_hand())


# ---- Going on ----


def test_it_goes_on_from_its_folder_where_it_stopped(tmp_path: Path) -> None:
    seen: list[int] = []

    def evaluate(n: int, found: ArrayRecord) -> MetricRecord:
        seen.append(n)
        return MetricRecord({"n": n})

    named: dict[str, Any] = {"folder": tmp_path / "run", "momentum": 0.9}
    with private(**named) as strategy:
        strategy.start(LocalGrid(client_app(), CLIENTS), record(model()), num_rounds=2)
    other = {name: np.zeros_like(array) for name, array in model().items()}
    with private(**named) as strategy:
        result = strategy.start(
            LocalGrid(client_app(), CLIENTS, first=12), record(other), evaluate_fn=evaluate
        )
        assert (strategy.rounds_done, seen) == (4, [2, 3, 4])
        assert sorted(result.train_metrics_clientapp) == [3, 4]
        assert sorted(result.evaluate_metrics_serverapp) == [2, 3, 4]
        expected = {**by_hand(momentum=0.9), "layer.count": np.array(0)}
        same_bits(result.arrays, expected)
        with pytest.raises(ValueError, match=r"num_rounds must be .* 4"):
            strategy.start(LocalGrid(client_app(), CLIENTS), record(model()), num_rounds=5)
    with private(**named) as strategy:  # all done: the model again, and no round
        grid = LocalGrid(client_app(), CLIENTS)
        same_bits(strategy.start(grid, record(other)).arrays, expected)
        assert grid.sent == []


def test_a_user_is_known_again_in_a_resumed_run(tmp_path: Path) -> None:
    named: dict[str, Any] = {
        "folder": tmp_path / "run",
        "plan": PrivacyPlan(0.3, 6.0, acc.SinglePass(2)),
    }
    with private(**named) as strategy:
        strategy.start(LocalGrid(client_app(), 3), record(model()), num_rounds=1)
    grid = LocalGrid(client_app(), CLIENTS, first=77)
    with private(**named) as strategy:
        strategy.start(grid, record(model()))
    assert sorted(grid.trained) == [(2, 3), (2, 4)]
    with (
        private(**named, client_id="node") as strategy,
        pytest.raises(ValueError, match=r"another run.*users"),
    ):
        strategy.start(grid, record(model()))


def test_another_strategy_or_rate_is_another_run(tmp_path: Path) -> None:
    def adam(eta: float) -> DPFTRLStrategy:
        inner = flower.FedAdam(fraction_evaluate=0.0, eta=eta)
        return private(inner, aggregate="strategy", folder=tmp_path / "run")

    with adam(0.1) as strategy:
        strategy.start(LocalGrid(client_app(), CLIENTS), record(model()), num_rounds=1)
    with pytest.raises(ValueError, match="update"):
        adam(0.2).open(record(model()))
    inner = flower.FedYogi(fraction_evaluate=0.0, eta=0.1)
    with pytest.raises(ValueError, match="update"):
        private(inner, aggregate="strategy", folder=tmp_path / "run").open(record(model()))


def test_a_strategy_of_ones_own_goes_on_with_its_own_state(tmp_path: Path) -> None:
    inner = Wild()
    with private(inner, aggregate="strategy", folder=tmp_path / "run") as strategy:
        strategy.start(LocalGrid(client_app(), CLIENTS), record(model()), num_rounds=3)
    again = Wild()
    with private(again, aggregate="strategy", folder=tmp_path / "run") as strategy:
        strategy.open(record(model()))
        assert again.calls == 3


# ---- Wrong calls ----


@pytest.mark.parametrize(
    ("named", "error", "words"),
    [
        ({"strategy": object()}, TypeError, "strategy must be a Flower Strategy, got object"),
        ({"plan": None}, TypeError, "plan must be a PrivacyPlan, got NoneType"),
        ({"delta": float("nan")}, ValueError, "delta"),
        ({"delta": 1e-300}, ValueError, "delta must be above the floor"),
        ({"report_goal": 0}, ValueError, "report_goal"),
        (
            {"aggregate": "mean"},
            ValueError,
            "aggregate must be one of 'server', 'strategy', got 'mean'",
        ),
        ({"strategy": flower.FedAdam()}, ValueError, "'strategy' to use the step of FedAdam"),
        (
            {"strategy": flower.FedAdam(), "aggregate": "strategy", "momentum": 0.9},
            ValueError,
            "FedAdam makes the step, got momentum",
        ),
        ({"client_id": "user"}, TypeError, "client_id must be 'node'"),
        ({"client_id": 3}, TypeError, "client_id must be 'node'"),
        (
            {"client_id": None, "folder": "x"},
            ValueError,
            "client_id must be given with a folder, got None",
        ),
        ({"cohort_size": 0}, ValueError, "cohort_size"),
        ({"max_wait": float("nan")}, ValueError, "max_wait"),
        ({"report_metrics": 1}, TypeError, "report_metrics must be a bool, got int"),
        ({"rate": 1.0, "seed": 2}, TypeError, "options must be those of ServerDPFTRL, got rate"),
        (
            {"strategy": Wild(), "aggregate": "strategy", "report_metrics": "yes"},
            TypeError,
            "report_metrics",
        ),
    ],
)
def test_settings_are_refused(named: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        private(**named)


@pytest.mark.parametrize(
    "strategy",
    [
        flower.FedMedian(),
        flower.FedTrimmedAvg(),
        flower.Krum(),
        flower.MultiKrum(),
        flower.Bulyan(),
        flower.QFedAvg(client_learning_rate=0.1, train_loss_key="loss"),
        flower.FedXgbBagging(),
        flower.FedXgbCyclic(),
        flower.DifferentialPrivacyServerSideFixedClipping(fedavg(), 1.0, 1.0, 5),
        flower.DifferentialPrivacyClientSideAdaptiveClipping(fedavg(), 0.1, 50),
    ],
    ids=lambda s: type(s).__name__,
)
def test_steps_that_need_the_single_updates_are_refused(strategy: Strategy) -> None:
    with pytest.raises(ValueError, match="whose step needs one mean update only"):
        private(strategy, aggregate="strategy")
    private(strategy, aggregate="server")  # chooses clients only


def test_a_step_of_ones_own_without_state_is_refused_with_a_folder() -> None:
    class Forgetful(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return super().aggregate_train(server_round, replies)

    with pytest.raises(ValueError, match="must have state_dict and load_state_dict"):
        private(Forgetful(), aggregate="strategy", folder="x")
    private(Forgetful(), aggregate="strategy")


def test_a_step_that_gives_no_model_is_an_error() -> None:
    class Empty(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return None, None

    strategy = private(Empty(fraction_evaluate=0.0), aggregate="strategy")
    with pytest.raises(RuntimeError, match=r"Empty\.aggregate_train must return the model"):
        strategy.start(LocalGrid(client_app(), CLIENTS), record(model()))


def test_rounds_out_of_order_are_refused() -> None:
    strategy, grid = private(), LocalGrid(client_app(), CLIENTS)
    with pytest.raises(RuntimeError, match="expected a run that is open"):
        _ = strategy.rounds_done
    with pytest.raises(RuntimeError, match="expected a round that was configured"):
        strategy.aggregate_train(1, [])
    with pytest.raises(ValueError, match="expected round 1, got 2"):
        strategy.configure_train(2, record(model()), ConfigRecord(), grid)
    with pytest.raises(RuntimeError, match="expected one call of open"):
        strategy.open(record(model()))
    messages = strategy.configure_train(1, record(model()), ConfigRecord(), grid)
    with pytest.raises(ValueError, match="expected round 1, got 3"):
        strategy.aggregate_train(3, [])
    same_bits(
        strategy.aggregate_train(1, grid.send_and_receive(messages))[0] or ArrayRecord(),
        by_hand(1),
    )
    assert repr(strategy) == "DPFTRLStrategy(FedAvg, ServerDPFTRL's step)"


def test_two_threads_open_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would make two keys, and two guards that admit a user once each."""
    strategy, barrier, made = private(), threading.Barrier(2, timeout=0.3), []
    server = StrategySettings.server

    def slow(self: Any, parameters: Any) -> Any:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait()
        made.append(server(self, parameters))
        return made[-1]

    monkeypatch.setattr(StrategySettings, "server", slow)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(strategy._ready(array_record(model()))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and found == [made[0]] * 2
