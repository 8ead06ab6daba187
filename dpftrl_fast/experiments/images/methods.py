# SPDX-License-Identifier: Apache-2.0
"""The methods of the image experiments: DP-FTRL and DP-SGD with and without momentum, one run each.

Noise, weights and order follow from a seed: these runs are for comparison on public data, not
private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from dpftrl_fast.accounting import FixedEpochs, SinglePass
from dpftrl_fast.experiments.convex.dpsgd import fixed_batches_sigma
from dpftrl_fast.experiments.images.data import Images
from dpftrl_fast.experiments.images.network import ImageNetwork, clipped_sums
from dpftrl_fast.mechanisms import Tree, Variant
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.torch import DPFTRL
from dpftrl_fast.torch.order import EpochOrder

CLIP_NORM = 1.0
MOMENTUM = 0.9


@dataclass(frozen=True)
class Method:
    """A method, but for its learning rate.

    Attributes
    ----------
    kind : {"ftrl", "fixed", "amplified"}
        DP-FTRL; DP-SGD over fixed batches; DP-SGD over Poisson samples.
    momentum : float
    restart : int or None
        Of FTRL: epochs after which a new tree starts; None for one tree.
    complete : bool
        Of FTRL: whether trees that a restart follows are completed.
    variant : {"honaker", "vanilla"}
        Of FTRL.
    """

    kind: Literal["ftrl", "fixed", "amplified"]
    momentum: float = 0.0
    restart: int | None = None
    complete: bool = False
    variant: Variant = "honaker"

    @property
    def name(self) -> str:
        """As in tables.

        Examples
        --------
        >>> Method("ftrl", 0.9, restart=1, complete=True).name
        'DP-FTRLM, restart 1, completed'
        >>> Method("ftrl", variant="vanilla").name, Method("amplified", 0.9).name
        ('DP-FTRL, vanilla, no restart', 'DP-SGDM, amplified')
        """
        letter = "M" if self.momentum else ""
        if self.kind != "ftrl":
            words = {"fixed": "fixed batches", "amplified": "amplified"}[self.kind]
            return f"DP-SGD{letter}, {words}"
        words = "" if self.variant == "honaker" else ", vanilla"
        words += ", no restart" if self.restart is None else f", restart {self.restart}"
        return f"DP-FTRL{letter}{words}{', completed' if self.complete else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return what a row of results has of it."""
        common = {"method": self.kind, "momentum": self.momentum}
        if self.kind != "ftrl":
            return common
        return {
            **common,
            "restart": self.restart,
            "complete": self.complete,
            "variant": self.variant,
        }


@dataclass(frozen=True)
class Budget:
    """What a run may spend.

    Attributes
    ----------
    epsilon, delta : float
    batch_size, epochs : int
        Batches are Poisson samples of that expected size for amplified methods.
    """

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
    """
    steps = -(-examples // budget.batch_size)
    pattern = (
        SinglePass(steps)
        if budget.epochs == 1
        else FixedEpochs(steps, budget.epochs, reshuffle=True)
    )
    return PrivacyPlan.calibrate(
        epsilon=budget.epsilon,
        delta=budget.delta,
        clip_norm=CLIP_NORM,
        participation=pattern,
        mechanism=Tree(
            method.variant,
            None if method.restart is None else method.restart * steps,
            complete=method.complete,
        ),
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
    """Train the network and return its accuracy on the test pictures.

    Parameters
    ----------
    method : Method
    budget : Budget
    images : Images
    learning_rate : float
    seed : int
        Of the first weights, the order and the noise.
    sigma : float, optional
        The noise multiplier of amplified methods, which is slow to find.
    each_epoch : callable, optional
        Called with the epoch, from 1, and the network.
    """
    network = ImageNetwork(seed)
    n, batch = len(images.y), budget.batch_size
    per_epoch = -(-n // batch)
    steps = budget.epochs * per_epoch
    parameters = list(network.parameters())
    add_noise: Callable[[], None]
    optimizer: torch.optim.Optimizer
    if method.kind == "ftrl":
        plan = ftrl_plan(method, budget, n)
        optimizer = DPFTRL(
            parameters, learning_rate, plan=plan, batch_size=batch, momentum=method.momentum,
            noise_seed=seed, threads=1,
        )  # fmt: skip
        order = EpochOrder(n, batch, plan, seed)
        batches: Iterator[Any] = (order.ids(step) for step in range(1, steps + 1))

        def add_noise() -> None:  # the optimiser does it
            return

    else:
        if method.kind == "fixed":
            sigma = fixed_batches_sigma(budget.epsilon, budget.delta, budget.epochs)
        if sigma is None:
            raise ValueError(f"sigma must be given for {method.name!r}, got None")
        std = CLIP_NORM * sigma
        optimizer = torch.optim.SGD(parameters, learning_rate, momentum=method.momentum)
        batches = _batches(n, batch, steps, method.kind == "amplified", seed)
        # a stream of its own: that of the seed itself has the first weights
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
    """Yield the examples of the batches of DP-SGD: dealt afresh in each epoch, or sampled."""
    generator = np.random.default_rng([seed, 20210228])
    per_epoch = -(-n // size)
    deal = np.arange(n)
    for step in range(steps):
        if amplified:
            yield np.flatnonzero(generator.random(n) < size / n)
            continue
        place = step % per_epoch
        if place == 0:
            deal = generator.permutation(n)
        yield deal[place * size : (place + 1) * size]
