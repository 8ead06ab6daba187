# SPDX-License-Identifier: Apache-2.0
"""Choose the numbers of a Toeplitz mechanism for a run.

At a budget sigma is proportional to sqrt(zeta), so the number to make small is

    log zeta + log E,   E = the mean over the steps of the noise's variance (or that of the last),

with zeta = ||y||^2, y_t = sum over u < k of c_(t - u b): k uses of a record (or user), b steps
apart. That is the squared sensitivity for c >= 0, and every choice here has c >= 0 by its
parameters: taps d_j <= 0 with sum |d_j| < 1, scales and bands > 0. L-BFGS-B runs on exact
gradients:

- by c, from the adjoint of the sum y; by d, from the adjoint of the workload's recursion;
- taps: c = 1/d, dc_t/dd_j = -(c * c)_(t-j), so that with lambda = C^T (gradient by c), one more
  solution backwards, the gradient is that by d_j minus sum over t of lambda_t c_(t-j); bands alike;
- buffers: d = 1/c, dd = -(d * dc * d), with one solution backwards and one filter a buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

import dpftrl_fast._core as _core
from dpftrl_fast._validate import choice, integer
from dpftrl_fast.mechanisms.run_error import check_error_steps, mechanism_error
from dpftrl_fast.mechanisms.toeplitz.columns import (
    banded_inverse,
    buffers_column,
    buffers_inverse,
    padded,
    solve_banded,
    solve_buffers,
)
from dpftrl_fast.mechanisms.toeplitz.layout import ToeplitzMechanism
from dpftrl_fast.mechanisms.toeplitz.values import (
    MAX_COEFFICIENTS,
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
)
from dpftrl_fast.mechanisms.workload import Workload, check_workload

OptimisedKind = Literal["anticorrelated", "taps", "buffers", "bands"]
"""Kind of Toeplitz mechanism whose numbers `optimise` chooses.

