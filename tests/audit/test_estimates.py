# SPDX-License-Identifier: Apache-2.0
"""Bounds from two samples of scores, against sums of exact fractions and SciPy's noncentral t."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpftrl_fast.audit import clopper_pearson, epsilon_lower_bound, estimate_mu
from dpftrl_fast.audit.estimates import epsilon_of_mu


def tail(k: int, n: int, p: Fraction) -> Fraction:
    """P[Binomial(n, p) >= k], summed in exact fractions."""
    return sum(
        (math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1)), start=Fraction(0)
    )


@pytest.mark.parametrize("n", [1, 7, 30])
@pytest.mark.parametrize("confidence", [0.75, 0.99])
def test_the_ends_of_clopper_and_pearson_have_the_stated_tails(n: int, confidence: float) -> None:
    lower, upper = clopper_pearson(np.arange(n + 1), n, confidence)
    for k in range(n + 1):
        if k > 0:
            assert float(tail(k, n, Fraction(lower[k]))) == pytest.approx(1 - confidence, rel=1e-9)
        if k < n:
            below = 1 - tail(k + 1, n, Fraction(upper[k]))
            assert float(below) == pytest.approx(1 - confidence, rel=1e-9)
    assert lower[0] == 0.0 and upper[-1] == 1.0


def randomised_response(epsilon: float, n: int, rng: Any) -> tuple[Any, Any]:
    """Scores of a mechanism whose epsilon is exactly that, with delta 0."""
    p = 1.0 / (1.0 + math.exp(-epsilon))
    return (rng.random(n) < p) + 0.0, (rng.random(n) >= p) + 0.0


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_the_bound_exceeds_epsilon_as_rarely_as_stated_and_is_close(epsilon: float) -> None:
    rng, found = np.random.default_rng(1), []
    for _ in range(400):
        ones, zeros = randomised_response(epsilon, 400, rng)
        found.append(epsilon_lower_bound(ones, zeros, delta=0.0, confidence=0.9))
    wrong = np.mean(np.array(found) > epsilon)
    assert wrong <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 400)
    assert min(found) >= 0.0
    ones, zeros = randomised_response(epsilon, 400_000, rng)
    large = epsilon_lower_bound(ones, zeros, delta=0.0)
    assert epsilon - 0.05 < large <= epsilon + 0.02


def test_the_rates_are_counted_on_scores_that_did_not_choose_the_threshold() -> None:
    rng = np.random.default_rng(2)
    apart, same = rng.normal(size=(2, 500)) + np.array([[9.0], [0.0]]), rng.normal(size=(2, 500))
    ones, zeros = np.concatenate([apart, same], axis=1)
    assert epsilon_lower_bound(ones, zeros, delta=0.0) < 0.3  # the first half alone is apart
    assert epsilon_lower_bound(ones[::-1], zeros[::-1], delta=0.0) > 3.0


def test_delta_is_taken_off_and_the_lower_side_is_used_too() -> None:
    rng = np.random.default_rng(3)
    zeros = rng.normal(size=20_000)
    # With probability 0.1 the canary shows entirely: (0, 0.1)-DP, and nothing below 0.1.
    ones = np.where(rng.random(20_000) < 0.1, 100.0, rng.normal(size=20_000))
    assert epsilon_lower_bound(ones, zeros, delta=0.1) == 0.0
    assert epsilon_lower_bound(ones, zeros, delta=0.0) > 4.0
    assert epsilon_lower_bound(-zeros, -ones, delta=0.0) > 4.0  # found below a threshold
    assert epsilon_lower_bound(zeros, ones, delta=0.0) < 0.5


def test_the_gaussian_bound_is_below_the_curve() -> None:
    rng = np.random.default_rng(4)
    for mu in (0.5, 2.0):
        ones, zeros = rng.normal(size=(2, 100_000)) + np.array([[mu], [0.0]])
        found = epsilon_lower_bound(ones, zeros, delta=1e-3, confidence=0.999)
        assert 0.5 * epsilon_of_mu(mu, 1e-3) < found < epsilon_of_mu(mu, 1e-3)


# ---- mu ----


@pytest.mark.parametrize(("n1", "n0"), [(8, 8), (20, 60), (1000, 500)])
@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 3.0])
def test_the_interval_is_that_of_the_noncentral_t(n1: int, n0: int, mu: float) -> None:
    rng = np.random.default_rng(5)
    ones, zeros = rng.normal(size=n1) + mu, rng.normal(size=n0)
    found = estimate_mu(ones, zeros, confidence=0.9)
    t = stats.ttest_ind(ones, zeros).statistic  # another route to the same statistic
    scale = math.sqrt(1 / n1 + 1 / n0)
    assert found.mu == pytest.approx(t * scale, rel=1e-12)
    free = n1 + n0 - 2
    assert stats.nct.sf(t, free, found.low / scale) == pytest.approx(0.05, abs=4e-3)
    assert stats.nct.cdf(t, free, found.high / scale) == pytest.approx(0.05, abs=4e-3)


def test_the_interval_covers_as_often_as_stated_and_the_error_is_the_stated() -> None:
    rng, inside, found = np.random.default_rng(6), 0, []
    for _ in range(2000):
        one = estimate_mu(rng.normal(size=60) * 7 + 14.0, rng.normal(size=40) * 7, confidence=0.8)
        inside += one.low < 2.0 < one.high
        found.append(one)
    assert abs(inside / 2000 - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 2000)
    spread = np.std([one.mu for one in found])
    assert np.mean([one.stderr for one in found]) == pytest.approx(spread, rel=0.1)
    assert found[0].gaussian_epsilon(1e-5) == epsilon_of_mu(found[0].low, 1e-5)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: estimate_mu([1, 2, 3], [1, 2, 3, 4]), ValueError, "with_canary must hold at lea"),
        (lambda: estimate_mu([1.0] * 4, [1.0] * 4), ValueError, "scores must vary"),
        (lambda: estimate_mu([1, 2, 3, math.nan], [0] * 4), ValueError, "with_canary must be fin"),
        (lambda: estimate_mu(["a"] * 4, [0] * 4), TypeError, "with_canary must be an array of re"),
        (lambda: epsilon_lower_bound([1] * 4, [0] * 4, delta=1.0), ValueError, "delta must be"),
        (lambda: epsilon_lower_bound([1] * 4, [0] * 3, delta=0), ValueError, "without_canary must"),
        (lambda: clopper_pearson([1], 2, 1.0), ValueError, "confidence must be"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
