# SPDX-License-Identifier: Apache-2.0
"""`DPFTRL` beside torch's SGD, the NumPy engine and the closed form of its variance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from dpftrl_runs import gradients, parameters, plan_of
from torch import Tensor, nn

from dpftrl_fast.ftrl import FTRL
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.torch import DPFTRL
from dpftrl_fast.torch.flat.update import FlatFTRL, Rates
from dpftrl_fast.torch.flat.views import FlatViews


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_without_noise_it_is_sgd(momentum: float, nesterov: bool, dtype: str) -> None:
    kind = getattr(torch, dtype)
    ours, theirs = parameters(dtype=kind), parameters(dtype=kind)
    dpftrl = DPFTRL(
        ours, 0.01, plan=plan_of(40), batch_size=8, momentum=momentum, nesterov=nesterov,
        dtype=dtype,  # type: ignore[arg-type]
    )  # fmt: skip
    sgd = torch.optim.SGD(theirs, lr=0.01, momentum=momentum, nesterov=nesterov)
    for t in range(40):
        gradients(ours, t)
        gradients(theirs, t, 1 / 8)
        dpftrl.step()
        sgd.step()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    assert dpftrl.steps_taken == 40


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize(("l1", "radius"), [(0.3, None), (0.0, 1.5), (0.3, 1.2)])
def test_it_is_the_numpy_engine(momentum: float, l1: float, radius: float | None) -> None:
    steps, rate, batch = 30, 0.05, 4
    plan = plan_of(steps, 0.3, mechanism=Tree(restart_every=7, complete=True))
    ours = parameters(dtype=torch.float64)
    options = {"momentum": momentum, "l1": l1, "radius": radius}
    start = torch.cat([p.detach().reshape(-1) for p in ours]).numpy()
    dpftrl = DPFTRL(
        ours, rate, plan=plan, batch_size=batch, noise_seed=5, dtype="float64", **options
    )
    engine = FTRL(start, rate, batch_size=batch, steps=steps, **options)
    noise = plan.noise(start.size, seed=5, dtype="float64")
    for t in range(steps):
        gradients(ours, t)
        total = torch.cat([p.grad.reshape(-1) for p in ours if p.grad is not None]).numpy()
        expected = engine.step(total, noise.step())
        dpftrl.step()
        found = torch.cat([p.detach().reshape(-1) for p in ours]).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert l1 == 0 or (found == 0).any()


def test_a_new_rate_of_ftrl_scales_the_whole_way() -> None:
    p = nn.Parameter(torch.ones(3))
    dpftrl = DPFTRL([p], 1.0, plan=plan_of(4), batch_size=1, schedule="ftrl")
    scheduler = torch.optim.lr_scheduler.ExponentialLR(dpftrl, 0.5)
    for t, rate in enumerate([1.0, 0.5, 0.25]):
        p.grad = torch.ones(3)
        dpftrl.step()
        scheduler.step()
        assert torch.allclose(p, 1 - rate * (t + 1) * torch.ones(3))
    assert scheduler.get_last_lr() == [0.125]


def test_groups_have_their_own_rates() -> None:
    p, q = nn.Parameter(torch.full((2,), 5.0)), nn.Parameter(torch.full((2,), 5.0))
    members = [{"params": [p]}, {"params": [q], "lr": 0.1, "momentum": 0.5, "l1": 1.0}]
    dpftrl = DPFTRL(members, 1.0, plan=plan_of(2), batch_size=2)
    for _ in range(2):
        p.grad, q.grad = torch.full((2,), 2.0), torch.full((2,), 2.0)
        dpftrl.step()
    assert torch.allclose(p, torch.full((2,), 3.0))  # 5 - 1 (1 + 1)
    # v_2 = 0.5 + 2 and c_2 = 0.5 + 2
    assert torch.allclose(q, torch.full((2,), 5 - 0.1 * 2.5 - 0.1 * 2.5))


def test_the_ball_is_over_all_groups() -> None:
    p, q = nn.Parameter(torch.full((2,), 3.0)), nn.Parameter(torch.full((2,), 4.0))
    dpftrl = DPFTRL(
        [{"params": [p]}, {"params": [q]}], 1.0, plan=plan_of(1), batch_size=1, radius=1
    )
    p.grad = torch.zeros(2)
    dpftrl.step()
    assert torch.allclose(p, torch.full((2,), 3.0) / math.sqrt(50))
    assert torch.allclose(q, torch.full((2,), 4.0) / math.sqrt(50))


def test_nesterov_thresholds_as_it_moves() -> None:
    p = nn.Parameter(torch.full((1,), 10.0))
    dpftrl = DPFTRL([p], 1.0, plan=plan_of(2), batch_size=1, momentum=0.5, nesterov=True, l1=0.25)
    for _ in range(2):
        p.grad = torch.ones(1)
        dpftrl.step()
    # s_2 + 0.5 v_2 = 2 + 0.5 (0.5 + 2), and the same times l1
    assert p.item() == pytest.approx(10 - 3.25 - 0.25 * 3.25)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_have_float32_sums(half: torch.dtype) -> None:
    p = nn.Parameter(torch.ones(3, dtype=half))
    if not hasattr(p, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    p.grad_dtype = torch.float32
    dpftrl = DPFTRL([p], 1.0, plan=plan_of(200), batch_size=1)
    for _ in range(200):
        p.grad = torch.full((3,), 2e-4)  # lost if added to 1 in half precision
        dpftrl.step()
    assert torch.equal(p.detach(), torch.full((3,), 0.96).to(half))


def test_float32_sums_keep_what_their_roundings_lose() -> None:
    p = nn.Parameter(torch.zeros(1))
    dpftrl = DPFTRL([p], 1.0, plan=plan_of(165), batch_size=1)
    p.grad = torch.tensor([2.0**24])
    dpftrl.step()
    for _ in range(100):
        p.grad = torch.tensor([0.5])
        dpftrl.step()
    for _ in range(64):
        p.grad = torch.tensor([-(2.0**18)])
        dpftrl.step()
    assert p.item() == -50.0


@pytest.mark.usefixtures("fine_grid")
def test_a_parameter_without_gradient_gets_its_noise() -> None:
    p, q = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
    plan = plan_of(2, 1.0)
    dpftrl = DPFTRL([p, q], 1.0, plan=plan, batch_size=1, noise_seed=3)
    p.grad = torch.ones(4)
    dpftrl.step()
    noise = plan.noise(8, seed=3).step()
    assert np.array_equal(q.detach().numpy(), -noise[4:])
    np.testing.assert_allclose(p.detach().numpy(), -1 - noise[:4], rtol=1e-6)


@pytest.mark.usefixtures("fine_grid")
def test_parameters_of_size_zero_take_part_without_coordinates() -> None:
    members = [nn.Parameter(torch.zeros(shape)) for shape in ((0, 4), (3,), (0,), ())]
    plan = plan_of(3, 1.0)
    dpftrl = DPFTRL(members, 1.0, plan=plan, batch_size=1, noise_seed=3, radius=1e9)
    for i in (0, 1, 3):  # the only gradient may be one of nothing
        members[i].grad = torch.zeros_like(members[i])
        dpftrl.step()
    noise = plan.noise(4, seed=3)
    noise.step(), noise.step()
    found = torch.cat([p.detach().reshape(-1) for p in members])
    assert np.array_equal(found.numpy(), -noise.step())


@pytest.mark.usefixtures("fine_grid")
def test_memory_formats_have_the_coordinates_of_rows() -> None:
    shape = (64, 32, 16, 16)
    p = nn.Parameter(torch.zeros(shape).contiguous(memory_format=torch.channels_last))
    plan = plan_of(1, 1.0)
    dpftrl = DPFTRL([p], 1.0, plan=plan, batch_size=1, noise_seed=3)
    p.grad = torch.zeros_like(p)
    dpftrl.step()
    assert np.array_equal(p.detach().numpy(), -plan.noise(p.numel(), seed=3).step().reshape(shape))


@pytest.mark.usefixtures("fine_grid")
def test_equal_shapes_never_have_equal_noise(fine_grid: None) -> None:
    members = [nn.Parameter(torch.zeros(50)) for _ in range(20)]
    dpftrl = DPFTRL(
        members, 1.0, plan=plan_of(20, 1.0, mechanism=Tree(restart_every=5)), batch_size=1
    )
    seen: list[Tensor] = []
    last = [torch.zeros(50) for _ in members]
    for _ in range(20):
        members[0].grad = torch.zeros(50)
        dpftrl.step()
        seen += [p.detach() - before for p, before in zip(members, last, strict=True)]
        last = [p.detach().clone() for p in members]
    stacked = torch.stack(seen)
    distinct = torch.unique(stacked, dim=0)
    assert len(distinct) == len(stacked) == 400
    now = torch.stack(last)
    assert len(torch.unique(now)) == now.numel()


def honaker_weights(t: int) -> dict[tuple[int, int], float]:
    """Weight of each node (level, index) in b_t, by the definition."""

    def estimate(
        level: int, index: int, weight: float, found: dict[tuple[int, int], float]
    ) -> None:
        found[level, index] = found.get((level, index), 0.0) + weight
        if level:
            estimate(level - 1, 2 * index, weight / 2, found)
            estimate(level - 1, 2 * index + 1, weight / 2, found)

    found: dict[tuple[int, int], float] = {}
    for level in range(t.bit_length()):
        if t >> level & 1:
            estimate(level, (t >> level) - 1, 1 / (2 - 2.0**-level), found)
    return found


def closed_form(steps: int, every: int, momentum: float, nesterov: bool) -> float:
    """Variance factor of the parameters after `steps`, trees not completed."""
    nodes: dict[tuple[int, int, int], float] = {}
    for j in range(1, steps + 1):  # n_j counts momentum^(steps - j) times in v
        weight = momentum ** (steps - j)
        if nesterov:
            weight = momentum * weight + (1.0 if j == steps else 0.0)
        tree, t = divmod(j - 1, every)
        parts = [(i, every) for i in range(tree)] + [(tree, t + 1)]
        for i, end in parts:
            for (level, index), w in honaker_weights(end).items():
                nodes[i, level, index] = nodes.get((i, level, index), 0.0) + weight * w
    return sum(w * w for w in nodes.values())


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_the_variance_is_the_closed_form(momentum: float, nesterov: bool) -> None:
    steps, every, sigma, rate, batch, size, runs = 11, 4, 2.0, 0.5, 10, 1000, 40
    plan = plan_of(steps, sigma, mechanism=Tree(restart_every=every))
    samples = []
    for seed in range(runs):
        p, q = nn.Parameter(torch.zeros(size // 2)), nn.Parameter(torch.zeros(size // 2))
        dpftrl = DPFTRL(
            [p, q], rate, plan=plan, batch_size=batch, momentum=momentum, nesterov=nesterov,
            noise_seed=seed, threads=1,
        )  # fmt: skip
        for _ in range(steps):
            p.grad = torch.zeros(size // 2)
            dpftrl.step()
        samples.append(torch.cat([p.detach(), q.detach()]).double())
    found = torch.stack(samples).square().mean().item()
    expected = (rate / batch * sigma) ** 2 * closed_form(steps, every, momentum, nesterov)
    deviation = math.sqrt(2 / (runs * size))
    assert abs(found / expected - 1) < 4 * deviation
    assert abs(found / (expected * 0.97**2) - 1) > 4 * deviation


RATES = [Rates(0.1, 0.9, True, 1e-3), Rates(0.2, 0.5, False, 0.0)]


@pytest.mark.parametrize("radius", [None, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "rates", [RATES, [Rates(0.1, 0.0, False, 1e-3), Rates(0.2, 0.0, False, 0)]]
)
def test_torch_operations_and_the_compiled_pass_agree(
    radius: float | None, dtype: torch.dtype, rates: list[Rates]
) -> None:
    rng = torch.Generator().manual_seed(0)
    shapes = [(3, 2), (5,), (70, 3), ()]
    start = [torch.randn(shape, generator=rng).to(dtype) for shape in shapes]
    runs = []
    for fused, block_size in ((True, 64), (True, 8), (False, 64)):
        flat = FlatViews(start, [2, 2], block_size=block_size)
        values = [value.clone() for value in start]
        options: dict[str, Any] = {"batch_size": 3, "radius": radius, "groups": 2, "dtype": dtype}
        options["grid"] = 2.0**-30
        momentum = any(rate.momentum > 0 for rate in rates)
        update = FlatFTRL(flat, values, momentum=momentum, fused=fused, threads=2, **options)
        runs.append((update, values))
    for t in range(1, 20):
        gradients = [
            torch.randn(shape, generator=rng).to(dtype) if i != t % 5 else None
            for i, shape in enumerate(shapes)
        ]
        noise = torch.randn(flat.size, generator=rng).to(dtype)
        for update, values in runs:
            update.step(t, gradients, noise.clone(), rates, values, lambda x: float(x.norm()))
    bound = 1e-5 if dtype == torch.float32 else 1e-13
    for (update, values), same_bits in ((runs[1], True), (runs[2], False)):
        for a, b in zip(values, runs[0][1], strict=True):
            if same_bits:
                assert torch.equal(a, b)
            torch.testing.assert_close(a, b, rtol=bound, atol=bound)
        for name, vector in update.vectors().items():
            other = runs[0][0].vectors()[name]
            torch.testing.assert_close(vector, other, rtol=bound, atol=bound)


def test_a_part_of_another_size_is_not_written_to() -> None:
    start = [torch.zeros(4)]
    update = FlatFTRL(
        FlatViews(start, [1]), start, dtype=torch.float32, batch_size=1, radius=None,
        momentum=False, groups=1, grid=0.5, fused=True, threads=1,
    )  # fmt: skip
    rates = [Rates(1.0, 0.0, False, 0.0)]
    for wrong in ([torch.zeros(3)], [torch.zeros(5)]):
        with pytest.raises(ValueError, match=r"must be of shape \(4,\), as at the first step"):
            update.step(1, [torch.ones(4)], torch.zeros(4), rates, wrong, lambda x: 0.0)


def test_many_threads_write_the_same_bits() -> None:
    start = [torch.linspace(-1, 1, 3 * 2**20), torch.ones(5)]
    gradients, noise = [value.sin() for value in start], torch.ones(3 * 2**20 + 5)
    results = []
    for threads in (1, 3):
        flat = FlatViews(start, [2])
        values = [value.clone() for value in start]
        update = FlatFTRL(
            flat, values, dtype=torch.float32, batch_size=1, radius=None, momentum=True, groups=1,
            grid=2.0**-7, fused=True, threads=threads,
        )  # fmt: skip
        for t in (1, 2):
            update.step(t, gradients, noise.clone(), RATES[:1], values, lambda x: 0.0)
        results.append(values)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(results[0][0], start[0])
