# SPDX-License-Identifier: Apache-2.0
"""Squared norms and weighted sums of per-example gradients, in float64 from float32.

Each pass reads the gradients once and converts them in registers, so that it runs at the speed of
memory: array operations would write a copy in float64 first. A weighted sum goes over a block of
columns that stays in the cache, four examples at a time, so that sums are read and written once.
Threads share the rows of the norms and the columns of the sums: the same bits for any number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numba import types
from numpy.typing import NDArray

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.jit import compiled, read_only, writable
from dpftrl_fast.kernels.threads import run_on_threads

_SHARE = 2**20  # numbers that are worth a thread
_BLOCK = 2**12  # columns whose sums stay in the cache

Rows = NDArray[np.float32]
Floats = NDArray[np.float64]


def _squares(rows: Array, first: int, stop: int, out: Array) -> None:
    for i in range(first, stop):
        row, total = rows[i], 0.0
        for j in range(row.size):
            x = np.float64(row[j])
            total += x * x
        out[i] = total


def _add(rows: Array, factors: Array, first: int, stop: int, total: Array) -> None:
    for start in range(first, stop, _BLOCK):
        end = min(start + _BLOCK, stop)
        part = total[start:end]
        i, count = 0, factors.size
        while i < count:
            a, row_a = factors[i], rows[i, start:end]
            if i + 3 < count and np.all(factors[i : i + 4] != 0.0):
                # four at a time, so that sums are loaded and stored less often
                b, row_b = factors[i + 1], rows[i + 1, start:end]
                c, row_c = factors[i + 2], rows[i + 2, start:end]
                d, row_d = factors[i + 3], rows[i + 3, start:end]
                for j in range(part.size):
                    part[j] += (a * np.float64(row_a[j]) + b * np.float64(row_b[j])) + (
                        c * np.float64(row_c[j]) + d * np.float64(row_d[j])
                    )
                i += 4
                continue
            if a != 0.0:  # an example that does not count may be NaN
                for j in range(part.size):
                    part[j] += a * np.float64(row_a[j])
            i += 1


@functools.cache
def _squares_loop() -> Callable[..., None]:
    place = types.int64, types.int64
    return compiled(_squares, read_only("float32", 2), *place, writable("float64", 1))


@functools.cache
def _add_loop() -> Callable[..., None]:
    given = read_only("float32", 2), read_only("float64", 1)
    return compiled(_add, *given, types.int64, types.int64, writable("float64", 1))


def load() -> None:
    """Compile the loops, or load them, before they are needed."""
    _squares_loop()
    _add_loop()


def squared_norms(rows: Rows, threads: int = 1) -> Floats:
    """Return the squared L2 norm of each row, in float64; NaN and infinity as they come.

    Parameters
    ----------
    rows : ndarray of float32, shape (n, d), C-contiguous
    threads : int
        Most threads.

    Examples
    --------
    >>> squared_norms(np.array([[3.0, 4.0], [1e30, 0.0]], np.float32)).tolist()[0]
    25.0
    """
    count, width = rows.shape
    out: Floats = np.empty(count)
    loop, cuts = _squares_loop(), _cuts(count, max(1, _SHARE // max(1, width)))
    run_on_threads(lambda cut: loop(rows, *cut, out), cuts, threads)
    return out


def add_weighted(rows: Rows, factors: Floats, total: Floats, threads: int = 1) -> None:
    """Add the sum of factor times row to a total, in place; rows with a factor of 0 are left out.

    Parameters
    ----------
    rows : ndarray of float32, shape (n, d), C-contiguous
    factors : ndarray of float64, shape (n,)
    total : ndarray of float64, shape (d,)
    threads : int
        Most threads.

    Examples
    --------
    >>> total = np.zeros(2)
    >>> add_weighted(np.array([[1, 2], [np.nan, 1]], np.float32), np.array([0.5, 0.0]), total)
    >>> total.tolist()
    [0.5, 1.0]
    """
    count, width = rows.shape
    size = max(1, _SHARE // max(1, count) // _BLOCK) * _BLOCK
    loop, cuts = _add_loop(), _cuts(width, size)
    run_on_threads(lambda cut: loop(rows, factors, *cut, total), cuts, threads)


def _cuts(count: int, size: int) -> list[tuple[int, int]]:
    return [(start, min(start + size, count)) for start in range(0, count, size)]
