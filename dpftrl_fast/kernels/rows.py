# SPDX-License-Identifier: Apache-2.0
"""Rows as the kernels take them: a dense array, or compressed sparse rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import Array


@dataclass(frozen=True)
class SparseRows:
    """Compressed sparse rows (CSR) as three arrays; a slice of rows is a view.

    Parameters
    ----------
    data : (m,) array of float32 or float64
        Entries. Row i holds ``data[k]`` in column ``indices[k]`` for k from ``indptr[i]`` to
        ``indptr[i + 1] - 1``.
    indices : (m,) array of int32 or int64
        Columns of the entries.
    indptr : (n + 1,) array of the dtype of `indices`
        Bounds of the rows in `data`.
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

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> SparseRows:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return SparseRows(
                self.data, self.indices, self.indptr[start : stop + 1], self.n_features
            )
        return SparseRows.of(self.to_scipy()[rows])


Rows: TypeAlias = Array | SparseRows
"""Rows of a linear model: a dense array, one row for each example, or `SparseRows`.

Examples
--------
>>> import scipy.sparse
>>> from dpftrl_fast.kernels import predict
>>> dense = np.eye(3)
>>> sparse = SparseRows.of(scipy.sparse.csr_array(dense))
>>> [predict(rows, np.array([1.0, 2.0, 3.0])).tolist() for rows in (dense, sparse)]
[[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]
"""
