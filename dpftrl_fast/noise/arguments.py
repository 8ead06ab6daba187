# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of `TreeNoise`: each error says what was expected and what came."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np

__all__ = [
    "MAX_COORDINATES",
    "MAX_STEPS",
    "MAX_THREADS",
    "Memory",
    "Variant",
    "dtype_name",
    "integer",
    "memory_setting",
    "one_of",
    "std_in",
    "usable_cores",
]

Variant: TypeAlias = Literal["vanilla", "honaker"]
Memory: TypeAlias = Literal["stored", "regenerate"] | int

MAX_STEPS = 2**46
"""Steps of one tree, at most."""
MAX_COORDINATES = 2**36
"""Of one noise vector, at most; float64 has half as many, which the core checks."""
MAX_THREADS = 1024
"""Of one call, at most."""
_MAX_VECTORS = 2**31


def integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as an int in [low, high]; TypeError or ValueError name `name`."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be an integer, got a bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}") from None
    if high is not None and not (low is not None and low <= number <= high):
        raise ValueError(f"{name} must be an integer in [{low}, {high}], got {number}")
    if low is not None and number < low:
        raise ValueError(f"{name} must be an integer >= {low}, got {number}")
    return number


def std_in(value: Any, dtype: str) -> float:
    """Return `value` rounded to the dtype: finite, > 0 and a normal number."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"std must be a real number, got {type(value).__name__}")
    try:
        std = float(value)
    except OverflowError:
        std = math.inf
    if not (std > 0 and math.isfinite(std)):
        raise ValueError(f"std must be a finite number > 0, got {std}")
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.dtype(dtype).type(std))
    # Noise of a subnormal std would lie on a grid as coarse as itself.
    if not (rounded >= np.finfo(dtype).tiny and math.isfinite(rounded)):
        raise ValueError(f"std must be a finite, normal number > 0 in {dtype}, got {std}")
    return rounded


def dtype_name(dtype: Any) -> str:
    """Return "float32" or "float64"."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    # NumPy reads None as float64.
    if dtype is None or found not in (np.float32, np.float64) or not found.isnative:
        raise ValueError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
    return str(found.name)


def one_of(name: str, value: Any, allowed: Sequence[str]) -> str:
    """Return `value` when it is one of `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return str(value)


def memory_setting(value: Any) -> Memory:
    """Return "stored", "regenerate" or an integer >= 1."""
    if value in ("stored", "regenerate"):
        return value  # type: ignore[no-any-return]
    if isinstance(value, str):
        raise ValueError(f"memory must be 'stored', 'regenerate' or an integer >= 1, got {value!r}")
    return integer("memory", value, 1, _MAX_VECTORS)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
