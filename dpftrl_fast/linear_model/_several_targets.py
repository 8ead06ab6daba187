# SPDX-License-Identifier: Apache-2.0
"""Several targets of a row, each within its own bound: checks, encoding and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from dpftrl_fast.convex.target_scaling import Bounds, scaling_of
from dpftrl_fast.linear_model._messages import showing_no_entry
from dpftrl_fast.tables.labels import Kind

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class SeveralTargets:
    """Targets of a regression with several columns, each moved to [-1, 1] by its bounds.

    An encoded row has a norm of at most sqrt(m). With one clip norm for the row, columns on other
    scales would have the noise of the largest.

    Examples
    --------
    >>> SeveralTargets((1.0, (0.0, 10.0))).encode(np.array([[0.5, -30.0]])).tolist()
    [[0.5, -1.0]]
    """

    bounds: tuple[Bounds, ...]

    @property
    def outputs(self) -> int:
        """Number of parameter vectors."""
        return len(self.bounds)

    @property
    def scales(self) -> FloatArray:
        """Factors from encoded targets to given ones."""
        return np.array([scaling_of(bounds)[1] for bounds in self.bounds])

    @property
    def centres(self) -> FloatArray:
        """Middles of the bounds."""
        return np.array([scaling_of(bounds)[0] for bounds in self.bounds])

    def encode(self, y: Any) -> FloatArray:
        """Return the targets as float64, non-finite ones as NaN: such rows count as zero."""
        values = np.asarray(y, dtype=np.float64)
        values = np.where(np.isfinite(values), values, np.nan)
        return np.ascontiguousarray(np.clip((values - self.centres) / self.scales, -1.0, 1.0))

    def refuse_kind(self, kind: Kind | None) -> None:
        """Refuse nothing: rows in memory are checked as numbers."""

    def refuse_bad(self, y: Any) -> None:
        """Refuse non-finite targets, naming the row; for use before the first step only."""
        values = np.asarray(y, dtype=np.float64)
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            row, column = bad[0]
            value = "NaN" if np.isnan(values[row, column]) else "infinity"
            raise ValueError(
                f"y must be finite, got {value} in row {row} of column {column}: fill in a public "
                "number before fit, so that no row changes its place, or use partial_fit, where "
                "such a row counts as zero"
            )


def several_columns(y: Any) -> bool:
    """Return whether targets have two columns or more."""
    shape = getattr(y, "shape", None)
    if shape is None:
        try:
            shape = np.shape(y)
        except Exception:  # ragged, or of a class of its own: refused by its check
            return False
    return len(shape) == 2 and shape[1] > 1


def check_columns(y: Any, rows: int) -> FloatArray:
    """Return targets of several columns as float64, without looking at values."""
    with showing_no_entry("y"):
        checked: FloatArray = check_array(
            y, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=0, input_name="y"
        )
    if len(checked) != rows:
        raise ValueError(f"X and y must have as many rows, got {rows} and {len(checked)}")
    return checked


def bounds_of(y_bound: Bounds | list[Bounds], columns: int) -> tuple[Bounds, ...]:
    """Return the bounds of each of several columns.

    Examples
    --------
    >>> bounds_of(2.0, 3)
    (2.0, 2.0, 2.0)
    """
    bounds = tuple(y_bound) if isinstance(y_bound, list) else (y_bound,) * columns
    if len(bounds) != columns:
        raise ValueError(
            f"y must have {len(bounds)} columns, as y_bound has entries, got {columns}"
        )
    return bounds
