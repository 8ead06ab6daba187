# SPDX-License-Identifier: Apache-2.0
"""The release of residual sums: compiled, by torch's operations and in NumPy, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dpftrl_runs import plan_of
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from dpftrl_fast import PrivacyPlan, SinglePass
from dpftrl_fast.mechanisms import BandedInverse
from dpftrl_fast.torch import DPFTRL, ResidualNoise
from dpftrl_fast.torch.flat.noise import FlatNoise
from dpftrl_fast.torch.flat.residual import FlatResidual
from dpftrl_fast.torch.flat.views import FlatViews

PLAN = PrivacyPlan(1.0, 40.0, SinglePass(5), BandedInverse([1.0, -0.5]))
GRID = 0.25
BLOCK = 8
SHAPES = [(0,), (BLOCK - 1,), (1,), (2, BLOCK // 2), (0, 3), (BLOCK + 1,), (5, BLOCK), (1, 1), (3,)]
UNUSUAL = [0.0, -0.0, GRID / 2, -GRID / 2, 1e30, -1e30, 3e38, np.inf, -np.inf, np.nan, 1e-44]


def sums_of(shapes: list[tuple[int, ...]], kinds: list[str], rng: Any) -> list[Tensor]:
    """Return sums of several sizes, dtypes by turns, with numbers that are not usual."""
    found = []
    for i, shape in enumerate(shapes):
        values = rng.normal(size=shape) * 10.0 ** rng.integers(-2, 3, size=shape)
        flat = values.reshape(-1)
        if i % 2 and flat.size > 2:
            flat[rng.integers(flat.size)] = rng.choice(UNUSUAL)
        found.append(torch.tensor(values).to(getattr(torch, kinds[i % len(kinds)])))
    return found


class Run:
    """Noise and remainder of a run, by the compiled pass or by torch's operations."""

    def __init__(
        self, parts: list[Tensor], dtype: Any, batch_size: int | None, fused: bool, threads: int = 1
    ) -> None:
        groups = [3, len(parts) - 3] if len(parts) > 3 else [len(parts)]
        flat = FlatViews(parts, groups, block_size=BLOCK)
        self.room = torch.empty(flat.size, dtype=getattr(torch, dtype))
        self.noise = noise_of(flat.size, dtype, threads)
        self.one = FlatResidual(flat, self.room, batch_size=batch_size, fused=fused)

    def release(self, parts: list[Tensor], total: Any = None) -> None:
        vector = None if total is None else torch.from_numpy(total.copy())
        self.one.release_(self.noise, self.room, parts, vector)


