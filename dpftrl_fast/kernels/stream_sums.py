# SPDX-License-Identifier: Apache-2.0
"""Loops over the steps of a stream: contributions of one record a step, and released running sums.

Every operation is rounded where it is written, as in the NumPy code of `dpftrl_fast.streams` for
single steps and in `dpftrl_fast.rounding.noisy_sum`: many steps at once are the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import boolean, float64

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.exact import on_grid, two_sum
from dpftrl_fast.kernels.jit import Unsigned, compiled, read_only, writable


def clipped_steps(records: Array, bound: float) -> Array:
    """Return each row scaled down to L2 norm `bound`; a row that is not finite becomes zero.

    Parameters
    ----------
    records : ndarray of float64, shape (steps, size)
        One record a step.
    bound : float
        Norm that the rows are clipped to.

    Examples
    --------
    >>> clipped_steps(np.array([[3.0, 4.0], [np.nan, 1.0]]), 1.0).round(3).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    out = np.empty_like(records)
    _clipping()(records, bound, out)
    return out


def bounded_steps(records: Array, low: Array, high: Array, centre: Array, unit: Array) -> Array:
    """Return each row clipped to bounds, less their centre and divided by their half-width.

    Parameters
    ----------
    records : ndarray of float64, shape (steps, size)
        One record a step. A row that is not finite becomes zero.
    low, high, centre, unit : ndarray of float64, shape (size,)
        Bounds, their centre and half their width.

    Examples
    --------
    >>> one = np.ones(1)
    >>> bounded_steps(np.array([[9.0], [1.5], [np.nan]]), 0 * one, 2 * one, one, one).ravel()
    array([1. , 0.5, 0. ])
    """
    out = np.empty_like(records)
    _bounding()(records, low, high, centre, unit, out)
    return out


def running_sums(
    step_sums: Array, noise: Array, grid: float, total: Array, low: Array, out: Array
) -> None:
    """Add the rows to a running sum, and write the released sum after each.

    Parameters
    ----------
    step_sums : ndarray of float64, shape (steps, size)
        Sum of the contributions of each step.
    noise : ndarray of float64 or float32, shape (steps, size)
        Noise in the running sum at each step; `out` gets numbers of its dtype.
    grid : float
        Power of two to whose multiples released sums are rounded.
    total, low : ndarray of float64, shape (size,)
        Running sum and its rounding errors, in and out.
    out : ndarray of float64, shape (steps, size)
        Released sums.

    Examples
    --------
    >>> total, low, out = np.zeros(1), np.zeros(1), np.empty((2, 1))
    >>> running_sums(np.ones((2, 1)), np.array([[0.3], [0.1]]), 0.25, total, low, out)
    >>> out.ravel().tolist(), total.item()
    ([1.25, 2.0], 2.0)
    """
    narrow = noise.dtype != np.float64
    _sums(noise.dtype.name)(step_sums, noise, grid, narrow, total, low, out)


def _clip(records: Array, bound: float, out: Array) -> None:
    steps, size = records.shape
    for t in range(steps):
        row = records[t]
        largest = 0.0
        finite = True
        for i in range(size):
            a = abs(row[i])
            finite &= a < np.inf
            largest = max(largest, a)
        if not finite or largest == 0.0:
            for i in range(size):
                out[t, i] = 0.0
            continue
        squares = 0.0
        for i in range(size):
            unit = row[i] / largest
            squares += unit * unit
        length = np.sqrt(squares)
        if length * largest > bound:
            factor = bound / length
            for i in range(size):
                out[t, i] = row[i] / largest * factor
        else:
            for i in range(size):
                out[t, i] = row[i]


def _bound(records: Array, low: Array, high: Array, centre: Array, unit: Array, out: Array) -> None:
    steps, size = records.shape
    for t in range(Unsigned(steps)):
        finite = True
        for i in range(Unsigned(size)):
            x = records[t, i]
            finite &= abs(x) < np.inf
            inside = min(max(x, low[i]), high[i])
            out[t, i] = min(max((inside - centre[i]) / unit[i], -1.0), 1.0)
        if not finite:
            for i in range(Unsigned(size)):
                out[t, i] = 0.0


def _run(
    step_sums: Array, noise: Array, grid: float, narrow: bool, total: Array, low: Array, out: Array
) -> None:
    steps, size = step_sums.shape
    for t in range(Unsigned(steps)):
        for i in range(Unsigned(size)):
            s, error = two_sum(total[i], step_sums[t, i])
            total[i] = s
            low[i] = low[i] + error
            value = on_grid(s + (low[i] + noise[t, i]), grid, 0.5)
            out[t, i] = np.float64(np.float32(value)) if narrow else value


@functools.cache
def _clipping() -> Callable[..., Any]:
    return compiled(_clip, read_only("float64", 2), float64, writable("float64", 2), exact=True)


@functools.cache
def _bounding() -> Callable[..., Any]:
    rows, vector = read_only("float64", 2), read_only("float64", 1)
    return compiled(
        _bound, rows, vector, vector, vector, vector, writable("float64", 2), exact=True
    )


@functools.cache
def _sums(dtype: str) -> Callable[..., Any]:
    vector, rows = writable("float64", 1), read_only("float64", 2)
    return compiled(
        _run, rows, read_only(dtype, 2), float64, boolean, vector, vector,
        writable("float64", 2), exact=True,
    )  # fmt: skip
