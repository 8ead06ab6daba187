# SPDX-License-Identifier: Apache-2.0
"""Small runs of `DPFTRL` for its tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.torch import DPFTRL

QUIET = 1e-12  # a noise multiplier whose noise is lost in every rounding


def plan_of(steps: int, sigma: float = QUIET, **options: Any) -> PrivacyPlan:
    return PrivacyPlan(1.0, sigma, accounting.SinglePass(steps), **options)


def parameters(seed: int = 0, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    rng = torch.Generator().manual_seed(seed)
    shapes: list[tuple[int, ...]] = [(4, 3), (3,), (2, 2, 2), ()]
    return [nn.Parameter(torch.randn(shape, generator=rng, dtype=dtype)) for shape in shapes]


def gradients(
    like: list[nn.Parameter], t: int, scale: float = 1.0, dtype: torch.dtype | None = None
) -> None:
    rng = torch.Generator().manual_seed(1000 + t)
    for p in like:
        sample = torch.randn(p.shape, generator=rng, dtype=torch.float64) * scale
        p.grad = sample.to(dtype or p.dtype)


def run(dpftrl: DPFTRL, members: list[nn.Parameter], first: int, stop: int) -> None:
    for t in range(first, stop):
        gradients(members, t)
        dpftrl.step()


def ready(**options: Any) -> tuple[DPFTRL, list[nn.Parameter]]:
    members = parameters()
    dpftrl = DPFTRL(members, **{"lr": 0.1, "plan": plan_of(3, 1.0), "batch_size": 4, **options})
    return dpftrl, members


@contextmanager
def held_inside(owner: type, name: str, call: Callable[[], Any]) -> Iterator[None]:
    """Run `call` in a thread, and hold it in the method `name` of `owner` for the body."""
    inside, go_on = threading.Event(), threading.Event()
    real = getattr(owner, name)

    def waits(*args: Any) -> None:
        inside.set()
        assert go_on.wait(60)
        real(*args)

    with mock.patch.object(owner, name, waits):
        thread = threading.Thread(target=call)
        thread.start()
        assert inside.wait(60)
        try:
            yield
        finally:
            go_on.set()
            thread.join()
