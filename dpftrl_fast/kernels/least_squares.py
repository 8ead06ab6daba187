# SPDX-License-Identifier: Apache-2.0
"""Sums of x x^T, in packed triangles: the checked calls.

BLAS makes the products block by block, so that a block is added to the packed sum while it is in
cache and no p x p matrix is ever held; the rest is compiled by Numba (see
`dpftrl_fast.kernels.loops.triangle`). Products and sums are in float64 whatever the rows are: the
rounding errors of a float32 product of 256 rows can exceed the margin that scaling leaves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numba import types
from scipy.linalg import blas

from dpftrl_fast._validate import FLOATS, Array, array, choice, integer, real
from dpftrl_fast.kernels._checks import FLOAT64, check_changed, check_length, check_rows
from dpftrl_fast.kernels.blas_threads import one_blas_thread
from dpftrl_fast.kernels.jit import compiled, read_only, writable
from dpftrl_fast.kernels.loops import triangle as triangle_loops
from dpftrl_fast.kernels.packed import packed_size
from dpftrl_fast.kernels.rows import Rows
from dpftrl_fast.rounding import MOST_SUMMANDS, PLAIN_SUMMANDS, clip_limit, two_sum

_F64 = "d"
_BLOCK = 512
#: Rows of one product. The roundings of a product of n rows of norm L are below n^2 2^-53 L^2: far
#: inside the margin of 2^-19 L^2.
MOST_ROWS = PLAIN_SUMMANDS


@functools.cache
def _scale_rows(rows: str, targets: str) -> Callable[..., None]:
    return compiled(
        triangle_loops.scale_rows,
        *(read_only(rows, 2), read_only(targets, 2), read_only(_F64, 1)),
        *(types.float64, types.float64, types.float64, types.float64, types.boolean),
        *(types.int64, types.int64, writable(_F64, 1), writable(_F64, 2)),
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
        *(read_only(targets, 2), read_only(_F64, 1)),
        *(types.float64, types.float64, types.float64, types.float64, types.boolean, types.int64),
        *(writable(_F64, 1), writable(_F64, 2)),
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
    """Add the outer products of batches of rows to a packed sum; holds the scratch for it.

    Rows whose norm exceeds the bound are scaled onto it, targets beyond theirs are clipped, and a
    row with a number that is not finite (in x or y) counts as zero. A constant column may be
    appended to the scaled rows.

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
    targets : int
        Targets of a row (m), each clipped to the bound.
    squares : float
        Weight kappa of the sums of squared targets, in units of L/y_bound and times 1 - 2^-20; at
        most 1e3, or 0 for none.
    long_rows : {"scale", "weight"}
        Whether a row beyond its bound is scaled alone, or its constant and targets with it: that is
        the row with a weight.

    Raises
    ------
    TypeError, ValueError
        If an argument is not a number of its range.

    Notes
    -----
    **Formal guarantee.** With L^2 = x_norm_bound^2 + constant^2, a row that counts as zero instead
    changes the sum of x x^T by at most L^2 in Frobenius norm and that of y x by at most L y_bound;
    with m targets and kappa, the latter by at most L y_bound sqrt(m (1 + kappa^2)). Rows of weights
    in [0, 1] change them by that times their weight.
    A row of zeros counts as zero without a constant only: with one it is the row (0, constant), and
    replacing a row by it is replacing one row by another, with twice these bounds. No noise is
    added: the sums are not private.

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
        self,
        p: int,
        *,
        x_norm_bound: float,
        y_bound: float,
        constant: float = 0.0,
        targets: int = 1,
        squares: float = 0.0,
        long_rows: str = "scale",
    ) -> None:
        in_range = functools.partial(real, least=1e-50, most=1e50)  # products are clip norms
        limit = clip_limit(in_range("x_norm_bound", x_norm_bound))
        own = 0.0 if constant == 0 else clip_limit(in_range("constant", constant))
        bound = in_range("y_bound", y_bound)
        row_norm = math.hypot(x_norm_bound, constant)
        weight = clip_limit(real("squares", squares, least=0.0, most=1e3)) * (row_norm / bound)
        whole = choice("long_rows", long_rows, ("scale", "weight")) == "weight"
        self._bounds = (limit, bound, own, weight, whole)
        self._p = integer("p", p, 2 if own else 1)
        self._filled = self._p - (own > 0.0)
        count = -(-self._p // _BLOCK)
        self._width = -(-self._p // count)
        self._panels = np.empty(0)
        self._block = np.empty((self._width, self._width), order="F")
        self._batch = np.zeros(0)
        self._shape = (integer("targets", targets, 1), self._p + (weight > 0.0))
        self._bias, self._bias_low = np.zeros(self._shape), np.zeros(self._shape)

    def add(
        self,
        rows: Rows,
        y: Array,
        total: Array,
        low: Array,
        bias: Array,
        weights: Array | None = None,
    ) -> None:
        """Add a batch of rows.

        Sparse rows cost the squares of their lengths. Entries of one row in the same column are
        added up first; a row with a column that does not exist, or with bounds outside `data`,
        counts as zero. The sum is rounded differently from that of the same rows in dense form.

        Parameters
        ----------
        rows : (n, p) array of float32 or float64, C-contiguous, or SparseRows
            Rows; n may be 0. With a constant column they have p - 1 columns.
        y : (n,) or (n, m) array of float32 or float64
            Targets.
        total, low : (p (p + 1) / 2,) arrays of float64
            The packed sum and its rounding errors, changed in place. Secret.
        bias : (m q,) array of float64
            Overwritten with the batch's sums of y x, target after target: q = p numbers each, or
            with `squares` q = p + 1, the last being kappa L/y_bound times the sum of y^2. Secret.
        weights : (n,) array of float64, optional
            Weights of the rows in both sums, clipped to [0, 1]; one that is not finite is 0. A row
            of weight w counts as sqrt(w) times its clipped row, constant and targets.

        Raises
        ------
        TypeError, ValueError
            For types, dtypes, shapes, layouts and memory, and more than 2^28 rows; never for
            values.
        """
        inputs = check_rows(rows)
        arrays = tuple(inputs.values())
        several = getattr(y, "ndim", 1) == 2
        y = inputs["y"] = array("y", y, FLOATS, 2 if several else 1)
        n, columns = rows.shape
        if columns != self._filled:
            raise ValueError(f"rows must have {self._filled} columns, got {columns}")
        if not several:
            check_length("y", y, n, "the number of rows")
            y = y.reshape(n, 1)
        if y.shape != (n, self._shape[0]):
            raise ValueError(f"y must have shape {(n, self._shape[0])}, got {y.shape}")
        size = packed_size(self._p)
        inputs["total"] = check_changed("total", total, (size,), "p (p + 1) / 2", inputs)
        inputs["low"] = check_changed("low", low, (size,), "p (p + 1) / 2", inputs)
        check_changed("bias", bias, (math.prod(self._shape),), "m q", inputs)
        if n > MOST_SUMMANDS:
            raise ValueError(
                f"rows must be at most {MOST_SUMMANDS}, so that the rounding of their sum stays "
                f"within the margin of the clipping, got {n}"
            )
        roots = np.ones(n) if weights is None else _roots(weights, n)
        bias = bias.reshape(self._shape)
        bias[:] = 0.0
        self._bias_low[:] = 0.0
        if len(arrays) == 1:
            self._add_dense(arrays[0], y, roots, total, low, bias)
        else:
            self._add_sparse((arrays[0], arrays[1], arrays[2]), y, roots, total, low, bias)
        bias += self._bias_low

    def _add_dense(
        self, X: Array, y: Array, roots: Array, total: Array, low: Array, bias: Array
    ) -> None:
        n = len(y)
        rows = min(n, MOST_ROWS)
        if self._panels.size < rows * self._p:
            self._panels = np.empty(rows * self._p)
        scale = _scale_rows(X.dtype.char, y.dtype.char)
        for first in range(0, n, MOST_ROWS):
            part = slice(first, min(first + MOST_ROWS, n))
            sizes = (self._p, self._width)
            self._bias[:] = 0.0
            scale(X[part], y[part], roots[part], *self._bounds, *sizes, self._panels, self._bias)
            self._add_bias(bias)
            self._add_panels(part.stop - part.start, total, low)

    def _add_sparse(
        self,
        csr: tuple[Array, Array, Array],
        y: Array,
        roots: Array,
        total: Array,
        low: Array,
        bias: Array,
    ) -> None:
        data, indices, indptr = csr
        batch, self._batch = self._batch, np.zeros(0)  # not kept if this is interrupted
        if batch.size == 0:
            batch = np.zeros(packed_size(self._p))
        add = _add_csr(data.dtype.char, indices.dtype.char, y.dtype.char)
        move = _move_csr(data.dtype.char, indices.dtype.char)
        for first in range(0, len(y), MOST_ROWS):
            stop = min(first + MOST_ROWS, len(y))
            part = (data, indices, indptr[first : stop + 1])
            of_rows = (y[first:stop], roots[first:stop])
            self._bias[:] = 0.0
            add(*part, *of_rows, *self._bounds, self._p, batch, self._bias)
            self._add_bias(bias)
            move(*part, self._p, self._filled, batch, total, low)
        self._batch = batch

    def _add_bias(self, bias: Array) -> None:
        bias[:], error = two_sum(bias, self._bias)
        self._bias_low += error

    @one_blas_thread()
    def _add_panels(self, rows: int, total: Array, low: Array) -> None:
        p, width = self._p, self._width
        starts = range(0, p, width)
        # (columns of a panel) x rows, column-major as BLAS takes it.
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


def _roots(weights: Array, n: int) -> Array:
    """Return the square roots of weights, clipped to [0, 1]; of others than numbers, 0."""
    weights = array("weights", weights, FLOAT64, 1)
    check_length("weights", weights, n, "the number of rows")
    roots: Array = np.sqrt(np.clip(np.where(np.isfinite(weights), weights, 0.0), 0.0, 1.0))
    return roots
