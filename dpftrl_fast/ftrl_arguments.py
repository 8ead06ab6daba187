# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of the FTRL update."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Vector = np.ndarray[Any, np.dtype[np.float64]]


def number(
    name: str,
    value: float,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
) -> float:
    """Return `value` as a float if it is a finite number within the bounds."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    result = float(value)
    if not (math.isfinite(result) and result > above and result >= least and result < below):
        bounds = [f"> {above:g}"] * (above > -math.inf) + [f">= {least:g}"] * (least > -math.inf)
        bounds += [f"< {below:g}"] * (below < math.inf)
        raise ValueError(f"{name} must be a finite number {' and '.join(bounds)}, got {result}")
    return result


def positive_integer(name: str, value: int) -> int:
    """Return `value` as an int if it is an integer of at least 1."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value}")
    return int(value)


def finite_vector(name: str, value: ArrayLike) -> Vector:
    """Return a float64 copy of `value` if it is a finite vector of real numbers."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be an array of real numbers, got dtype {array.dtype}")
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must have shape (p,) with p >= 1, got shape {array.shape}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return np.array(array, dtype=np.float64)


def check_vector(name: str, value: object, size: int, dtypes: tuple[np.dtype[Any], ...]) -> None:
    """Refuse what is not a vector of this size and of one of these dtypes; values are not read."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, got {type(value).__name__}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} must be of {' or '.join(map(str, dtypes))}, got {value.dtype}")
    if value.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), got {value.shape}")
