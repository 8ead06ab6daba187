# SPDX-License-Identifier: Apache-2.0
"""The checks of an audit, on canaries whose noise a plan makes independent unit normals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from dpftrl_fast._validate import probability
from dpftrl_fast.accounting.statement.statement import Neighbours, PrivacyStatement
from dpftrl_fast.audit.estimates import epsilon_of_mu, interval
from dpftrl_fast.audit.one_run import best_guesses, coins_of, one_run_bound
from dpftrl_fast.audit.result import AuditResult, Finding

Matrix = NDArray[np.float64]

#: Fewest canaries of an audit.
LEAST_CANARIES = 16
# mu by the stated score, its shift, the noise, its least direction, mu by the learned score, reuse
# in a row, the noise of one row, reuse between rows, the shape of the noise, epsilon.
_CHECKS = 10
# A covariance is learned from at least so many canaries a row.
_CANARIES_PER_ROW = 10
# Largest jump of the law of a normal number that was rounded to a grid of 1/128 standard deviation.
_OF_GRID = 0.4 / 128
# Most pairs of rows that are searched for noise that one has from the other.
_PAIRS = 1 << 12


@dataclass(frozen=True)
class Setting:
    """Facts of an audit that are no measurements.

    Attributes
    ----------
    subject : str
        The audited run in words.
    plan : PrivacyStatement
        It states mu and epsilon.
    steps, runs : int
    neighbours : {"zero-out", "replace-one"}
        By which the canaries of either coin differ.
    delta, confidence : float
    """

    subject: str
    plan: PrivacyStatement
    steps: int
    runs: int
    neighbours: Neighbours
    delta: float
    confidence: float


def judge(
    white: Matrix, shift: NDArray[np.float64], included: NDArray[np.bool_], setting: Setting
) -> AuditResult:
    """Compare canaries with the law that a plan implies for them.

    Parameters
    ----------
    white : array of float64, shape (rows, n)
        Column j is the released data about canary j. If the plan holds, it is a vector of
        independent unit normals, plus `shift` where the canary is included (plus `shift`/2 or minus
        it for replace-one neighbours), independent of the other columns. Runs stand side by side.
    shift : array of float64, shape (rows,)
        Its norm is the mu that is expected.
    included : array of bool, shape (n,)
        The coins.
    setting : Setting

    Raises
    ------
    ValueError
        If there are fewer than 16 canaries, or all coins fell on one side.
    """
    rows, n = white.shape
    coins = coins_of(included, n)
    ones = int(np.count_nonzero(coins))
    if n < LEAST_CANARIES or not 2 <= ones <= n - 2:
        raise ValueError(
            f"an audit needs at least {LEAST_CANARIES} canaries, 2 of them in and 2 out, got {n} "
            f"with {ones} in"
        )
    confidence = probability("confidence", setting.confidence)
    error = (1.0 - confidence) / _CHECKS
    limit = -NormalDist().inv_cdf(error)
    mu = float(np.linalg.norm(shift))
    direction = shift / mu if mu > 0 else np.eye(rows)[0]
    scores = direction @ white
    if setting.neighbours == "replace-one":
        scores = scores + mu / 2.0
    residual = np.where(
        coins,
        white - white[:, coins].mean(axis=1, keepdims=True),
        white - white[:, ~coins].mean(axis=1, keepdims=True),
    )
    measured = _Measured.of(scores, coins)
    scale = math.sqrt(1.0 / ones + 1.0 / (n - ones))
    free = rows * (n - 2)
    ratio = math.sqrt(float(np.einsum("ij,ij->", residual, residual)) / free)
    findings = [
        Finding("mu of the canaries", measured.mu, mu, _stderr(measured.mu, scale, n - 2), limit),
        Finding("shift by a canary, over the stated noise", measured.shift, mu, scale, limit),
        Finding(
            "noise over the stated noise", ratio, 1.0, 1.0 / math.sqrt(2.0 * free), limit, "below"
        ),
        *_least(residual, n - 2, error),
        *_learned(white, residual, coins, direction, mu, limit),
        _reuse(residual, error),
        *_least_row(residual, n - 2, error),
        _reuse_between(residual, n - 2, error),
        _shape(residual, coins, error),
    ]
    level = 1.0 - error
    bound = one_run_bound(
        scores,
        coins,
        delta=setting.delta,
        confidence=level,
        guesses=best_guesses(mu, n, delta=setting.delta, confidence=level),
    )
    estimate = interval(measured.mu, ones, n - ones, n - 2, confidence)
    return AuditResult(
        subject=setting.subject,
        epsilon_lower=bound.epsilon,
        epsilon_stated=_stated_epsilon(setting),
        mu_measured=measured.mu,
        mu_stderr=estimate.stderr,
        mu_expected=mu,
        mu_stated=setting.plan.mu * (2.0 if setting.neighbours == "replace-one" else 1.0),
        epsilon_gaussian=epsilon_of_mu(estimate.low, setting.delta),
        delta=setting.delta,
        confidence=confidence,
        neighbours=setting.neighbours,
        canaries=n,
        included=ones,
        runs=setting.runs,
        steps=setting.steps,
        findings=tuple(findings),
        scores_in=scores[coins],
        scores_out=scores[~coins],
    )


def _stated_epsilon(setting: Setting) -> float | None:
    """Return the plan's epsilon; None where it states none at this delta."""
    if setting.neighbours == "replace-one":
        return setting.plan.replace_one(setting.delta)
    if setting.delta <= setting.plan.guarantee.at(setting.delta).floor():
        return None
    return setting.plan.epsilon(setting.delta)


