# SPDX-License-Identifier: Apache-2.0
"""Checks of a call's arguments: types, shapes and memory, never the values of private rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpftrl_fast import clip_norms
from dpftrl_fast.kernels.losses import LOSS_CODES

Array = np.ndarray[Any, np.dtype[Any]]

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
FLOAT64 = (np.dtype(np.float64),)
INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))


def check_array(name: str, value: object, dtypes: tuple[np.dtype[Any], ...], ndim: int) -> Array:
    """Return `value` if it is an aligned C-contiguous array of one of these dtypes."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{_expected(name, dtypes, ndim)}, got {type(value).__name__}")
    if value.dtype not in dtypes:
        raise TypeError(f"{_expected(name, dtypes, ndim)}, got dtype {value.dtype}")
    if value.ndim != ndim:
        raise ValueError(f"{_expected(name, dtypes, ndim)}, got shape {value.shape}")
    flags = value.flags
    if not flags.c_contiguous:
        raise ValueError(f"{_expected(name, dtypes, ndim)}, got strides {value.strides}")
    if not flags.aligned:
        raise ValueError(f"{_expected(name, dtypes, ndim)}, got unaligned memory")
    return value


def _expected(name: str, dtypes: tuple[np.dtype[Any], ...], ndim: int) -> str:
    return f"{name} must be a C-contiguous {ndim}-d array of {' or '.join(map(str, dtypes))}"


def check_length(name: str, value: Array, length: int, why: str) -> None:
    """Refuse a vector of another length."""
    if value.size != length:
        raise ValueError(f"{name} must have {length} entries ({why}), got {value.size}")


def check_output(out: object, length: int, why: str, **inputs: Array) -> Array:
    """Return `out` if it can take the result: writable, and no memory shared with an input."""
    array = check_array("out", out, FLOAT64, 1)
    check_length("out", array, length, why)
    if not array.flags.writeable:
        raise ValueError("out must be writable, got a read-only array")
    for name, value in inputs.items():
        # Of contiguous arrays the bounds are exact.
        if np.may_share_memory(array, value):
            raise ValueError(f"out must not overlap an input, got memory shared with {name}")
    return array


def check_clip_norm(clip_norm: float) -> float:
    """Return `clip_norm` as a float if it is within bounds."""
    return clip_norms.check_clip_norm(_number("clip_norm", clip_norm))


def check_loss(loss: object, loss_param: float) -> tuple[int, float]:
    """Return the loss's code and its parameter."""
    if not isinstance(loss, str) or loss not in LOSS_CODES:
        raise ValueError(f"loss must be one of {', '.join(LOSS_CODES)}, got {loss!r}")
    value = _number("loss_param", loss_param)
    if not (value > 0.0 and math.isfinite(value)):
        raise ValueError(f"loss_param must be a finite number > 0, got {value}")
    return LOSS_CODES[loss], value


def _number(name: str, value: float) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    return float(value)
