# SPDX-License-Identifier: Apache-2.0
"""Schedules of `DPFTRL`: those of torch's SGD on the same noisy sums, and FTRL's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from dpftrl_runs import gradients, parameters, plan_of, run
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import DataLoader, TensorDataset

from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.torch import DPFTRL, ResidualNoise, make_private
from dpftrl_fast.torch.flat.sgd import FlatSGD
from dpftrl_fast.torch.flat.update import FlatFTRL, Rates
from dpftrl_fast.torch.flat.views import FlatViews

STEPS, BATCH = 24, 4
PLAN = plan_of(STEPS, 1.0, mechanism=Tree(restart_every=9, complete=True))
MOMENTA = [(0.0, False), (0.9, False), (0.9, True)]
SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "constant": lambda o: schedulers.ConstantLR(o, factor=1.0),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, STEPS),
    "steps": lambda o: schedulers.StepLR(o, 7, 0.1),
    "warm-up from 0": lambda o: schedulers.LambdaLR(o, lambda t: min(1.0, t / 5)),
    "linear": lambda o: schedulers.LinearLR(o, 1e-3, 1.0, 10),
    "one cycle": lambda o: schedulers.OneCycleLR(o, 0.2, STEPS, cycle_momentum=False),
}


def flat(members: list[nn.Parameter]) -> Tensor:
    return torch.cat([p.detach().double().reshape(-1) for p in members])


def by_sgd(
    sgd: SGD, members: list[nn.Parameter], scheduler: Any, dtype: str, sigma: bool = True
) -> list[Tensor]:
    """Iterates of torch's SGD on noisy means."""
    noise = ResidualNoise(members, plan=PLAN, batch_size=BATCH, noise_seed=5, dtype=dtype)  # type: ignore[arg-type]
    found = []
    for t in range(STEPS):
        gradients(members, t)
        noise.add_()
        sgd.step()
        scheduler.step()
        found.append(flat(members))
    return found


def by_dpftrl(dpftrl: DPFTRL, members: list[nn.Parameter], scheduler: Any) -> list[Tensor]:
    found = []
    for t in range(STEPS):
        gradients(members, t)
        dpftrl.step()
        scheduler.step()
        found.append(flat(members))
    return found


