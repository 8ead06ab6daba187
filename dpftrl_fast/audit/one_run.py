# SPDX-License-Identifier: Apache-2.0
"""A lower bound on epsilon from one run with many canaries, each included by a fair coin.

Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", 2023 (arXiv 2305.08846).
Nothing is assumed of the scores, not even that they are independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, gammaln

from dpftrl_fast._validate import (
    finite_vector,
    integer,
    non_negative,
    optional,
    probability,
    real,
)

_LARGEST_EPSILON = 1000.0
_TRIED = 25  # numbers of guesses


@dataclass(frozen=True)
class OneRunBound:
    """A lower bound on epsilon from guesses about the coins.

    Attributes
    ----------
    epsilon : float
        Lower bound, at least 0.
    delta, confidence : float
        Of the statement that is tested, and of the bound.
    canaries, guesses, correct : int
        Coins (m), guesses that were made, the rest being abstentions (r), and correct ones (v).

    Examples
    --------
    >>> coins = np.arange(2000) % 2 == 0
    >>> found = one_run_bound(1.0 * coins, coins, delta=1e-6)  # the scores are the coins
    >>> found.correct == found.guesses, found.epsilon > 5
    (True, True)
    """

    epsilon: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    correct: int


def one_run_p_value(
    correct: int, guesses: int, canaries: int, *, epsilon: float, delta: float
) -> float:
    """Return a bound on the probability of so many correct guesses under (epsilon, delta)-DP.

    Parameters
    ----------
    correct : int
        v, the correct ones of the guesses.
    guesses : int
        r, the canaries that were guessed; those with abstention are not among them.
    canaries : int
        m, each included by a fair coin of its own.
    epsilon, delta : float
        The guarantee that is tested, for one canary.

    Returns
    -------
    float
        P[W >= v] + 2 m delta max over i = 1 .. m of P[v > W >= v - i]/i, at most 1, with W binomial
        of r trials with probability e^epsilon/(1 + e^epsilon): theorem 5.2 of Steinke et al. 2023.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> round(one_run_p_value(8, 10, 100, epsilon=0.0, delta=0.0), 4)
    0.0547
    >>> one_run_p_value(8, 10, 100, epsilon=0.0, delta=1e-3) > 0.0547
    True
    """
    m = integer("canaries", canaries, 1)
    r = integer("guesses", guesses, 0)
    v = integer("correct", correct, 0)
    if not v <= r <= m:
        raise ValueError(f"correct <= guesses <= canaries must hold, got {v}, {r} and {m}")
    budget, total = non_negative("epsilon", epsilon), real("delta", delta, least=0.0, most=1.0)
    # q as 1/(1 + e^-epsilon) does not overflow.
    q = 1.0 / (1.0 + math.exp(-budget))
    tail = float(betainc(v, r - v + 1, q)) if v > 0 else 1.0  # P[W >= v]
    if total > 0.0 and v > 0:
        k = np.arange(v - 1, -1, -1)
        log_q, log_rest = -math.log1p(math.exp(-budget)), -budget - math.log1p(math.exp(-budget))
        ways = gammaln(r + 1) - gammaln(k + 1) - gammaln(r - k + 1)
        below = np.cumsum(np.exp(ways + k * log_q + (r - k) * log_rest))
        tail += 2.0 * m * total * float((below / np.arange(1, v + 1)).max())
    return min(tail, 1.0)


def one_run_bound(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: int | None = None,
) -> OneRunBound:
    """Return the lower bound on epsilon from the scores of all canaries of a run.

    The canaries of the highest scores are guessed to be in the data, as many of the lowest to be
    out of it, and the rest is not guessed.

    Parameters
    ----------
    scores : array_like of shape (m,)
        Finite; larger where a canary was probably included.
    included : array_like of bool, shape (m,)
        The coins: fair, independent of each other and of everything else.
    delta : float
        0 <= delta < 1.
    confidence : float
        Probability that the bound is not above the true epsilon.
    guesses : int, optional
        r, an even number of at most m; by default a third of m. Choose it before the scores are
        seen (`best_guesses` does for an expected mu): the best of several would not keep the
        confidence.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(10_000) < 0.5
    >>> found = one_run_bound(rng.normal(size=10_000) + 2.0 * coins, coins, delta=1e-5)
    >>> found.guesses, 2.0 < found.epsilon < 4.0
    (3332, True)
    """
    values = finite_vector("scores", scores)
    coins = coins_of(included, values.size)
    level = probability("confidence", confidence)
    total = real("delta", delta, least=0.0, below=1.0)
    m = values.size
    given = optional(integer, "guesses", guesses, 2)
    r = 2 * (m // 6) if given is None else given
    if r > m or r % 2 or r < 2:
        raise ValueError(f"guesses must be an even number from 2 to the {m} canaries, got {r}")
    order = np.argsort(values, kind="stable")
    half = r // 2
    v = int(np.count_nonzero(coins[order[m - half :]]) + np.count_nonzero(~coins[order[:half]]))
    return OneRunBound(_bound(v, r, m, total, 1.0 - level), total, level, m, r, v)


def _bound(v: int, r: int, m: int, delta: float, error: float, *, tolerance: float = 1e-6) -> float:
    """Return nearly the largest epsilon whose p-value is at most `error`; 0 if there is none."""

    def rejected(epsilon: float) -> bool:
        return one_run_p_value(v, r, m, epsilon=epsilon, delta=delta) <= error

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high) and high < _LARGEST_EPSILON:
        low, high = high, 2.0 * high
    while high - low > tolerance:
        middle = (low + high) / 2.0
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


@lru_cache(maxsize=256)
def best_guesses(mu: float, canaries: int, *, delta: float, confidence: float = 0.95) -> int:
    """Return the number of guesses whose bound is largest where scores are Gaussian of this mu.

    It is chosen for the expected number of correct guesses, before any score is seen.

    Parameters
    ----------
    mu : float
        Difference of the means of the scores in standard deviations, finite and >= 0.
    canaries : int
        m, at least 2.
    delta, confidence
        As for :func:`one_run_bound`.

    Examples
    --------
    >>> best_guesses(1.0, 10_000, delta=1e-6), best_guesses(4.0, 10_000, delta=1e-6)
    (176, 5986)
    """
    size = integer("canaries", canaries, 2)
    level, total = probability("confidence", confidence), real("delta", delta, least=0.0, below=1.0)
    half, cdf = non_negative("mu", mu) / 2.0, NormalDist().cdf
    best, found, before = -1.0, 2, 0
    for a in np.linspace(4.0 + half, 0.0, _TRIED).tolist():
        # Scores beyond a on either side of the middle: right with `right`, else wrong.
        right, wrong = cdf(half - a), cdf(-half - a)
        r = min(2 * int(size * (right + wrong) / 2.0), size - size % 2)
        if r < 2 or r == before:
            continue
        v, before = int(r * right / (right + wrong)), r
        value = _bound(v, r, size, total, 1.0 - level, tolerance=0.01)
        if value > best:
            best, found = value, r
    return found


def coins_of(included: Any, size: int) -> NDArray[np.bool_]:
    """Return the coins as an array of `size` bools, some of either kind."""
    coins = np.asarray(included)
    if coins.dtype != np.bool_:
        raise TypeError(f"included must be an array of bool, got dtype {coins.dtype}")
    if coins.shape != (size,):
        raise ValueError(f"included must have shape ({size},), got {coins.shape}")
    return coins
