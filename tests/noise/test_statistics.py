# SPDX-License-Identifier: Apache-2.0
"""Is what the core makes normal, and correlated over time as it should be? With negative controls.

Seeds are fixed. A threshold is one that good noise exceeds with a chance of about 1e-3 or less;
each control, wrong in a small way, exceeds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import dpftrl_fast as dpf
from dpftrl_fast import reference

DTYPES: list[Any] = ["float32", "float64"]
N = 1 << 20


def node(seed: int, size: int, dtype: Any, level: int = 0, index: int = 0) -> np.ndarray:
    noise = dpf.TreeNoise(size, 1.0, seed=seed, dtype=dtype)
    return np.asarray(noise.node(level, index), np.float64)


def kolmogorov_smirnov(z: np.ndarray) -> float:
    """sqrt(n) times the largest distance to the distribution function; 1.95 has chance 1e-3."""
    below = special.ndtr(np.sort(z))
    grid = np.arange(z.size + 1) / z.size
    return math.sqrt(z.size) * float(max((grid[1:] - below).max(), (below - grid[:-1]).max()))


def anderson_darling(z: np.ndarray) -> float:
    """A^2 of N(0, 1), nothing estimated; 6.0 has chance 1e-3."""
    z = np.sort(z)
    odd = 2 * np.arange(1, z.size + 1) - 1
    return float(-z.size - (odd * (special.log_ndtr(z) + special.log_ndtr(-z[::-1]))).mean())


def variance(z: np.ndarray) -> float:
    """Standard errors of the mean square from 1."""
    return abs(float((z * z).mean()) - 1) * math.sqrt(z.size / 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("statistic", "limit"), [(kolmogorov_smirnov, 1.95), (anderson_darling, 6.0), (variance, 3.5)]
)
def test_one_node_is_normal(
    statistic: Callable[[np.ndarray], float], limit: float, dtype: Any
) -> None:
    z = node(1, N, dtype, level=5, index=9)
    assert statistic(z) < limit
    assert statistic(0.97 * z) > 3 * limit
    assert statistic(1.03 * z) > 3 * limit
    if statistic is not variance:
        assert statistic(z + 0.01) > 2 * limit


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", ["vanilla", "honaker"])
def test_variance_at_each_step(variant: Any, dtype: Any) -> None:
    """Var b_t = std^2 times the factor: 2.05 at t = 25 and 0.51 at t = 32 for Honaker."""
    noise = dpf.TreeNoise(N // 8, 3.0, seed=2, variant=variant, dtype=dtype)
    for t in (1, 2, 3, 25, 32, 63, 100):
        factor = float(reference.variance_factor(t, variant))
        z = np.asarray(noise.prefix(t), np.float64) / (3.0 * math.sqrt(factor))
        assert variance(z) < 3.5
        assert variance(0.97 * z) > 10
    if variant == "honaker":
        assert round(float(reference.variance_factor(25)), 2) == 2.05
        assert round(float(reference.variance_factor(32)), 2) == 0.51


def worst_entry(b: np.ndarray, exact: np.ndarray) -> float:
    """Largest difference of empirical second moments from exact ones, in standard errors."""
    n = b.shape[1]
    empirical = b @ b.T / n
    error = np.sqrt((exact**2 + np.outer(np.diag(exact), np.diag(exact))) / n)
    return float((np.abs(empirical - exact) / error).max())


@pytest.mark.parametrize(("memory", "dtype"), [("stored", "float32"), ("regenerate", "float64")])
@pytest.mark.parametrize("variant", ["vanilla", "honaker"])
def test_covariance_over_time(variant: Any, memory: Any, dtype: Any) -> None:
    """All of Cov(b_1, .., b_64), with the steps as the object returns them."""
    exact = np.array(reference.covariance(64, variant), np.float64)
    noise = dpf.TreeNoise(40_000, 1.0, seed=3, variant=variant, memory=memory, dtype=dtype)
    b = np.array([noise.step() for _ in range(64)], np.float64)
    assert worst_entry(b, exact) < 5.0  # of 2080 entries
    assert worst_entry(0.97 * b, exact) > 8.0
    other = "honaker" if variant == "vanilla" else "vanilla"
    assert worst_entry(b, np.array(reference.covariance(64, other), np.float64)) > 50
    # Right variances with wrong correlations: each step's noise by itself.
    shuffled = np.array([np.roll(row, t) for t, row in enumerate(b)])
    assert worst_entry(shuffled, exact) > 50


def test_residuals_have_the_covariance_of_differences() -> None:
    exact = np.array(reference.covariance(32), np.float64)
    difference = np.eye(32) - np.eye(32, k=-1)
    noise = dpf.TreeNoise(40_000, 1.0, seed=4)
    residuals = np.array([noise.residual() for _ in range(32)], np.float64)
    expected = difference @ exact @ difference.T
    assert worst_entry(residuals, expected) < 5.0
    assert worst_entry(0.97 * residuals, expected) > 8.0


def test_after_a_restart_the_carry_stays_and_the_rest_is_fresh() -> None:
    noise = dpf.TreeNoise(100_000, 1.0, seed=5, variant="vanilla")
    for _ in range(3):
        last = noise.step().astype(np.float64)
    noise.restart()
    after = noise.step().astype(np.float64)
    n = math.sqrt(last.size)
    assert abs((last * after).mean() - 2.0) * n / math.sqrt(4 + 2 * 3) < 4  # Var b_3 = 2
    assert abs((last * (after - last)).mean()) * n / math.sqrt(2) < 4
    assert abs(((after - last) ** 2).mean() - 1) * n / math.sqrt(2) < 4


# --- seeds, nodes, purposes: nothing in common at any lag -------------------------------------


def peak(a: np.ndarray, b: np.ndarray) -> float:
    """Largest |circular cross-correlation| over all lags, in standard deviations."""
    spectrum = np.fft.rfft(a) * np.conj(np.fft.rfft(b))
    return float(np.abs(np.fft.irfft(spectrum, a.size)).max() / math.sqrt(a.size))


LAGS = 1 << 20
LIMIT = 6.2  # of 2^20 lags: chance 6e-4 for one pair


@pytest.mark.parametrize("dtype", DTYPES)
def test_seeds_are_unrelated_at_every_lag(dtype: Any) -> None:
    z = [node(seed, LAGS, dtype) for seed in range(3)]
    for i, j in ((0, 1), (1, 2), (0, 2)):
        assert peak(z[i], z[j]) < LIMIT
    # A seed whose stream is another one's shifted by one draw, and a faint trace of one.
    assert peak(z[0], np.roll(z[0], 1)) > 1000
    assert peak(z[0], z[1] + 0.01 * np.roll(z[0], 12345)) > 1.5 * LIMIT


def test_streams_of_one_seed_are_unrelated_at_every_lag() -> None:
    def make(**change: Any) -> np.ndarray:
        noise = dpf.TreeNoise(LAGS // 4, 1.0, seed=6, **change)
        return np.asarray(noise.node(0, 0), np.float64)

    base = dpf.TreeNoise(LAGS // 4, 1.0, seed=6)
    base.step()
    base.restart()
    others = [
        np.asarray(base.node(0, 0), np.float64),  # the next tree
        np.asarray(base.node(0, 1), np.float64),
        make(dtype="float64"),
        make(rounds=20),
        make(purpose="covariance"),
        make(purpose="clip-norm"),
        make(offset=LAGS // 4),
        np.random.Generator(dpf.ChaCha(6)).standard_normal(LAGS // 4),
    ]
    first = make()
    for other in others:
        assert peak(first, other) < LIMIT
    assert peak(first, first) > 100


# --- far tails --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_tails_of_a_thousand_million(dtype: Any) -> None:
    """Counts beyond 4 and 5 standard deviations among 10^9, each side, against the normal's."""
    chunk = 1 << 22
    chunks = 239
    noise = dpf.TreeNoise(chunk, 1.0, seed=7, dtype=dtype)
    z = np.empty(chunk, dtype)
    bounds = (4.0, 5.0)
    counts = np.zeros((2, 2, 2))  # (as it is or at 0.97, side, bound)
    largest = 0.0
    for index in range(chunks):
        noise.node(0, index, out=z)
        tail = z[np.abs(z) > 3.8].astype(np.float64)
        largest = max(largest, float(np.abs(tail).max()))
        for control, scale in enumerate((1.0, 0.97)):
            for side, sign in enumerate((1, -1)):
                for b, bound in enumerate(bounds):
                    counts[control, side, b] += (sign * scale * tail > bound).sum()
    n = chunk * chunks
    expected = n * special.ndtr(-np.array(bounds))  # 31748 and 287
    assert expected[1] > 250
    deviations = (counts - expected) / np.sqrt(expected)
    assert np.abs(deviations[0]).max() < 4
    assert (deviations[1] < -5).all()
    assert 5.6 < largest < 9.5
