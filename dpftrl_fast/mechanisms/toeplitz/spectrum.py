# SPDX-License-Identifier: Apache-2.0
"""Noise of a buffered mechanism at single steps, in closed form.

Let theta_i = 1 - decay_i and q_i = sqrt(scale_i). The noise of a step is x = z - q's, and then
s <- (1 - theta) s + q x: s is multiplied by I - H with the symmetric H = diag(theta) + q q'. With
its eigenvalues eta_i and p_i = (v_i' q)^2, for unit eigenvectors v_i, the prefix sums of the
first column of C^-1 are

    b_t = b + sum over i of r_i (1 - eta_i)^t,   r_i = p_i/eta_i,   b = 1/(1 + sum of scale/theta),

where no term is negative. The variance of the noise in the running sum at step t is the sum of the
b_j^2 with j < t: a few geometric series. The eigenvalues solve

    1 + sum over i of scale_i/(theta_i - eta) = 0,
    and p = 1/(sum over i of scale_i/(theta_i - eta)^2):

one between any two theta and one above the largest. They are found by bisection on the distance to
the nearer theta, so that all of them have their digits, however small.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.mechanisms.toeplitz.columns import Column, Values

# Halvings of the logarithm of a distance: from 1e-290 to its last digit.
_HALVINGS = 80
_LEAST = 1e-290


class Spectrum(NamedTuple):
    """The numbers of b_t = rest + sum of weight_i (1 - rate_i)^t."""

    rate: Column
    weight: Column
    rest: float

    def variance(self, steps: NDArray[np.int64]) -> Column:
        """Return the variance of the noise in the running sum at steps >= 1, for unit normals.

        Examples
        --------
        >>> spectrum([0.5], [0.25]).variance(np.array([1, 2, 1000])).round(4).tolist()
        [1.0, 1.5625, 445.1556]
        """
        t, k = steps.astype(np.float64), self.rate.size
        total = t * self.rest**2
        if k == 0:
            return total
        left, right = self.rate[:, None], self.rate[None, :]
        lost = left + right - left * right  # 1 - (1 - left) (1 - right)
        kept = 1.0 - self.rate
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            log = np.log1p(-self.rate)
            for i in range(k):
                gone = _gone(kept[i], log[i], t)
                total += 2.0 * self.rest * self.weight[i] * gone / self.rate[i]
                for j in range(k):
                    product = kept[i] * kept[j]
                    positive = kept[i] > 0.0 and kept[j] > 0.0
                    both = log[i] + log[j] if positive else np.log(abs(product))
                    weight = self.weight[i] * self.weight[j] / lost[i, j]
                    total += weight * _gone(product, both, t)
        return np.where(np.isnan(total), np.inf, total)  # noise that grows past all numbers


def _gone(base: float, log: float, t: Column) -> Column:
    """Return 1 - base^t, from the logarithm where base > 0."""
    return -np.expm1(t * log) if base > 0.0 else 1.0 - np.power(base, t)


def spectrum(decay: Values, scale: Values) -> Spectrum:
    """Return the spectrum of buffers; those of one decay count as one.

    Examples
    --------
    >>> found = spectrum([0.5], [0.25])
    >>> found.rate.tolist(), round(found.rest, 4), found.weight.round(4).tolist()
    ([0.75], 0.6667, [0.3333])
    """
    given = np.asarray(scale, np.float64) > 0.0
    theta, same = np.unique(1.0 - np.asarray(decay, np.float64)[given], return_inverse=True)
    weights = np.zeros(theta.size)
    np.add.at(weights, same.reshape(-1), np.asarray(scale, np.float64)[given])
    if not theta.size:
        return Spectrum(theta, theta, 1.0)
    with np.errstate(divide="ignore"):
        rest = float(1.0 / (1.0 + (weights / theta).sum()))
    rate, distance = _roots(theta, weights)
    mass = 1.0 / (weights / distance**2).sum(1)
    return Spectrum(rate, mass / rate, rest)


def _roots(theta: Column, scale: Column) -> tuple[Column, NDArray[np.float64]]:
    """Return the roots eta_i, and theta_j - eta_i at (i, j), each with its leading digits."""
    above = np.append(theta[1:], theta[-1] + scale.sum() * (1.0 + 1e-9))
    last = np.arange(theta.size) == theta.size - 1

    def distances(origin: Column, offset: Column) -> NDArray[np.float64]:
        return np.asarray((theta[None, :] - origin[:, None]) - offset[:, None])

    def value(origin: Column, offset: Column) -> Column:
        with np.errstate(over="ignore"):
            return np.asarray(1.0 + (scale / distances(origin, offset)).sum(1))

    half = (above - theta) / 2.0
    # The value grows from -infinity to infinity between two theta.
    upper = (value(theta, half) < 0.0) & ~last
    origin, sign = np.where(upper, above, theta), np.where(upper, -1.0, 1.0)
    low, high = np.full(theta.size, _LEAST), np.where(last, 2.0 * half, half)
    for _ in range(_HALVINGS):
        middle = np.sqrt(low) * np.sqrt(high)
        farther = sign * value(origin, sign * middle) < 0.0
        low, high = np.where(farther, middle, low), np.where(farther, high, middle)
    offset = sign * np.sqrt(low) * np.sqrt(high)
    return origin + offset, distances(origin, offset)
