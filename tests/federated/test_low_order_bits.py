# SPDX-License-Identifier: Apache-2.0
"""The low-order bits of federated sums and models, and of a clip norm, tell nothing of a client."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from low_order_bits import FEW, MANY, scores
from mechanism_cases import MECHANISMS

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.federated import AdaptiveClipping, PrivateRounds, ServerDPFTRL
from dpftrl_fast.mechanisms import Tree

Array = np.ndarray[Any, np.dtype[np.float64]]
D, T, SIGMA = 256, 4, 10.0


def update(number: int, norm: float) -> Array:
    g = np.random.default_rng(number).normal(size=D)
    return np.asarray(g * norm / np.linalg.norm(g))


def attack(kind: str, name: str, dtype: Any, norm: float, runs: int) -> None:
    plan = PrivacyPlan(1.0, SIGMA, SinglePass(T), MECHANISMS[name])

    def run(has_client: bool, number: int) -> tuple[Array, Array]:
        options: dict[str, Any] = {"plan": plan, "report_goal": 2, "dtype": dtype, "threads": 1}
        if kind == "ServerDPFTRL":
            server: Any = ServerDPFTRL([np.zeros(D)], learning_rate=1.0, **options)
        else:
            server = PrivateRounds([np.zeros(D)], **options)
        released, rest = [], np.zeros((T, D))
        for t in range(T):
            now = server.begin_round([2 * t, 2 * t + 1])
            if number // 2 % 2:
                rest[t] = update(10 * number + t, 0.5)
            now.add(2 * t, [rest[t]])
            if t == 2:
                now.add(5, [update(number, norm) if has_client else np.zeros(D)])
            out = server.end_round("residual") if kind == "residuals" else server.end_round()
            released.append(2 * out[0] if kind == "ServerDPFTRL" else np.ravel(out))
        values = np.array(released)
        return values, rest if kind == "residuals" else rest.cumsum(axis=0)

    found = scores(run, plan.noise_spec.grid(dtype), runs)
    assert max(found.values()) < 6.0, found


@pytest.mark.parametrize("norm", [0.1, 1e-6])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["sums", "residuals", "ServerDPFTRL"])
@pytest.mark.parametrize("name", ["tree", "two taps"])
def test_clients(name: str, kind: str, dtype: Any, norm: float) -> None:
    attack(kind, name, dtype, norm, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("norm", [0.1, 1e-6])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["sums", "residuals", "ServerDPFTRL"])
def test_many_clients(kind: str, dtype: Any, norm: float) -> None:
    attack(kind, "tree", dtype, norm, MANY)


def test_a_clip_norm_is_a_function_of_a_count_on_the_grid() -> None:
    """The noise on counts has deviation 5 sqrt(1/2): the grid of halves of bits is 2^-6."""
    plan = PrivacyPlan(1.0, 5.0, SinglePass(4), mechanism=Tree(restart_every=1))
    clipping, seen = AdaptiveClipping(noise_multiplier=10.0, learning_rate=0.2), []
    for clients in range(8):
        rounds = PrivateRounds(
            [np.zeros(3)], plan=plan, report_goal=20, clipping=clipping, threads=1
        )
        now = rounds.begin_round(list(range(8)))
        for client in range(clients):
            now.add(client, [np.full(3, 0.1)])
        rounds.end_round()
        rounds.begin_round([])
        fraction = clipping.quantile - math.log(rounds.clip_norm / 1.0) / 0.2
        seen.append((fraction - 0.5) * 20 / 2.0**-6)
    inside = [value for value in seen if abs(value) < 0.49 * 20 / 2.0**-6]
    assert len(inside) > 3
    assert np.allclose(inside, np.round(inside), atol=1e-6) and len(set(np.round(inside))) > 2
