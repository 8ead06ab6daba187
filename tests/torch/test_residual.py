# SPDX-License-Identifier: Apache-2.0
"""`ResidualNoise` under SGD is `DPFTRL`; under any optimiser its noisy sums add up."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch
from dpftrl_runs import held_inside
from torch import nn

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.torch import DPFTRL, ResidualNoise
from dpftrl_fast.torch.flat.noise import FlatNoise
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.clipping import FlatClipping

PLAN = PrivacyPlan(
    1.0, 0.5, accounting.SinglePass(25), mechanism=Tree(restart_every=6, complete=True)
)


def parameters() -> list[nn.Parameter]:
    rng = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=rng)) for shape in ((4, 3), (3,), (5,))]


def gradients(members: list[nn.Parameter], t: int) -> None:
    rng = torch.Generator().manual_seed(100 + t)
    for p in members:
        p.grad = torch.randn(p.shape, generator=rng)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_sgd_on_noisy_sums_is_dpftrl(
    momentum: float, nesterov: bool, batch_size: int | None
) -> None:
    ours, theirs = parameters(), parameters()
    options: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov}
    ftrl = DPFTRL(ours, 0.1, plan=PLAN, batch_size=batch_size or 1, noise_seed=2, **options)
    sgd = torch.optim.SGD(theirs, lr=0.1, **options)
    noise = ResidualNoise(theirs, plan=PLAN, batch_size=batch_size, noise_seed=2)
    for t in range(25):
        gradients(ours, t)
        gradients(theirs, t)
        ftrl.step()
        noise.add_()
        sgd.step()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert noise.steps_taken == noise.steps == 25


@pytest.mark.usefixtures("fine_grid")
def test_noisy_sums_add_up_to_the_noise_of_the_running_sum() -> None:
    p, q = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2))
    noise = ResidualNoise([("p", p), ("q", q)], plan=PLAN, noise_seed=1)
    alone = PLAN.noise(7, seed=1)
    total = torch.zeros(7)
    for _ in range(25):
        p.grad, q.grad = torch.ones(3), None
        noise.add_()
        assert q.grad is not None
        total += torch.cat([p.grad, q.grad.reshape(-1)])
        expected = torch.from_numpy(alone.step())
    expected[:3] += 25
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("optimiser", [torch.optim.Adam, torch.optim.AdamW])
def test_other_optimisers_run_on_noisy_sums(optimiser: Any) -> None:
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    step = optimiser(model.parameters(), lr=0.1)
    noise = ResidualNoise(model.parameters(), plan=PLAN, batch_size=8)
    for _ in range(3):
        step.zero_grad()
        model(torch.ones(8, 3)).sum().backward()
        noise.add_()
        step.step()
    assert not torch.equal(model.weight, before)


@pytest.mark.usefixtures("fine_grid")
def test_strided_gradients_get_noise_at_their_coordinates() -> None:
    p = nn.Parameter(torch.zeros(3, 2))
    p.grad = torch.zeros(2, 3).t()
    ResidualNoise([p], plan=PLAN, noise_seed=4).add_()
    expected = torch.from_numpy(PLAN.noise(6, seed=4).step()).view(3, 2)
    assert torch.equal(p.grad, expected)


def test_half_precision_parameters_have_float32_sums() -> None:
    p = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    if not hasattr(p, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    q = nn.Parameter(torch.zeros(3))
    noise = ResidualNoise([p, q], plan=PLAN)
    q.grad = torch.zeros(3)
    with pytest.raises(ValueError, match=r"must have p.grad_dtype = torch.float32"):
        noise.add_()
    p.grad_dtype = torch.float32
    noise.add_()
    assert p.grad is not None
    assert p.grad.dtype == torch.float32
    assert noise.steps_taken == 1


def test_the_same_sums_do_not_get_noise_twice() -> None:
    members = parameters()
    noise = ResidualNoise(members, plan=PLAN)
    with pytest.raises(ValueError, match="call backward first"):
        noise.add_()
    gradients(members, 0)
    noise.add_()
    with pytest.raises(ValueError, match=r"got the noisy ones that add_\(\) left there"):
        noise.add_()
    assert noise.steps_taken == 1
    gradients(members, 1)
    noise.add_()
    for p in members:
        p.grad.zero_()  # type: ignore[union-attr]
    noise.add_()
    assert noise.steps_taken == 3


def test_a_resumed_noise_is_the_same_to_the_bit() -> None:
    members, others = parameters(), parameters()
    noise = ResidualNoise(members, plan=PLAN)
    for t in range(8):
        gradients(members, t)
        noise.add_()
    file = io.BytesIO()
    torch.save(noise.state_dict(secrets=True), file)
    file.seek(0)
    resumed = ResidualNoise(others, plan=PLAN)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for t in range(8, 25):
        gradients(members, t)
        gradients(others, t)
        noise.add_()
        resumed.add_()
        for a, b in zip(members, others, strict=True):
            assert torch.equal(a.grad, b.grad)  # type: ignore[arg-type]
    gradients(members, 25)
    with pytest.raises(ValueError, match="all 25 declared steps are taken"):
        noise.add_()


def test_the_noise_of_an_admitted_batch_comes_once() -> None:
    """A second residual would use up a step of the plan, and leave noise and ids a step apart."""
    members = parameters()
    noise = ResidualNoise(members, plan=PLAN, noise_seed=1)
    sums = Accumulator(members, FlatClipping(PLAN.clip_norm), 2, PLAN.guard())
    sums.noise = noise
    with pytest.raises(ValueError, match="must come once"):
        noise.add_()
    sums.begin([1])
    sums.expect(1)
    sums.add([torch.ones(1, *p.shape) for p in members])
    sums.finish()
    noise.add_()
    gradients(members, 1)
    with pytest.raises(ValueError, match="must come once"):
        noise.add_()
    assert noise.steps_taken == 1


@pytest.mark.usefixtures("fine_grid")
def test_each_recovery_has_a_key_of_its_own() -> None:
    """From the operating system, also where the run was seeded: no two are the same."""
    account = RunAccount(PLAN).recovered(2, 2, accept_epsilon=(1e9, 1e-6))
    found = []
    for _ in range(2):
        members = parameters()
        noise = ResidualNoise(members, plan=PLAN, noise_seed=1)
        for step in range(2):
            if step == 1:
                noise.recover(account)
            for p in members:
                p.grad = torch.zeros_like(p)
            noise.add_()
        assert noise.reproducible  # the steps before were seeded
        found.append(torch.cat([p.grad.reshape(-1) for p in members if p.grad is not None]))
    assert (found[0] != found[1]).all()


def test_sums_without_noise_are_cleared_where_a_step_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = parameters()
    noise = ResidualNoise(members, plan=PLAN, noise_seed=1)

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FlatNoise, "release", interrupted)
    gradients(members, 0)
    with pytest.raises(KeyboardInterrupt):
        noise.add_()
    assert all(p.grad is None for p in members)
    gradients(members, 0)
    with pytest.raises(RuntimeError, match="interrupted half-way"):
        noise.add_()


def test_bad_states_are_refused() -> None:
    noise = ResidualNoise(parameters(), plan=PLAN)
    state = noise.state_dict(secrets=True)
    with pytest.raises(ValueError, match="state lacks plan"):
        noise.load_state_dict({name: state[name] for name in state if name != "plan"})
    with pytest.raises(ValueError, match="batch_size 3, got None"):
        ResidualNoise(parameters(), plan=PLAN, batch_size=3).load_state_dict(state)
    with pytest.raises(ValueError, match="format"):
        DPFTRL(parameters(), 1.0, plan=PLAN, batch_size=1).load_state_dict(
            {**DPFTRL(parameters(), 1.0, plan=PLAN, batch_size=1).state_dict(secrets=True), **state}
        )
    with pytest.raises(TypeError, match="must be a mapping"):
        noise.load_state_dict(3)  # type: ignore[arg-type]


def test_no_thread_adds_or_saves_or_loads_during_a_step() -> None:
    members = parameters()
    noise = ResidualNoise(members, plan=PLAN, noise_seed=1)
    state = noise.state_dict(secrets=True)
    account = RunAccount(PLAN).recovered(1, 1, accept_epsilon=(1e9, 1e-6))
    gradients(members, 0)
    calls = [
        noise.add_,
        lambda: noise.state_dict(secrets=True),
        lambda: noise.load_state_dict(state, allow_fork=True),
        lambda: noise.recover(account),
    ]
    with held_inside(FlatNoise, "release", noise.add_):
        for call in calls:
            with pytest.raises(RuntimeError, match="one step at a time, and no state"):
                call()
    assert noise.state_dict(secrets=True)["noise"]["steps_taken"] == noise.steps_taken == 1


def test_it_is_not_pickled_and_marks_seeds() -> None:
    noise = ResidualNoise(parameters(), plan=PLAN, noise_seed=1)
    assert noise.reproducible
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(noise)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"batch_size": 0}, "batch_size must be"), ({"plan": None}, "plan must be a PrivacyPlan")],
)
def test_bad_arguments_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        ResidualNoise(parameters(), **{"plan": PLAN, **options})
