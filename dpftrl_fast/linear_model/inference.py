# SPDX-License-Identifier: Apache-2.0
"""Standard errors and confidence intervals of a private linear model, from its noisy moments."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpftrl_fast._validate import probability
from dpftrl_fast.convex.least_squares.inference import Estimates, estimates
from dpftrl_fast.convex.least_squares.moments import Moments

FloatArray = NDArray[np.float64]


class ConfidenceIntervals(NamedTuple):
    """Lower and upper ends of intervals, along the last axis.

    Attributes
    ----------
    coef : (p, 2) or (m, p, 2) array of float64
    intercept : (2,) or (m, 2) array of float64
    """

    coef: FloatArray
    intercept: FloatArray


@dataclass(frozen=True, eq=False)
class Inference:
    """Estimates without a ridge and their errors, computed from released sums on first use.

    They hold for a linear model y = <x, coef> + intercept + error, whose errors are independent of
    x with one variance, if no row was scaled and no target clipped. With sample weights the errors
    have this variance over the weight, and intervals are too wide rather than too narrow: exact for
    weights 0 and the bound. With ``long_rows="weight"`` rows may exceed their bound: intervals are
    then too wide, too. All of it is post-processing: it costs no privacy.

    Parameters
    ----------
    moments : Moments
        Released sums.
    rows : int, optional
        Number of rows in them, if they all count; otherwise the noisy sum of weights, in units of
        their bound, takes its place.
    n_rows : int
        Number of rows that were given.
    scaling : tuple of (float, float)
        Centre and unit of each target.
    single : bool
        Whether y was a vector.
    weight_bound : float
        Unit of the weights of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast.linear_model import DPFTRLLeastSquares
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (20_000, 2))
    >>> y = X @ [0.5, 0.0] + 0.1 * rng.normal(size=20_000)
    >>> model = DPFTRLLeastSquares(x_norm_bound=2**0.5, y_bound=1.0, intervals=True, noise_seed=0)
    >>> found = model.fit(X, y).inference_
    >>> bool(abs(found.coef[0] - 0.5) < 4 * found.coef_stderr[0]), found.coef_stderr.shape
    (True, (2,))
    """

    moments: Moments
    rows: int | None
    n_rows: int
    scaling: tuple[tuple[float, float], ...]
    single: bool
    weight_bound: float = 1.0

    @cached_property
    def _estimates(self) -> Estimates:
        rows, constant = self.rows, self.moments.constant
        if rows is None and constant > 0:
            rows = max(round(float(self.moments.diagonal[-1]) / constant**2), 1)
        return estimates(self.moments, self.n_rows if rows is None else rows)

    @property
    def reliable(self) -> bool:
        """Whether errors can be stated: the noise is small beside every eigenvalue of x x^T."""
        return self._estimates.reliable

    @property
    def coef(self) -> FloatArray:
        """Coefficients without a ridge, centres of the intervals; NaN if not `reliable`."""
        return self._split(self._told().theta, centred=False)[0]

    @property
    def intercept(self) -> Any:
        """Intercept of the same model."""
        return self._split(self._told().theta, centred=False)[1]

    @property
    def coef_stderr(self) -> FloatArray:
        """Standard errors of `coef`; infinite if not `reliable`."""
        return self._split(self._told().stderr)[0]

    @property
    def intercept_stderr(self) -> Any:
        """Standard error of `intercept`, 0 without one."""
        return self._split(self._told().stderr)[1]

    @property
    def residual_std(self) -> Any:
        """Standard deviation of the errors of y at weight 1; 0 where noise hides it.

        With weights other than 0 and the bound it is overestimated.
        """
        found = np.sqrt(self._told().residual_variance * self.weight_bound) * self._scales
        return float(found[0]) if self.single else found

    def conf_int(self, level: float = 0.95) -> ConfidenceIntervals:
        """Return confidence intervals: estimate -+ normal quantile times standard error.

        Parameters
        ----------
        level : float, default 0.95
            Probability with which an interval is to hold its coefficient, each by itself.

        Returns
        -------
        ConfidenceIntervals
            From -inf to inf, with a warning, if not `reliable`.
        """
        width = float(ndtri(0.5 + 0.5 * probability("level", level)))
        found = self._told()
        if not found.reliable:
            ends = [np.full(found.theta.shape, end) for end in (-math.inf, math.inf)]
        else:
            ends = [found.theta - width * found.stderr, found.theta + width * found.stderr]
        low, high = (self._split(end, centred=False) for end in ends)
        return ConfidenceIntervals(
            *(np.stack(pair, axis=-1) for pair in zip(low, high, strict=True))
        )

    def _told(self) -> Estimates:
        found = self._estimates
        if not found.reliable:
            warnings.warn(
                "the noise of the sum of x x^T is too large for standard errors: an eigenvalue is "
                "below twice the norm of the noise; take tighter public bounds of the columns, "
                "more rows, a larger epsilon or fewer columns, and with an intercept leave one "
                "category of each categorical column undeclared",
                UserWarning,
                stacklevel=3,
            )
        return found

    @property
    def _scales(self) -> FloatArray:
        return np.array([scale for _, scale in self.scaling])

    def _split(self, theta: FloatArray, *, centred: bool = True) -> tuple[FloatArray, Any]:
        """Return coefficients and intercept in the units of y; errors are `centred`."""
        theta = theta * self._scales[:, np.newaxis]
        constant = self.moments.constant
        coef = theta[:, :-1] if constant > 0 else theta
        intercept = theta[:, -1] * constant if constant > 0 else np.zeros(len(theta))
        if not centred:
            intercept = intercept + np.array([centre for centre, _ in self.scaling])
        return (coef[0], float(intercept[0])) if self.single else (coef, intercept)
