# SPDX-License-Identifier: Apache-2.0
"""DP-SGD on a linear model, over fixed batches or over Poisson samples: the baseline of FTRL.

It uses the same clipped sums as the engine of FTRL. Every step adds fresh Gaussian noise, NumPy's,
from a seed: these runs are reproducible comparisons on public data, not private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting import noise_multiplier
from dpftrl_fast.convex.glm.sums import Objective, clipped_sum
from dpftrl_fast.convex.row_batches import Batch, Rows, take_users

FloatArray = NDArray[np.float64]
Ints = NDArray[np.int64]


class Iterates(NamedTuple):
    """The last iterate, and the mean of the iterates of the last half of the steps."""

    last: FloatArray
    tail: FloatArray


def fixed_batches_sigma(epsilon: float, delta: float, epochs: int) -> float:
    """Return the noise multiplier of DP-SGD over fixed batches: exact Gaussian composition.

    A row is in one batch an epoch and nothing is sampled: a Gaussian mechanism of squared
    sensitivity `epochs`.

    Examples
    --------
    >>> round(fixed_batches_sigma(3.0, 1e-5, 4) / fixed_batches_sigma(3.0, 1e-5, 1), 6)
    2.0
    """
    return noise_multiplier(epsilon, delta, epochs)


def dpsgd(
    objective: Objective,
    X: Rows,
    y: FloatArray,
    *,
    sigma: float,
    learning_rate: float,
    batch_size: int,
    epochs: int,
    amplified: bool,
    seed: int,
    users: Ints | None = None,
) -> Iterates:
    """Run DP-SGD: theta_(t+1) = theta_t - rate (sum of clipped gradients + noise)/batch_size.

    theta_1 = 0; the noise of a step has the standard deviation L sigma; there are
    epochs ceil(units/batch_size) steps. A batch is a Poisson sample if `amplified`; otherwise
    batches are cut in order, the same in each epoch. Rows ``users[i]`` to ``users[i + 1] - 1`` are
    those of user i, clipped as one sum, and `batch_size` counts users then.

    Examples
    --------
    >>> X, y = np.ones((100, 1)), np.full(100, 0.5)
    >>> found = dpsgd(Objective("squared", 1), X, y, sigma=0.1, learning_rate=0.5, batch_size=10,
    ...               epochs=2, amplified=False, seed=0)
    >>> found.last.shape, bool(abs(found.tail[0, 0] - 0.5) < 0.1)
    ((1, 1), True)
    """
    generator = np.random.default_rng([seed, 20210103])
    units = len(y) if users is None else users.size - 1
    pick = _picker(X, y, users)
    steps = epochs * -(-units // batch_size)
    theta = np.zeros(objective.shape)
    tail = np.zeros_like(theta)
    std = objective.clip_norm * sigma
    for step, chosen in enumerate(_batches(units, batch_size, steps, amplified, generator), 1):
        if step > steps // 2:
            tail += theta
        total = clipped_sum(objective, theta, pick(chosen))
        total += std * generator.standard_normal(theta.shape)
        theta -= learning_rate / batch_size * total
    return Iterates(theta, tail / (steps - steps // 2))


def _batches(
    units: int, size: int, steps: int, amplified: bool, generator: np.random.Generator
) -> Iterator[slice | Ints]:
    a_pass = -(-units // size)
    for step in range(steps):
        if amplified:
            yield np.flatnonzero(generator.random(units) < size / units)
        else:
            start = step % a_pass * size
            yield slice(start, min(start + size, units))


def _picker(X: Rows, y: FloatArray, users: Ints | None) -> Callable[[slice | Ints], Batch]:
    def rows(chosen: slice | Ints) -> Batch:
        return Batch(X[chosen], y[chosen])

    def whole_users(chosen: slice | Ints) -> Batch:
        assert users is not None
        if isinstance(chosen, slice):
            chosen = np.arange(chosen.start, chosen.stop)
        taken, starts = take_users(users, chosen)
        return Batch(X[taken], y[taken], starts)

    return rows if users is None else whole_users
