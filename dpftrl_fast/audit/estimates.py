# SPDX-License-Identifier: Apache-2.0
"""Bounds from scores of canaries in independent runs: epsilon by counting, mu by the Gaussian law.

A score is a number for each canary, larger where the canary was probably in the data. Scores of
runs (or of coordinates) with the canary and without it are two samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta

from dpftrl_fast._validate import finite_vector, probability, real
from dpftrl_fast.accounting.curve import gaussian

Vector = NDArray[np.float64]

#: Largest number of thresholds that are tried on the first half of the scores.
_THRESHOLDS = 2000


def clopper_pearson(successes: ArrayLike, trials: int, confidence: float) -> tuple[Vector, Vector]:
    """Return one-sided lower and upper bounds of a probability from counts.

    Parameters
    ----------
    successes : array_like of int
        Counts, 0 to `trials`.
    trials : int
        Independent trials behind each count, >= 1.
    confidence : float
        Of each bound by itself.

    Returns
    -------
    lower, upper : arrays of float64 of the shape of `successes`

    References
    ----------
    .. [1] Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of
       the binomial", Biometrika 26, 1934.

    Examples
    --------
    >>> lower, upper = clopper_pearson([0, 5, 10], 10, 0.95)
    >>> lower.round(4).tolist(), upper.round(4).tolist()
    ([0.0, 0.2224, 0.7411], [0.2589, 0.7776, 1.0])
    """
    level = probability("confidence", confidence)
    k = np.asarray(successes, dtype=np.float64)
    with np.errstate(all="ignore"):
        lower = np.where(k == 0, 0.0, beta.ppf(1.0 - level, k, trials - k + 1.0))
        upper = np.where(k == trials, 1.0, beta.ppf(level, k + 1.0, trials - k))
    return np.asarray(lower), np.asarray(upper)


def epsilon_lower_bound(
    with_canary: ArrayLike,
    without_canary: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Return a lower bound on epsilon at `delta` from scores of independent runs.

    An (epsilon, delta)-private mechanism cannot tell its neighbours apart better than

        P[score > c with] <= e^epsilon P[score > c without] + delta

    for every c, and the same for scores of at most c with the two exchanged. The threshold and the
    side are chosen on the first half of either sample, and the rates are counted on the second, so
    that no correction for many thresholds is needed. Nothing is assumed of the scores but that they
    are independent, and of one law in each sample.

    Parameters
    ----------
    with_canary, without_canary : array_like of shape (n,)
        Scores, finite, at least 4 in each.
    delta : float
        0 <= delta < 1.
    confidence : float
        Probability, over the runs, that the bound is not above the true epsilon.

    Returns
    -------
    float
        At least 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(size=(2, 10_000)) + [[1.0], [0.0]]
    >>> 1.0 < epsilon_lower_bound(*scores, delta=1e-5) < gaussian.epsilon(1.0, 1, 1e-5)
    True
    """
    total, level = real("delta", delta, least=0.0, below=1.0), probability("confidence", confidence)
    samples = [
        _scores(name, value)
        for name, value in (("with_canary", with_canary), ("without_canary", without_canary))
    ]
    first = [sample[: sample.size // 2] for sample in samples]
    second = [sample[sample.size // 2 :] for sample in samples]
    thresholds = np.unique(
        np.quantile(np.concatenate(first), np.linspace(0, 1, _THRESHOLDS), method="lower")
    )
    tried = _bounds(first, thresholds, total, level)
    side, place = np.unravel_index(int(np.argmax(tried)), tried.shape)
    found = _bounds(second, thresholds[place : place + 1], total, level)[side, 0]
    return max(0.0, float(found))


def _bounds(samples: list[Vector], thresholds: Vector, delta: float, level: float) -> Vector:
    """Return log((rate of one - delta)/rate of the other), of shape (2 sides, thresholds)."""
    each = (1.0 + level) / 2.0  # two rates, each at half of the error
    above = [s.size - np.searchsorted(np.sort(s), thresholds, side="right") for s in samples]
    (high_low, _), (_, low_up) = (
        clopper_pearson(count, s.size, each) for count, s in zip(above, samples, strict=True)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        more = np.log(np.maximum(high_low - delta, 0.0)) - np.log(low_up)
        # Scores of at most the threshold: rates are one minus those above.
        less = np.log(np.maximum(1.0 - low_up - delta, 0.0)) - np.log(1.0 - high_low)
    found = np.array([more, less])
    return np.asarray(np.where(np.isnan(found), -math.inf, found))


@dataclass(frozen=True)
class MuEstimate:
    """A measured mu of a Gaussian mechanism.

    Attributes
    ----------
    mu : float
        Difference of the means over the standard deviation.
    stderr : float
        Its standard error.
    low, high : float
        Two-sided confidence interval.
    confidence : float
        Of the interval.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> found = estimate_mu(rng.normal(1.0, 1.0, 10_000), rng.normal(0.0, 1.0, 10_000))
    >>> found.low < 1.0 < found.high, found.confidence
    (True, 0.95)
    """

    mu: float
    stderr: float
    low: float
    high: float
    confidence: float

    def gaussian_epsilon(self, delta: float) -> float:
        """Return epsilon at `delta` of the lower end of the interval, on the Gaussian curve."""
        return epsilon_of_mu(self.low, delta)


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return epsilon at `delta` of a mu-Gaussian-DP mechanism, 0 for mu <= 0.

    Examples
    --------
    >>> round(epsilon_of_mu(1.0, 1e-6), 3), epsilon_of_mu(-0.1, 1e-6)
    (4.887, 0.0)
    """
    return gaussian.epsilon(1.0 / mu, 1, delta) if mu > 0 else 0.0


def estimate_mu(
    with_canary: ArrayLike, without_canary: ArrayLike, *, confidence: float = 0.95
) -> MuEstimate:
    """Estimate mu from scores that are Gaussian with one variance, with the canary and without.

    Sharper than counting, for mechanisms that are known to be Gaussian: mu is the difference of the
    means in standard deviations. The variance is measured, so that neither the clip norm nor the
    noise multiplier is taken on trust.

    Parameters
    ----------
    with_canary, without_canary : array_like of shape (n,)
        Scores, finite, at least 4 in each, not all equal.
    confidence : float
        Of the interval, two-sided.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Notes
    -----
    mu sqrt(1/n1 + 1/n0) is noncentral t with n1 + n0 - 2 degrees of freedom. The interval uses its
    normal approximation P[T <= t] = Phi((t (1 - 1/(4 f)) - c)/sqrt(1 + t^2/(2 f))) (Johnson and
    Welch 1940; Abramowitz and Stegun 26.7.10).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> found = estimate_mu(*(rng.normal(size=(2, 10_000)) + [[0.5], [0.0]]))
    >>> found.low < 0.5 < found.high, round(found.stderr, 3)
    (True, 0.014)
    """
    level = probability("confidence", confidence)
    ones = _scores("with_canary", with_canary)
    zeros = _scores("without_canary", without_canary)
    free = ones.size + zeros.size - 2
    square = np.square(ones - ones.mean()).sum() + np.square(zeros - zeros.mean()).sum()
    spread = math.sqrt(float(square) / free)
    if spread == 0.0:
        raise ValueError("scores must vary, got equal ones: they hold no noise")
    mu = float(ones.mean() - zeros.mean()) / spread
    return interval(mu, ones.size, zeros.size, free, level)


def interval(mu: float, ones: int, zeros: int, free: int, confidence: float) -> MuEstimate:
    """Return the estimate for a measured `mu`, whose variance has `free` degrees of freedom."""
    scale = math.sqrt(1.0 / ones + 1.0 / zeros)
    t = mu / scale
    middle, width = t * (1.0 - 0.25 / free), math.sqrt(1.0 + t * t / (2.0 * free))
    z = NormalDist().inv_cdf((1.0 + confidence) / 2.0)
    return MuEstimate(
        mu, scale * width, scale * (middle - z * width), scale * (middle + z * width), confidence
    )


def _scores(name: str, value: ArrayLike) -> Vector:
    found = finite_vector(name, value)
    if found.size < 4:
        raise ValueError(f"{name} must hold at least 4 scores, got {found.size}")
    return found
