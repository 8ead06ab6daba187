# SPDX-License-Identifier: Apache-2.0
"""Argument checks of the accounting: each names what was expected and what came."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "at_least",
    "integer_array",
    "non_negative",
    "positive",
    "positive_int",
    "probability",
]


def _real(name: str, x: Any, expected: str) -> float:
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        raise TypeError(f"{name} must be {expected}, got {type(x).__name__}")
    try:
        return float(x)
    except OverflowError:
        came = "a number beyond the largest float"
        raise ValueError(f"{name} must be {expected}, got {came}") from None


def positive(name: str, x: Any, *, above: int = 0) -> float:
    """Return ``x`` as a float if it is finite and > ``above``."""
    expected = f"a finite number > {above}"
    value = _real(name, x, expected)
    if not (math.isfinite(value) and value > above):
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return value


def non_negative(name: str, x: Any, *, infinite: bool = False) -> float:
    """Return ``x`` as a float if it is >= 0 and finite (or, with ``infinite``, infinity)."""
    expected = "a number >= 0 (infinity allowed)" if infinite else "a finite number >= 0"
    value = _real(name, x, expected)
    if not (value >= 0 and (infinite or math.isfinite(value))):
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return abs(value)  # -0.0 becomes 0.0


def probability(name: str, x: Any) -> float:
    """Return ``x`` as a float if it lies strictly between 0 and 1."""
    expected = "a number with 0 < x < 1"
    value = _real(name, x, expected)
    if not 0 < value < 1:
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return value


def positive_int(name: str, x: Any) -> int:
    """Return ``x`` as an int if it is an integer >= 1 (NumPy integers too, booleans not)."""
    if isinstance(x, bool) or not isinstance(x, numbers.Integral):
        raise TypeError(f"{name} must be an integer >= 1, got {type(x).__name__}")
    value = int(x)
    if value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value}")
    return value


def integer_array(name: str, values: ArrayLike) -> NDArray[np.int64]:
    """Return a copy of a one-dimensional sequence of integers as int64."""
    expected = f"{name} must be a one-dimensional sequence of integers"
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{expected}, got a ragged one") from None
    if array.ndim != 1:
        raise ValueError(f"{expected}, got shape {array.shape}")
    if not array.size:  # an empty list has no dtype of its own
        return np.zeros(0, np.int64)
    if array.dtype.kind == "O" and all(type(x) is int for x in array):
        raise ValueError(f"{expected} below 2^63, got larger ones")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{expected}, got dtype {array.dtype}")
    if array.dtype.kind == "u" and int(array.max()) >= 2**63:
        raise ValueError(f"{expected} below 2^63, got {int(array.max())}")
    return np.array(array, dtype=np.int64, order="C")


def at_least(name: str, values: NDArray[np.int64], least: int) -> None:
    """Raise if one of the values is below ``least``."""
    if values.size and (smallest := int(values.min())) < least:
        raise ValueError(f"{name} must be integers >= {least}, got {smallest}")
