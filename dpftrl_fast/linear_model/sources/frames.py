# SPDX-License-Identifier: Apache-2.0
"""Data frames in memory (pandas, polars, pyarrow): columns by name, and rows as an array.

Types of columns are checked, values never: a null is NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.tables.labels import as_numbers, comes_from, kind_of

_SINGLE = {"float32", "float"}  # of polars, of pyarrow


def split_frame(X: Any, y: Any, groups: Any = None) -> tuple[Any, Any, Any]:
    """Return rows, targets and users, where names of columns stand for some of them.

    Examples
    --------
    >>> import pandas as pd
    >>> X, y, _ = split_frame(pd.DataFrame({"a": [1, 2], "b": [3, 4]}), "b")
    >>> X.columns.tolist(), y.tolist()
    (['a'], [3, 4])
    """
    names = [name for name in (y, groups) if isinstance(name, str)]
    pandas = comes_from(X, "pandas") and getattr(X, "ndim", 0) == 2
    if not names or not (pandas or is_typed_frame(X)):
        return X, y, groups
    columns = [*X.column_names] if comes_from(X, "pyarrow") else [*X.columns]
    for name in names:
        if columns.count(name) != 1:
            raise ValueError(
                f"X must have one column {name!r}, got {columns.count(name)} of that name"
            )
    found = {name: X[name] for name in names}
    if pandas:
        X = X.drop(columns=names)
    else:
        X = X.select([name for name in columns if name not in names])
    y, groups = (found[part] if isinstance(part, str) else part for part in (y, groups))
    return X, y, groups


def is_typed_frame(X: Any) -> bool:
    """Return whether rows are a frame whose columns all have a type: of polars or pyarrow.

    A polars LazyFrame is refused.
    """
    if comes_from(X, "polars") and hasattr(X, "collect"):
        raise TypeError(
            "X must be in memory or in files, got a polars LazyFrame: call collect(), or "
            "sink_parquet(path) and fit(path, y='name')"
        )
    return (comes_from(X, "polars") and hasattr(X, "to_series")) or (
        comes_from(X, "pyarrow") and hasattr(X, "combine_chunks") and hasattr(X, "column_names")
    )


def rows_of_frame(X: Any) -> NDArray[np.floating]:
    """Return the rows of a typed frame: float32 if all columns are, else float64.

    Raises
    ------
    TypeError
        If a column is of another type than numbers or bool.
    """
    arrow = comes_from(X, "pyarrow")
    names = [*X.column_names] if arrow else [*X.columns]
    types = [*X.schema.types] if arrow else [*X.dtypes]
    for name, dtype in zip(names, types, strict=True):
        if kind_of(dtype) not in ("numbers", "bool"):
            raise TypeError(
                f"X must have columns of numbers or bool, got {name!r} of type {dtype}: encode it, "
                "as dpftrl_fast.preprocessing.BoundedScaler does"
            )
    single = bool(types) and all(str(dtype).lower() in _SINGLE for dtype in types)
    rows = np.empty((X.shape[0], len(names)), dtype=np.float32 if single else np.float64)
    for place in range(len(names)):
        rows[:, place] = as_numbers(X.column(place) if arrow else X.to_series(place))
    return rows


def numbers_of_column(y: Any) -> Any:
    """Return a typed column of numbers as float64; any other targets as they are."""
    if not comes_from(y, "polars", "pyarrow"):
        return y
    dtype = y.type if comes_from(y, "pyarrow") else y.dtype
    if kind_of(dtype) not in ("numbers", "bool"):
        raise TypeError(f"y must hold real numbers, got a column of type {dtype}")
    return as_numbers(y)
