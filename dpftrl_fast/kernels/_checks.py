# SPDX-License-Identifier: Apache-2.0
"""Checks of a call's arguments: types, shapes and memory, never the values of private rows."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from dpftrl_fast._validate import norm_bound
from dpftrl_fast.kernels.losses import LOSS_CODES, MULTI_LOSS_CODES
from dpftrl_fast.rounding import clip_limit

Array = np.ndarray[Any, np.dtype[Any]]

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
FLOAT64 = (np.dtype(np.float64),)
INT64 = (np.dtype(np.int64),)
INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))

SMALLEST, LARGEST = 1e-100, 1e100  # of row bounds and constants: their squares are float64's


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
    """Return `out` if it can take the result: writable, and no memory shared with an input.

    None gives a new array.
    """
    if out is None:
        return np.empty(length)
    array = check_array("out", out, FLOAT64, 1)
    check_length("out", array, length, why)
    if not array.flags.writeable:
        raise ValueError("out must be writable, got a read-only array")
    for name, value in inputs.items():
        # Of contiguous arrays the bounds are exact.
        if np.may_share_memory(array, value):
            raise ValueError(f"out must not overlap an input, got memory shared with {name}")
    return array


def check_width(theta: Array, columns: int | None, constant: float) -> None:
    """Refuse parameters (outputs, width) that do not fit the columns and the constant."""
    width = theta.shape[1] - (constant != 0.0)
    if theta.shape[0] < 1 or width < 0 or (columns is not None and width != columns):
        needed = "p" if columns is None else str(columns)
        more = " and one of the constant" if constant != 0.0 else ""
        raise ValueError(
            f"theta must have at least 1 row of {needed} entries{more}, got shape {theta.shape}"
        )


def check_matrix_output(out: object, shape: tuple[int, ...], **inputs: Array) -> Array:
    """Return `out` if it can take a result of this shape, as `check_output` does for vectors."""
    if out is None:
        return np.empty(shape)
    array = check_array("out", out, FLOAT64, 2)
    if array.shape != shape:
        raise ValueError(f"out must have the shape {shape} of theta, got {array.shape}")
    check_output(array.reshape(-1), array.size, "the size of theta", **inputs)
    return array


def check_clip_norm(clip_norm: float) -> float:
    """Return `clip_norm` as a float if it is within bounds."""
    return norm_bound("clip_norm", clip_norm)


def check_loss(
    loss: object, loss_param: float, codes: dict[str, int] = LOSS_CODES
) -> tuple[int, float]:
    """Return the loss's code and its parameter."""
    if not isinstance(loss, str) or loss not in codes:
        raise ValueError(f"loss must be one of {', '.join(codes)}, got {loss!r}")
    value = check_number("loss_param", loss_param)
    if loss == "quantile":
        if not 0.0 < value < 1.0:
            raise ValueError(f"loss_param of quantile must lie between 0 and 1, got {value}")
    elif loss == "epsilon_insensitive":
        if not (value >= 0.0 and math.isfinite(value)):
            raise ValueError(f"loss_param must be a finite number >= 0, got {value}")
    elif not (value > 0.0 and math.isfinite(value)):
        raise ValueError(f"loss_param must be a finite number > 0, got {value}")
    return codes[loss], value


def check_row_bound(row_bound: float | None) -> float:
    """Return the bound on the norm of a row, infinity for none."""
    if row_bound is None:
        return math.inf
    value = check_number("row_bound", row_bound)
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"row_bound must be a finite number in [1e-100, 1e100], got {value}")
    return value


def check_constant(constant: float) -> float:
    """Return the entry of the constant column, 0 for none."""
    value = check_number("constant", constant)
    if not (value == 0.0 or SMALLEST <= value <= LARGEST):
        raise ValueError(f"constant must be 0 or a finite number in [1e-100, 1e100], got {value}")
    return value


class Numbers(NamedTuple):
    """The checked numbers of a gradient sum, in the order in which the loops take them."""

    limit: float
    loss: int
    loss_param: float
    row_bound: float
    constant: float


def check_numbers(
    clip_norm: float,
    loss: str,
    loss_param: float,
    row_bound: float | None,
    constant: float,
    *,
    several: bool = False,
) -> Numbers:
    """Return the numbers of a gradient sum, of one output or several, if all are within bounds."""
    arguments = (clip_norm, loss, loss_param, row_bound, constant, several)
    try:
        return _checked_numbers(*arguments)  # the same in every step of a run
    except TypeError:  # some cannot be hashed
        return _checked_numbers.__wrapped__(*arguments)


@functools.lru_cache(maxsize=256, typed=True)
def _checked_numbers(
    clip_norm: float,
    loss: str,
    loss_param: float,
    row_bound: float | None,
    constant: float,
    several: bool,
) -> Numbers:
    limit = clip_limit(check_clip_norm(clip_norm))
    code, parameter = check_loss(loss, loss_param, MULTI_LOSS_CODES if several else LOSS_CODES)
    return Numbers(limit, code, parameter, check_row_bound(row_bound), check_constant(constant))


def check_threads(threads: int) -> int:
    """Return `threads` as an int if it is an integer of at least 1."""
    if isinstance(threads, (bool, np.bool_)) or not isinstance(threads, (int, np.integer)):
        raise TypeError(f"threads must be an integer, got {type(threads).__name__}")
    if threads < 1:
        raise ValueError(f"threads must be an integer >= 1, got {threads}")
    return int(threads)


def check_csr(data: Array, indices: Array, indptr: Array) -> tuple[Array, Array, Array]:
    """Return the three arrays of compressed sparse rows if they are such by type and length."""
    data = check_array("data", data, FLOATS, 1)
    indices = check_array("indices", indices, INTEGERS, 1)
    indptr = check_array("indptr", indptr, (indices.dtype,), 1)
    check_length("indices", indices, data.size, "the length of data")
    if indptr.size == 0:
        raise ValueError("indptr must have at least 1 entry, got 0")
    return data, indices, indptr


def check_number(name: str, value: float) -> float:
    """Return `value` as a float if it is a number."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    return float(value)
