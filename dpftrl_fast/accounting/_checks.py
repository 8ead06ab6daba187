# SPDX-License-Identifier: Apache-2.0
"""Argument checks of the accounting: each names what was expected and what came."""

from __future__ import annotations

import math
import numbers
from typing import Any

__all__ = ["non_negative", "positive", "positive_int", "probability"]


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
