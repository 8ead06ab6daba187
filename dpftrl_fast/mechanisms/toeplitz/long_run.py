# SPDX-License-Identifier: Apache-2.0
"""Choose the numbers of buffers for a single pass that is too long to look at every step.

Squared sensitivity and variances are in closed form (`spectrum`), means over the steps are sums
over a grid of steps whose logarithms are evenly spaced. The variables are the logarithms of
1 - decay and of the scales, so that no choice has a negative coefficient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import MAX_STREAM, integer
from dpftrl_fast.mechanisms.toeplitz.spectrum import spectrum
from dpftrl_fast.mechanisms.toeplitz.values import BufferedToeplitz

Vector = NDArray[np.float64]

#: Steps between which `search` compares with a known end.
FIRST_END, LAST_END = 10**2, 10**13
_STEPS_AN_E = 12  # of the grid, a factor e
# Powers of the means that stand for a largest ratio, one after the other.
_POWERS = (30, 100, 400, 1500)
# Numbers closer to 1 than this are no float32 numbers.
_SLOWEST_FLOAT32, _SLOWEST = 2.0**-23, 2.0**-50


class Grid:
    """Steps from 1 to the last of a run, with evenly spaced logarithms."""

    def __init__(self, steps: int) -> None:
        count = max(2, math.ceil(_STEPS_AN_E * math.log(steps)))
        spaced = np.exp(np.linspace(0.0, math.log(steps), count)).round()
        self.steps = np.unique(np.append(spaced.astype(np.int64), steps))
        self._gaps = np.diff(self.steps).astype(np.float64)

    def means(self, variance: Vector) -> Vector:
        """Return the means of a variance over the steps up to each one, by the trapezoidal rule.

        Examples
        --------
        >>> grid = Grid(1000)
        >>> float(grid.means(grid.steps.astype(float))[-1])  # of 1, 2, .., 1000
        500.5
        """
        areas = np.concatenate([[0.0], np.cumsum((variance[1:] + variance[:-1]) / 2 * self._gaps)])
        return np.asarray((areas + (variance + variance[0]) / 2) / self.steps)


def squared_norm(slowness: Vector, scale: Vector, steps: int) -> float:
    """Return the sum of c_j^2 over j < steps, for 1 - decay = slowness > 0.

    Examples
    --------
    >>> squared_norm(np.array([0.5]), np.array([0.25]), 4)
    1.08203125
    """
    log = np.log1p(-slowness)
    lost = slowness[:, None] + slowness - slowness[:, None] * slowness
    gone = -np.expm1((steps - 1) * (log[:, None] + log))
    return 1.0 + float((scale[:, None] * scale * gone / lost).sum())


def known_end(steps: Vector) -> tuple[Vector, Vector]:
    """Return sqrt(zeta) times std, at the end and the root mean square, of the square root.

    The mechanism has all coefficients of (1 - x)^(-1/2); this is their sum of squares up to terms
    of 1/steps, for 100 steps or more.

    Examples
    --------
    >>> [each.round(3).tolist() for each in known_end(np.array([1e3, 1e6]))]
    [[3.265, 5.464], [3.102, 5.302]]
    """
    last = (np.log(steps) + np.euler_gamma + math.log(16.0)) / math.pi
    return last, np.sqrt(last * (last - 1.0 / math.pi))


def ratios(mechanism: BufferedToeplitz, ends: NDArray[np.int64]) -> tuple[Vector, Vector]:
    """Return the price of an unknown end, for streams that happen to end at these steps.

    Parameters
    ----------
    mechanism : BufferedToeplitz
        Of a stream with room for 2^46 steps, all decays below 1.
    ends : ndarray of int64
        100 steps or more.

    Returns
    -------
    last, rms : ndarray
        Standard deviation of the noise at the end, and its root mean square up to there, over that
        of `known_end` at the same epsilon.

    Examples
    --------
    >>> last, rms = ratios(BufferedToeplitz.unbounded(), np.array([10**6]))
    >>> round(float(last[0]), 2), round(float(rms[0]), 2)
    (1.31, 1.27)
    """
    slowness = 1.0 - np.asarray(mechanism.decay)
    return _ratios(slowness, np.asarray(mechanism.scale), Grid(MAX_STREAM), ends)


def _ratios(
    slowness: Vector, scale: Vector, grid: Grid, ends: NDArray[np.int64]
) -> tuple[Vector, Vector]:
    zeta = squared_norm(slowness, scale, MAX_STREAM)
    found = spectrum(1.0 - slowness, scale)
    variance = found.variance(grid.steps)
    log_ends = np.log(ends)
    last, mean = (
        np.interp(log_ends, np.log(grid.steps), each) for each in (variance, grid.means(variance))
    )
    known_last, known_rms = known_end(ends.astype(np.float64))
    return np.sqrt(zeta * last) / known_last, np.sqrt(zeta * mean) / known_rms


def search(buffers: int, *, powers: tuple[int, ...] = _POWERS) -> BufferedToeplitz:
    """Find the mechanism for a stream without a declared end.

    It minimises the largest of `ratios` over ends from 10^2 to 10^13, with zeta of all 2^46 steps.

    Parameters
    ----------
    buffers : int
        1 to 16.
    powers : tuple of int
        Of the power means that are made small one after the other; a high one is nearly the
        largest ratio.

    Notes
    -----
    Takes a minute for ten buffers. `BufferedToeplitz.unbounded` has its result for ten.
    """
    count = integer("buffers", buffers, 1, 16)
    grid = Grid(MAX_STREAM)
    ends = np.unique(np.geomspace(FIRST_END, LAST_END, 90).round().astype(np.int64))
    at = np.arange(count)
    log_slowness = -(2.5 + (44.0 - 2.5) * at / max(1, count - 1)) * math.log(2.0)
    start = np.concatenate([log_slowness, log_slowness / 2.0 - np.log(at + 1.1) / 2.0])

    def value(x: Vector, power: int) -> float:
        slowness, scale = np.exp(x[:count]), np.exp(x[count:])
        both = np.concatenate(_ratios(slowness, scale, grid, ends))
        most = float(both.max())
        return float(most * np.mean((both / most) ** power) ** (1.0 / power))

    for power in powers:
        start = _descend(partial(value, power=power), start, count, _SLOWEST)
    return _mechanism(start, count)


def single_pass_buffers(
    steps: int,
    size: int,
    *,
    rank_by: Literal["rms", "last", "worst"] = "rms",
    dtype: Literal["float32", "float64"] = "float64",
) -> BufferedToeplitz:
    """Choose buffers for the running sums of a single pass of a declared number of steps.

    Parameters
    ----------
    steps : int
        2 to 2^46.
    size : int
        Number of buffers, 1 to 16.
    rank_by : {"rms", "last", "worst"}
        The error to make small, as for `optimise`.
    dtype : {"float32", "float64"}
        Of the noise: the coefficients are numbers of this dtype.

    Examples
    --------
    >>> found = single_pass_buffers(2**30, 3)
    >>> found.words, found.is_in("float32")
    ('buffered Toeplitz noise, 3 buffers', False)
    """
    total, count = integer("steps", steps, 2, MAX_STREAM), integer("size", size, 1, 16)
    grid = Grid(total)

    def value(x: Vector) -> float:
        slowness, scale = np.exp(x[:count]), np.exp(x[count:])
        variance = spectrum(1.0 - slowness, scale).variance(grid.steps)
        error = float((grid.means(variance) if rank_by == "rms" else variance)[-1])
        return math.log(squared_norm(slowness, scale, total) * error)

    log_slowness = -math.log(total) * (np.arange(count) + 0.5) / count
    start = np.concatenate([log_slowness, log_slowness / 2.0 - 0.5])
    slowest = _SLOWEST if dtype == "float64" else _SLOWEST_FLOAT32
    return _mechanism(_descend(value, start, count, slowest), count).rounded(dtype)


def _descend(value: Callable[[Vector], float], start: Vector, count: int, slowest: float) -> Vector:
    """Return the best point from a start."""
    from scipy.optimize import minimize

    def finite(x: Vector) -> float:
        with np.errstate(all="ignore"):
            found = value(x)
        return found if math.isfinite(found) else 1e10

    bounds = [(math.log(slowest), math.log(0.9))] * count + [(-40.0, 0.5)] * count
    inside = np.clip(start, *np.array(bounds).T)
    found = minimize(finite, inside, method="L-BFGS-B", bounds=bounds, options={"maxiter": 200})
    return np.asarray(found.x if found.fun <= finite(inside) else inside)


def _mechanism(x: Vector, count: int) -> BufferedToeplitz:
    order = np.argsort(-x[:count])
    decay, scale = 1.0 - np.exp(x[:count][order]), np.exp(x[count:][order])
    return BufferedToeplitz(decay.tolist(), scale.tolist())
