# SPDX-License-Identifier: Apache-2.0
"""Predictions and clipped gradient sums of generalised linear models: the checked calls."""

from __future__ import annotations

import functools
from collections.abc import Callable

from numba import types

from dpftrl_fast.kernels._checks import (
    FLOAT64,
    FLOATS,
    Array,
    check_array,
    check_csr,
    check_length,
    check_numbers,
    check_output,
    check_threads,
)
from dpftrl_fast.kernels._jit import compiled, read_only, writable
from dpftrl_fast.kernels._threads import sum_of_chunks
from dpftrl_fast.kernels.loops import csr as csr_loops
from dpftrl_fast.kernels.loops import dense as dense_loops
from dpftrl_fast.kernels.losses import Loss

_F64 = "d"

# Loops are named by the characters of their dtypes, which hash faster than the dtypes.


@functools.cache
def _dense_sum(rows: str, targets: str) -> Callable[..., None]:
    return compiled(
        dense_loops.clipped_sum,
        *(read_only(rows, 2), read_only(targets, 1), read_only(_F64, 1)),
        *(types.float64, types.int64, types.float64, types.float64, types.float64),
        writable(_F64, 1),
    )


@functools.cache
def _dense_predictions(rows: str) -> Callable[..., None]:
    return compiled(
        dense_loops.predictions, read_only(rows, 2), read_only(_F64, 1), writable(_F64, 1)
    )


@functools.cache
def _csr_sum(rows: str, indices: str, targets: str) -> Callable[..., None]:
    return compiled(
        csr_loops.clipped_sum,
        *(read_only(rows, 1), read_only(indices, 1), read_only(indices, 1)),
        *(read_only(targets, 1), read_only(_F64, 1)),
        *(types.float64, types.int64, types.float64, types.float64, types.float64),
        writable(_F64, 1),
    )


@functools.cache
def _csr_predictions(rows: str, indices: str) -> Callable[..., None]:
    return compiled(
        csr_loops.predictions,
        *(read_only(rows, 1), read_only(indices, 1), read_only(indices, 1)),
        *(read_only(_F64, 1), writable(_F64, 1)),
    )


def predict(X: Array, theta: Array, out: Array) -> Array:
    """Compute the predictions z_i = <x_i, theta>.

    Parameters
    ----------
    X : (n, p) array of float32 or float64, C-contiguous
        Rows.
    theta : (p,) array of float64
        Parameters.
    out : (n,) array of float64
        Overwritten with the predictions, computed in float64. A row that is not finite gives what
        IEEE arithmetic gives.

    Returns
    -------
    (n,) array of float64
        `out`.

    Raises
    ------
    TypeError, ValueError
        If an array has the wrong type, dtype, shape or layout, or `out` is read-only or overlaps an
        input.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast.kernels import predict
    >>> predict(np.eye(2), np.array([3.0, 4.0]), np.empty(2)).tolist()
    [3.0, 4.0]
    """
    X = check_array("X", X, FLOATS, 2)
    theta = check_array("theta", theta, FLOAT64, 1)
    check_length("theta", theta, X.shape[1], "the columns of X")
    out = check_output(out, X.shape[0], "the rows of X", X=X, theta=theta)
    _dense_predictions(X.dtype.char)(X, theta, out)
    return out


def predict_csr(data: Array, indices: Array, indptr: Array, theta: Array, out: Array) -> Array:
    """Compute the predictions z_i = <x_i, theta> of compressed sparse rows.

    Parameters
    ----------
    data, indices, indptr : arrays
        The rows, as in `clipped_gradient_sum_csr`.
    theta : (p,) array of float64
        Parameters.
    out : (n,) array of float64
        Overwritten with the predictions; NaN for a row whose indices or bounds are out of range.

    Returns
    -------
    (n,) array of float64
        `out`.

    Raises
    ------
    TypeError, ValueError
        If an array has the wrong type, dtype, length or layout, or `out` is read-only or overlaps
        an input.
    """
    data, indices, indptr = check_csr(data, indices, indptr)
    theta = check_array("theta", theta, FLOAT64, 1)
    n = indptr.size - 1
    out = check_output(
        *(out, n, "one less than indptr"), data=data, indices=indices, indptr=indptr, theta=theta
    )
    _csr_predictions(data.dtype.char, indices.dtype.char)(data, indices, indptr, theta, out)
    return out


