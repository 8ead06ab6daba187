# SPDX-License-Identifier: Apache-2.0
"""Arrays of cells in memory as numbers and category codes: no cell raises, warns or moves.

Only dtypes are refused. A number that cannot be read is missing, and so is a cell of another kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.tables.cells import MISSING, UNKNOWN, number_of_text

_NUMBERS, _CELLS = "iufb", "OUST"
_EXACT = 2.0**53


def numbers_of(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return an array of numbers or cells as float64, NaN where a cell is no number.

    Examples
    --------
    >>> numbers_of(np.array([1, "2.5", None, "two", True], dtype=object)).tolist()
    [1.0, 2.5, nan, nan, 1.0]
    """
    check_cells(values.dtype)
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
        return number_of_text(str.strip(cell))
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
    check_cells(values.dtype)
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


def check_cells(dtype: np.dtype[Any]) -> None:
    """Refuse an array of anything else than numbers, bool, text and objects.

    Examples
    --------
    >>> check_cells(np.dtype("datetime64[s]"))
    Traceback (most recent call last):
    ...
    TypeError: X must hold numbers, bool or text, got dtype datetime64[s]
    """
    if dtype.kind == "c":
        raise ValueError(f"Complex data not supported: X must hold numbers or text, got {dtype}")
    if dtype.kind not in _NUMBERS + _CELLS:
        raise TypeError(f"X must hold numbers, bool or text, got dtype {dtype}")
