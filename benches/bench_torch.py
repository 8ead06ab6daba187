# SPDX-License-Identifier: Apache-2.0
"""A step of `DPFTRL` beside Opacus's noise and step, and beside the paper's tree in torch.

`pytest benches/bench_torch.py` times them one after another.
`python benches/bench_torch.py [ROUNDS]` alternates them, which a shared machine asks for, and
prints the ratios of docs/results/benchmarks.md: times of two threads.
`python benches/bench_torch.py mechanisms [ROUNDS]` compares steps with two taps and with the
Honaker tree, in processor time of one thread: the ratios of docs/results/benchmarks.md.

What is timed comes after clipping: the sum of a batch is in ``p.grad``, and the parameters are to
be written. 10^7 float32 parameters, momentum 0.9, in one tensor and in a thousand.
Costs of a tree's steps differ, so 16 of them are timed together, on a tree that goes on.
"""

from __future__ import annotations

import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from noise_workloads import TorchHonaker, check_normal
from torch import Tensor, nn

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.mechanisms import BandedInverse
from dpftrl_fast.torch import DPFTRL, ResidualNoise

warnings.filterwarnings("ignore", message="Secure RNG turned off", category=UserWarning)

SIZE, BATCH, LR, MOMENTUM, STEPS = 10**7, 256, 0.1, 0.9, 16
PLAN = PrivacyPlan(1.0, 1.0, accounting.SinglePass(2**16))
TAPS = PrivacyPlan(
    1.0,
    1.0,
    accounting.SinglePass(2**16),
    mechanism=BandedInverse.anticorrelated(0.9).rounded("float32"),
)


class Call(NamedTuple):
    """A step, and the assignment of its gradients, which is not timed."""

    step: Callable[[], Any]
    ready: Callable[[], Any] = lambda: None


def model(tensors: int) -> tuple[list[nn.Parameter], list[Tensor]]:
    """Parameters at 0, and the sums of a batch."""
    each = SIZE // tensors
    parameters = [nn.Parameter(torch.zeros(each)) for _ in range(tensors)]
    return parameters, [torch.zeros(each) for _ in range(tensors)]


def ours(tensors: int, plan: PrivacyPlan = PLAN, memory: Any = "stored") -> Call:
    parameters, sums = model(tensors)
    optimizer = DPFTRL(
        parameters,
        LR,
        plan=plan,
        batch_size=BATCH,
        momentum=MOMENTUM,
        memory=memory,
        threads=torch.get_num_threads(),
    )

    def ready() -> None:
        for p, total in zip(parameters, sums, strict=True):
            p.grad = total

    def step() -> Tensor:
        optimizer.step()
        return parameters[0]

    return Call(step, ready)


def residual(plan: PrivacyPlan = PLAN, memory: Any = "stored") -> Call:
    """`ResidualNoise` alone: the step of the optimiser comes after it."""
    parameters, sums = model(1)
    noise = ResidualNoise(
        parameters,
        plan=plan,
        batch_size=BATCH,
        memory=memory,
        threads=torch.get_num_threads(),
    )

    def ready() -> None:
        parameters[0].grad = sums[0].zero_().detach()

    def step() -> Tensor:
        noise.add_()
        assert parameters[0].grad is not None
        return parameters[0].grad

    return Call(step, ready)


def opacus(tensors: int) -> Call:
    """`add_noise`, `scale_grad` and the SGD's step of Opacus's `DPOptimizer`."""
    from opacus.optimizers import DPOptimizer

    parameters, sums = model(tensors)
    for p in parameters:
        p.grad_sample = torch.empty(0)  # type: ignore[attr-defined]
    optimizer = DPOptimizer(
        torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=BATCH,
    )

    def ready() -> None:
        for p, total in zip(parameters, sums, strict=True):
            p.summed_grad = total.detach()  # type: ignore[attr-defined]

    def step() -> Tensor:
        optimizer.add_noise()
        optimizer.scale_grad()
        optimizer.original_optimizer.step()
        return parameters[0]

    return Call(step, ready)


class StackTree:
    """Honaker's estimator on a stack of live nodes, with a running sum of their shares.

    The paper's efficient tree as one writes it down in torch: a new leaf is pushed, and while the
    two topmost nodes are of one height, they become one with fresh noise.
    """

    def __init__(self, size: int) -> None:
        self.total = torch.zeros(size)
        self.live: list[tuple[int, Tensor]] = []

    def step(self) -> Tensor:
        self._push(0, torch.normal(0.0, 1.0, self.total.shape))
        while len(self.live) > 1 and self.live[-1][0] == self.live[-2][0]:
            height, right = self._pop()
            _, left = self._pop()
            fresh = torch.normal(0.0, 1.0, self.total.shape)
            self._push(height + 1, fresh + (left + right) / 2)
        return self.total

    def _push(self, height: int, value: Tensor) -> None:
        self.live.append((height, value))
        self.total += value / (2 - 2.0**-height)

    def _pop(self) -> tuple[int, Tensor]:
        height, value = self.live.pop()
        self.total -= value / (2 - 2.0**-height)
        return height, value


