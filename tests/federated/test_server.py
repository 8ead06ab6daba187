# SPDX-License-Identifier: Apache-2.0
"""The server's steps against oracles: federated averaging, recurrences, the plan's own noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import MinSeparation, SinglePass
from dpftrl_fast.federated import PrivateRounds, ServerDPFTRL
from dpftrl_fast.federated.optimizers import AdamUpdate, FTRLUpdate
from dpftrl_fast.mechanisms import Tree

KEY = bytes(range(32))
START = {
    "w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(3.0),
    "h": np.array(0.5, np.float16),
}
SIZE = 10
# As good as none: far below the last place of a float32.
NO_NOISE = 1e-9


def flat(model: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(a, np.float64).reshape(-1) for a in model.values()])


def like(vector: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    return {
        "w": vector[:6].reshape(2, 3).astype(np.float32),
        "b": vector[6:9].copy(),
        "h": vector[9].astype(np.float16).reshape(()),
    }


def server_of(plan: PrivacyPlan, goal: int, **options: Any) -> ServerDPFTRL:
    return ServerDPFTRL(START, plan=plan, report_goal=goal, **{"key": KEY, "threads": 1, **options})


def play(
    server: ServerDPFTRL, updates: list[list[NDArray[np.float64]]]
) -> list[NDArray[np.float64]]:
    """Rounds of new clients with these updates; the models after each."""
    models = []
    for number, of_round in enumerate(updates):
        now = server.begin_round([1000 * number + i for i in range(len(of_round))])
        for client, update in zip(now.cohort, of_round, strict=True):
            assert now.add(client, like(update)) is None
        models.append(flat(server.end_round()))
    return models


def random_updates(rounds: int, clients: int, norm: float) -> list[list[NDArray[np.float64]]]:
    generator = np.random.default_rng(1)
    return [
        [u * norm / np.linalg.norm(u) for u in generator.normal(size=(clients, SIZE))]
        for _ in range(rounds)
    ]


def test_a_round_without_noise_is_federated_averaging() -> None:
    server = server_of(PrivacyPlan(10.0, NO_NOISE, SinglePass(1)), 3)
    models = [flat(START) + u for u in random_updates(1, 3, 2.0)[0]]
    (after,) = play(server, [[model - flat(START) for model in models]])
    np.testing.assert_allclose(after, np.mean(models, axis=0), rtol=2e-3, atol=2e-3)  # float16
    np.testing.assert_allclose(after[:9], np.mean(models, axis=0)[:9], rtol=2e-7, atol=2e-7)
    equal = server_of(PrivacyPlan(10.0, NO_NOISE, SinglePass(1)), 5)
    (after,) = play(equal, [[models[0] - flat(START)] * 5])
    np.testing.assert_allclose(after[:9], models[0][:9], rtol=2e-7, atol=2e-7)


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_the_steps_are_those_of_the_recurrence_with_the_noise_of_the_plan(
    momentum: float, nesterov: bool
) -> None:
    plan = PrivacyPlan(0.5, 2.0, SinglePass(7), mechanism=Tree(restart_every=3, complete=True))
    options = {"learning_rate": 0.7, "momentum": momentum, "nesterov": nesterov}
    server = server_of(plan, 4, dtype="float64", **options)
    updates = random_updates(7, 3, 1.2)  # all of them clipped
    models = play(server, updates)
    noise = plan.noise(SIZE, key=KEY, dtype="float64")
    s, v = np.zeros(SIZE), np.zeros(SIZE)
    for model, of_round in zip(models, updates, strict=True):
        s = s + sum(flat(like(u)) * (0.5 / np.linalg.norm(flat(like(u)))) for u in of_round)
        x = (s + noise.step()) / 4
        v = momentum * v + x
        want = flat(START) + 0.7 * (x + momentum * v if nesterov else v)
        np.testing.assert_allclose(model[:9], want[:9], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(model[6:9], want[6:9], rtol=3e-6, atol=3e-6)
        assert model[9] == np.float16(want[9]) or abs(model[9] - want[9]) < 0.01


@pytest.mark.usefixtures("fine_grid")
def test_adam_on_the_noised_mean_updates() -> None:
    plan = PrivacyPlan(0.5, 2.0, MinSeparation(5, 2, 2), mechanism=Tree(variant="vanilla"))
    options: dict[str, Any] = {"learning_rate": 0.3, "betas": (0.8, 0.95), "eps": 0.01}
    server = server_of(plan, 4, optimizer="adam", dtype="float64", **options)
    updates = random_updates(5, 2, 0.4)  # none of them clipped
    models = play(server, updates)
    noise = plan.noise(SIZE, key=KEY, dtype="float64")
    m, v, theta = np.zeros(SIZE), np.zeros(SIZE), flat(START)
    for t, (model, of_round) in enumerate(zip(models, updates, strict=True)):
        g = (sum(flat(like(u)) for u in of_round) + noise.residual()) / 4
        m = 0.8 * m + 0.2 * g
        v = 0.95 * v + 0.05 * g**2
        rate = 0.3 * np.sqrt(1 - 0.95 ** (t + 2)) / (1 - 0.8 ** (t + 2))
        theta = theta + rate * m / (np.sqrt(v) + 0.01)
        np.testing.assert_allclose(model[6:9], theta[6:9], rtol=1e-5, atol=1e-5)


def test_momentum_zero_is_sgd_on_residuals() -> None:
    plan = PrivacyPlan(0.5, 2.0, SinglePass(6), mechanism=Tree(restart_every=4))
    server = server_of(plan, 4)
    rounds = PrivateRounds(START, plan=plan, report_goal=4, key=KEY, threads=1)
    theta = flat(START)
    for i in range(6):
        server.begin_round([i]).add(i, START)
        rounds.begin_round([i]).add(i, START)
        theta = theta + rounds.end_round("residual")
        np.testing.assert_allclose(flat(server.end_round())[6:9], theta[6:9], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_and_tuples_come_back_as_they_were_given(kind: Any) -> None:
    start = kind([np.zeros((2, 1), np.float32), np.ones(3)])
    server = ServerDPFTRL(start, plan=PrivacyPlan(1.0, 1.0, SinglePass(3)), report_goal=1)
    server.begin_round(["a"]).add("a", start)
    after = server.end_round()
    assert type(after) is kind
    assert [(a.shape, a.dtype) for a in after] == [(a.shape, a.dtype) for a in start]
    after[1][:] = 7  # the caller's own
    assert not (server.parameters[1] == 7).any()
    assert (start[1] == 1).all()


def test_memory_and_threads_change_no_bit() -> None:
    plan = PrivacyPlan(
        0.5, 2.0, MinSeparation(6, 6, 1), mechanism=Tree(restart_every=4, complete="all")
    )
    updates = random_updates(6, 2, 1.0)
    found = {
        flat(like(play(server_of(plan, 2, memory=memory, threads=threads), updates)[-1])).tobytes()
        for memory, threads in [("stored", 1), ("regenerate", 1), (1, 1), ("stored", 2)]
    }
    assert len(found) == 1


def test_an_update_rule_of_ones_own() -> None:
    class Half:
        release = "residual"

        def __init__(self, theta: NDArray[np.float64]) -> None:
            self.theta = theta.copy()

        def step(self, value: NDArray[np.float64]) -> None:
            self.theta += value / 2

        def options(self) -> dict[str, Any]:
            return {"optimizer": "half"}

        def state_dict(self) -> dict[str, Any]:
            return {"theta": self.theta}

        def load_state_dict(self, state: Any) -> None:
            self.theta = state["theta"]

    plan = PrivacyPlan(0.5, 2.0, SinglePass(2))
    updates = random_updates(2, 2, 1.0)
    whole, half = server_of(plan, 2), server_of(plan, 2, optimizer=Half)
    a, b = play(whole, updates)[-1], play(half, updates)[-1]
    np.testing.assert_allclose((a - flat(START))[:9] / 2, (b - flat(START))[:9], rtol=1e-5)
    with pytest.raises(ValueError, match="with a custom optimizer"):
        server_of(plan, 2, optimizer=Half, momentum=0.5)


def test_what_is_stated_is_the_plans_from_the_first_round_on() -> None:
    plan = PrivacyPlan(0.5, 2.0, MinSeparation(6, 3, 2))
    server = server_of(plan, 2)
    before = server.epsilon(1e-6), server.epsilon_spent(1e-6)
    play(server, random_updates(2, 1, 1.0))
    assert before == (plan.epsilon(1e-6),) * 2 == (server.epsilon(1e-6),) * 2
    twice = server.epsilon(1e-6, neighbours="replace-one")
    assert twice == plan.epsilon(1e-6, neighbours="replace-one") > before[0]
    spare = server_of(plan, 2, spare_recoveries=1)
    assert spare.epsilon(1e-6) == spare.account.epsilon(1e-6) > before[0]
    assert (server.plan, server.report_goal, server.clip_norm) == (plan, 2, 0.5)
    assert not server.reproducible and not server.forked
    seeded = server_of(plan, 2, key=None, noise_seed=1)
    assert seeded.reproducible and "reproducible, not private" in repr(seeded)


def test_a_server_in_memory_has_a_key_of_its_own() -> None:
    plan = PrivacyPlan(0.5, 2.0, SinglePass(3))
    one, two = (play(server_of(plan, 2, key=None), [[]])[0] for _ in range(2))
    assert not np.array_equal(one, two)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"learning_rate": 0.0}, ValueError, "learning_rate must be a finite number > 0"),
        ({"learning_rate": np.nan}, ValueError, "learning_rate must be a finite number > 0"),
        ({"momentum": 1.0}, ValueError, "momentum must be a finite number >= 0 and < 1"),
        ({"nesterov": True}, ValueError, "nesterov must come with a momentum"),
        ({"nesterov": 1, "momentum": 0.5}, TypeError, "nesterov must be a bool"),
        ({"nesterov": "no", "optimizer": "adam"}, TypeError, "nesterov must be a bool"),
        ({"nesterov": 0, "optimizer": FTRLUpdate}, TypeError, "nesterov must be a bool"),
        ({"optimizer": "sgd"}, ValueError, "optimizer must be one of 'ftrl', 'adam'"),
        ({"optimizer": "adam", "momentum": 0.5}, ValueError, "are settings of 'ftrl', got them"),
        ({"optimizer": "adam", "betas": (0.9,)}, TypeError, "betas must be a pair of numbers"),
        ({"optimizer": "adam", "betas": (0.9, 1.0)}, ValueError, "each of betas must be"),
        ({"optimizer": "adam", "eps": 0.0}, ValueError, "eps must be a finite number > 0"),
        ({"betas": (0.8, 0.99)}, ValueError, "betas and eps are settings of 'adam'"),
        ({"eps": 0.1}, ValueError, "betas and eps are settings of 'adam'"),
        ({"checkpoint_every": 0}, ValueError, "checkpoint_every must be an integer >= 1"),
    ],
)
def test_wrong_settings(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        server_of(PrivacyPlan(0.5, 2.0, SinglePass(3)), 2, **wrong)


def test_a_model_that_cannot_be_trained() -> None:
    plan = PrivacyPlan(0.5, 2.0, SinglePass(3))
    for wrong in ({"w": np.array([np.nan])}, [np.array([np.inf], np.float32)]):
        with pytest.raises(ValueError, match="parameters must be finite, got NaN or infinity"):
            ServerDPFTRL(wrong, plan=plan, report_goal=1)
    with pytest.raises((TypeError, ValueError)):
        ServerDPFTRL({"w": np.zeros(2, int)}, plan=plan, report_goal=1)


def test_the_rules_take_up_their_states() -> None:
    generator = np.random.default_rng(3)
    values = generator.normal(size=(6, 4))
    for make in (
        lambda: FTRLUpdate(np.ones(4), 0.5, momentum=0.8),
        lambda: FTRLUpdate(np.ones(4), 0.5),
        lambda: AdamUpdate(np.ones(4), 0.5),
    ):
        whole, first, second = make(), make(), make()
        for value in values:
            whole.step(value)
        for value in values[:3]:
            first.step(value)
        second.load_state_dict(first.state_dict())
        for value in values[3:]:
            second.step(value)
        assert second.theta.tobytes() == whole.theta.tobytes()
        assert second.options() == whole.options()
