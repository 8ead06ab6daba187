# SPDX-License-Identifier: Apache-2.0
"""Columns of arrays and frames as numbers and category codes: no cell raises, warns or moves.

Only dtypes are refused. A number that cannot be read is missing, and so is a cell of another kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from dpftrl_fast.tables.labels import as_labels, as_numbers, comes_from, kind_of
from dpftrl_fast.tables.values import check_cells, codes_of, numbers_of

_NUMBERS = "iufb"


class Columns:
    """Columns of a matrix or a frame.

    Attributes
    ----------
    names : list of str or None
        Names of a frame's columns.
    rows, width : int
        Numbers of rows and columns.
    """

    def __init__(self, X: Any, *, least_rows: int, estimator: Any) -> None:
        self.names: list[str] | None = None
        if comes_from(X, "dask", "dask_expr"):
            raise TypeError(
                "X must be in memory, got a Dask collection: use map_partitions(scaler.transform)"
            )
        if comes_from(X, "polars") and hasattr(X, "collect"):
            raise TypeError("X must be in memory, got a polars LazyFrame: call collect() before")
        if comes_from(X, "pyarrow") and hasattr(X, "column_names"):
            self._read, names = X.column, [*X.column_names]
        elif comes_from(X, "polars") and hasattr(X, "to_series"):
            self._read, names = X.to_series, [*X.columns]
        elif hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2:
            self._read, names = (lambda place: X.iloc[:, place]), [*X.columns]
        else:
            self._of_array(X, least_rows, estimator)
            return
        self.array: NDArray[Any] | None = None
        self.rows, self.width = (int(size) for size in X.shape)
        if self.rows < least_rows or self.width < 1:
            raise ValueError(f"X must hold at least 1 row and 1 column, got shape {X.shape}")
        if all(isinstance(name, str) for name in names):
            self.names = names

    def _of_array(self, X: Any, least_rows: int, estimator: Any) -> None:
        # The dtype that NumPy finds for a list depends on its values.
        typed = hasattr(X, "dtype") or hasattr(X, "__array__")
        array = np.asarray(X) if typed else np.asarray(X, dtype=object)
        check_cells(array.dtype)
        self.array = check_array(
            array.view(np.ndarray),
            dtype=None,
            ensure_all_finite=False,
            ensure_min_samples=least_rows,
            estimator=estimator,
            input_name="X",
        )
        self.rows, self.width = self.array.shape
        self._read = lambda place: array[:, place]

    def select(self, names: Sequence[str]) -> list[int]:
        """Return the places of named columns."""
        places = []
        assert self.names is not None
        for name in names:
            found = [place for place, own in enumerate(self.names) if own == name]
            if len(found) != 1:
                raise ValueError(f"X must have one column {name!r}, got {len(found)} of that name")
            places += found
        return places

    def numbers(self, place: int) -> NDArray[np.float64]:
        """Return a column as float64, NaN where a cell is missing or no number."""
        column = self._read(place)
        dtype: Any = getattr(column, "dtype", None)
        if hasattr(column, "iloc") and getattr(dtype, "kind", "O") in _NUMBERS:
            return np.array(column.to_numpy(dtype=np.float64, na_value=np.nan))
        if comes_from(column, "polars", "pyarrow"):
            dtype = column.dtype if comes_from(column, "polars") else column.type
            if kind_of(dtype) in ("numbers", "bool"):
                return as_numbers(column)
        return numbers_of(as_labels(column))

    def codes(self, place: int, categories: Mapping[str, int]) -> NDArray[np.int64]:
        """Return a column's codes, as `codes_of`."""
        return codes_of(as_labels(self._read(place)), categories)
