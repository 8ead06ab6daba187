# SPDX-License-Identifier: Apache-2.0
"""Training with every mechanism: noise of the plan, shards, states, crashes, and the choice."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from mechanism_cases import MECHANISMS, TOEPLITZ
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training_run import BATCH, DELTA, EPOCHS, PER_EPOCH, STEPS, Training

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, SinglePass
from dpftrl_fast.accounting.planner.mechanisms import best_mechanism
from dpftrl_fast.mechanisms import BandedInverse, BufferedToeplitz, Mechanism, Tree
from dpftrl_fast.mechanisms.workload import Workload
from dpftrl_fast.torch import DPFTRL, ResidualNoise, make_private
from dpftrl_fast.torch.flat.noise import FlatNoise
from dpftrl_fast.torch.ledger import TrainingLedger
from dpftrl_fast.torch.loader import FixedOrderLoader
from dpftrl_fast.torch.make_private import PrivateTraining

CPU = torch.device("cpu")
T = 10


def plan_of(name: str) -> PrivacyPlan:
    return PrivacyPlan(1.0, 2.0, SinglePass(T), MECHANISMS[name])


def weights() -> list[nn.Parameter]:
    rng = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=rng)) for shape in ((4, 3), (3,), ())]


def sums(members: list[nn.Parameter], t: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(100 + t)
    for p in members:
        p.grad = torch.randn(p.shape, generator=rng)
    return flat([p.grad for p in members])


def flat(tensors: list[Any]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


# ---- The noise ----


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("memory", ["stored", "regenerate", 1])
@pytest.mark.parametrize("call", ["step", "residual"])
def test_slices_are_those_of_the_whole_vector_and_resume(name: str, memory: Any, call: str) -> None:
    plan = plan_of(name)
    pieces = [(3, 5), (20, 1), (30, 70)]
    options: dict[str, Any] = {"dtype": "float32", "device": CPU, "memory": memory}
    sliced = FlatNoise(plan, pieces, seed=1, **options)
    whole = plan.noise(100, seed=1)
    wanted = [*range(3, 8), 20, *range(30, 100)]
    out = torch.empty(76)
    for t in range(T):
        if t in (4, 6):  # after a block, and in one
            resumed = FlatNoise(plan, pieces, **options)
            resumed.load_state_dict(sliced.state_dict())
            sliced = resumed
        getattr(sliced, call)(out)
        assert np.array_equal(out.numpy(), getattr(whole, call)()[wanted])
        sliced.so_far(out)
        assert np.array_equal(out.numpy(), whole.current()[wanted])
    with pytest.raises(ValueError, match="all 10 declared steps"):
        sliced.step(out)


@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_on_a_gpu_is_made_by_the_class_of_the_layout(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked: list[Any] = []

    def made(size: int, std: float, **options: Any) -> Any:
        asked.append((size, std, options["layout"], options["device"]))

    def source_of(layout: Any) -> Any:
        assert layout == plan.layout
        return made

    module = ModuleType("noise without Triton")
    module.device_source_of = source_of  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dpftrl_fast.torch.device.noise", module)
    plan, gpu = plan_of(name), torch.device("cuda")
    FlatNoise(plan, [(3, 5)], dtype="float32", device=gpu)
    assert asked == [(5, 2.0, plan.layout, gpu)]


@pytest.mark.parametrize("name", MECHANISMS)
def test_parameters_are_the_start_less_the_noisy_sum(name: str) -> None:
    """So they are with DPFTRL, and with an SGD on residuals."""
    plan = plan_of(name)
    ours, theirs = weights(), weights()
    start, total = flat(ours), torch.zeros(16)
    ftrl = DPFTRL(ours, 0.1, plan=plan, batch_size=4, noise_seed=2)
    residual = ResidualNoise(theirs, plan=plan, batch_size=4, noise_seed=2)
    sgd = torch.optim.SGD(theirs, lr=0.1)
    noise = plan.noise(16, seed=2)
    for t in range(T):
        sums(theirs, t)
        total += sums(ours, t)
        ftrl.step()
        residual.add_()
        sgd.step()
        noisy = total + torch.from_numpy(noise.step())
        expected = start - 0.1 * torch.floor(noisy / noise.grid + 0.5) * noise.grid / 4
        torch.testing.assert_close(flat(ours), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(flat(theirs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("memory", ["stored", "regenerate"])
def test_a_resumed_optimiser_is_the_same_to_the_bit(name: str, memory: Any) -> None:
    options: dict[str, Any] = {"plan": plan_of(name), "batch_size": 4, "memory": memory}
    options |= {"momentum": 0.9, "l1": 1e-3}
    for at in (1, 4, 6):
        members = weights()
        whole = DPFTRL(members, 0.1, **options)
        for t in range(at):
            sums(members, t)
            whole.step()
        others = [nn.Parameter(p.detach().clone()) for p in members]
        resumed = DPFTRL(others, 7.0, **options)
        resumed.load_state_dict(whole.state_dict(secrets=True))
        for t in range(at, T):
            for optimizer, own in ((whole, members), (resumed, others)):
                sums(own, t)
                optimizer.step()
            assert torch.equal(flat(members), flat(others))


@pytest.mark.parametrize("kind", ["dpftrl", "residual"])
def test_a_state_of_another_mechanism_is_refused_with_advice(kind: str) -> None:
    def made(mechanism: Mechanism) -> Any:
        plan = PrivacyPlan(1.0, 2.0, SinglePass(T), mechanism)
        if kind == "dpftrl":
            return DPFTRL(weights(), 0.1, plan=plan, batch_size=4)
        return ResidualNoise(weights(), plan=plan)

    tree = Tree(restart_every=5)
    for own in (*TOEPLITZ.values(), Tree()):
        other = made(own)
        with pytest.raises(ValueError, match=r"give mechanism=Tree\(.*restart_every=5.* saved"):
            other.load_state_dict(made(tree).state_dict(secrets=True))
        assert other.steps_taken == 0
    made(tree).load_state_dict(made(tree).state_dict(secrets=True))
    long = BandedInverse((1.0, *[-0.1 / 3] * 9)).rounded("float32")
    with pytest.raises(ValueError, match="give the mechanism of the saved plan"):
        made(tree).load_state_dict(made(long).state_dict(secrets=True))


# ---- A run in a folder ----


class Crash(Exception):
    """Stands for a kill."""


def plan_of_run(name: str) -> PrivacyPlan:
    return PrivacyPlan(1.0, 6.0, FixedEpochs(PER_EPOCH, EPOCHS), MECHANISMS[name])


def until(stop: int) -> Any:
    def check(step: int) -> None:
        if step == stop:
            raise Crash

    return check


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # the machine does not fail here


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("kind", ["small", "dpftrl", "residual"])
def test_a_killed_training_goes_on(tmp_path: Path, name: str, kind: str) -> None:
    plan = plan_of_run(name)
    whole = Training(plan=plan, kind=kind)
    whole.train(tmp_path / "whole")
    for stop in (4, 7):
        with pytest.raises(Crash):
            Training(plan=plan, kind=kind).train(
                tmp_path / "run", after_step=until(stop), checkpoint_every=3
            )
    training = Training(plan=plan, kind=kind)
    assert training.train(tmp_path / "run") == plan.epsilon(DELTA)
    assert torch.equal(training.parameters(), whole.parameters())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("kind", ["small", "dpftrl", "residual"])
def test_a_recovered_training_states_its_epsilon(tmp_path: Path, name: str, kind: str) -> None:
    """Stopped at 8 with a checkpoint at 5: fresh noise from step 6, covered by a spare one."""
    plan = plan_of_run(name)
    with pytest.raises(Crash):
        Training(plan=plan, kind=kind).train(
            tmp_path / "run", after_step=until(8), checkpoint_every=5, spare_recoveries=1
        )
    training = Training(plan=plan, kind=kind)
    epsilon = training.train(tmp_path / "run", recover=True, spare_recoveries=1)
    assert epsilon > plan.epsilon(DELTA)
    assert training.ledger.epsilon_spent() == epsilon
    assert training.ledger.steps_taken == STEPS


def test_a_folder_of_another_mechanism_is_refused_with_advice(tmp_path: Path) -> None:
    Training(plan=plan_of_run("trees")).run(tmp_path / "run").close()
    with pytest.raises(ValueError, match=r"differ in plan; .*give mechanism=Tree\("):
        Training(plan=plan_of_run("two taps")).run(tmp_path / "run")


# ---- The order of the data, and the ledger ----


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_new_order_begins_with_a_block_only(name: str) -> None:
    plan = plan_of_run(name)
    data = TensorDataset(torch.arange(float(BATCH * PER_EPOCH)))
    loader = FixedOrderLoader(data, BATCH, plan, order_seed=5)
    guard = plan.guard()
    epochs: list[list[list[int]]] = []
    for _ in range(EPOCHS):
        epochs.append([ids.tolist() for ids, _ in loader])
        for ids in epochs[-1]:
            guard.admit(ids)
    blocks = plan.layout.count
    assert (epochs[0] != epochs[1]) == (epochs[1] != epochs[2]) == (blocks == EPOCHS)
    assert blocks in (1, EPOCHS)


@pytest.mark.parametrize("name", MECHANISMS)
def test_progress_is_the_epsilon_of_the_epochs_begun(name: str) -> None:
    plan = plan_of_run(name)
    ledger = TrainingLedger(plan, DELTA)
    for epoch in range(EPOCHS):
        for step in range(PER_EPOCH):
            ledger.record([step])
        begun = PrivacyPlan(1.0, 6.0, FixedEpochs(PER_EPOCH, epoch + 1), plan.mechanism)
        assert ledger.epsilon_so_far() == min(begun.epsilon(DELTA), plan.epsilon(DELTA))
    short = PrivacyPlan(1.0, 6.0, FixedEpochs(2, 3), BandedInverse.square_root(4))
    ledger = TrainingLedger(short, DELTA)
    ledger.record([1])
    assert ledger.epsilon_so_far() == short.epsilon(DELTA)  # no four taps in two steps


# ---- make_private ----


def private(optimizer: Any = None, **options: Any) -> PrivateTraining:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    given = (optimizer or torch.optim.SGD)(model.parameters(), lr=0.1, **options.pop("rates", {}))
    data = TensorDataset(torch.randn(24, 4), torch.arange(24) % 3)
    budget = {} if "plan" in options or "noise_multiplier" in options else {"epsilon": 8.0}
    fields = {"delta": 1e-5, "epochs": 4, "clip_norm": 1.0, "noise_seed": 3, **budget}
    return make_private(model, given, DataLoader(data, batch_size=6), **{**fields, **options})


def trained(run: PrivateTraining) -> torch.Tensor:
    for _ in range(4):
        for _, (x, y) in run.data_loader:
            nn.functional.cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
    return flat(list(run.model.parameters()))


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism_is_kept_and_trained_with(name: str) -> None:
    found = []
    for keep in (False, True):
        run = private(mechanism=MECHANISMS[name], order_seed=1, keep_optimizer=keep)
        assert run.data_loader.plan.mechanism == MECHANISMS[name]
        assert run.ledger.epsilon_spent() <= 8.0
        found.append(trained(run))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_coefficients_are_rounded_to_the_dtype_of_the_noise(dtype: Any) -> None:
    given = BandedInverse.anticorrelated(0.9)
    run = private(mechanism=given, dtype=dtype)
    assert run.data_loader.plan.mechanism == given.rounded(dtype)
    assert (run.data_loader.plan.mechanism == given) == (dtype == "float64")
    trained(run)


@pytest.mark.parametrize(
    ("options", "workload"),
    [
        ({}, Workload()),
        ({"rates": {"momentum": 0.9}}, Workload(0.9)),
        (
            {"rates": {"momentum": 0.5, "weight_decay": 0.2}, "keep_optimizer": True},
            Workload(0.5, weight_decay=0.1 * 0.2),
        ),
        (
            {
                "rates": {"weight_decay": 0.2},
                "keep_optimizer": True,
                "learning_rates": [0.1] * 8 + [0.01] * 8,
            },
            Workload(weight_decay=0.2, learning_rates=[0.1] * 8 + [0.01] * 8),
        ),
        (
            {"rates": {"momentum": 0.5}, "learning_rates": [0.1] * 8 + [0.01] * 8},
            Workload(0.5, learning_rates=[0.1] * 8 + [0.01] * 8),
        ),
        ({"optimizer": torch.optim.Adam}, Workload()),
    ],
)
def test_auto_is_the_best_for_the_workload_of_the_optimiser(
    options: dict[str, Any], workload: Workload
) -> None:
    plan = private(**options).data_loader.plan
    assert plan.mechanism == best_mechanism(8.0, 1e-5, plan.participation, workload=workload)
    assert plan.epsilon(1e-5) <= 8.0


def test_auto_keeps_no_more_vectors_than_the_memory_allows() -> None:
    # Buffers that are made again cost all steps of the block at each step.
    for memory, most in (("regenerate", 0), (1, 1), ("stored", 3)):
        run = private(memory=memory, noise_multiplier=20.0)
        mechanism: Any = run.data_loader.plan.mechanism
        expected = best_mechanism(1.0, 1e-5, FixedEpochs(4, 4), max_vectors=most)
        assert mechanism == expected and mechanism.vectors <= most
    with pytest.raises(ValueError, match="memory"):
        private(memory="none")


def test_what_does_not_go_together_is_refused() -> None:
    rates = [0.1] * 16
    with pytest.raises(
        ValueError, match=r"learning_rates must come with schedule='sgd'.*leave them"
    ):
        private(learning_rates=rates, schedule="ftrl")
    private(schedule="ftrl")
    with pytest.raises(
        ValueError, match=r"must come with an SGD that becomes DPFTRL.*leave it out"
    ):
        private(schedule="ftrl", keep_optimizer=True)
    with pytest.raises(ValueError, match="schedule must be one of"):
        private(schedule="cosine", keep_optimizer=True)
    private(keep_optimizer=True)
    plan = PrivacyPlan(1.0, 20.0, FixedEpochs(4, 4), BufferedToeplitz((0.5,), (0.25,)))
    with pytest.raises(ValueError, match="a plan, or learning_rates, got both"):
        private(plan=plan, learning_rates=rates, keep_optimizer=True)
    with pytest.raises(ValueError, match="one rate for each of the 16 steps, got 15"):
        private(learning_rates=rates[1:], keep_optimizer=True)
    uneven = PrivacyPlan(1.0, 20.0, FixedEpochs(4, 4), BandedInverse((1.0, -0.9)))
    run = private(plan=uneven)
    with pytest.raises(ValueError, match=r"rounded\('float32'\)"):
        trained(run)
