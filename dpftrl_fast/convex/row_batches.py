# SPDX-License-Identifier: Apache-2.0
"""Batches of private rows with their targets, as the engines take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.kernels.rows import Rows as Rows
from dpftrl_fast.kernels.rows import SparseRows as SparseRows

Ints = NDArray[np.int64]


class Batch(NamedTuple):
    """The rows of one step.

    Attributes
    ----------
    X : (n, p) array of float32 or float64, C-contiguous, or SparseRows
        Rows.
    y : (n,) or (n, m) array of float64
        Targets; for several classes the number of the class. A row with a NaN counts as zero.
    starts : (m + 1,) array of int64, optional
        Rows ``starts[i]`` to ``starts[i + 1] - 1`` are those of the i-th user: their gradients are
        summed before they are clipped. Without it every row is clipped by itself.
    ids : (m,) array of int64, optional
        Ids of the rows or users, for the guard of the plan.
    weights : (n,) array of float64, optional
        Weights of the rows; one that is not finite is 0.
    """

    X: Rows
    y: NDArray[np.float64]
    starts: Ints | None = None
    ids: Ints | None = None
    weights: NDArray[np.float64] | None = None


def take_users(bounds: Ints, users: Ints) -> tuple[Ints, Ints]:
    """Return the rows of the given users, user after user, and their `starts` as in `Batch`.

    Rows ``bounds[i]`` to ``bounds[i + 1] - 1`` are those of user i.

    Examples
    --------
    >>> rows, starts = take_users(np.array([0, 2, 3, 6]), np.array([2, 0]))
    >>> rows.tolist(), starts.tolist()
    ([3, 4, 5, 0, 1], [0, 3, 5])
    """
    counts = bounds[users + 1] - bounds[users]
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows = np.arange(starts[-1]) + np.repeat(bounds[users] - starts[:-1], counts)
    return rows, starts


def row_norms(X: Rows) -> NDArray[np.float64]:
    """Return the norms of rows; entries of a sparse row in the same column are added up first.

    They are added in stored order, as the kernels do: another order could give a smaller norm than
    that of the row in a sum. Columns that do not exist are left out.

    Examples
    --------
    >>> row_norms(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [5.0, 0.0]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if not isinstance(X, SparseRows):
            rows = X.astype(np.float64, copy=False)
            return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows)))
        matrix, p = X.to_scipy(), int(X.shape[1])
        inside = (matrix.indices >= 0) & (matrix.indices < p)
        owner = np.repeat(np.arange(len(X)), np.diff(matrix.indptr))[inside]
        entries = matrix.data[inside].astype(np.float64)
        places = owner * p + matrix.indices[inside]
        if np.any(np.diff(places) <= 0):
            places, own = np.unique(places, return_inverse=True)
            owner, entries = places // p, np.bincount(own, weights=entries)
        return np.asarray(np.sqrt(np.bincount(owner, weights=entries**2, minlength=len(X))))
