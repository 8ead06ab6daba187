# SPDX-License-Identifier: Apache-2.0
"""The bound of one run: sums of exact terms, mechanisms whose epsilon is known, and refusals."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from dpftrl_fast.audit import best_guesses, one_run_bound, one_run_p_value


def by_definition(v: int, r: int, m: int, epsilon: float, delta: float) -> float:
    """P[W >= v] + 2 m delta max_i P[v > W >= v - i]/i, each term in 50 digits."""
    with mpmath.workdps(50):
        q = mpmath.e**epsilon / (1 + mpmath.e**epsilon)
        mass = [mpmath.binomial(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
        most = max(
            mpmath.fsum(mass[k] for k in range(max(0, v - i), v)) / i for i in range(1, m + 1)
        )
        return float(min(1, mpmath.fsum(mass[v:]) + 2 * m * delta * most))


@pytest.mark.parametrize("m", [1, 5, 24])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.7, 1e-3), (3.0, 0.02), (9.0, 1e-6)])
def test_the_p_value_is_that_of_the_theorem(m: int, epsilon: float, delta: float) -> None:
    for r in {0, m // 2, m}:
        for v in range(r + 1):
            found = one_run_p_value(v, r, m, epsilon=epsilon, delta=delta)
            assert found == pytest.approx(by_definition(v, r, m, epsilon, delta), rel=1e-9)


def test_it_holds_for_the_worst_mechanism_in_a_small_world() -> None:
    """Randomised response on each coin, and with probability delta the coin itself: all outcomes.

    Its guarantee is (epsilon, delta); no count of correct guesses may be more likely than stated.
    """
    m, epsilon = 9, 0.8
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    for delta in (0.0, 0.01, 0.2):
        right = delta + (1 - delta) * q  # of each guess, independently
        for v in range(m + 1):
            exact = sum(
                math.comb(m, k) * right**k * (1 - right) ** (m - k) for k in range(v, m + 1)
            )
            stated = one_run_p_value(v, m, m, epsilon=epsilon, delta=delta)
            assert exact <= stated + 1e-12
            if delta == 0.0:
                assert exact == pytest.approx(stated, rel=1e-12)  # and it is attained


def test_the_bound_inverts_the_p_value() -> None:
    rng = np.random.default_rng(0)
    coins = rng.random(400) < 0.5
    scores = rng.normal(size=400) + 2.0 * coins
    found = one_run_bound(scores, coins, delta=1e-4, confidence=0.95, guesses=120)
    order = np.argsort(scores)
    assert found.correct == int(np.sum(coins[order[-60:]]) + np.sum(~coins[order[:60]]))
    assert (found.guesses, found.canaries) == (120, 400)
    at = by_definition(found.correct, 120, 400, found.epsilon, 1e-4)
    above = by_definition(found.correct, 120, 400, found.epsilon + 2e-6, 1e-4)
    assert at <= 0.05 < above


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_false_alarms_are_as_rare_as_stated(epsilon: float) -> None:
    rng, wrong = np.random.default_rng(1), 0
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    for _ in range(1000):
        coins = rng.random(300) < 0.5
        answers = coins ^ (rng.random(300) > q)
        found = one_run_bound(answers + 0.1 * rng.random(300), coins, delta=0.0, confidence=0.9)
        wrong += found.epsilon > epsilon
    assert wrong / 1000 <= 0.1 + 3 * math.sqrt(0.09 / 1000)
    assert wrong / 1000 > 0.02  # the bound is not idle


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("m", "delta"), [(20_000, 0.0), (5000, 1e-5), (60_000, 1e-6)])
def test_guesses_chosen_ahead_are_nearly_the_best(mu: float, m: int, delta: float) -> None:
    rng = np.random.default_rng(2)
    chosen, tried = [], []
    numbers = [2 * int(r) for r in np.geomspace(10, m // 2, 12)]
    for _ in range(4):
        coins = rng.random(m) < 0.5
        scores = rng.normal(size=m) + mu * coins
        best = best_guesses(mu, m, delta=delta)
        chosen.append(one_run_bound(scores, coins, delta=delta, guesses=best).epsilon)
        tried.append(
            [one_run_bound(scores, coins, delta=delta, guesses=r).epsilon for r in numbers]
        )
    assert np.mean(chosen) > 0.85 * np.mean(tried, axis=0).max()


def test_scores_may_depend_on_each_other() -> None:
    """A mechanism that publishes one fair coin for all: epsilon is 0, whatever the scores."""
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(300):
        coins = rng.random(200) < 0.5
        scores = np.full(200, float(rng.random() < 0.5)) + 1e-9 * np.arange(200)
        wrong += one_run_bound(scores, coins, delta=0.0, confidence=0.9).epsilon > 0
    assert wrong / 300 <= 0.1 + 3 * math.sqrt(0.09 / 300)


COINS = np.array([True, False] * 8)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: one_run_p_value(3, 2, 9, epsilon=1, delta=0), ValueError, "correct <= guesses"),
        (lambda: one_run_p_value(1, 2, 9, epsilon=-1, delta=0), ValueError, "epsilon must be"),
        (lambda: one_run_bound(np.ones(16), COINS * 1, delta=0), TypeError, "included must be an"),
        (lambda: one_run_bound(np.ones(15), COINS, delta=0), ValueError, "included must have sha"),
        (lambda: one_run_bound(np.ones(16), COINS, delta=0, guesses=3), ValueError, "even number"),
        (lambda: one_run_bound(np.ones(16), COINS, delta=0, guesses=18), ValueError, "even number"),
        (lambda: one_run_bound(np.ones(16), COINS, delta=1), ValueError, "delta must be"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
