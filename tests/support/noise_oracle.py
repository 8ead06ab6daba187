# SPDX-License-Identifier: Apache-2.0
"""Noise of running sums under every mechanism: matrices times the vectors of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast import PrivacyPlan, reference
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.reference.stream import normals
from dpftrl_fast.reference.toeplitz import strategy_matrix

Matrix = NDArray[np.float64]


def strategy_of(mechanism: Any, steps: int) -> Matrix:
    """C of a block of a Toeplitz mechanism, from its numbers by their definition."""
    kind, first, second = mechanism.engine
    return strategy_matrix(kind, first, second, steps=steps)


def sum_matrix(mechanism: Any, lengths: Sequence[int]) -> Matrix:
    """A C^-1 for blocks of these lengths, A all ones below the diagonal."""
    steps = sum(lengths)
    strategy, start = np.zeros((steps, steps)), 0
    for length in lengths:
        part = slice(start, start + length)
        strategy[part, part] = strategy_of(mechanism, length)
        start += length
    return np.asarray(np.tril(np.ones((steps, steps))) @ np.linalg.inv(strategy))


def toeplitz_sums(
    plan: PrivacyPlan, size: int, key: bytes, lengths: Sequence[int], dtype: Any = "float64"
) -> Matrix:
    """The noise of each running sum, of shape (steps, size), for blocks of these lengths."""
    std = plan.clip_norm * plan.noise_multiplier
    vectors = [
        normals(key, tree=block, level=0, index=t, start=0, size=size, dtype=dtype, purpose=3)
        for block, length in enumerate(lengths)
        for t in range(length)
    ]
    return sum_matrix(plan.mechanism, lengths) @ (std * np.array(vectors, np.float64))


def noise_of_sums(plan: PrivacyPlan, size: int, key: bytes, dtype: Any = "float64") -> Matrix:
    """The noise of each running sum of a plan, of shape (steps, size)."""
    if not isinstance(plan.mechanism, Tree):
        lengths = [block.steps for block, count in plan.layout.blocks() for _ in range(count)]
        return toeplitz_sums(plan, size, key, lengths, dtype)
    tree, found = plan.mechanism, []
    noise = reference.TreeNoise(
        size, plan.clip_norm * plan.noise_multiplier, variant=tree.variant, key=key, dtype=dtype
    )
    for _ in range(plan.steps):
        if noise.t == tree.restart_every:
            noise.restart(complete=bool(tree.complete))
        found.append(noise.step())
    return np.array(found, np.float64)
