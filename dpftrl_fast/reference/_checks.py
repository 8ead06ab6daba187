# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments, and the dtypes of the stream."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
LAYOUT = {FLOAT32: (256, 1), FLOAT64: (128, 3)}  # normals in a superblock, kind


def check(good: bool, expected: str, got: object) -> None:
    """Raise a ValueError unless `good`."""
    if not good:
        raise ValueError(f"{expected}, got {got}")


def integer(name: str, value: Any, least: int) -> int:
    """Return `value` as an int if it is an integer of at least `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    check(operator.index(value) >= least, f"{name} must be >= {least}", value)
    return operator.index(value)


def float_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return float32 or float64 as a dtype."""
    check(np.dtype(dtype) in LAYOUT, "dtype must be float32 or float64", dtype)
    return np.dtype(dtype)
