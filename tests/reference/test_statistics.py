# SPDX-License-Identifier: Apache-2.0
"""Is the stream of `dpftrl_fast.reference` normal and independent? With negative controls.

Seeds are fixed. A threshold is one that a good stream exceeds with a chance of about 1e-3; the
controls, each wrong in a small way, exceed it by far.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from dpftrl_fast.reference import TreeNoise, covariance, key_from_seed, normals

DTYPES = ["float32", "float64"]
N = 1 << 19


@pytest.fixture(scope="module", params=DTYPES)
def sample(request: pytest.FixtureRequest) -> np.ndarray:
    """2^19 normals of one node, in float64."""
    key = key_from_seed(20210600)
    z = normals(key, tree=0, level=3, index=1, start=0, size=N, dtype=request.param)
    return z.astype(np.float64)


def kolmogorov_smirnov(z: np.ndarray) -> float:
    """sqrt(n) times the largest distance to the distribution function; 1.95 has chance 1e-3."""
    above = np.arange(1, z.size + 1) / z.size - special.ndtr(np.sort(z))
    return math.sqrt(z.size) * float(max(above.max(), 1 / z.size - above.min()))


def anderson_darling(z: np.ndarray) -> float:
    """A^2 for N(0, 1), nothing estimated; 6.0 has chance 1e-3."""
    z = np.sort(z)
    odd = 2 * np.arange(1, z.size + 1) - 1
    terms = odd * (special.log_ndtr(z) + special.log_ndtr(-z[::-1]))
    return float(-z.size - terms.mean())


def worst_moment(z: np.ndarray) -> float:
    """Mean of the Hermite polynomials 1 .. 8 in units of their standard error (independent)."""
    errors = []
    for n in range(1, 9):
        hermite = special.eval_hermitenorm(n, z) / math.sqrt(math.factorial(n))
        errors.append(abs(hermite.mean()) * math.sqrt(z.size))
    return max(errors)


@pytest.mark.parametrize(
    ("statistic", "limit"),
    [(kolmogorov_smirnov, 1.95), (anderson_darling, 6.0), (worst_moment, 4.0)],
)
def test_normals_are_normal(sample: np.ndarray, statistic, limit: float) -> None:
    assert statistic(sample) < limit
    for wrong in (0.97 * sample, 1.03 * sample, sample + 0.02, np.clip(sample, -2.0, 2.0)):
        assert statistic(wrong) > 1.5 * limit


def test_tails(sample: np.ndarray) -> None:
    def excess(z: np.ndarray, at: float) -> float:
        expected = z.size * special.erfc(at / math.sqrt(2))
        return float((np.abs(z) > at).sum() - expected) / math.sqrt(expected)

    for at in (2.0, 3.0, 4.0):
        assert abs(excess(sample, at)) < 4
        for sign in (-1, 1):
            expected = N * special.ndtr(-at)
            assert abs((sign * sample > at).sum() - expected) < 4 * math.sqrt(expected)
    assert excess(0.97 * sample, 3.0) < -6
    assert excess(np.clip(sample, -3.9, 3.9), 4.0) < -5


def test_radius_and_angle_of_a_pair_are_independent() -> None:
    z = normals(key_from_seed(1), tree=0, level=0, index=0, start=0, size=N).astype(float)
    first, second = z.reshape(-1, 2, 128).swapaxes(0, 1).reshape(2, -1)
    chance = np.exp(-(first**2 + second**2) / 2)  # uniform
    turn = np.arctan2(second, first) / (2 * np.pi) % 1  # uniform

    def chi_squared(a: np.ndarray, b: np.ndarray) -> float:
        counts = np.histogram2d(a, b, bins=32, range=((0, 1), (0, 1)))[0]
        return float(stats.chisquare(counts.ravel()).pvalue)

    assert chi_squared(chance, turn) > 1e-3
    assert chi_squared(chance, (turn + 0.1 * chance) % 1) > 1e-3  # still uniform and independent
    assert chi_squared(chance, turn**1.05) < 1e-9
    assert chi_squared(chance, np.where(chance < 0.1, turn * 0.9, turn)) < 1e-9


# --- nothing in common at any lag -----------------------------------------------------------------


def peak(a: np.ndarray, b: np.ndarray, skip_zero: bool = False) -> float:
    """Largest |circular cross-correlation| over all lags, in standard deviations."""
    spectrum = np.fft.rfft(a) * np.conj(np.fft.rfft(b))
    correlation = np.fft.irfft(spectrum, a.size) / math.sqrt(a.size)
    return float(np.abs(correlation[1:] if skip_zero else correlation).max())


# Of 2^16 normal lags the largest is about 4.5; above 5.6 with chance 1.4e-3.
LAGS = 1 << 16
LIMIT = 5.6


def stream(seed: int | bytes, **change) -> np.ndarray:
    node = dict(tree=0, level=0, index=0, start=0, size=LAGS, dtype="float32") | change
    return normals(key_from_seed(seed), **node).astype(float)


def test_seeds_are_unrelated_at_every_lag() -> None:
    streams = [stream(seed) for seed in (0, 1, 2, b"\x00", 2**64)]
    for n, a in enumerate(streams):
        assert peak(a, a, skip_zero=True) < LIMIT
        for b in streams[:n]:
            assert peak(a, b) < LIMIT
            assert peak((a**2 - 1) / math.sqrt(2), (b**2 - 1) / math.sqrt(2)) < LIMIT


def test_the_lag_test_finds_a_shifted_copy() -> None:
    a, b = stream(0), stream(1)
    assert peak(a, np.roll(a, 12_345)) > 200
    assert peak(a, np.roll(a, 12_345) * 0.05 + b) > 2 * LIMIT
    assert peak(a, -np.roll(a, -1)) > 200


def test_uses_of_one_key_are_unrelated_at_every_lag() -> None:
    changes = [
        {},
        {"start": LAGS},
        {"tree": 1},
        {"tree": 1 << 16},
        {"index": 1},
        {"level": 1},
        {"level": 32},
        {"purpose": 1},
        {"dtype": "float64"},
        {"rounds": 20},
    ]
    streams = [stream(0, **change) for change in changes]
    for n, a in enumerate(streams):
        for b in streams[:n]:
            assert peak(a, b) < LIMIT


# --- over time ------------------------------------------------------------------------------------


def covariance_error(b: np.ndarray, expected: np.ndarray) -> float:
    """Largest error of an entry of the empirical covariance of the rows, in standard errors."""
    n = b.shape[1]
    variance = np.diag(expected)
    standard_error = np.sqrt((np.outer(variance, variance) + expected**2) / n)
    return float((np.abs(b @ b.T / n - expected) / standard_error).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", ["vanilla", "honaker"])
def test_covariance_over_time(variant: str, dtype: str) -> None:
    """Of (b_1, .., b_16) over 2^15 coordinates: every entry, not only the variances."""
    steps, std = 16, 1.7
    tree = TreeNoise(1 << 15, std, seed=16, variant=variant, dtype=dtype)
    b = np.array([tree.step() for _ in range(steps)], float)
    exact = np.array(covariance(steps, variant), float)
    assert covariance_error(b, std**2 * exact) < 4.2
    other = np.array(
        covariance(steps, {"vanilla": "honaker", "honaker": "vanilla"}[variant]), float
    )
    independent = np.diag(np.diag(exact))  # the right variances alone
    for wrong in (1.03**2 * exact, 0.97**2 * exact, other, independent):
        assert covariance_error(b, std**2 * wrong) > 5.5


def test_a_restart_is_independent_of_the_tree_before() -> None:
    tree = TreeNoise(1 << 15, 1.0, seed=17)
    before = np.array([tree.step() for _ in range(5)], float)
    tree.restart(complete=True)
    carry = tree._carry.astype(float)
    after = np.array([tree.step() for _ in range(5)], float)
    exact = np.array(covariance(8), float)
    block = np.zeros((10, 10))
    block[:5, :5] = exact[:5, :5]
    block[5:, 5:] = exact[:5, :5]
    assert covariance_error(np.concatenate((before, after - carry)), block) < 4.2
    # with the carry, which is b_8 of the tree before
    block[:5, 5:] = exact[:5, 7:]
    block[5:, :5] = exact[7:, :5]
    block[5:, 5:] += exact[7, 7]
    assert covariance_error(np.concatenate((before, after)), block) < 4.2
    assert covariance_error(np.concatenate((before, after - carry)), block) > 20