def noise_of(size: int, dtype: Any, threads: int = 1) -> FlatNoise:
    """Two ranges of one vector: noise of a rank with two shards."""
    ranges = [(0, size // 3), (size // 3, size - size // 3)] if size > 2 else [(0, size)][:size]
    cpu = torch.device("cpu")
    return FlatNoise(PLAN, ranges, dtype=dtype, device=cpu, seed=1, threads=threads)


def expected(
    parts: list[Tensor], noise: Any, total: Any, remainder: Any, batch_size: int | None
) -> list[Any]:
    """The formula in NumPy, a tensor at a time; `remainder` is changed."""
    kind, found, start = noise.dtype, [], 0
    for part in parts:
        own, n = part.numpy().reshape(-1), noise[start : start + part.numel()]
        r = remainder[start : start + part.numel()]
        g = own if total is None else total[start : start + part.numel()]
        start += part.numel()
        x = r + (n + g).astype(kind)
        w = np.floor(x / kind.type(GRID) + kind.type(0.5)) * kind.type(GRID)
        r[...] = x - w
        out = w.astype(own.dtype)
        found.append(out if batch_size is None else out / own.dtype.type(batch_size))
    return found


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize("batch_size", [None, 48, 64])
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("kinds", [["float32"], ["float64"], ["float32", "float64"]])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_ways_release_the_same_bits(
    dtype: str, kinds: list[str], reduced: bool, batch_size: int | None
) -> None:
    rng = np.random.default_rng(1)
    parts = sums_of(SHAPES, kinds, rng)
    both = [Run(parts, dtype, batch_size, fused) for fused in (False, True)]
    remainder = np.zeros_like(both[0].room.numpy())
    same = noise_of(remainder.size, dtype)
    assert same.grid == GRID
    noise = torch.empty_like(both[0].room)
    for _ in range(4):
        parts = sums_of(SHAPES, kinds, rng)
        total = rng.normal(size=remainder.size).astype(dtype) if reduced else None
        same.residual(noise)
        answer = expected(parts, noise.numpy(), total, remainder, batch_size)
        for run in both:
            own = [part.clone() for part in parts]
            run.release(own, total)
            for found, wanted in zip(own, answer, strict=True):
                np.testing.assert_array_equal(found.numpy().reshape(-1), wanted)
                numbers = ~np.isnan(wanted)
                signs = np.signbit(found.numpy().reshape(-1))[numbers]
                np.testing.assert_array_equal(signs, np.signbit(wanted)[numbers])
            np.testing.assert_array_equal(run.one.remainder.numpy(), remainder)
            assert run.noise.steps_taken == same.steps_taken


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shapes", [[(0,)], [(0,), (2, 0)]])
def test_a_rank_without_coordinates(shapes: list[tuple[int, ...]], fused: bool) -> None:
    parts = [torch.zeros(shape) for shape in shapes]
    run = Run(parts, "float32", 2, fused)
    run.release(parts)
    assert run.one.remainder.numel() == 0
    assert run.noise.steps_taken == 1


@pytest.mark.parametrize("size", [1, 2**18 - 1, 2**18, 2**18 + 1, 2**21 + 7])
def test_long_sums_on_threads(size: int) -> None:
    start, found = torch.randn(size, generator=torch.Generator().manual_seed(size)), []
    for fused, workers in ((False, 1), (True, 1), (True, 2)):
        run = Run([start], "float32", 3, fused, workers)
        sums = start.clone()
        run.release([sums])
        found.append(torch.stack([sums, run.one.remainder]))
    assert all(torch.equal(found[0], other) for other in found[1:])
    assert found[0].isfinite().all()


def test_sums_that_no_address_describes_are_released_by_operations() -> None:
    """Memory that is not in order, or is in two other tensors: nothing is written beside it."""
    start = torch.arange(12.0).reshape(3, 4)
    wanted = start.clone()
    Run([wanted], "float32", 2, True).release([wanted])
    first, second, turned = start.clone(), start.clone(), start.t().contiguous().t()
    for part in (TwoTensor(first, second), turned):
        Run([part], "float32", 2, True).release([part])
    assert torch.equal(turned, wanted)
    assert torch.equal(first, second)  # its operations wrote both; it has no address
    assert not torch.equal(first, start)
    short = torch.zeros(7)
    with pytest.raises(RuntimeError):
        Run([torch.zeros(8)], "float32", 2, True).release([short])
    assert torch.equal(short, torch.zeros(7))


def test_autograd_knows_of_sums_that_were_written() -> None:
    p = nn.Parameter(torch.zeros(4))
    p.grad = torch.ones(4)
    before = p.grad._version
    ResidualNoise([p], plan=plan_of(3, 0.5), noise_seed=1).add_()
    assert p.grad._version > before
    held = torch.zeros(4, requires_grad=True)
    q = nn.Parameter(torch.zeros(4))
    q.grad = torch.ones(4)
    product = held * q.grad
    ResidualNoise([q], plan=plan_of(3, 0.5), noise_seed=1).add_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize("kind", ["DPFTRL", "ResidualNoise"])
def test_a_gradient_whose_memory_has_the_other_sign(kind: str) -> None:
    """One coordinate of a conjugate's imaginary part: contiguous memory of minus its value."""
    found = []
    for negated in (False, True):
        p = nn.Parameter(torch.zeros(1))
        view = torch.complex(torch.zeros(1), torch.tensor([-100.0])).conj().imag
        assert view.is_neg() and view.is_contiguous() and view.item() == 100.0
        p.grad = view if negated else view.resolve_neg()
        if kind == "DPFTRL":
            DPFTRL([p], 1.0, plan=plan_of(3, 0.5), batch_size=1, noise_seed=1).step()
            found.append(p.detach())
        else:
            ResidualNoise([p], plan=plan_of(3, 0.5), noise_seed=1).add_()
            found.append(p.grad)
    assert torch.equal(*found)


def test_a_parameter_whose_memory_has_the_other_sign_is_refused() -> None:
    p = nn.Parameter(torch.complex(torch.zeros(1), torch.ones(1)).conj().imag)
    p.grad = torch.ones(1)
    assert p.is_neg()
    with pytest.raises(ValueError, match=r"0\.0 must have memory with its own sign, got a view"):
        DPFTRL([p], 1.0, plan=plan_of(3, 0.5), batch_size=1).step()