def clipped_gradient_sum(
    X: Array,
    y: Array,
    theta: Array,
    clip_norm: float,
    loss: Loss,
    out: Array | None = None,
    *,
    loss_param: float = 1.0,
    row_bound: float | None = None,
    constant: float = 0.0,
    threads: int = 1,
) -> Array:
    """Compute the sum of the rows' gradients, each clipped, in one pass over the rows.

    That is the sum of g_i min(1, L' / |g_i|), with g_i = l'(<x_i, theta>, y_i) x_i and L' = L (1 -
    2^-20), L being the clip norm. Everything is computed in float64; no per-example gradient is
    ever held.

    Whatever the rows hold, setting one of them to zero changes `out` by at most L in L2 norm: the
    contribution of a row has norm at most L, and one of norm at most L' is exactly the plain
    gradient. A row that holds a NaN or an infinity, or whose target, prediction or slope l' is not
    finite in float64, keeps its slot and counts as zero. A finite row with a finite slope is
    clipped even where the squares of its entries, or the entries of its gradient, overflow. No row
    gives zeros.

    With a row bound R, a row x stands for x min(1, R / |x|); with a constant c, for (x, c), the
    constant being appended after that. Neither makes a copy of the rows.

    Parameters
    ----------
    X : (n, p) array of float32 or float64, C-contiguous
        Rows; n may be 0.
    y : (n,) array of float32 or float64
        Targets. For `logistic` and `hinge` the class is positive where y > 0.
    theta : (p,) or (p + 1,) array of float64
        Parameters; p + 1 with a constant, whose parameter is the last.
    clip_norm : float
        L, between 1e-100 and 1e100.
    loss : str
        A loss of one output, see `dpftrl_fast.kernels.losses`.
    out : array of float64, like theta, optional
        Overwritten with the sum; a new array without it. The sum is raw: secret until noise is
        added.
    loss_param : float, default 1.0
        k of the Huber, epsilon-insensitive and quantile losses; not read by the others.
    row_bound : float, optional
        R, between 1e-100 and 1e100.
    constant : float, default 0
        c, between 1e-100 and 1e100; 0 for no constant.
    threads : int, default 1
        At most so many threads; the result is the same to the bit.

    Returns
    -------
    array of float64
        The sum, in `out` where it is given.

    Raises
    ------
    TypeError, ValueError
        For a wrong call: types, dtypes, shapes, layouts, memory, clip norm or loss. Never for the
        values of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast.kernels import clipped_gradient_sum
    >>> X, y = np.eye(2, dtype=np.float32), np.array([-0.25, 100.0])
    >>> clipped_gradient_sum(X, y, np.zeros(2), 1.0, "squared", np.empty(2)).round(5).tolist()
    [0.25, -1.0]
    """
    X = check_array("X", X, FLOATS, 2)
    y = check_array("y", y, FLOATS, 1)
    theta = check_array("theta", theta, FLOAT64, 1)
    check_length("y", y, X.shape[0], "the rows of X")
    numbers = check_numbers(clip_norm, loss, loss_param, row_bound, constant)
    columns, why = X.shape[1], "the columns of X"
    if numbers.constant != 0.0:
        columns, why = columns + 1, "the columns of X and the constant"
    check_length("theta", theta, columns, why)
    out = check_output(out, columns, why, X=X, y=y, theta=theta)
    sum_of_chunks(
        _dense_sum(X.dtype.char, y.dtype.char),
        lambda start, stop: (X[start:stop], y[start:stop]),
        X.shape[0],
        (theta, *numbers),
        out,
        check_threads(threads),
    )
    return out


def clipped_gradient_sum_csr(
    data: Array,
    indices: Array,
    indptr: Array,
    y: Array,
    theta: Array,
    clip_norm: float,
    loss: Loss,
    out: Array | None = None,
    *,
    loss_param: float = 1.0,
    row_bound: float | None = None,
    constant: float = 0.0,
    threads: int = 1,
) -> Array:
    """Compute the clipped gradient sum of compressed sparse rows.

    As `clipped_gradient_sum`, with row i holding `data[k]` in column `indices[k]` for k from
    `indptr[i]` to `indptr[i + 1] - 1`. Entries of one row in the same column are added up first, so
    that the norm that is clipped is the norm of what is added; rows in canonical form (columns
    ascending, none twice) are faster. A row with a column outside [0, p) or with bounds outside
    `data` counts as zero, since a refusal would depend on private values.

    Parameters
    ----------
    data : (m,) array of float32 or float64
        Entries.
    indices : (m,) array of int32 or int64
        Their columns.
    indptr : (n + 1,) array of the dtype of `indices`
        Where rows begin and end.
    y, theta, clip_norm, loss, out, loss_param, row_bound, constant, threads
        As in `clipped_gradient_sum`.

    Returns
    -------
    array of float64
        The sum, in `out` where it is given.

    Raises
    ------
    TypeError, ValueError
        For a wrong call: types, dtypes, lengths, layouts, memory, clip norm or loss. Never for the
        values of rows.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from dpftrl_fast.kernels import clipped_gradient_sum_csr
    >>> X = scipy.sparse.csr_array(np.eye(2))
    >>> y, theta, out = np.array([-0.25, 100.0]), np.zeros(2), np.empty(2)
    >>> out = clipped_gradient_sum_csr(X.data, X.indices, X.indptr, y, theta, 1.0, "squared", out)
    >>> out.round(5).tolist()
    [0.25, -1.0]
    """
    data, indices, indptr = check_csr(data, indices, indptr)
    y = check_array("y", y, FLOATS, 1)
    theta = check_array("theta", theta, FLOAT64, 1)
    check_length("y", y, indptr.size - 1, "one less than indptr")
    out = check_output(
        *(out, theta.size, "the size of theta"),
        data=data,
        indices=indices,
        indptr=indptr,
        y=y,
        theta=theta,
    )
    numbers = check_numbers(clip_norm, loss, loss_param, row_bound, constant)
    if numbers.constant != 0.0 and theta.size == 0:
        raise ValueError("theta must have at least 1 entry, that of the constant, got 0")
    sum_of_chunks(
        _csr_sum(data.dtype.char, indices.dtype.char, y.dtype.char),
        lambda start, stop: (data, indices, indptr[start : stop + 1], y[start:stop]),
        indptr.size - 1,
        (theta, *numbers),
        out,
        check_threads(threads),
    )
    return out
