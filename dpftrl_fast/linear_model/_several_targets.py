# SPDX-License-Identifier: Apache-2.0
"""Several targets of a row, each within its own bound: checks, encoding and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from dpftrl_fast._validate import norm_bound, shown
from dpftrl_fast.linear_model._messages import showing_no_entry

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class SeveralTargets:
    """Targets of a regression with several columns, encoded in units of their bounds.

    Each column is clipped to its bound, so that an encoded row has a norm of at most sqrt(m). With
    one clip norm for the row, columns on other scales would have the noise of the largest.

    Examples
    --------
    >>> SeveralTargets((1.0, 10.0)).encode(np.array([[0.5, -30.0]])).tolist()
    [[0.5, -1.0]]
    """

    bounds: tuple[float, ...]

    @property
    def outputs(self) -> int:
        """Number of parameter vectors."""
        return len(self.bounds)

    @property
    def scales(self) -> FloatArray:
        """The bounds: factors from encoded targets to given ones."""
        return np.array(self.bounds)

    def encode(self, y: Any) -> FloatArray:
        """Return the targets as float64, non-finite ones as NaN: such rows count as zero."""
        values = np.asarray(y, dtype=np.float64)
        values = np.where(np.isfinite(values), values, np.nan)
        return np.ascontiguousarray(np.clip(values / self.scales, -1.0, 1.0))

    def refuse_bad(self, y: Any) -> None:
        """Refuse non-finite targets, naming the row; for use before the first step only."""
        values = np.asarray(y, dtype=np.float64)
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            row, column = bad[0]
            value = "NaN" if np.isnan(values[row, column]) else "infinity"
            raise ValueError(f"y must be finite, got {value} in row {row} of column {column}")


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


def check_bounds(name: str, value: Any) -> Any:
    """Return a list of bounds, one a target, as floats; of a single one, the float.

    Examples
    --------
    >>> check_bounds("y_bound", [1, 2.5]), check_bounds("y_bound", np.array([3.0]))
    ([1.0, 2.5], 3.0)
    """
    entries = value.tolist() if isinstance(value, np.ndarray) else value
    if not (isinstance(entries, list) and entries):
        raise TypeError(f"{name} must be a number or a list of numbers, got {shown(value)}")
    bounds = [norm_bound(f"{name}[{k}]", entry) for k, entry in enumerate(entries)]
    return bounds if len(bounds) > 1 else bounds[0]


def bounds_of(y_bound: float | list[float], columns: int) -> tuple[float, ...]:
    """Return the bound of each of several columns.

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