Examples
--------
>>> from typing import get_args
>>> from dpftrl_fast.accounting import SinglePass
>>> for kind in get_args(OptimisedKind):
...     size = None if kind == "anticorrelated" else 2
...     print(kind, "->", optimise(kind, SinglePass(50), size=size).words)
anticorrelated -> noise anticorrelated with that of the step before, taps 1, -0.817
taps -> noise anticorrelated with that of the step before, taps 1, -0.817
buffers -> buffered Toeplitz noise, 2 buffers
bands -> banded Toeplitz noise, 2 bands
"""
RankBy = Literal["rms", "last", "worst"]
Vector = NDArray[np.float64]

#: Most buffers that are optimised: beyond, nothing is gained and they merge.
MAX_BUFFERS = 8
# With a schedule of rates the error is summed over so many starts of the noise.
_STARTS = 48
# Runs of so few steps have all starts.
_ALL_STARTS = 512
# Descents from one start.
_ROUNDS = 5
# A slope, and a gain of a descent, after which no other one follows.
_FLAT, _GAIN = 2e-3, 1e-7
# Logits of numbers in (0, 1): 1 - 7e-14 at most.
_LOGIT = 30.0


class _Pattern(Protocol):
    """The part of a pattern of participation that the optimiser reads."""

    @property
    def steps(self) -> int: ...
    def most_uses(self) -> int: ...
    def least_separation(self) -> int: ...


class Found(NamedTuple):
    """An optimised mechanism, with float32 coefficients, and the log of zeta times its error."""

    mechanism: ToeplitzMechanism
    value: float


def optimise(
    kind: OptimisedKind,
    participation: _Pattern,
    workload: Workload = Workload(),
    *,
    size: int | None = None,
    rank_by: RankBy = "rms",
) -> ToeplitzMechanism:
    """Choose the coefficients of a Toeplitz mechanism for a run, to have the least error.

    Parameters
    ----------
    kind : {"anticorrelated", "taps", "buffers", "bands"}
        Two taps, a `BandedInverse`, a `BufferedToeplitz` or a `BandedToeplitz`.
    participation : participation
        Who takes part when, over at most 2^26 steps.
    workload : Workload
        What training reads. Numbers chosen for momentum are worse for running sums, and conversely.
    size : int
        Number of taps or bands, 2 to the number of steps (and 2^16), or of buffers, 1 to 8. Not for
        "anticorrelated".
    rank_by : {"rms", "last", "worst"}
        The error to make small: the root mean square over the steps, or that of the last step, for
        "worst" too (the error of running sums grows with the steps).

    Returns
    -------
    BandedInverse, BufferedToeplitz or BandedToeplitz
        One block of noise. Its coefficients are float32 numbers, valid for noise of both dtypes,
        and no coefficient of C is negative.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Notes
    -----
    This costs no privacy: nothing depends on data. With a `FixedOrder` the uses are taken to be as
    many as the most of an id, at the smallest separation of an order. With a schedule of learning
    rates the error is summed over 48 starts of the noise, from the first step to the last.

    Examples
    --------
    >>> from dpftrl_fast.accounting import FixedEpochs
    >>> two = optimise("anticorrelated", FixedEpochs(100, 10), Workload(momentum=0.9))
    >>> round(-two.taps[1], 3)
    0.981
    """
    choice("kind", kind, get_args(OptimisedKind))
    problem = Problem(participation, workload, rank_by)
    if kind == "anticorrelated":
        if size is not None:
            raise ValueError(
                f"size must be None for 'anticorrelated', which has 2 taps, got {size}"
            )
        return problem.anticorrelated().mechanism
    most = MAX_BUFFERS if kind == "buffers" else min(problem.steps, MAX_COEFFICIENTS)
    count = integer("size", size, 1 if kind == "buffers" else 2, most)
    if kind == "taps":
        return problem.taps(count).mechanism
    if kind == "bands":
        return problem.bands(count).mechanism
    *_, found = problem.buffers(count)
    return found.mechanism


class Problem:
    """The objective of a run, and the optimised mechanism of each kind."""

    def __init__(
        self,
        participation: _Pattern,
        workload: Workload,
        rank_by: RankBy = "rms",
        *,
        coarse: bool = False,
    ) -> None:
        if not hasattr(participation, "least_separation"):
            raise TypeError(
                "participation must be a pattern such as SinglePass(1000), got "
                f"{type(participation).__name__}"
            )
        choice("rank_by", rank_by, get_args(RankBy))
        self._tolerance, self._slope, self._width = (
            (1e-6, 1e-3, 1e-2) if coarse else (1e-10, 1e-6, 1e-5)
        )
        self.steps = n = check_error_steps(participation.steps)
        self._workload = check_workload(workload, n)
        self._last = rank_by != "rms"
        self._separation = min(participation.least_separation(), n)
        self._uses = min(participation.most_uses(), -(-n // self._separation))
        self._rates = workload.relative_rates(n)
        self._starts = [] if self._rates is None else _starts(n)
        self._by_c, self._by_d = np.empty(n), np.empty(n)

    def evaluate(self, c: Vector, d: Vector) -> float:
        """Return log zeta + log error, and leave its gradients by c and d in the two arrays."""
        return sum(self._logs(c, d))

    def _logs(self, c: Vector, d: Vector) -> tuple[float, float]:
        return _core.workload_objective(
            c, d, self._uses, self._separation, self._workload.momentum, self._workload.decay,
            self._rates, self._last, self._starts, self._by_c, self._by_d,
        )  # fmt: skip

    def value_of(self, mechanism: ToeplitzMechanism) -> float:
        """Return the objective of a mechanism."""
        return self.evaluate(mechanism.strategy(self.steps), mechanism.inverse(self.steps))

    # ---- Kinds ----

    def anticorrelated(self) -> Found:
        """Two taps, by a search in one dimension."""
        from scipy.optimize import minimize_scalar

        def value(logit: float) -> float:
            lam = _sigmoid(logit)
            logs = self._logs(
                banded_inverse((1.0, -lam), self.steps), padded((1.0, -lam), self.steps)
            )
            if self._rates is None:
                return sum(logs)
            two = BandedInverse.anticorrelated(lam)
            error = mechanism_error(two, self.steps, self._workload)  # exact, and cheap here
            return logs[0] + 2.0 * math.log(error.last if self._last else error.rms)

        found = minimize_scalar(
            value, bounds=(-4.0, _LOGIT / 2), method="bounded", options={"xatol": self._width}
        )
        return self._found(BandedInverse.anticorrelated(_sigmoid(float(found.x))))

    def taps(self, size: int) -> Found:
        """`size` taps: d_j = -total weight_j, weights a softmax and total in (0, 1)."""
        if size == 2:
            return self.anticorrelated()

        def taps_of(x: Vector) -> tuple[float, Vector]:
            weights = np.exp(x[1:] - x[1:].max())
            return _sigmoid(float(x[0])), weights / weights.sum()

        def value(x: Vector) -> tuple[float, Vector]:
            total, weights = taps_of(x)
            taps = np.concatenate([[1.0], -total * weights])
            c = banded_inverse(taps, self.steps)
            objective = self.evaluate(c, padded(taps, self.steps))
            by_taps = self._by_band(taps, c, self._by_c)
            by_taps = -(self._by_d[1:size] - by_taps[1:])  # by the absolute values
            by_total = float(np.dot(by_taps, weights))
            by_weights = total * weights * (by_taps - by_total)
            return objective, np.concatenate([[by_total * total * (1.0 - total)], by_weights])

        roots = np.log(-np.array(BandedInverse.square_root(size).taps[1:]))
        start = np.concatenate([[4.0], roots])
        bounds = [(-4.0, _LOGIT)] + [(-40.0, 20.0)] * (size - 1)
        total, weights = taps_of(self._descend(value, start, bounds))
        return self._found(BandedInverse([1.0, *(-total * weights).tolist()]))

    def bands(self, size: int) -> Found:
        """`size` bands, from the coefficients of (1 - x)^(-1/2) on."""

        def value(x: Vector) -> tuple[float, Vector]:
            band = np.concatenate([[1.0], np.exp(x)])
            d = banded_inverse(band, self.steps)
            objective = self.evaluate(padded(band, self.steps), d)
            gradient = self._by_c[1:size] - self._by_band(band, d, self._by_d)[1:]
            return objective, gradient * band[1:]

        j = np.arange(1, size)
        start = np.cumsum(np.log((2 * j - 1) / (2 * j)))
        found = self._descend(value, start, [(-40.0, 5.0)] * (size - 1))
        return self._found(BandedToeplitz([1.0, *np.exp(found).tolist()]))

    def buffers(self, most: int) -> Iterator[Found]:
        """1, 2, .. `most` buffers, each count from the one before."""
        decays, scales = np.zeros(0), np.zeros(0)
        for count in range(1, most + 1):
            decay, scale = (4.0, -1.0) if count == 1 else (0.0, -3.0)
            start = np.concatenate([decays, [decay], scales, [scale]])
            bounds = [(-6.0, _LOGIT)] * count + [(-20.0, 3.0)] * count
            found = self._descend(self._buffers_value, start, bounds)
            decays, scales = found[:count], found[count:]
            yield self._found(BufferedToeplitz(_sigmoids(decays).tolist(), np.exp(scales).tolist()))

    def _buffers_value(self, x: Vector) -> tuple[float, Vector]:
        k = x.size // 2
        decay, scale = _sigmoids(x[:k]), np.exp(x[k:])
        c = buffers_column(decay, scale, self.steps)
        d = buffers_inverse(decay, scale, self.steps)
        objective = self.evaluate(c, d)
        backwards = solve_buffers(decay, scale, self._by_d[::-1].copy())[::-1].copy()
        by_decay, by_scale = np.empty(k), np.empty(k)
        _core.buffers_gradient(decay, scale, self._by_c, backwards, d, by_decay, by_scale)
        return objective, np.concatenate([by_decay * decay * (1.0 - decay), by_scale * scale])

    # ---- Steps ----

    def _by_band(self, band: Vector, inverse: Vector, by_inverse: Vector) -> Vector:
        """Return minus the gradient by a band of a function of its inverse, from that by it."""
        backwards = solve_banded(band, by_inverse[::-1].copy())[::-1].copy()
        out = np.empty(band.size)
        _core.lagged_products(backwards, inverse, out)
        return out

    def _descend(
        self,
        value: Callable[[Vector], tuple[float, Vector]],
        start: Vector,
        bounds: list[tuple[float, float]],
    ) -> Vector:
        """Return the best point that is found from a start."""
        from scipy.optimize import minimize

        def finite(x: Vector) -> tuple[float, Vector]:
            with np.errstate(all="ignore"):
                objective, gradient = value(x)
            if math.isfinite(objective) and bool(np.all(np.isfinite(gradient))):
                return objective, gradient
            return 1e10, np.zeros(x.size)

        best, least = start, math.inf
        before, at = math.inf, start
        # A line search can end at a step that gains nothing by chance: start afresh there.
        for _ in range(_ROUNDS):
            found = minimize(
                finite, at, jac=True, method="L-BFGS-B", bounds=bounds,
                options={"maxiter": 500, "maxcor": 20, "ftol": self._tolerance,
                         "gtol": self._slope},
            )  # fmt: skip
            at, value_here = found.x, float(found.fun)
            if value_here < least:
                best, least = at, value_here
            if np.abs(found.jac).max() < _FLAT or before - value_here < _GAIN:
                break
            before = value_here
        return best

    def _found(self, mechanism: ToeplitzMechanism) -> Found:
        rounded = mechanism.rounded("float32")
        return Found(rounded, self.value_of(rounded))


def _starts(steps: int) -> list[tuple[int, float]]:
    """Return steps, the first and the last among them, with weights of the trapezoidal rule."""
    count = steps if steps <= _ALL_STARTS else _STARTS
    at = np.unique(np.linspace(0, steps - 1, count).round().astype(np.int64))
    ends = np.concatenate([[-0.5], (at[1:] + at[:-1]) / 2, [steps - 0.5]])
    return list(zip(at.tolist(), np.diff(ends).tolist(), strict=True))


def _sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit))


def _sigmoids(logits: Vector) -> Vector:
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))