def assert_near(found: list[Tensor], expected: list[Tensor], dtype: str) -> None:
    bound = 1e-5 if dtype == "float32" else 1e-12
    for t, (a, b) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(a, b, rtol=0, atol=bound * 10, msg=lambda m, t=t: f"{t}: {m}")


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("momentum", "nesterov"), MOMENTA)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_that_of_sgd(name: str, momentum: float, nesterov: bool, dtype: str) -> None:
    kind = getattr(torch, dtype)
    options: dict[str, Any] = {"lr": 0.1, "momentum": momentum, "nesterov": nesterov}
    theirs, ours = parameters(dtype=kind), parameters(dtype=kind)
    sgd = SGD(theirs, **options)
    dpftrl = DPFTRL(ours, plan=PLAN, batch_size=BATCH, noise_seed=5, dtype=dtype, **options)  # type: ignore[arg-type]
    expected = by_sgd(sgd, theirs, SCHEDULES[name](sgd), dtype)
    found = by_dpftrl(dpftrl, ours, SCHEDULES[name](dpftrl))
    assert_near(found, expected, dtype)
    assert isinstance(dpftrl._update, FlatSGD) == (name != "constant")


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("name", ["one cycle", "to 0 and back", "tiny at first"])
def test_a_changed_momentum_is_that_of_sgd(name: str, nesterov: bool) -> None:
    def follow(optimizer: Optimizer) -> Any:
        if name == "one cycle":
            return schedulers.OneCycleLR(optimizer, 0.2, STEPS)
        return Momenta(optimizer)

    class Momenta:
        def __init__(self, optimizer: Optimizer) -> None:
            self.optimizer, self.t = optimizer, 0

        def step(self) -> None:
            self.t += 1
            (group,) = self.optimizer.param_groups
            if name == "tiny at first":
                group["momentum"] = 0.9 if self.t > 3 else 1e-12
            elif not nesterov:
                group["momentum"] = [0.9, 0.0, 0.5][self.t // 5 % 3]
            else:
                group["momentum"] = [0.9, 0.1, 0.5][self.t // 5 % 3]

    first = 1e-12 if name == "tiny at first" else 0.9
    options: dict[str, Any] = {"lr": 0.1, "momentum": first, "nesterov": nesterov}
    theirs, ours = parameters(dtype=torch.float64), parameters(dtype=torch.float64)
    sgd = SGD(theirs, **options)
    dpftrl = DPFTRL(ours, plan=PLAN, batch_size=BATCH, noise_seed=5, dtype="float64", **options)
    expected = by_sgd(sgd, theirs, follow(sgd), "float64")
    assert_near(by_dpftrl(dpftrl, ours, follow(dpftrl)), expected, "float64")


@pytest.mark.usefixtures("fine_grid")
def test_groups_have_schedules_of_their_own() -> None:
    def groups(members: list[nn.Parameter]) -> Any:
        return [
            {"params": members[:2], "lr": 0.1, "momentum": 0.9, "nesterov": True},
            {"params": members[2:3], "lr": 0.2},
            {"params": members[3:], "lr": 0.05, "momentum": 0.5},
        ]

    def schedule(optimizer: Optimizer) -> Any:
        falls: list[Callable[[int], float]] = [
            lambda t: 0.5 ** (t // 5), lambda t: 1.0, lambda t: t / 9,
        ]  # fmt: skip
        return schedulers.LambdaLR(optimizer, falls)

    theirs, ours = parameters(dtype=torch.float64), parameters(dtype=torch.float64)
    sgd = SGD(groups(theirs), lr=1.0)
    dpftrl = DPFTRL(groups(ours), 1.0, plan=PLAN, batch_size=BATCH, noise_seed=5, dtype="float64")
    expected = by_sgd(sgd, theirs, schedule(sgd), "float64")
    assert_near(by_dpftrl(dpftrl, ours, schedule(dpftrl)), expected, "float64")


@pytest.mark.parametrize("decay", ["cosine", "steps"])
def test_a_falling_rate_keeps_what_was_learnt(decay: str) -> None:
    """On two classes that a line separates: the rate ends at about 0."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 20, generator=rng)
    y = (x[:, 0] > 0).long()
    accuracy: dict[str, float] = {}
    for schedule in ("sgd", "ftrl"):
        torch.manual_seed(1)
        model = nn.Linear(20, 2)
        run = make_private(
            model,
            SGD(model.parameters(), lr=1.0, momentum=0.9),
            DataLoader(TensorDataset(x, y), batch_size=50),
            noise_multiplier=1.0,
            delta=1e-5,
            epochs=10,
            clip_norm=1.0,
            noise_seed=0,
            order_seed=0,
            schedule=schedule,  # type: ignore[arg-type]
        )
        steps = run.data_loader.plan.steps
        scheduler: Any
        if decay == "cosine":
            scheduler = schedulers.CosineAnnealingLR(run.optimizer, steps)
        else:
            scheduler = schedulers.StepLR(run.optimizer, steps // 5, 0.03)
        for _ in range(10):
            for _, (a, b) in run.data_loader:
                nn.functional.cross_entropy(run.model(a), b).backward()
                run.optimizer.step()
                scheduler.step()
        with torch.no_grad():
            accuracy[schedule] = (model(x).argmax(1) == y).double().mean().item()
    assert accuracy["sgd"] > 0.97
    assert accuracy["ftrl"] < 0.9


# ---- l1 and the ball: lazy updates ----


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize(("momentum", "nesterov"), MOMENTA)
@pytest.mark.parametrize("radius", [None, 1.5])
def test_thresholds_follow_the_rates_and_the_ball_comes_last(
    momentum: float, nesterov: bool, radius: float | None
) -> None:
    """L1 is a gradient of its own that moves a threshold; neither changes what SGD continues."""
    members = parameters(dtype=torch.float64)
    theta, start = flat(members).numpy(), flat(members).numpy()
    dpftrl = DPFTRL(
        members, 0.1, plan=PLAN, batch_size=BATCH, momentum=momentum, nesterov=nesterov,
        l1=0.02, radius=radius, noise_seed=5, dtype="float64",
    )  # fmt: skip
    noise = PLAN.noise(theta.size, seed=5, dtype="float64")
    u, h, threshold, last = np.zeros_like(theta), 0.0, 0.0, np.zeros_like(theta)
    total, rate, weight = np.zeros_like(theta), 0.1, 0.02
    for t in range(STEPS):
        gradients(members, t)
        total += torch.cat([p.grad.reshape(-1) for p in members if p.grad is not None]).numpy()
        noisy = (total + noise.step()) / BATCH
        r, last = noisy - last, noisy
        u, h = momentum * u + r, momentum * h + weight
        theta = theta - rate * (r + momentum * u if nesterov else u)
        threshold += rate * (weight + momentum * h if nesterov else h)
        dpftrl.step()
        expected = np.sign(theta) * np.maximum(np.abs(theta) - threshold, 0.0)
        if radius is not None:
            expected *= min(1.0, radius / np.linalg.norm(expected))
        np.testing.assert_allclose(flat(members).numpy(), expected, rtol=1e-11, atol=1e-11)
        if t > 6:
            rate, weight = 0.1 * (t % 3), 0.01 * (t % 2)
            dpftrl.param_groups[0].update(lr=rate, l1=weight)
    assert not np.allclose(flat(members).numpy(), start)


# ---- Implementations, dtypes ----


@pytest.mark.parametrize("radius", [None, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_torch_operations_and_the_compiled_pass_agree(
    radius: float | None, dtype: torch.dtype, momentum: float
) -> None:
    rng = torch.Generator().manual_seed(0)
    start = [torch.randn(s, generator=rng).to(dtype) for s in [(3, 2), (5,), (70, 3), ()]]
    runs: list[tuple[FlatFTRL, list[Tensor]]] = []
    for fused, block_size in ((True, 64), (True, 8), (False, 64)):
        view = FlatViews(start, [2, 2], block_size=block_size)
        values = [value.clone() for value in start]
        update = FlatFTRL(
            view, values, dtype=dtype, batch_size=3, radius=radius, groups=2, grid=2.0**-30,
            momentum=momentum > 0.0, fused=fused, threads=2,
        )  # fmt: skip
        runs.append((update, values))
    last = torch.zeros(view.size, dtype=dtype)
    for t in range(20):
        rates = [
            Rates(0.1 if t < 5 else 0.3 / t, momentum, momentum > 0.0, 1e-3),
            Rates(0.2, 0.5 * momentum, False, 0.0),
        ]
        if t == 5:
            runs = [(FlatSGD(update, t, last.clone()), values) for update, values in runs]
        given = [
            torch.randn(value.shape, generator=rng).to(dtype) if i != t % 5 else None
            for i, value in enumerate(start)
        ]
        last = torch.randn(view.size, generator=rng).to(dtype)
        for update, values in runs:
            update.step(t + 1, given, last.clone(), rates, values, lambda x: float(x.norm()))
    bound = 1e-5 if dtype == torch.float32 else 1e-13
    for (update, values), same_bits in ((runs[1], True), (runs[2], False)):
        for a, b in zip(values, runs[0][1], strict=True):
            assert not same_bits or torch.equal(a, b)
            torch.testing.assert_close(a, b, rtol=bound, atol=bound)
        for name, vector in update.vectors().items():
            other = runs[0][0].vectors()[name]
            if name in ("sum", "sum_low", "noisy"):
                assert torch.equal(vector, other)
            torch.testing.assert_close(vector, other, rtol=bound, atol=bound)
    assert set(runs[0][0].vectors()) >= {"theta", "noisy"}


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_steps_below_the_precision_of_a_parameter_are_not_lost(half: torch.dtype) -> None:
    p = nn.Parameter(torch.ones(3, dtype=half))
    if not hasattr(p, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    p.grad_dtype = torch.float32
    dpftrl = DPFTRL([p], 0.0, plan=plan_of(200), batch_size=1)
    for t in range(200):
        dpftrl.param_groups[0]["lr"] = t / 100
        p.grad = torch.full((3,), 2e-4)
        dpftrl.step()
    assert torch.equal(p.detach(), torch.full((3,), 1 - 2e-4 * 199.0).to(half))


@pytest.mark.parametrize("schedule", ["sgd", "ftrl"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_rate_of_0_leaves_the_parameters(schedule: Any, momentum: float) -> None:
    members = parameters()
    start = flat(members)
    dpftrl = DPFTRL(
        members, 0.0, plan=PLAN, batch_size=BATCH, momentum=momentum, schedule=schedule, l1=0.1
    )
    run(dpftrl, members, 0, 3)
    assert torch.equal(flat(members), start)
    dpftrl.param_groups[0]["lr"] = 0.1
    run(dpftrl, members, 3, 6)
    moved = flat(members)
    assert not torch.allclose(moved, start)
    dpftrl.param_groups[0]["lr"] = 0.0
    run(dpftrl, members, 6, 8)
    assert torch.equal(flat(members), moved if schedule == "sgd" else start)


# ---- States and recoveries ----


def scheduled(members: list[nn.Parameter], lr: float = 0.1, **options: Any) -> DPFTRL:
    return DPFTRL(
        members, lr, **{"plan": PLAN, "batch_size": BATCH, "l1": 1e-3, "radius": 3.0, **options}
    )


def take(dpftrl: DPFTRL, members: list[nn.Parameter], first: int, stop: int) -> None:
    """Take steps, whose rate changes first before step 4 (from 0), then before 8."""
    for t in range(first, stop):
        dpftrl.param_groups[0]["lr"] = 0.1 if t < 4 else 0.05 if t < 8 else 0.01 * t
        run(dpftrl, members, t, t + 1)


@pytest.mark.parametrize("memory", ["stored", "regenerate", 1])
@pytest.mark.parametrize(("momentum", "nesterov"), MOMENTA)
@pytest.mark.parametrize("at", [0, 3, 4, 5, 8, 13])
def test_a_resumed_run_is_the_same_to_the_bit(
    memory: Any, momentum: float, nesterov: bool, at: int
) -> None:
    options: dict[str, Any] = {"memory": memory, "momentum": momentum, "nesterov": nesterov}
    members = parameters()
    dpftrl = scheduled(members, **options)
    take(dpftrl, members, 0, at)
    state, values = dpftrl.state_dict(secrets=True), [p.detach().clone() for p in members]
    take(dpftrl, members, at, 15)
    others = [nn.Parameter(value) for value in values]
    resumed = scheduled(others, 7.0, **options)
    resumed.load_state_dict(state)
    assert ("noisy" in state["vectors"]) == (at > 4)
    take(resumed, others, at, 15)
    assert torch.equal(flat(members), flat(others))
    # And back to before the first change, where that is allowed.
    if at <= 4:
        resumed.load_state_dict(state, allow_fork=True)
        take(resumed, others, at, 15)
        assert torch.equal(flat(members), flat(others))


def test_a_state_from_before_schedules() -> None:
    """It has no entry of them, and its rates were FTRL's."""
    members = parameters()
    dpftrl = scheduled(members)
    run(dpftrl, members, 0, 4)
    state, values = dpftrl.state_dict(secrets=True), [p.detach().clone() for p in members]
    take(dpftrl, members, 4, 15)
    del state["schedule"]
    others = [nn.Parameter(value.clone()) for value in values]
    resumed = scheduled(others)
    resumed.load_state_dict(state)
    take(resumed, others, 4, 15)
    assert torch.equal(flat(members), flat(others))

    state["param_groups"][0]["initial_lr"] = 0.1  # a scheduler was there
    again = scheduled([nn.Parameter(value) for value in values])
    with pytest.raises(ValueError, match="continue it with schedule='ftrl'"):
        again.load_state_dict(state)
    assert again.steps_taken == 0
    as_ftrl = scheduled([nn.Parameter(value) for value in values], schedule="ftrl")
    as_ftrl.load_state_dict(state)
    assert as_ftrl.steps_taken == 4


def test_a_state_of_the_other_meaning_is_refused() -> None:
    members = parameters()
    dpftrl = scheduled(members)
    take(dpftrl, members, 0, 6)
    state = dpftrl.state_dict(secrets=True)
    other = scheduled(parameters(), schedule="ftrl")
    with pytest.raises(ValueError, match="must be of schedule='ftrl', got 'sgd': give that one"):
        other.load_state_dict(state)
    before = str(other.state_dict(secrets=True))
    own = scheduled(parameters())
    fresh = str(own.state_dict(secrets=True))
    for change in (
        3, {}, {"kind": "sgd"}, {**state["schedule"], "rates": [[0.1, 0.0, False]]},
        {**state["schedule"], "rates": 7}, {**state["schedule"], "thresholds": ["x"]},
        {**state["schedule"], "thresholds": []}, {**state["schedule"], "thresholds": None},
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match="state"):
            own.load_state_dict({**state, "schedule": change})
    without = {name: v for name, v in state["vectors"].items() if name != "noisy"}
    with pytest.raises(ValueError, match="vectors"):
        own.load_state_dict({**state, "vectors": without})
    assert (
        str(other.state_dict(secrets=True)) == before and str(own.state_dict(secrets=True)) == fresh
    )
    own.load_state_dict(state)
    assert own.steps_taken == 6


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize(("momentum", "nesterov"), MOMENTA)
@pytest.mark.parametrize("at", [3, 6])
def test_a_recovery_keeps_what_was_released(momentum: float, nesterov: bool, at: int) -> None:
    """Steps after it are those of SGD on the differences of the noisy sums before and after."""
    members = parameters(dtype=torch.float64)
    dpftrl = DPFTRL(
        members, 0.1, plan=PLAN, batch_size=BATCH, momentum=momentum, nesterov=nesterov,
        dtype="float64", noise_seed=5,
    )  # fmt: skip
    theta, size = flat(members), flat(members).numel()
    u, last, total = torch.zeros(size), torch.zeros(size), torch.zeros(size)
    so_far = torch.zeros(size, dtype=torch.float64)
    before = torch.zeros(size, dtype=torch.float64)
    for t in range(12):
        if t == at:
            before = before + so_far
            dpftrl.recover(RunAccount(PLAN).recovered(t + 1, t + 1, accept_epsilon=(1e9, 1e-6)))
        rate = 0.1 if t < 5 else 0.02
        dpftrl.param_groups[0]["lr"] = rate
        gradients(members, t)
        total = total + torch.cat([p.grad.reshape(-1) for p in members if p.grad is not None])
        dpftrl.step()
        dpftrl._run.noise.so_far(so_far)
        noisy = (total + before + so_far) / BATCH
        r, last = noisy - last, noisy
        u = momentum * u + r
        theta = theta - rate * (r + momentum * u if nesterov else u)
        torch.testing.assert_close(flat(members), theta, rtol=0, atol=1e-11)


def test_the_last_noisy_sum_is_not_rounded_again_at_a_recovery() -> None:
    """The noise moves into the sum, which may round otherwise: that would show its last digits."""
    size = 1000
    noise = PLAN.noise(size, seed=5)
    noise.step()
    second = noise.step()
    # Sums of 2^24 + 1 + 2^-24 with the noise: 2^24 + 1 after the first rounding, a tie.
    most = np.float32(2.0**24)
    rest = np.where((second > 1.05) & (second < 1.95), 1.0 + 2.0**-24 - second.astype("d"), 0.0)
    rest = rest.astype(np.float32)
    assert np.count_nonzero(rest) > 50

    p = nn.Parameter(torch.zeros(size))
    dpftrl = DPFTRL([p], 1.0, plan=PLAN, batch_size=1, noise_seed=5)
    for gradient in (np.full(size, most), rest):
        p.grad = torch.from_numpy(gradient)
        dpftrl.step()
    released = p.detach().clone()
    dpftrl.recover(RunAccount(PLAN).recovered(3, 3, accept_epsilon=(1e9, 1e-6)))
    dpftrl.param_groups[0]["lr"] = 0.0
    p.grad = torch.ones(size)
    dpftrl.step()
    assert torch.equal(p, released)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_neighbours_are_told_apart_by_noisy_sums_alone(fused: bool, momentum: float) -> None:
    """Noise that is the less by what one example adds hides it to the last bit, rates or not."""
    size, steps, at = 50, 12, 3
    rng = np.random.default_rng(0)
    g, n = (rng.integers(-64, 65, (steps, size)) / 8 for _ in range(2))  # sums are exact
    one = rng.integers(-8, 9, size) / 8
    found = []
    for present in (False, True):
        start = [torch.ones(size)]
        update = FlatFTRL(
            FlatViews(start, [1]), start, dtype=torch.float32, batch_size=3, radius=5.0,
            momentum=momentum > 0.0, groups=1, grid=0.25, fused=fused, threads=1,
        )  # fmt: skip
        noise, iterates = np.zeros(size), []
        for t in range(steps):
            if t == 5:
                update = FlatSGD(update, t, torch.tensor(noise, dtype=torch.float32))
            noise = n[t] - one * (present and t >= at)
            rates = [Rates(0.3 if t < 5 else 0.1 * (t % 3), momentum, momentum > 0.0, 1e-3)]
            given = torch.tensor(g[t] + one * (present and t == at), dtype=torch.float32)
            own = torch.tensor(noise, dtype=torch.float32)
            update.step(t + 1, [given], own, rates, start, lambda x: float(x.norm()))
            iterates.append(start[0].clone())
        found.append(torch.stack(iterates))
    assert torch.equal(*found)
    assert len(found[0].unique(dim=0)) > steps // 2
