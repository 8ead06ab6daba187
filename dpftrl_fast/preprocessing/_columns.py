# SPDX-License-Identifier: Apache-2.0
"""Columns of arrays and frames as numbers and category codes: no cell raises, warns or moves.

Only dtypes are refused. A number that cannot be read is missing, and so is a cell of another kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from dpftrl_fast.tables.labels import as_labels, as_numbers, comes_from, kind_of

UNKNOWN, MISSING = -1, -2
_NUMBERS, _CELLS = "iufb", "OUST"
_EXACT = 2.0**53
# Texts of a missing number, as in files.
_NO_NUMBER = {"", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "none", "#N/A"}


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
        _refuse_kind(array.dtype)
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
        """Return a column's codes, or `UNKNOWN` or `MISSING`."""
        return codes_of(as_labels(self._read(place)), categories)


def numbers_of(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return an array of numbers or cells as float64, NaN where a cell is no number.

    Examples
    --------
    >>> numbers_of(np.array([1, "2.5", None, "two", True], dtype=object)).tolist()
    [1.0, 2.5, nan, nan, 1.0]
    """
    _refuse_kind(values.dtype)
    if values.dtype.kind in _NUMBERS:
        return np.array(values, dtype=np.float64)
    return np.array([_number(cell) for cell in values.tolist()], dtype=np.float64)


def _number(cell: Any) -> float:
    try:
        return _read_number(cell)
    except Exception:  # of the cell's own class too
        return np.nan


def _read_number(cell: Any) -> float:
    if isinstance(cell, bytes):
        cell = bytes.decode(cell)
    if isinstance(cell, str):
        text = str.strip(cell)
        return np.nan if text in _NO_NUMBER or "_" in text else float(text)
    if not isinstance(cell, (Real, Decimal, np.bool_)):
        return np.nan
    try:
        return float(cell)
    except OverflowError:  # an integer beyond the floats
        return np.inf if cell > 0 else -np.inf  # type: ignore[operator]


def codes_of(values: NDArray[Any], categories: Mapping[str, int]) -> NDArray[np.int64]:
    """Return the code of each value's form, or `UNKNOWN` or `MISSING`.

    Examples
    --------
    >>> codes_of(np.array([1.0, 2.0, 7.0, np.nan]), {"1": 0, "2": 1}).tolist()
    [0, 1, -1, -2]
    """
    _refuse_kind(values.dtype)
    if values.dtype.kind in _NUMBERS and values.size:
        found, inverse = np.unique(values, return_inverse=True)
        return codes_of(found.astype(object), categories)[inverse.reshape(-1)]
    return np.array([_code(cell, categories) for cell in values.tolist()], dtype=np.int64)


def _code(cell: Any, categories: Mapping[str, int]) -> int:
    form = category_form(cell)
    if form is None or (form == "" and "" not in categories):
        return MISSING
    return categories.get(form, UNKNOWN)


def category_form(cell: Any) -> str | None:
    """Return the text that stands for a category, None for a missing or another cell.

    A whole number stands for the text of its digits, a bool for "true" or "false".

    Examples
    --------
    >>> category_form(1), category_form(1.0), category_form(True), category_form(np.nan)
    ('1', '1', 'true', None)
    """
    try:
        if isinstance(cell, bytes):
            return bytes.decode(cell)
        if isinstance(cell, str):
            return str.__str__(cell)
        if isinstance(cell, (bool, np.bool_)):
            return "true" if cell else "false"
        if isinstance(cell, (int, np.integer)):
            return str(int(cell))
        if isinstance(cell, (float, np.floating)):
            number = float(cell)
            if np.isnan(number):
                return None
            whole = abs(number) < _EXACT and number == int(number)
            return str(int(number)) if whole else repr(number)
    except Exception:  # bytes that are no text, an integer of too many digits
        return None
    return None


def _refuse_kind(dtype: np.dtype[Any]) -> None:
    if dtype.kind == "c":
        raise ValueError(f"Complex data not supported: X must hold numbers or text, got {dtype}")
    if dtype.kind not in _NUMBERS + _CELLS:
        raise TypeError(f"X must hold numbers, bool or text, got dtype {dtype}")