@dataclass(frozen=True)
class _Measured:
    """Difference of the mean scores, and the same in measured standard deviations."""

    shift: float
    mu: float

    @classmethod
    def of(cls, scores: NDArray[np.float64], coins: NDArray[np.bool_]) -> _Measured:
        ones, zeros = scores[coins], scores[~coins]
        shift = float(ones.mean() - zeros.mean())
        square = float(np.square(ones - ones.mean()).sum() + np.square(zeros - zeros.mean()).sum())
        spread = math.sqrt(square / (scores.size - 2))
        if spread > 0.0:
            return cls(shift, shift / spread)
        return cls(shift, math.copysign(math.inf, shift) if shift else 0.0)


def _stderr(mu: float, scale: float, free: int) -> float:
    """Return the standard error at a measured mu: its quotient is normal also for few canaries."""
    if not math.isfinite(mu):
        mu = 0.0
    return scale * math.sqrt(1.0 + (mu / scale) ** 2 / (2.0 * free))


def _least_row(residual: Matrix, free: int, error: float) -> list[Finding]:
    """Return the noise of the row that has least, which the noise of all rows together may hide."""
    rows = len(residual)
    if rows == 1:
        return []
    ratio = math.sqrt(float(np.einsum("ij,ij->i", residual, residual).min()) / free)
    limit = -NormalDist().inv_cdf(error / rows)
    stderr = 1.0 / math.sqrt(2.0 * free)
    return [
        Finding("least noise of a step over the stated noise", ratio, 1.0, stderr, limit, "below")
    ]


def _least(residual: Matrix, free: int, error: float) -> list[Finding]:
    """Return the least noise in any direction, that is in any linear combination of the rows.

    For independent unit normals the smallest singular value of a (rows, f) matrix over sqrt(f) is
    below 1 - sqrt(rows/f) - t/sqrt(f) with a probability of at most exp(-t^2/2) (Davidson and
    Szarek 2001, Theorem II.13). Noise that is used twice has none in some direction.
    """
    rows = len(residual)
    if rows == 1 or free < _CANARIES_PER_ROW * rows:
        return []
    square = float(np.linalg.eigvalsh(residual @ residual.T)[0]) / free
    return [
        Finding(
            "least noise in any direction over the stated noise",
            math.sqrt(max(square, 0.0)),
            1.0 - math.sqrt(rows / free),
            1.0 / math.sqrt(free),
            math.sqrt(-2.0 * math.log(error)),
            "below",
        )
    ]


def _learned(
    white: Matrix,
    residual: Matrix,
    coins: NDArray[np.bool_],
    direction: NDArray[np.float64],
    mu: float,
    limit: float,
) -> list[Finding]:
    """Measure mu by the score that is best for the covariance of every other canary.

    If the plan holds, no score has a larger mu than the stated one. Where noise is used twice, or
    is correlated in another way than stated, some score has.
    """
    rows, n = white.shape
    learn, test = np.arange(n) % 2 == 0, np.arange(n) % 2 == 1
    ones = int(np.count_nonzero(coins[test]))
    few = int(np.count_nonzero(learn)) < _CANARIES_PER_ROW * rows
    if rows == 1 or few or not 2 <= ones <= np.count_nonzero(test) - 2:
        return []
    part = residual[:, learn]
    covariance = part @ part.T / part.shape[1]
    values, vectors = np.linalg.eigh(covariance)
    # A variance of zero is taken for a very small one: an attack without noise.
    kept = np.maximum(values, max(1e-12 * float(values[-1]), 1e-100))
    weights = vectors @ ((vectors.T @ direction) / kept)
    weights /= np.linalg.norm(weights)
    found = _Measured.of(weights @ white[:, test], coins[test])
    zeros = int(np.count_nonzero(test)) - ones
    scale = math.sqrt(1.0 / ones + 1.0 / zeros)
    name = "mu by a score learned from the other half"
    return [Finding(name, found.mu, mu, _stderr(found.mu, scale, ones + zeros - 2), limit)]


