# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals of the coefficients of a table's columns, from the released sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.inference import estimates
from dpftrl_fast.tables.schema import CategoricalColumn, NumericColumn, Schema

FloatArray = npt.NDArray[np.float64]

LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Intervals:
    """Estimates without a ridge, and their errors; post-processing, which costs no privacy.

    The units are those of the columns: the coefficient of a numeric column is the change of the
    target by 1 of the column, that of a category the change by it. The intercept is the prediction
    where each numeric column is at its offset, by default the middle of its bounds, and no category
    is present.

    They hold for a linear model whose errors are independent of x with one variance, if no row was
    scaled or clipped, as `dpftrl_fast.linear_model.inference.Inference` says.

    Attributes
    ----------
    names : tuple of str
        Features of the schema.
    estimate, stderr : (p,) arrays
        NaN and infinite if not `reliable`.
    residual_std : float
        Standard deviation of the errors of the target, for a row of weight 1.
    reliable : bool
        Whether the noise is small beside every eigenvalue of the sum of x x^T.
    """

    names: tuple[str, ...]
    estimate: FloatArray
    stderr: FloatArray
    residual_std: float
    reliable: bool

    @property
    def ends(self) -> FloatArray:
        """Lower and upper ends at the level 0.95, of shape (p, 2); infinite if not `reliable`."""
        width = float(ndtri(0.5 + 0.5 * LEVEL)) * self.stderr
        centre = np.where(np.isnan(self.estimate), 0.0, self.estimate)
        return np.stack([centre - width, centre + width], axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: numbers that are not finite are None."""
        table = zip(self.names, self.estimate, self.stderr, *self.ends.T, strict=True)
        keys = ("estimate", "standard_error", "low", "high")
        return {
            "level": LEVEL,
            "reliable": self.reliable,
            "residual_std": _finite(self.residual_std),
            "features": [
                {"name": name, **dict(zip(keys, map(_finite, row), strict=True))}
                for name, *row in table
            ],
        }


def intervals_of(run: LeastSquares, schema: Schema, weight_bound: float = 1.0) -> Intervals:
    """Return the intervals of a run with sums of squares, whose last model is made.

    The schema has an intercept and a numeric target.
    """
    moments, target = run.moments(), schema.target
    assert moments is not None and isinstance(target, NumericColumn)
    # Some slots may have no valid row: the constant column has the (noisy) number of rows.
    count = max(round(float(moments.diagonal[-1]) * schema.row_scale**2), 1)
    found = estimates(moments, count)
    scales = target.divisor / (schema.row_scale * _divisors(schema))
    estimate = found.theta[0] * scales
    estimate[-1] += target.offset
    variance = float(found.residual_variance[0]) * weight_bound
    return Intervals(
        schema.feature_names,
        estimate,
        found.stderr[0] * scales,
        math.sqrt(variance) * target.divisor,
        found.reliable,
    )


def _divisors(schema: Schema) -> FloatArray:
    """Return the divisor of each feature, 1 for indicators and the intercept."""
    found: list[float] = []
    for column in schema.columns:
        if isinstance(column, CategoricalColumn):
            found += [1.0] * len(column.categories)
        else:
            found.append(column.divisor)
    return np.array([*found, 1.0])


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
