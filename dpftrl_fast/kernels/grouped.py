# SPDX-License-Identifier: Apache-2.0
"""Gradient sums that are clipped a user, not a row: the checked calls."""

from __future__ import annotations

import functools
from collections.abc import Callable

from numba import types

from dpftrl_fast.kernels._checks import (
    FLOAT64,
    FLOATS,
    INT64,
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
from dpftrl_fast.kernels.loops import grouped as grouped_loops
from dpftrl_fast.kernels.losses import Loss, MultiLoss

_F64, _I64 = "d", "l"
_NUMBERS = (types.float64, types.int64, types.float64, types.float64, types.float64)


@functools.cache
def _dense_sum(rows: str, targets: str) -> Callable[..., None]:
    return compiled(
        grouped_loops.clipped_sum,
        *(read_only(rows, 2), read_only(_I64, 1), read_only(targets, 1), read_only(_F64, 2)),
        *(*_NUMBERS, writable(_F64, 2)),
    )


@functools.cache
def _csr_sum(rows: str, indices: str, targets: str) -> Callable[..., None]:
    return compiled(
        grouped_loops.clipped_sum_csr,
        *(read_only(rows, 1), read_only(indices, 1), read_only(indices, 1), read_only(_I64, 1)),
        *(read_only(targets, 1), read_only(_F64, 2), *_NUMBERS, writable(_F64, 2)),
    )


def clipped_user_sum(
    X: Array,
    starts: Array,
    y: Array,
    theta: Array,
    clip_norm: float,
    loss: Loss | MultiLoss,
    out: Array | None = None,
    *,
    loss_param: float = 1.0,
    row_bound: float | None = None,
    constant: float = 0.0,
    threads: int = 1,
) -> Array:
    """Compute the sum over users of the clipped sum of the gradients of a user's rows.

    That is the sum over u of g_u min(1, L' / |g_u|), g_u being the sum of the gradients of the rows
    of user u and L' = L (1 - 2^-20). Everything is computed in float64.

    Taking one user away, with all of its rows, changes `out` by at most L. A row that holds NaN or
    infinity, or whose squared norm, target, outputs or slopes are not finite, counts as zero, and
    so does a user whose summed gradient has a squared norm that is not finite.

    Parameters
    ----------
    X : (n, p) array of float32 or float64, C-contiguous
        Rows, user after user.
    starts : (m + 1,) array of int64
        Rows ``starts[i]`` to ``starts[i + 1] - 1`` are those of the i-th user. A user with bounds
        outside the rows counts as zero.
    y : (n,) array of float32 or float64
        Targets, or numbers of classes.
    theta : (K, p) or (K, p + 1) array of float64
        Parameters, K >= 1; p + 1 with a constant, whose parameters are the last column.
    clip_norm : float
        L, between 1e-100 and 1e100.
    loss : str
        A loss of one output where K is 1, else "multinomial" or "hinge".
    out : array of float64, like theta, optional
        Overwritten with the sum; a new array without it. The sum is raw: secret until noise is
        added.
    loss_param, row_bound, constant, threads
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
    >>> from dpftrl_fast.kernels import clipped_user_sum
    >>> X, y, starts = np.ones((3, 1)), np.full(3, -1.0), np.array([0, 2, 3])
    >>> clipped_user_sum(X, starts, y, np.zeros((1, 1)), 9.0, "squared", np.empty((1, 1))).item()
    3.0
    >>> out = clipped_user_sum(X, starts, y, np.zeros((1, 1)), 1.5, "squared", np.empty((1, 1)))
    >>> round(out.item(), 5)
    2.5
    """
    X = check_array("X", X, FLOATS, 2)
    starts = check_array("starts", starts, INT64, 1)
    y = check_array("y", y, FLOATS, 1)
    theta = check_array("theta", theta, FLOAT64, 2)
    check_length("y", y, X.shape[0], "the rows of X")
    _check_starts(starts)
    numbers = check_numbers(
        clip_norm, loss, loss_param, row_bound, constant, several=theta.shape[0] > 1
    )
    check_width(theta, X.shape[1], numbers.constant)
    out = check_matrix_output(out, theta.shape, X=X, starts=starts, y=y, theta=theta)
    sum_of_chunks(
        _dense_sum(X.dtype.char, y.dtype.char),
        lambda start, stop: (X, starts[start : stop + 1], y),
        starts.size - 1,
        (theta, *numbers),
        out,
        check_threads(threads),
    )
    return out


def clipped_user_sum_csr(
    data: Array,
    indices: Array,
    indptr: Array,
    starts: Array,
    y: Array,
    theta: Array,
    clip_norm: float,
    loss: Loss | MultiLoss,
    out: Array | None = None,
    *,
    loss_param: float = 1.0,
    row_bound: float | None = None,
    constant: float = 0.0,
    threads: int = 1,
) -> Array:
    """Compute the sum over users of the clipped sums of their compressed sparse rows.

    As `clipped_user_sum`; the rows are as in `dpftrl_fast.kernels.clipped_gradient_sum_csr`, and
    those with a column outside [0, p) or with bounds outside `data` count as zero.

    Parameters
    ----------
    data, indices, indptr : arrays
        The rows, user after user.
    starts, y, theta, clip_norm, loss, out, loss_param, row_bound, constant, threads
        As in `clipped_user_sum`.

    Returns
    -------
    array of float64
        The sum, in `out` where it is given.

    Raises
    ------
    TypeError, ValueError
        As `clipped_user_sum`.
    """
    data, indices, indptr = check_csr(data, indices, indptr)
    starts = check_array("starts", starts, INT64, 1)
    y = check_array("y", y, FLOATS, 1)
    theta = check_array("theta", theta, FLOAT64, 2)
    check_length("y", y, indptr.size - 1, "one less than indptr")
    _check_starts(starts)
    numbers = check_numbers(
        clip_norm, loss, loss_param, row_bound, constant, several=theta.shape[0] > 1
    )
    check_width(theta, None, numbers.constant)
    inputs = {"data": data, "indices": indices, "indptr": indptr, "y": y, "theta": theta}
    out = check_matrix_output(out, theta.shape, starts=starts, **inputs)
    sum_of_chunks(
        _csr_sum(data.dtype.char, indices.dtype.char, y.dtype.char),
        lambda start, stop: (data, indices, indptr, starts[start : stop + 1], y),
        starts.size - 1,
        (theta, *numbers),
        out,
        check_threads(threads),
    )
    return out


def _check_starts(starts: Array) -> None:
    if starts.size == 0:
        raise ValueError("starts must have at least 1 entry, got 0")
