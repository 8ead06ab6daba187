# SPDX-License-Identifier: Apache-2.0
"""The methods of the image experiments: DP-FTRL and DP-SGD with and without momentum, one run each.

Noise, weights and order follow from a seed: these runs are reproducible comparisons on public data,
not private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from dpftrl_fast.accounting import Workload
from dpftrl_fast.experiments.convex.dpsgd import fixed_batches_sigma
from dpftrl_fast.experiments.fitted import Method as FittedMethod
from dpftrl_fast.experiments.fitted import passes_over_data
from dpftrl_fast.experiments.images.data import Images
from dpftrl_fast.experiments.images.network import ImageNetwork, clipped_sums
from dpftrl_fast.mechanisms import Tree, Variant
from dpftrl_fast.plan.epoch_order import EpochOrder
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.torch import DPFTRL

CLIP_NORM = 1.0


@dataclass(frozen=True)
class Method(FittedMethod):
    """A method, without its learning rate: the baseline is DP-SGD.

    Of FTRL, `complete` says whether trees that a restart follows are completed.

    Examples
    --------
    >>> Method("ftrl", 0.9, restart=1, complete=True).name
    'DP-FTRLM, restart 1, completed'
    >>> Method("ftrl", variant="vanilla").name, Method("amplified", 0.9).name
    ('DP-FTRL, vanilla, no restart', 'DP-SGDM, amplified')
    """

    baseline: ClassVar[str] = "DP-SGD"
    unamplified: ClassVar[str] = "fixed batches"

    complete: bool = False
    variant: Variant = "honaker"

    @property
    def name(self) -> str:
        """Name in tables."""
        return super().name + ", completed" * self.complete


@dataclass(frozen=True)
class Budget:
    """Privacy budget and passes of a run; amplified batches have an expected size."""

    epsilon: float
    delta: float
    batch_size: int
    epochs: int


def ftrl_plan(method: Method, budget: Budget, examples: int) -> PrivacyPlan:
    """Return the plan of a run of FTRL: the least noise that keeps the budget.

    Examples
    --------
    >>> method = Method("ftrl", restart=1, complete=True)
    >>> plan = ftrl_plan(method, Budget(8.0, 1e-5, 250, 5), 60_000)
    >>> plan.mechanism.restart_every, plan.steps, plan.epsilon(1e-5) <= 8.0
    (240, 1200, True)
    >>> planned = ftrl_plan(Method("planned", 0.9), Budget(8.0, 1e-5, 250, 5), 60_000)
    >>> planned.mechanism.vectors <= 3
    True
    """
    steps = -(-examples // budget.batch_size)
    every = None if method.restart is None else method.restart * steps
    tree = Tree(method.variant, every, complete=method.complete)
    return PrivacyPlan.calibrate(
        epsilon=budget.epsilon,
        delta=budget.delta,
        clip_norm=CLIP_NORM,
        participation=passes_over_data(steps, budget.epochs),
        mechanism="auto" if method.kind == "planned" else tree,
        workload=Workload(momentum=method.momentum),
        bound="released",
    )


def train(
    method: Method,
    budget: Budget,
    images: Images,
    *,
    learning_rate: float,
    seed: int,
    sigma: float | None = None,
    each_epoch: Callable[[int, ImageNetwork], None] | None = None,
) -> float:
    """Train the network and return its accuracy on the test images.

    The first weights, the order and the noise follow from `seed`; `sigma` is the noise multiplier
    of amplified methods; `each_epoch` is called with the epoch, from 1, and the network.
    """
    network = ImageNetwork(seed)
    n, batch = len(images.y), budget.batch_size
    per_epoch = -(-n // batch)
    steps = budget.epochs * per_epoch
    parameters = list(network.parameters())
    add_noise: Callable[[], None]
    optimizer: torch.optim.Optimizer
    if method.kind in ("ftrl", "planned"):
        plan = ftrl_plan(method, budget, n)
        optimizer = DPFTRL(
            parameters, learning_rate, plan=plan, batch_size=batch, momentum=method.momentum,
            noise_seed=seed, threads=1,
        )  # fmt: skip
        order = EpochOrder(n, batch, plan, seed)
        batches: Iterator[Any] = (order.ids(step) for step in range(1, steps + 1))

        def add_noise() -> None:  # the optimizer does it
            return

    else:
        if method.kind == "fixed":
            sigma = fixed_batches_sigma(budget.epsilon, budget.delta, budget.epochs)
        if sigma is None:
            raise ValueError(f"sigma must be given for {method.name!r}, got None")
        std = CLIP_NORM * sigma
        optimizer = torch.optim.SGD(parameters, learning_rate, momentum=method.momentum)
        batches = _batches(n, batch, steps, method.kind == "amplified", seed)
        # a separate stream: the first weights use that of the seed itself
        words = np.random.SeedSequence([seed, 20210301]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(words[0]))

        def add_noise() -> None:
            for p in parameters:
                assert p.grad is not None
                p.grad += std * torch.randn(p.shape, generator=generator)
                p.grad /= batch

    for step, ids in enumerate(batches, 1):
        chosen = torch.from_numpy(ids)
        sums = clipped_sums(network, images.x[chosen], images.y[chosen], CLIP_NORM)
        for p, total in zip(parameters, sums, strict=True):
            p.grad = total
        add_noise()
        optimizer.step()
        if each_epoch is not None and step % per_epoch == 0:
            each_epoch(step // per_epoch, network)
    return network.accuracy(images.test_x, images.test_y)


def _batches(
    n: int, size: int, steps: int, amplified: bool, seed: int
) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the examples of the batches of DP-SGD: reshuffled in each epoch, or sampled."""
    generator = np.random.default_rng([seed, 20210228])
    per_epoch = -(-n // size)
    order = np.arange(n)
    for step in range(steps):
        if amplified:
            yield np.flatnonzero(generator.random(n) < size / n)
            continue
        place = step % per_epoch
        if place == 0:
            order = generator.permutation(n)
        yield order[place * size : (place + 1) * size]