def _reuse(residual: Matrix, error: float) -> Finding:
    """Return the largest correlation of the noise of canaries at any distance from each other.

    The noise of two coordinates, or of two runs, is independent. Stands out where a stream repeats:
    runs with one key have correlation 1 at the distance of a run.
    """
    rows, n = residual.shape
    spectrum = np.fft.rfft(residual, axis=1)
    power = np.einsum("ij,ij->j", spectrum, spectrum.conj()).real
    circular = np.fft.irfft(power, n)[: n // 2 + 1]
    lags = circular[1:] / circular[0] if circular[0] > 0 else np.ones(n // 2)
    if n % 2 == 0:
        lags[-1] /= math.sqrt(2.0)  # each pair stands there twice
    largest = float(lags[np.argmax(np.abs(lags))])
    limit = -NormalDist().inv_cdf(error / (2.0 * lags.size))
    return Finding(
        "largest correlation between canaries", largest, 0.0, 1.0 / math.sqrt(rows * n), limit,
        "either",
    )  # fmt: skip


def _reuse_between(residual: Matrix, free: int, error: float) -> Finding:
    """Return the largest correlation of two rows, at any distance of canaries and mirrored.

    A stream whose steps overlap puts the noise of a canary in one step on another canary in
    another, where neither a covariance of the rows nor a correlation within one shows it. For
    independent rows a correlation is a coordinate of a point on a sphere of `free` dimensions (or
    less, for the part of a row that is shifted out of it), whose tails are below those of the
    normal law. A row may also be its own mirror image.
    """
    rows, n = residual.shape
    norms = np.sqrt(np.einsum("ij,ij->i", residual, residual))
    unit = residual / np.where(norms > 0, norms, 1.0)[:, None]
    spectrum = np.fft.rfft(unit, axis=1)
    far = max(1, min(rows - 1, _PAIRS // rows))  # of two rows
    largest, tried = 0.0, 0
    for row in range(rows):
        others = spectrum[row + 1 : row + 1 + far]
        mirrored = np.fft.irfft(spectrum[row] * spectrum[row : row + 1 + far], n)
        found = [np.fft.irfft(spectrum[row].conj() * others, n), mirrored[1:]]
        # Each pair of a row and its mirror image stands there twice.
        found.append(mirrored[:1] / math.sqrt(2.0))
        for part in found:
            tried += part.size
            if part.size:
                value = float(part.flat[np.argmax(np.abs(part))])
                largest = value if abs(value) > abs(largest) else largest
    limit = -NormalDist().inv_cdf(error / (2.0 * tried))
    return Finding(
        "largest correlation between canaries of two steps, or mirrored", largest, 0.0,
        1.0 / math.sqrt(free), limit, "either",
    )  # fmt: skip


def _shape(residual: Matrix, coins: NDArray[np.bool_], error: float) -> Finding:
    """Return the largest distance of the law of the noise from the normal one, of any scale.

    Noise of the stated variance whose tails are too short shows a canary for certain, where the
    mean and the variance of scores look right. A residual over the spread of its row follows a law
    of its own (Thompson 1935), which is that of Student after a transformation; the limit is that
    of Massart (1990) for independent numbers, of any sample size. Numbers with a mean and a spread
    that were measured on them are nearer to their law than independent ones.
    """
    n = residual.shape[1]
    ones = int(np.count_nonzero(coins))
    spread = np.sqrt(np.einsum("ij,ij->i", residual, residual) / (n - 2))
    # The residual of one of k numbers has a variance of 1 - 1/k.
    inner = np.sqrt(1.0 - 1.0 / np.where(coins, ones, n - ones))
    studentised = residual / np.where(spread > 0, spread, 1.0)[:, None] / inner
    free = n - 2
    left = np.maximum(free - np.square(studentised), 1e-300)
    level = np.sort(stdtr(free - 1, studentised * np.sqrt((free - 1) / left)), axis=None)
    steps = np.arange(level.size + 1) / level.size
    distance = float(max(np.max(steps[1:] - level), np.max(level - steps[:-1])))
    return Finding(
        "distance of the noise from the normal law",
        distance,
        _OF_GRID,
        0.5 / math.sqrt(level.size),
        math.sqrt(2.0 * math.log(2.0 / error)),
    )
