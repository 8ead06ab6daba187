# SPDX-License-Identifier: Apache-2.0
"""Predictions and clipped gradient sums of generalised linear models: the checked calls."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import types

from dpftrl_fast._validate import (
    FLOATS,
    LARGEST_NORM,
    SMALLEST_NORM,
    Array,
    array,
    choice,
    non_negative,
    norm_bound,
    positive,
    positive_integer,
    probability,
    real,
)
from dpftrl_fast.kernels._checks import (
    FLOAT64,
    INT64,
    check_changed,
    check_length,
    check_rows,
)
from dpftrl_fast.kernels.jit import compiled, read_only, writable
from dpftrl_fast.kernels.loops import csr as csr_loops
from dpftrl_fast.kernels.loops import dense as dense_loops
from dpftrl_fast.kernels.loops import grouped as grouped_loops
from dpftrl_fast.kernels.loops import multinomial as multinomial_loops
from dpftrl_fast.kernels.loops.dense import CHUNK
from dpftrl_fast.kernels.losses import LOSS_CODES, MULTI_LOSS_CODES, Loss, MultiLoss
from dpftrl_fast.kernels.rows import Rows
from dpftrl_fast.kernels.threads import sum_of_chunks
from dpftrl_fast.rounding import MOST_SUMMANDS, clip_limit

_F64, _I64 = "d", "l"
_SUMS: dict[tuple[str, bool], Callable[..., None]] = {
    ("row", False): dense_loops.clipped_sum,
    ("row", True): csr_loops.clipped_sum,
    ("outputs", False): multinomial_loops.clipped_sum,
    ("outputs", True): multinomial_loops.clipped_sum_csr,
    ("user", False): grouped_loops.clipped_sum,
    ("user", True): grouped_loops.clipped_sum_csr,
}

# Loops are named by the characters of their dtypes, which hash faster than the dtypes; `indices` is
# empty for dense rows.

_NONE = np.empty(0)


@functools.cache
def sum_loop(kind: str, rows: str, indices: str, targets: str) -> Callable[..., None]:
    """Return the loop that clips each "row", each row of several "outputs", or each "user"."""
    dimensions = 1 if kind == "row" else 2
    return compiled(
        _SUMS[kind, indices != ""],
        *_row_types(rows, indices),
        *([read_only(_I64, 1)] if kind == "user" else []),
        *(read_only(targets, 1), read_only(_F64, 1), read_only(_F64, dimensions)),
        *(types.float64, types.int64, types.float64, types.float64, types.float64),
        *([] if indices else [writable(_I64, 1)]),
        writable(_F64, dimensions),
    )


@functools.cache
def _prediction_loop(rows: str, indices: str) -> Callable[..., None]:
    loop = csr_loops.predictions if indices else dense_loops.predictions
    return compiled(loop, *_row_types(rows, indices), read_only(_F64, 1), writable(_F64, 1))


def _row_types(rows: str, indices: str) -> tuple[object, ...]:
    if not indices:
        return (read_only(rows, 2),)
    return read_only(rows, 1), read_only(indices, 1), read_only(indices, 1)


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
    codes = MULTI_LOSS_CODES if several else LOSS_CODES
    name = choice("loss", loss, tuple(codes))
    check = {"quantile": probability, "epsilon_insensitive": non_negative}.get(name, positive)
    entry = real("constant", constant)
    if not (entry == 0.0 or SMALLEST_NORM <= entry <= LARGEST_NORM):
        raise ValueError(
            f"constant must be 0 or a number in [{SMALLEST_NORM:g}, {LARGEST_NORM:g}], got {entry}"
        )
    return Numbers(
        clip_limit(norm_bound("clip_norm", clip_norm)),
        codes[name],
        check("loss_param", loss_param),
        math.inf if row_bound is None else norm_bound("row_bound", row_bound),
        entry,
    )


def clipped_sum(
    rows: Rows,
    y: Array,
    theta: Array,
    *,
    clip_norm: float,
    loss: Loss | MultiLoss,
    loss_param: float = 1.0,
    row_bound: float | None = None,
    constant: float = 0.0,
    users: Array | None = None,
    weights: Array | None = None,
    seen: Array | None = None,
    out: Array | None = None,
    threads: int = 1,
) -> Array:
    """Compute the sum of the clipped gradients of rows, or of users, in one pass over the rows.

    With z = theta x the outputs of a row and s their slopes (`dpftrl_fast.kernels.losses`), the
    gradient of the row is s x^T, an array like theta. Gradients are clipped to L' = L (1 - 2^-20),
    L being the clip norm, in the norm over all of their entries: the sum is that of
    ``g_i min(1, L' / |g_i|)``. With `users`, g_i is the sum of the gradients of all rows of user i.
    Everything is computed in float64; no per-example gradient is stored.

    With a row bound R, a row x stands for ``x min(1, R / |x|)``; with a constant c, for (x, c), the
    constant being appended after that. Neither makes a copy of the rows.

    Parameters
    ----------
    rows : (n, p) array of float32 or float64, C-contiguous, or SparseRows
        Rows; n may be 0. Entries of a sparse row in the same column are added up first, so that the
        clipped norm is that of the entries added; rows in canonical form (columns ascending, none
        twice) are faster.
    y : (n,) array of float32 or float64
        Targets; for several outputs the class, one of 0, .., K - 1. For `logistic` and `hinge` with
        one output the class is positive where y > 0.
    theta : (p,) or (K, p) array of float64
        Parameters of one output, or of K >= 1 outputs; p + 1 columns with a constant, whose
        parameters are the last.
    clip_norm : float
        L, between 1e-100 and 1e100.
    loss : str
        A loss of one output, or "multinomial" or "hinge" where K > 1
        (`dpftrl_fast.kernels.losses`).
    loss_param : float, default 1.0
        k of the Huber, epsilon-insensitive and quantile losses; not read by the others.
    row_bound : float, optional
        R, between 1e-100 and 1e100.
    constant : float, default 0
        c, between 1e-100 and 1e100; 0 for no constant.
    users : (m + 1,) array of int64, optional
        Rows ``users[i]`` to ``users[i + 1] - 1`` are those of user i. Without it every row is
        clipped by itself.
    weights : (n,) array of float64, optional
        Weights of the rows: the gradient of a row is w s x^T, and clipped after that. A row whose
        weight is not finite counts as zero.
    seen : (1,) array of int64, optional
        Set to 1 if a dense row is not finite, or a squared norm overflows; otherwise unchanged, and
        never changed for sparse rows. It is secret as the rows are: for a check of all values
        before anything is released.
    out : array of float64, like theta, optional
        Overwritten with the sum; a new array without it. The sum has no noise: it is secret until
        noise is added.
    threads : int, default 1
        Maximum number of threads; the result is the same to the bit.

    Returns
    -------
    array of float64, like theta
        The sum, in `out` if it is given.

    Raises
    ------
    TypeError, ValueError
        For a wrong type, dtype, shape, layout or number, more than 2^28 rows or users, or an `out`
        that is read-only or overlaps an input. Never for the values of rows.

    Notes
    -----
    **Formal guarantee.** If one row (with `users`, all rows of one user) counts as zero, `out`
    changes by at most L in L2 norm, whatever the rows hold. A row counts as zero that has a NaN or
    an infinity in it or in its target; without a constant also a row of zeros. With a constant a
    row of zeros is the row (0, c), which has a gradient of its own: replacing a row by it is
    replacing one row by another, and changes `out` by at most 2 L. No noise is added: the sum is
    not private. The caller adds noise of a plan with this clip norm, and ensures that nobody takes
    part more often than the plan states.

    Rows are never refused for their values. A row with a NaN or an infinity, a target, output or
    slope that is not finite, a class or a column that does not exist, or bounds outside `data`
    keeps its slot and counts as zero, as does a user with bounds outside the rows. With one output
    and without users, a finite row with a finite slope is clipped even where its squares overflow;
    otherwise a row, or a user's sum, whose squared norm overflows counts as zero.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from dpftrl_fast.kernels import SparseRows, clipped_sum
    >>> X, y = np.eye(2, dtype=np.float32), np.array([-0.25, 100.0])
    >>> clipped_sum(X, y, np.zeros(2), clip_norm=1.0, loss="squared").round(5).tolist()
    [0.25, -1.0]
    >>> rows = SparseRows.of(scipy.sparse.csr_array(X))
    >>> clipped_sum(rows, y, np.zeros(2), clip_norm=1.0, loss="squared").round(5).tolist()
    [0.25, -1.0]
    >>> one_user = np.array([0, 2])
    >>> clipped_sum(X, y, np.zeros(2), clip_norm=1.0, loss="squared", users=one_user).round(5)
    array([ 0.0025, -1.    ])
    """
    theta = _parameters(theta)
    several = theta.ndim == 2 and len(theta) > 1
    numbers = check_numbers(clip_norm, loss, loss_param, row_bound, constant, several=several)
    return sum_clipped(rows, y, theta, numbers, users, weights, seen, out, threads)


def sum_clipped(
    rows: Rows,
    y: Array,
    theta: Array,
    numbers: Numbers,
    users: Array | None = None,
    weights: Array | None = None,
    seen: Array | None = None,
    out: Array | None = None,
    threads: int = 1,
) -> Array:
    """Compute `clipped_sum` with numbers that `check_numbers` has returned for these outputs.

    Examples
    --------
    >>> numbers = check_numbers(1.0, "squared", 1.0, None, 0.0)
    >>> sum_clipped(np.eye(2), np.array([-0.25, 0.0]), np.zeros(2), numbers).tolist()
    [0.25, 0.0]
    """
    inputs = check_rows(rows)
    arrays = tuple(inputs.values())
    y = array("y", y, FLOATS, 1)
    theta = _parameters(theta)
    (n, width), outputs = rows.shape, theta.shape[0] if theta.ndim == 2 else 1
    check_length("y", y, n, "the number of rows")
    if weights is None:
        weights = _NONE
    else:
        check_length("weights", array("weights", weights, FLOAT64, 1), n, "the number of rows")
    width += numbers.constant != 0.0
    if outputs < 1 or theta.shape[-1] != width:
        more = " with that of the constant" if numbers.constant != 0.0 else ""
        raise ValueError(
            f"theta must have shape ({width},) or (K, {width}), K >= 1{more}, got {theta.shape}"
        )
    threads = positive_integer("threads", threads)
    sparse = len(arrays) == 3
    if users is None:
        kind, slots = ("row" if outputs == 1 else "outputs"), n
    else:
        starts = array("users", users, INT64, 1)
        kind, slots = "user", starts.size - 1
        if slots < 0:
            raise ValueError("users must have at least 1 entry, got 0")

    if slots > MOST_SUMMANDS:
        raise ValueError(
            f"rows must hold at most {MOST_SUMMANDS} {'users' if kind == 'user' else 'rows'}, so "
            f"that the rounding of their sum stays within the margin of the clipping, got {slots}"
        )

    if out is None:
        out = np.empty(theta.shape)
    else:
        inputs.update(y=y, weights=weights, theta=theta)
        if users is not None:
            inputs["users"] = starts
        check_changed("out", out, theta.shape, "that of theta", inputs)
    if seen is not None and not (array("seen", seen, INT64, 1).size == 1 and seen.flags.writeable):
        raise ValueError("seen must be a writable array of shape (1,), got another")
    indices = arrays[1].dtype.char if sparse else ""
    total = out
    if kind == "row" and theta.ndim == 2:
        theta, total = theta[0], out[0]
    elif kind != "row" and theta.ndim == 1:
        theta, total = theta[np.newaxis], out[np.newaxis]
    loop = sum_loop(kind, arrays[0].dtype.char, indices, y.dtype.char)
    rest: tuple[object, ...] = (theta, *numbers)
    if not sparse:
        rest += (np.empty(1, np.int64) if seen is None else seen,)
    if slots <= CHUNK:
        users_of = () if users is None else (starts,)
        loop(*arrays, *users_of, y, weights, *rest, total)
        return out

    def cut(start: int, stop: int) -> tuple[Array, ...]:
        if kind == "user":
            return (*arrays, starts[start : stop + 1], y, weights)
        # indptr has one entry more than there are rows.
        return (*arrays[:-1], arrays[-1][start : stop + sparse], y[start:stop], weights[start:stop])

    sum_of_chunks(loop, cut, slots, rest, total, threads)
    return out


def _parameters(theta: object) -> Array:
    return array("theta", theta, FLOAT64, 2 if getattr(theta, "ndim", 1) == 2 else 1)


def predict(rows: Rows, theta: Array, out: Array | None = None) -> Array:
    """Compute the predictions z_i = <x_i, theta> in float64.

    Parameters
    ----------
    rows : (n, p) array of float32 or float64, C-contiguous, or SparseRows
        Rows.
    theta : (p,) array of float64
        Parameters.
    out : (n,) array of float64, optional
        Overwritten with the predictions; a new array without it. A dense row that is not finite
        gives the result of IEEE arithmetic; a sparse row whose columns or bounds are out of range
        gives NaN.

    Returns
    -------
    (n,) array of float64
        The predictions, in `out` if it is given.

    Raises
    ------
    TypeError, ValueError
        For a wrong type, dtype, shape or layout, or an `out` that is read-only or overlaps an
        input.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast.kernels import predict
    >>> predict(np.eye(2), np.array([3.0, 4.0])).tolist()
    [3.0, 4.0]
    """
    inputs = check_rows(rows)
    arrays = tuple(inputs.values())
    theta = array("theta", theta, FLOAT64, 1)
    n, columns = rows.shape
    check_length("theta", theta, columns, "the columns of rows")
    if out is None:
        out = np.empty(n)
    else:
        check_changed("out", out, (n,), "the number of rows", {**inputs, "theta": theta})
    indices = arrays[1].dtype.char if len(arrays) == 3 else ""
    _prediction_loop(arrays[0].dtype.char, indices)(*arrays, theta, out)
    return out
