# SPDX-License-Identifier: Apache-2.0
"""Exact epsilon and its inverse: ours, decimal arithmetic, and what one would write with SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr

from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.curve.gaussian_decimal import decimal_epsilon, decimal_noise_multiplier


def scipy_log_delta(sigma: float, zeta: float, eps: float) -> float:
    mu = math.sqrt(zeta) / sigma
    first = log_ndtr(mu / 2 - eps / mu)
    return float(first + math.log1p(-math.exp(eps + log_ndtr(-mu / 2 - eps / mu) - first)))


def scipy_epsilon(sigma: float, zeta: float, delta: float) -> float:
    target = math.log(delta)
    mu = math.sqrt(zeta) / sigma
    high = mu * mu / 2 + mu * math.sqrt(-2 * target)
    return float(brentq(lambda eps: scipy_log_delta(sigma, zeta, eps) - target, 0.0, high))


def scipy_noise_multiplier(eps: float, delta: float, zeta: float) -> float:
    target = math.log(delta)
    return float(
        brentq(lambda sigma: scipy_log_delta(sigma, zeta, eps) - target, 1e-2, 1e4, xtol=1e-12)
    )


EPSILON: dict[str, Callable[[float, int, float], float]] = {
    "dpftrl_fast": acc.epsilon,
    "decimal": decimal_epsilon,
    "scipy brentq": scipy_epsilon,
}
NOISE_MULTIPLIER: dict[str, Callable[[float, float, int], float]] = {
    "dpftrl_fast": acc.noise_multiplier,
    "decimal": decimal_noise_multiplier,
    "scipy brentq": scipy_noise_multiplier,
}


@pytest.mark.parametrize("name", EPSILON)
@pytest.mark.benchmark(group="epsilon(2.33, 11, 1e-6)")
def test_epsilon(benchmark: Any, name: str) -> None:
    got = benchmark(EPSILON[name], 2.33, 11, 1e-6)
    assert got == pytest.approx(acc.epsilon(2.33, 11, 1e-6), rel=1e-9)


@pytest.mark.parametrize("name", NOISE_MULTIPLIER)
@pytest.mark.benchmark(group="noise_multiplier(8, 1e-5, 1570)")
def test_noise_multiplier(benchmark: Any, name: str) -> None:
    got = benchmark(NOISE_MULTIPLIER[name], 8.0, 1e-5, 1570)
    assert got == pytest.approx(acc.noise_multiplier(8.0, 1e-5, 1570), rel=1e-9)


@pytest.mark.parametrize("bound", ["exact", "released"])
@pytest.mark.benchmark(group="32 schedules of 10,000 steps")
def test_plan_of_schedules(benchmark: Any, bound: Any) -> None:
    periods = [100 * epochs for epochs in (1, 2, 4, 5, 10, 20, 25, 50)]
    table = benchmark(
        acc.plan_schedule,
        8.0,
        1e-5,
        steps_per_epoch=100,
        epochs=100,
        restart_every=periods,
        variants=("honaker", "vanilla"),
        bound=bound,
    )
    assert len(table) == 32
    assert table.best.restart_every == 500
