# SPDX-License-Identifier: Apache-2.0
"""Conversion of Arrow columns to numbers and category codes: no cell raises or affects another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

#: Code of a cell whose category is not declared, and of a missing cell (`codes`).
UNKNOWN = -1
MISSING = -2

#: Texts of a missing number.
NO_NUMBER = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "none", "#N/A")


def numbers(column: Any) -> npt.NDArray[np.float64]:
    """Return a column as float64, NaN where a cell is missing or not a finite number.

    Arrow casts a block whose cells all parse; any other block is parsed cell by cell. Both parse a
    cell alike, so that a bad cell changes only itself.

    Examples
    --------
    >>> import pyarrow as pa
    >>> numbers(pa.array(["1.5", "", "two", "inf"])).tolist()
    [1.5, nan, nan, nan]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type):
        missing = pc.is_in(column, value_set=pa.array(NO_NUMBER))
        try:
            parsed = pc.if_else(missing, None, column).cast(pa.float64())
        except pa.ArrowInvalid:
            cells = column.cast(pa.binary()).to_pylist()  # they may be no UTF-8
            parsed = pa.array([_cell(cell) for cell in cells], pa.float64())
    else:
        parsed = column.cast(pa.float64(), safe=False)
    array = np.asarray(parsed).astype(np.float64)  # a copy that may be written
    array[~np.isfinite(array)] = np.nan
    return array


def codes(column: Any, categories: tuple[str, ...]) -> npt.NDArray[np.int32]:
    """Return each cell's position in `categories`, or `UNKNOWN` or `MISSING`.

    Cells are compared as text. An empty cell is missing unless "" is a declared category.

    Examples
    --------
    >>> import pyarrow as pa
    >>> codes(pa.array(["b", "c", "", None]), ("a", "b")).tolist()
    [1, -1, -2, -2]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = texts(column)
    found = pc.index_in(column, value_set=pa.array(categories, pa.string()))
    code = np.asarray(pc.fill_null(found, UNKNOWN)).astype(np.int32)
    code[np.asarray(pc.is_null(column), dtype=np.bool_)] = MISSING
    if "" not in categories:
        code[np.asarray(pc.fill_null(pc.equal(column, ""), True), dtype=np.bool_)] = MISSING
    return code


def texts(column: Any) -> Any:
    """Return a column with its cells as text.

    Examples
    --------
    >>> import pyarrow as pa
    >>> texts(pa.array([7, None])).to_pylist()
    ['7', None]
    """
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def is_number(kind: pa.DataType) -> bool:
    """Return whether a Parquet column of this type can be numeric."""
    from pyarrow import types

    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_boolean(kind)
    )


def is_category(kind: pa.DataType) -> bool:
    """Return whether a Parquet column of this type can be categorical."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
        if types.is_string_view(kind):  # Arrow cannot decode it
            return False
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
    )


def _cell(cell: bytes | None) -> float | None:
    if cell is None or b"_" in cell:
        return None
    try:
        text = cell.decode()
        return None if text in NO_NUMBER else float(text)
    except ValueError:  # UnicodeDecodeError is one
        return None
