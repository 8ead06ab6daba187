# SPDX-License-Identifier: Apache-2.0
"""Training of a small model with the noise of a plan, in NumPy: the oracle of tests/jax."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast import PrivacyPlan

SEED, BATCH, RATE = 3, 8, 0.05
#: Leaves in the order of JAX: by the names of a dictionary.
SHAPES: dict[str, tuple[int, ...]] = {"a": (3, 4), "b": (), "c": (5,), "d": (2, 1, 3)}
SIZE = sum(int(np.prod(shape)) for shape in SHAPES.values())

Array = NDArray[Any]


def flat(tree: dict[str, Any]) -> Array:
    return np.concatenate([np.asarray(tree[name]).reshape(-1) for name in SHAPES])


def unflattened(vector: Array) -> dict[str, Array]:
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES.values()])[:-1]
    parts = np.split(vector, ends)
    return {
        name: part.reshape(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)
    }


def first_parameters() -> Array:
    return np.random.default_rng(0).standard_normal(SIZE)


def targets(steps: int) -> Array:
    """Rows whose distance from the parameters is the sum of a step."""
    return np.random.default_rng(1).standard_normal((steps, SIZE))


class Sgd:
    def step(self, mean: Array) -> Array:
        return -RATE * mean


class Adam:
    """Kingma and Ba 2015, algorithm 1."""

    def __init__(self) -> None:
        self.m, self.v, self.t = np.zeros(SIZE), np.zeros(SIZE), 0

    def step(self, mean: Array) -> Array:
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * mean
        self.v = 0.999 * self.v + 0.001 * mean**2
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return -RATE * m / (np.sqrt(v) + 1e-8)


def trained(plan: PrivacyPlan, rule: Any, dtype: Any, sums_dtype: Any) -> Array:
    """Parameters after all steps, in float64, with sums of the JAX program's dtype."""
    theta, rows = first_parameters(), targets(plan.steps)
    noise = plan.noise(SIZE, seed=SEED, dtype=dtype)
    kind = noise.dtype.type
    remainder = np.zeros(SIZE, dtype)
    for t in range(plan.steps):
        g = (theta - rows[t]).astype(sums_dtype)
        x = remainder + (noise.residual() + g).astype(dtype)
        w = np.floor(x / kind(noise.grid) + kind(0.5)) * kind(noise.grid)
        remainder = x - w
        theta = theta + rule.step(w.astype(np.float64) / BATCH)
    return theta
