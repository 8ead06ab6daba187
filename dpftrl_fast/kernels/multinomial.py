# SPDX-License-Identifier: Apache-2.0
"""Clipped gradient sums of linear models with several outputs: the checked calls."""

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
    check_matrix_output,
    check_numbers,
    check_threads,
    check_width,
)
from dpftrl_fast.kernels._jit import compiled, read_only, writable
from dpftrl_fast.kernels._threads import sum_of_chunks
from dpftrl_fast.kernels.loops import multinomial as multinomial_loops
from dpftrl_fast.kernels.losses import MultiLoss

_F64 = "d"
_NUMBERS = (types.float64, types.int64, types.float64, types.float64, types.float64)


@functools.cache
def _dense_sum(rows: str, targets: str) -> Callable[..., None]:
    return compiled(
        multinomial_loops.clipped_sum,
        *(read_only(rows, 2), read_only(targets, 1), read_only(_F64, 2)),
        *(*_NUMBERS, writable(_F64, 2)),
    )


@functools.cache
def _csr_sum(rows: str, indices: str, targets: str) -> Callable[..., None]:
    return compiled(
        multinomial_loops.clipped_sum_csr,
        *(read_only(rows, 1), read_only(indices, 1), read_only(indices, 1)),
        *(read_only(targets, 1), read_only(_F64, 2), *_NUMBERS, writable(_F64, 2)),
    )


def clipped_multi_sum(
    X: Array,
    y: Array,
    theta: Array,
    clip_norm: float,
    loss: MultiLoss,
    out: Array | None = None,
    *,
    row_bound: float | None = None,
    constant: float = 0.0,
    threads: int = 1,
) -> Array:
    """Compute the sum of the rows' gradients, each clipped, of a model with several outputs.

    With z = theta x the outputs of a row and s its slopes (`dpftrl_fast.kernels.losses`), the
    gradient is s x^T, an array like theta. It is clipped to L (1 - 2^-20), L being the clip norm,
    in the norm over all of its entries. Everything is computed in float64.

    Setting one row to zero changes `out` by at most L. A row whose squared norm, target or outputs
    are not finite, or whose target is not one of 0, .., K - 1, keeps its slot and counts as zero.

    Parameters
    ----------
    X : (n, p) array of float32 or float64, C-contiguous
        Rows.
    y : (n,) array of float32 or float64
        The numbers of the classes.
    theta : (K, p) or (K, p + 1) array of float64
        Parameters, K >= 2; p + 1 with a constant, whose parameters are the last column.
    clip_norm : float
        L, between 1e-100 and 1e100.
    loss : {"multinomial", "hinge"}
        Softmax cross-entropy, or the sum of the one-versus-rest hinges.
    out : array of float64, like theta, optional
        Overwritten with the sum; a new array without it. The sum is raw: secret until noise is
        added.
    row_bound, constant, threads
        As in `dpftrl_fast.kernels.clipped_gradient_sum`.

    Returns
    -------
    array of float64
        The sum, in `out` where it is given.

    Raises
    ------
    TypeError, ValueError
        For a wrong call: types, dtypes, shapes, layouts, memory or numbers. Never for the values of
        rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast.kernels import clipped_multi_sum
    >>> X, y = np.array([[1.0, 0.0]]), np.array([1.0])
    >>> clipped_multi_sum(X, y, np.zeros((2, 2)), 9.0, "multinomial", np.empty((2, 2))).tolist()
    [[0.5, 0.0], [-0.5, 0.0]]
    """
    X = check_array("X", X, FLOATS, 2)
    y = check_array("y", y, FLOATS, 1)
    theta = check_array("theta", theta, FLOAT64, 2)
    check_length("y", y, X.shape[0], "the rows of X")
    check_outputs(theta)
    numbers = check_numbers(clip_norm, loss, 1.0, row_bound, constant, several=True)
    check_width(theta, X.shape[1], numbers.constant)
    out = check_matrix_output(out, theta.shape, X=X, y=y, theta=theta)
    sum_of_chunks(
        _dense_sum(X.dtype.char, y.dtype.char),
        lambda start, stop: (X[start:stop], y[start:stop]),
        X.shape[0],
        (theta, *numbers),
        out,
        check_threads(threads),
    )
    return out


def clipped_multi_sum_csr(
    data: Array,
    indices: Array,
    indptr: Array,
    y: Array,
    theta: Array,
    clip_norm: float,
    loss: MultiLoss,
    out: Array | None = None,
    *,
    row_bound: float | None = None,
    constant: float = 0.0,
    threads: int = 1,
) -> Array:
    """Compute the clipped gradient sum of compressed sparse rows, with several outputs.

    As `clipped_multi_sum`; the rows are as in `dpftrl_fast.kernels.clipped_gradient_sum_csr`, and
    those with a column outside [0, p) or with bounds outside `data` count as zero.

    Parameters
    ----------
    data, indices, indptr : arrays
        The rows.
    y, theta, clip_norm, loss, out, row_bound, constant, threads
        As in `clipped_multi_sum`.

    Returns
    -------
    array of float64
        The sum, in `out` where it is given.

    Raises
    ------
    TypeError, ValueError
        As `clipped_multi_sum`.
    """
    data, indices, indptr = check_csr(data, indices, indptr)
    y = check_array("y", y, FLOATS, 1)
    theta = check_array("theta", theta, FLOAT64, 2)
    check_length("y", y, indptr.size - 1, "one less than indptr")
    check_outputs(theta)
    numbers = check_numbers(clip_norm, loss, 1.0, row_bound, constant, several=True)
    check_width(theta, None, numbers.constant)
    inputs = {"data": data, "indices": indices, "indptr": indptr, "y": y, "theta": theta}
    out = check_matrix_output(out, theta.shape, **inputs)
    sum_of_chunks(
        _csr_sum(data.dtype.char, indices.dtype.char, y.dtype.char),
        lambda start, stop: (data, indices, indptr[start : stop + 1], y[start:stop]),
        indptr.size - 1,
        (theta, *numbers),
        out,
        check_threads(threads),
    )
    return out


def check_outputs(theta: Array) -> None:
    """Refuse parameters of a single output."""
    if theta.shape[0] < 2:
        raise ValueError(f"theta must have at least 2 rows, one a class, got shape {theta.shape}")
