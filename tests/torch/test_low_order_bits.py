# SPDX-License-Identifier: Apache-2.0
"""Low-order bits of trained parameters and of noisy gradient sums tell nothing of an example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from low_order_bits import FEW, MANY, scores
from mechanism_cases import MECHANISMS

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.torch import DPFTRL, ResidualNoise

Array = np.ndarray[Any, np.dtype[np.float64]]
D, T, SIGMA = 256, 4, 10.0


def example(number: int, norm: float, dtype: torch.dtype) -> torch.Tensor:
    g = torch.randn(D, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
    return (g * (norm / g.norm())).to(dtype)


def attack(name: str, kind: str, dtype: Any, norm: float, runs: int) -> None:
    plan = PrivacyPlan(1.0, SIGMA, SinglePass(T), MECHANISMS[name])
    number_type = getattr(torch, dtype)

    def run(has_example: bool, number: int) -> tuple[Array, Array]:
        w = torch.nn.Parameter(torch.zeros(D, dtype=number_type))
        options: dict[str, Any] = {"plan": plan, "dtype": dtype, "threads": 1}
        noise = ResidualNoise([w], **options)
        ftrl = DPFTRL([w], lr=1.0, batch_size=1, **options)
        if kind == "torch operations":
            ftrl._started()._fused = None
        rest = torch.zeros(T, D, dtype=number_type)
        released = []
        for t in range(T):
            if number // 2 % 2:
                rest[t] = example(10 * number + t, 0.5, number_type)
            w.grad = rest[t].clone()
            if t == 2 and has_example:
                w.grad += example(number, norm, number_type)
            if kind == "ResidualNoise":
                noise.add_()
                released.append(w.grad.double().numpy().copy())
            else:
                ftrl.step()
                released.append(-w.detach().double().numpy())
        known = rest.double().numpy()
        return np.array(released), known if kind == "ResidualNoise" else known.cumsum(axis=0)

    found = scores(run, plan.noise_spec.grid(dtype), runs)
    assert max(found.values()) < 6.0, found


@pytest.mark.parametrize("norm", [0.1, 1e-6])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["DPFTRL", "torch operations", "ResidualNoise"])
@pytest.mark.parametrize("name", ["tree", "two taps", "two buffers"])
def test_neighbours(name: str, kind: str, dtype: Any, norm: float) -> None:
    attack(name, kind, dtype, norm, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("norm", [0.1, 1e-6])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["DPFTRL", "ResidualNoise"])
def test_many_neighbours(kind: str, dtype: Any, norm: float) -> None:
    attack("tree", kind, dtype, norm, MANY)


def test_residuals_add_up_to_the_rounded_noisy_sum() -> None:
    """So the rounding of a long run of residuals is that of one release."""
    plan = PrivacyPlan(1.0, 0.01, SinglePass(300))
    w = torch.nn.Parameter(torch.zeros(9, dtype=torch.float64))
    residual = ResidualNoise([w], plan=plan, dtype="float64", noise_seed=4)
    noise = plan.noise(9, seed=4, dtype="float64")
    total = released = torch.zeros(9, dtype=torch.float64)
    for t in range(300):
        w.grad = torch.full((9,), 0.01 * (t % 7), dtype=torch.float64)
        total = total + w.grad
        residual.add_()
        released = released + w.grad
        exact = total + torch.from_numpy(noise.step())
        assert (released - exact).abs().max() <= noise.grid / 2 * (1 + 1e-9)
        assert torch.equal(released, torch.round(released / noise.grid) * noise.grid)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("multiplier", [1e-36, 1e-20, 1e20])
def test_grids_of_tiny_and_of_large_noise(dtype: Any, multiplier: float) -> None:
    plan, number_type = PrivacyPlan(1.0, multiplier, SinglePass(2)), getattr(torch, dtype)
    for make in (DPFTRL, ResidualNoise):
        w = torch.nn.Parameter(torch.zeros(4, dtype=number_type))
        options: dict[str, Any] = {"plan": plan, "dtype": dtype, "batch_size": 1}
        taken = make([w], **({"lr": 1.0} if make is DPFTRL else {}), **options)
        w.grad = torch.tensor([0.5, -0.25, 1000.0, 0.0], dtype=number_type)
        expected = w.grad.clone()
        if isinstance(taken, DPFTRL):
            taken.step()
            found = -w.detach()
        else:
            taken.add_()
            assert w.grad is not None
            found = w.grad
        assert torch.isfinite(found).all()
        if multiplier < 1.0:
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-18)
