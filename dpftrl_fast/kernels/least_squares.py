# SPDX-License-Identifier: Apache-2.0
"""Sums of x x^T, in packed triangles: the checked calls.

BLAS makes the products, block by block, so that a block is added to the packed sum while it is in
cache and no p x p matrix is ever held; Numba does what BLAS does not (see
`dpftrl_fast.kernels.loops.triangle`). Products and sums are in float64 whatever the rows are: the
rounding errors of a float32 product of 256 rows can exceed the margin that scaling leaves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numba import types
from scipy.linalg import blas

from dpftrl_fast.kernels._blas import one_blas_thread
from dpftrl_fast.kernels._checks import (
    FLOATS,
    Array,
    check_array,
    check_csr,
    check_length,
    check_number,
)
from dpftrl_fast.kernels._jit import compiled, read_only, writable
from dpftrl_fast.kernels.loops import triangle as triangle_loops
from dpftrl_fast.kernels.packed import check_changed, packed_size
from dpftrl_fast.rounding import clip_limit

_F64 = "d"
# Products of two of them are clip norms.
_SMALLEST, _LARGEST = 1e-50, 1e50
_BLOCK = 512
#: Rows that are one product. The roundings of a product of n rows of norm L are below
#: n^2 2^-53 L^2: for these, far inside of the margin of 2^-19 L^2.
MOST_ROWS = 4096


@functools.cache
def _scale_rows(rows: str, targets: str) -> Callable[..., None]:
    return compiled(
        triangle_loops.scale_rows,
        *(read_only(rows, 2), read_only(targets, 1)),
        *(types.float64, types.float64, types.float64, types.int64),
        *(writable(_F64, 1), writable(_F64, 1)),
    )


@functools.cache
def _add_square() -> Callable[..., None]:
    return compiled(
        triangle_loops.add_square,
        *(read_only(_F64, 2), types.int64, types.int64, writable(_F64, 1), writable(_F64, 1)),
    )


@functools.cache
def _add_rectangle() -> Callable[..., None]:
    return compiled(
        triangle_loops.add_rectangle,
        *(read_only(_F64, 2), types.int64, types.int64, types.int64),
        *(writable(_F64, 1), writable(_F64, 1)),
    )


@functools.cache
def _add_csr(rows: str, indices: str, targets: str) -> Callable[..., None]:
    return compiled(
        triangle_loops.add_csr,
        *(read_only(rows, 1), read_only(indices, 1), read_only(indices, 1)),
        *(read_only(targets, 1), types.float64, types.float64, types.float64),
        *(writable(_F64, 1), writable(_F64, 1)),
    )


@functools.cache
def _move_csr(rows: str, indices: str) -> Callable[..., None]:
    return compiled(
        triangle_loops.move_csr,
        *(read_only(rows, 1), read_only(indices, 1), read_only(indices, 1)),
        *(types.int64, types.int64),
        *(writable(_F64, 1), writable(_F64, 1), writable(_F64, 1)),
    )


class RankUpdate:
    """Adds the outer products of batches of rows to a packed sum; holds the scratch for it.

    Rows whose norm exceeds the bound are scaled onto it, targets beyond theirs are clipped, and a
    row with a number that is not finite (in x or y) counts as zero. A constant column may be put
    behind the scaled rows. With L^2 = x_norm_bound^2 + constant^2, setting one row of a batch to
    zero changes the sum of x x^T by at most L^2 in Frobenius norm and that of y x by at most
    L y_bound.

    Parameters
    ----------
    p : int
        Columns of the sums, constant column included.
    x_norm_bound : float
        Between 1e-50 and 1e50.
    y_bound : float
        Bound on |y|, between 1e-50 and 1e50.
    constant : float
        Entry of the constant column, which is the last one, times 1 - 2^-20 as norms are; between
        1e-50 and 1e50, or 0 for none.

    Raises
    ------
    TypeError, ValueError
        If an argument is not of its kind or range.

    Examples
    --------
    >>> import numpy as np
    >>> update = RankUpdate(2, x_norm_bound=10.0, y_bound=1.0)
    >>> total, low, bias = np.zeros(3), np.zeros(3), np.empty(2)
    >>> update.add(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 5.0]), total, low, bias)
    >>> total.tolist(), bias.tolist()
    ([10.0, 14.0, 20.0], [4.0, 6.0])
    """

    def __init__(
        self, p: int, *, x_norm_bound: float, y_bound: float, constant: float = 0.0
    ) -> None:
        self._limit = clip_limit(_bound("x_norm_bound", x_norm_bound))
        self._y_bound = _bound("y_bound", y_bound)
        self._constant = 0.0 if constant == 0 else clip_limit(_bound("constant", constant))
        fewest = 2 if self._constant else 1
        if isinstance(p, bool) or not isinstance(p, (int, np.integer)):
            raise TypeError(f"p must be an integer >= {fewest}, got {type(p).__name__}")
        if not p >= fewest:
            raise ValueError(f"p must be an integer >= {fewest}, got {p}")
        self._p = int(p)
        self._filled = self._p - fewest + 1
        count = -(-self._p // _BLOCK)
        self._width = -(-self._p // count)
        self._panels = np.empty(0)
        self._block = np.empty((self._width, self._width), order="F")
        self._batch = np.zeros(0)
        self._bias = np.zeros(self._p)

    def add(self, X: Array, y: Array, total: Array, low: Array, bias: Array) -> None:
        """Add a batch of dense rows.

        Parameters
        ----------
        X : (n, p) array of float32 or float64, C-contiguous
            Rows; n may be 0. With a constant column they have p - 1 columns.
        y : (n,) array of float32 or float64
            Targets.
        total, low : (p (p + 1) / 2,) arrays of float64
            The packed sum and what its roundings lost, changed in place. Secret.
        bias : (p,) array of float64
            Overwritten with the batch's sum of y x. Secret.

        Raises
        ------
        TypeError, ValueError
            For types, dtypes, shapes, layouts and memory, never for values.
        """
        X = check_array("X", X, FLOATS, 2)
        y = check_array("y", y, FLOATS, 1)
        if X.shape[1] != self._filled:
            raise ValueError(f"X must have {self._filled} columns, got {X.shape[1]}")
        check_length("y", y, X.shape[0], "the rows of X")
        self._check_sums(total, low, bias, X=X, y=y)
        bias[:] = 0.0
        rows = min(X.shape[0], MOST_ROWS)
        if self._panels.size < rows * self._p:
            self._panels = np.empty(rows * self._p)
        scale = _scale_rows(X.dtype.char, y.dtype.char)
        bounds = (self._limit, self._y_bound, self._constant)
        for first in range(0, X.shape[0], MOST_ROWS):
            part = slice(first, min(first + MOST_ROWS, X.shape[0]))
            self._bias[:] = 0.0
            scale(X[part], y[part], *bounds, self._width, self._panels, self._bias)
            bias += self._bias
            self._add_panels(part.stop - part.start, total, low)

    def add_csr(
        self,
        data: Array,
        indices: Array,
        indptr: Array,
        y: Array,
        total: Array,
        low: Array,
        bias: Array,
    ) -> None:
        """Add a batch of compressed sparse rows, at a cost of the squares of their lengths.

        Entries of one row in the same column are added up first; a row with a column that is not
        there, or with bounds outside of `data`, counts as zero. The sum of a batch is rounded
        otherwise than that of the same rows in dense form.

        Parameters
        ----------
        data : (m,) array of float32 or float64
            Entries.
        indices : (m,) array of int32 or int64
            Their columns.
        indptr : (n + 1,) array of the dtype of `indices`
            Where rows begin and end.
        y, total, low, bias
            As for `add`.

        Raises
        ------
        TypeError, ValueError
            For types, dtypes, shapes, layouts and memory, never for values.
        """
        data, indices, indptr = check_csr(data, indices, indptr)
        y = check_array("y", y, FLOATS, 1)
        check_length("indptr", indptr, y.size + 1, "one more than y")
        self._check_sums(total, low, bias, data=data, indices=indices, indptr=indptr, y=y)
        bias[:] = 0.0
        batch, self._batch = self._batch, np.zeros(0)  # not kept if this is interrupted
        if batch.size == 0:
            batch = np.zeros(packed_size(self._p))
        add = _add_csr(data.dtype.char, indices.dtype.char, y.dtype.char)
        move = _move_csr(data.dtype.char, indices.dtype.char)
        bounds = (self._limit, self._y_bound, self._constant)
        for first in range(0, y.size, MOST_ROWS):
            stop = min(first + MOST_ROWS, y.size)
            part = (data, indices, indptr[first : stop + 1])
            self._bias[:] = 0.0
            add(*part, y[first:stop], *bounds, batch, self._bias)
            bias += self._bias
            move(*part, self._p, self._filled, batch, total, low)
        self._batch = batch

    def _check_sums(self, total: Array, low: Array, bias: Array, **inputs: Array) -> None:
        size = packed_size(self._p)
        check_changed("total", total, size, "p (p + 1) / 2", inputs)
        check_changed("low", low, size, "p (p + 1) / 2", {"total": total, **inputs})
        check_changed("bias", bias, self._p, "p", {"total": total, "low": low, **inputs})

    @one_blas_thread()
    def _add_panels(self, rows: int, total: Array, low: Array) -> None:
        p, width = self._p, self._width
        starts = range(0, p, width)
        # (columns of a panel) x rows, as BLAS wants it: column-major.
        panels = [
            self._panels[rows * j : rows * min(j + width, p)].reshape(rows, -1).T for j in starts
        ]
        for i, left in zip(starts, panels, strict=True):
            square = self._room(left.shape[0], left.shape[0])
            blas.dsyrk(1.0, left, c=square, lower=1, overwrite_c=1)
            _add_square()(square.T, i, p, total, low)
            for j, right in zip(starts, panels, strict=True):
                if j > i:
                    block = self._room(right.shape[0], left.shape[0])
                    blas.dgemm(1.0, right, left, trans_b=1, c=block, overwrite_c=1)
                    _add_rectangle()(block.T, i, j, p, total, low)

    def _room(self, rows: int, columns: int) -> Array:
        """Return a column-major matrix in the block's memory."""
        flat = self._block.reshape(-1, order="F")[: rows * columns]
        return flat.reshape((rows, columns), order="F")


def _bound(name: str, value: float) -> float:
    result = check_number(name, value)
    if not _SMALLEST <= result <= _LARGEST:
        raise ValueError(
            f"{name} must be a finite number in [{_SMALLEST}, {_LARGEST}], got {result}"
        )
    return result
