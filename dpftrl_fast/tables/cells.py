# SPDX-License-Identifier: Apache-2.0
"""Conversion of Arrow columns to numbers and category codes: no cell raises or affects another."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpftrl_fast.tables.csv_format import PLAIN_NUMBERS, NumberFormat

if TYPE_CHECKING:
    import pyarrow as pa

#: Code of a cell whose category is not declared, and of a missing cell (`codes`).
UNKNOWN = -1
MISSING = -2

#: Texts of a missing number.
NO_NUMBER = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "none", "#N/A")


#: Texts of a bool, which is the number 1 or 0.
BOOLS = {
    **dict.fromkeys(("true", "True", "TRUE"), 1.0),
    **dict.fromkeys(("false", "False", "FALSE"), 0.0),
}

# Texts that Arrow and Python read alike: every such number has a float, whatever its length.
_PLAIN = r"^-?[0-9]+(?:\.[0-9]+)?$"
_LONGEST = 300


def number_of_text(text: str) -> float:
    """Return the number in a text; NaN where it is none, infinity where it is not finite.

    Examples
    --------
    >>> number_of_text("1.5"), number_of_text("TRUE"), number_of_text("NA"), number_of_text("1_0")
    (1.5, 1.0, nan, nan)
    """
    if text in NO_NUMBER or "_" in text:
        return math.nan
    known = BOOLS.get(text)
    if known is not None:
        return known
    try:
        return float(text)
    except ValueError:
        return math.nan


def numbers(column: Any, form: NumberFormat = PLAIN_NUMBERS) -> npt.NDArray[np.float64]:
    """Return a column as float64, NaN where a cell is missing or not a finite number.

    Arrow casts the cells that it reads as Python does; the others are parsed one by one. So a bad
    cell changes only itself. `form` has the marks within numbers that are text.

    Examples
    --------
    >>> import pyarrow as pa
    >>> numbers(pa.array(["1.5", "", "two", "inf", "true"])).tolist()
    [1.5, nan, nan, nan, 1.0]
    >>> numbers(pa.array(["1.234,5", "1.5"]), NumberFormat(decimal=",", thousands=".")).tolist()
    [1234.5, nan]
    """
    import pyarrow as pa

    if pa.types.is_string(column.type):
        parsed = _parsed(column if form == PLAIN_NUMBERS else _without_marks(column, form))
    else:
        parsed = np.asarray(column.cast(pa.float64(), safe=False)).astype(np.float64)
    parsed[~np.isfinite(parsed)] = np.nan
    return parsed


def _parsed(column: Any) -> npt.NDArray[np.float64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return np.asarray(column.cast(pa.float64())).astype(np.float64)  # it may be written
    except pa.ArrowInvalid:
        column = column.cast(pa.binary())  # text may be no UTF-8
    plain = pc.and_(
        pc.match_substring_regex(column, _PLAIN), pc.less(pc.binary_length(column), _LONGEST)
    ).fill_null(False)
    few = pc.if_else(plain, column, None).cast(pa.string()).cast(pa.float64())
    parsed = np.asarray(few).astype(np.float64)
    odd = np.flatnonzero(~np.asarray(plain))
    known: dict[bytes | None, float] = {None: math.nan}
    cells = column.take(pa.array(odd)).to_pylist()
    for cell in {*cells} - {None}:
        known[cell] = _number_of_bytes(cell)
    parsed[odd] = [known[cell] for cell in cells]
    return parsed


def _number_of_bytes(cell: bytes) -> float:
    try:
        return number_of_text(cell.decode())
    except UnicodeDecodeError:
        return math.nan


def _without_marks(column: Any, form: NumberFormat) -> Any:
    """Return numbers with a decimal point and without marks of thousands; null for others."""
    import pyarrow.compute as pc

    column = pc.utf8_trim_whitespace(column)
    if form.thousands is not None:
        whole = pc.replace_substring(column, form.thousands, "")
        marked = pc.match_substring(column, form.thousands)
        rest = pc.if_else(marked, None, column)
        column = pc.if_else(pc.match_substring_regex(column, grouped_pattern(form)), whole, rest)
    if form.decimal != ".":
        pointed = pc.match_substring(column, ".")
        column = pc.if_else(pointed, None, pc.replace_substring(column, form.decimal, "."))
    return column


def grouped_pattern(form: NumberFormat) -> str:
    """Return the pattern of a number with marks of thousands at places where they may be."""
    mark, decimal = re.escape(form.thousands or ""), re.escape(form.decimal)
    digits = rf"[0-9]{{1,3}}(?:{mark}[0-9]{{2,3}})*{mark}[0-9]{{3}}"
    return rf"^[+-]?{digits}(?:{decimal}[0-9]*)?(?:[eE][+-]?[0-9]+)?$"


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
