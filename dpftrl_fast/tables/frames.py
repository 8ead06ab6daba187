# SPDX-License-Identifier: Apache-2.0
"""Data frames of pandas, polars and pyarrow as blocks of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.tables.labels import as_labels, as_numbers, comes_from, kind_of
from dpftrl_fast.tables.schema import NumericColumn, Schema
from dpftrl_fast.tables.values import category_form, numbers_of


def frame_block(frame: Any, schema: Schema) -> Any:
    """Return the feature columns of a frame as a pyarrow table that `Encoder` takes.

    No cell is refused: one that is no number, or no category, is null.

    Raises
    ------
    TypeError, ValueError
        If `frame` is not a frame in memory, lacks a column, or a column has a type that is neither
        numbers, bool nor text.

    Examples
    --------
    >>> import pandas as pd
    >>> schema = Schema.from_dict({
    ...     "rows": 1,
    ...     "target": {"name": "y", "bounds": [0, 1]},
    ...     "columns": {"x": {"bounds": [0, 9]}, "town": {"categories": ["1", "2"]}},
    ... })
    >>> frame_block(pd.DataFrame({"town": [1.0, None], "x": ["7", "?"]}), schema).to_pylist()
    [{'x': 7.0, 'town': '1'}, {'x': None, 'town': None}]
    """
    import pyarrow as pa

    names = [*getattr(frame, "column_names", getattr(frame, "columns", ()))]
    if not comes_from(frame, "pandas", "polars", "pyarrow") or hasattr(frame, "collect"):
        raise TypeError(
            "rows must be a path or a data frame in memory of pandas, polars or pyarrow, got "
            f"{type(frame).__name__}"
        )
    columns: dict[str, Any] = {}
    for column in schema.columns:
        if names.count(column.name) != 1:
            raise ValueError(
                f"rows must have one column {column.name!r}, got {names.count(column.name)} of "
                "that name"
            )
        cells = frame[column.name]
        if isinstance(column, NumericColumn):
            columns[column.name] = pa.array(numbers_of_cells(cells), from_pandas=True)
        else:
            labels = as_labels(cells)
            columns[column.name] = pa.array(
                [_valid(category_form(label)) for label in labels.tolist()], pa.string()
            )
    if not columns:  # the intercept alone
        return pa.table({"": np.zeros(len(frame))})
    return pa.table(columns)


def parquet_bytes(columns: Mapping[str, Any]) -> bytes:
    """Return columns (arrays, or lists of text) as a Parquet file; NaN and None become null.

    Examples
    --------
    >>> parquet_bytes({"x": np.array([1.5])})[:4]
    b'PAR1'
    """
    import pyarrow as pa
    from pyarrow import parquet

    arrays = {
        name: pa.array(column, pa.string() if isinstance(column, list) else None, from_pandas=True)
        for name, column in columns.items()
    }
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(arrays), sink)
    return bytes(sink.getvalue())


def csv_lines(*columns: NDArray[Any]) -> bytes:
    r"""Return columns of finite numbers as lines of CSV, which read back as the same numbers.

    Examples
    --------
    >>> csv_lines(np.array([1, 2]), np.array([0.1, 2.0]))
    b'1,0.1\n2,2\n'
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = [pa.array(column).cast(pa.string()) for column in columns]
    lines = pc.binary_join_element_wise(*cells, ",")
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)]), lines), "\n")
    return bytes(joined[0].as_buffer()) + b"\n" if len(lines) else b""


def numbers_of_cells(cells: Any) -> Any:
    """Return a column of a frame as float64, NaN where a cell is no number.

    Examples
    --------
    >>> numbers_of_cells(np.array([1, "2.5", None], dtype=object)).tolist()
    [1.0, 2.5, nan]
    """
    if comes_from(cells, "polars", "pyarrow"):
        dtype = cells.dtype if comes_from(cells, "polars") else cells.type
        if kind_of(dtype) in ("numbers", "bool"):
            return as_numbers(cells)
    return numbers_of(as_labels(cells))


def _valid(text: str | None) -> str | None:
    """Return text, None where it is not valid."""
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        return None
    return text
