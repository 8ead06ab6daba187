# SPDX-License-Identifier: Apache-2.0
"""Batches of private rows, as the engines take them: dense or compressed sparse, with targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = np.ndarray[Any, np.dtype[Any]]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SparseRows:
    """Compressed sparse rows: three arrays, of which a slice of rows is a view.

    Parameters
    ----------
    data : (m,) array of float32 or float64
        Entries.
    indices : (m,) array of int32 or int64
        Their columns.
    indptr : (n + 1,) array of the dtype of `indices`
        Where rows begin and end in `data`.
    n_features : int
        Number of columns.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> rows = SparseRows.of(scipy.sparse.csr_array(np.eye(3)))
    >>> len(rows), len(rows[1:]), rows[1:].shape
    (3, 2, (2, 3))
    """

    data: Array
    indices: Array
    indptr: Array
    n_features: int

    @classmethod
    def of(cls, matrix: Any) -> SparseRows:
        """Return the rows of a SciPy CSR array or matrix, whose memory is shared."""
        index = np.result_type(matrix.indices, matrix.indptr)
        indices, indptr = (a.astype(index, copy=False) for a in (matrix.indices, matrix.indptr))
        return cls(matrix.data, indices, indptr, int(matrix.shape[1]))

    def to_scipy(self) -> Any:
        """Return the rows as a SciPy CSR array."""
        from scipy.sparse import csr_array

        begin, end = (int(i) for i in self.indptr[[0, -1]])
        parts = (self.data[begin:end], self.indices[begin:end], self.indptr - self.indptr[0])
        return csr_array(parts, shape=self.shape)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), self.n_features

    def __len__(self) -> int:
        return self.indptr.size - 1

    def __getitem__(self, rows: slice | Ints) -> SparseRows:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return SparseRows(
                self.data, self.indices, self.indptr[start : stop + 1], self.n_features
            )
        return SparseRows.of(self.to_scipy()[rows])


Rows: TypeAlias = Array | SparseRows


class Batch(NamedTuple):
    """The rows of one step.

    Attributes
    ----------
    X : (n, p) array of float32 or float64, C-contiguous, or SparseRows
        Rows.
    y : (n,) array of float64
        Targets; the number of the class where there are several. A row whose target is NaN counts
        as zero.
    starts : (m + 1,) array of int64, optional
        Rows ``starts[i]`` to ``starts[i + 1] - 1`` are those of the i-th user: their gradients are
        summed before they are clipped. Without it every row is clipped for itself.
    ids : (m,) array of int64, optional
        Who takes part, for the guard of the plan: rows or users.
    """

    X: Rows
    y: NDArray[np.float64]
    starts: Ints | None = None
    ids: Ints | None = None


def take_users(bounds: Ints, users: Ints) -> tuple[Ints, Ints]:
    """Return the rows of some users, user after user, and where each one's rows start.

    Parameters
    ----------
    bounds : (u + 1,) array of int64
        Rows ``bounds[i]`` to ``bounds[i + 1] - 1`` are those of user i.
    users : (m,) array of int64
        Which users.

    Returns
    -------
    rows : array of int64
    starts : (m + 1,) array of int64

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
    """Return the norms of rows, those of one column in a sparse row being added up first.

    Examples
    --------
    >>> row_norms(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [5.0, 0.0]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if not isinstance(X, SparseRows):
            rows = X.astype(np.float64, copy=False)
            return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows)))
        matrix = X.to_scipy().astype(np.float64)
        matrix.sum_duplicates()
        owner = np.repeat(np.arange(len(X)), np.diff(matrix.indptr))
        squares = np.bincount(owner, weights=matrix.data**2, minlength=len(X))
        return np.asarray(np.sqrt(squares))