def torch_tree(kind: Callable[[int], Any], tensors: int) -> Call:
    """A tree a tensor, and FTRL with momentum on its noise."""
    parameters, sums = model(tensors)
    start = [p.detach().clone() for p in parameters]
    running = [torch.zeros_like(p) for p in start]
    velocity = [torch.zeros_like(p) for p in start]
    trees = [kind(p.numel()) for p in parameters]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step() -> Tensor:
        for i, p in enumerate(parameters):
            running[i].add_(sums[i])
            noisy = (running[i] + trees[i].step()).div_(BATCH)
            velocity[i].mul_(MOMENTUM).add_(noisy)
            torch.add(start[i], velocity[i], alpha=-LR, out=p.data)
        return parameters[0]

    return Call(step)


def our_noise() -> Callable[[], Any]:
    noise, out = PLAN.noise(SIZE, threads=torch.get_num_threads()), torch.empty(SIZE)
    return lambda: noise.step(out)


CALLS: dict[str, Callable[[], Call]] = {
    "DPFTRL, 1 tensor": lambda: ours(1),
    "DPFTRL, 1000 tensors": lambda: ours(1000),
    "Opacus, 1 tensor": lambda: opacus(1),
    "Opacus, 1000 tensors": lambda: opacus(1000),
    "torch tree on a stack, 1 tensor": lambda: torch_tree(StackTree, 1),
    "torch tree in place, 1 tensor": lambda: torch_tree(TorchHonaker, 1),
    "our noise alone": lambda: Call(our_noise()),
    "torch noise on a stack alone": lambda: Call(StackTree(SIZE).step),
    "torch noise in place alone": lambda: Call(TorchHonaker(SIZE).step),
    "DPFTRL, two taps kept": lambda: ours(1, TAPS),
    "DPFTRL, two taps re-made": lambda: ours(1, TAPS, "regenerate"),
    "ResidualNoise": residual,
    "ResidualNoise, two taps kept": lambda: residual(TAPS),
    "ResidualNoise, two taps re-made": lambda: residual(TAPS, "regenerate"),
}
RATIOS = [
    ("DPFTRL, 1 tensor", "Opacus, 1 tensor"),
    ("DPFTRL, 1000 tensors", "Opacus, 1000 tensors"),
    ("torch tree on a stack, 1 tensor", "DPFTRL, 1 tensor"),
    ("torch tree in place, 1 tensor", "DPFTRL, 1 tensor"),
    ("torch noise on a stack alone", "our noise alone"),
    ("torch noise in place alone", "our noise alone"),
    ("DPFTRL, 1000 tensors", "DPFTRL, 1 tensor"),
]
MECHANISMS = [
    ("DPFTRL, two taps kept", "DPFTRL, 1 tensor"),
    ("ResidualNoise, two taps kept", "ResidualNoise"),
    ("DPFTRL, two taps re-made", "DPFTRL, 1 tensor"),
    ("ResidualNoise, two taps re-made", "ResidualNoise"),
]


@contextmanager
def small() -> Iterator[None]:
    """One step of 100,000 parameters, for checks."""
    global STEPS, SIZE
    kept = STEPS, SIZE
    STEPS, SIZE = 1, 10**5
    try:
        yield
    finally:
        STEPS, SIZE = kept


@cache
def check() -> None:
    """All of them move the parameters by noise of one size: the tree's after 1 step, SGD's too."""
    with small():
        for name, make in CALLS.items():
            if "alone" not in name:
                call = make()
                call.ready()
                factor = 1.0 if "Residual" in name else LR
                check_normal(call.step().detach(), factor / BATCH)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:Secure RNG turned off")
def test_torch_step(benchmark: Any, name: str) -> None:
    check()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with nullcontext() if benchmark.enabled else small():
            benchmark.group = f"{SIZE} float32 parameters, mean over {STEPS} steps of a tree"
            call = CALLS[name]()
            benchmark.pedantic(call.step, setup=call.ready, rounds=STEPS, warmup_rounds=1)
    finally:
        torch.set_num_threads(threads)


def timed(call: Call, clock: Callable[[], float]) -> float:
    """Return the seconds of `STEPS` steps, without the assignments."""
    total = 0.0
    for _ in range(STEPS):
        call.ready()
        start = clock()
        call.step()
        total += clock() - start
    return total


def main(
    rounds: int, pairs: list[tuple[str, str]], threads: int, clock: Callable[[], float]
) -> None:
    torch.set_num_threads(threads)
    print(
        f"{platform.processor() or platform.machine()}, torch {torch.__version__}, "
        f"{threads} threads"
    )
    check()
    # Not all at once: the trees of all calls would need gigabytes.
    times: dict[str, list[float]] = {}
    for pair in pairs:
        calls = {name: CALLS[name]() for name in pair}
        for call in calls.values():
            timed(call, clock)
        ratios = []
        for turn in range(rounds):
            spent = {}
            for name in pair if turn % 2 else reversed(pair):
                spent[name] = timed(calls[name], clock)
                times.setdefault(name, []).append(spent[name] / STEPS * 1e3)
            ratios.append(spent[pair[0]] / spent[pair[1]])
        print(f"{pair[0]} / {pair[1]}: median {np.median(ratios):.2f}", flush=True)
    for name, found in times.items():
        print(f"{name:34} median {np.median(found):7.1f} ms, least {min(found):7.1f} ms a step")


if __name__ == "__main__":
    given = sys.argv[1:]
    count = int(given[-1]) if given and given[-1].isdigit() else 7
    if given[:1] == ["mechanisms"]:
        main(count, MECHANISMS, 1, time.process_time)
    else:
        main(count, RATIOS, 2, time.perf_counter)
