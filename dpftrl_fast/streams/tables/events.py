# SPDX-License-Identifier: Apache-2.0
"""Events in a data frame or arrays: their columns, which are refused by public facts only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.guard.ids import ID_BITS, refuse_id_dtype
from dpftrl_fast.streams.tables.periods import Ints, Periods, parsed_times
from dpftrl_fast.streams.users import id_or_none
from dpftrl_fast.tables.frames import numbers_of_cells
from dpftrl_fast.tables.header import is_header
from dpftrl_fast.tables.labels import as_labels, comes_from, kind_of
from dpftrl_fast.tables.values import category_form


@dataclass(frozen=True)
class EventColumns:
    """Names of the columns of events; None for one that a table does not read."""

    time: str
    key: str
    user: str | None
    value: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the names as JSON-able data."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Events:
    """The columns of some events, **a secret**.

    Attributes
    ----------
    places : ndarray of int64
        Number of the period of each event, -1 outside of all declared ones.
    keys : ndarray of int64
        Number of the key, -1 for one that is not declared.
    users : ndarray of int64, or None
        The integer that stands for the user, -1 for none.
    values : ndarray of float64, or None
    """

    places: Ints
    keys: Ints
    users: Ints | None
    values: NDArray[np.float64] | None


def read_events(
    events: Any, columns: EventColumns, periods: Periods, keys: Mapping[str, int]
) -> Events:
    """Return the columns of events.

    Parameters
    ----------
    events : DataFrame, Table, RecordBatch or mapping
        In memory, of pandas, polars or pyarrow; or a mapping from names to arrays or lists.
    columns : EventColumns
    periods : Periods
    keys : mapping
        The number of each declared key, by its form as text.

    Raises
    ------
    TypeError, ValueError
        If it is not that, lacks a column, or a column has another dtype or length. No cell is
        refused.

    Examples
    --------
    >>> from dpftrl_fast.streams.tables.periods import periods_of
    >>> days = periods_of("2013-01-01", "1D", 2)
    >>> batch = {"time": ["2013-01-02", "?"], "key": ["b", "c"], "user": [7, None]}
    >>> found = read_events(batch, EventColumns("time", "key", "user", None), days, {"b": 0})
    >>> found.places.tolist(), found.keys.tolist(), found.users.tolist()
    ([1, -1], [0, -1], [7, -1])
    """
    cells = {
        role: column_of(events, columns, role)
        for role, name in columns.to_dict().items()
        if name is not None
    }
    lengths = {role: len(column) for role, column in cells.items()}
    if len({*lengths.values()}) > 1:
        raise ValueError(f"the columns of events must have one length, got {lengths}")
    users, values = cells.get("user"), cells.get("value")
    return Events(
        periods.places(times_of(cells["time"], periods)),
        _codes(cells["key"], keys),
        None if users is None else _users(users),
        None if values is None else _values(values),
    )


def column_of(events: Any, columns: EventColumns, role: str) -> Any:
    """Return a column of events, by its role; refused by public facts only."""
    declared = columns.to_dict()
    name = declared[role]
    if isinstance(events, Mapping):
        names = [*events]
    elif comes_from(events, "pandas", "polars", "pyarrow") and not hasattr(events, "collect"):
        names = [*(events.schema.names if comes_from(events, "pyarrow") else events.columns)]
    else:
        raise TypeError(
            "events must be a data frame in memory of pandas, polars or pyarrow, or a mapping from "
            f"names to arrays, got {type(events).__name__}"
        )
    if names.count(name) != 1:
        texts = [str(other) for other in names]
        # Names may be the cells of a private row, of a file without a header.
        among = (
            f" among {', '.join(map(repr, texts))}"
            if is_header(texts, {*declared.values()} - {None})
            else ""
        )
        raise ValueError(
            f"events must have one column {name!r}, got {names.count(name)} of that name{among}: "
            f"{role}= is the name of that column"
        )
    column = events[name]
    if len(column) == 0:  # of any dtype: that there was no event is private
        return np.empty(0, object)
    if isinstance(column, (list, tuple)) or (
        not hasattr(column, "dtype") and not comes_from(column, "pyarrow")
    ):
        plain = np.empty(len(column), object)  # a text beside numbers stays one cell
        plain[:] = column
        return plain
    if getattr(column, "ndim", 1) != 1:
        raise ValueError(f"column {name!r} must have one dimension, got {column.ndim}")
    return column


def _type(cells: Any) -> Any:
    return cells.type if comes_from(cells, "pyarrow") else cells.dtype


def times_of(cells: Any, periods: Periods) -> NDArray[Any]:
    """Return the times of events, NaT or NaN where a cell has none."""
    found = _type(cells)
    if periods.kind != "time":
        if _is_objects(cells) or kind_of(found) == "numbers":
            labels = as_labels(cells)
            return labels if labels.dtype.kind in "iuf" else numbers_of_cells(cells)
        raise TypeError(f"times must be numbers, as the start is, got dtype {found}")
    if comes_from(cells, "polars", "pyarrow"):
        if str(found).lower().startswith(("date", "timestamp")):
            return np.asarray(cells.to_numpy(**_copied(cells))).astype(_plain(cells, found))
    elif getattr(found, "kind", None) == "M":
        if isinstance(found, np.dtype):
            return np.asarray(cells)
        unit = getattr(found, "unit", None) or getattr(found, "pyarrow_dtype", found).unit
        return np.asarray(
            cells.to_numpy(dtype=f"datetime64[{unit}]", na_value=np.datetime64("NaT"))
        )
    if found in (np.float64, np.float32) and np.isnan(np.asarray(cells)).all():
        return np.full(len(cells), "NaT", "datetime64[us]")  # the dtype of a column without any
    if _is_objects(cells) or kind_of(found) == "text":
        return parsed_times(as_labels(cells).tolist())
    raise TypeError(f"times must be times or text, as the start is, got dtype {found}")


def _copied(cells: Any) -> dict[str, Any]:
    from_array = comes_from(cells, "pyarrow") and not hasattr(cells, "chunks")
    return {"zero_copy_only": False} if from_array else {}


def _plain(cells: Any, dtype: Any) -> Any:
    """Return the dtype of NumPy for times of polars or pyarrow."""
    text = str(dtype).lower()
    if ("64" not in text and text.startswith("date32")) or text == "date":
        return "datetime64[D]"
    unit = getattr(dtype, "unit", None) or getattr(dtype, "time_unit", None) or "ms"
    return f"datetime64[{unit}]"


def _is_objects(cells: Any) -> bool:
    return isinstance(getattr(cells, "dtype", None), np.dtype) and cells.dtype.kind == "O"


def _codes(cells: Any, keys: Mapping[str, int]) -> Ints:
    found = _type(cells)
    if not _is_objects(cells) and kind_of(found) not in ("text", "numbers", "bool"):
        raise TypeError(f"keys must be text, integers or bool, got dtype {found}")

    def code(cell: Any) -> int:
        form = category_form(cell)
        return -1 if form is None else keys.get(form, -1)

    return _each(as_labels(cells), code)


def _users(cells: Any) -> Ints:
    found = _type(cells)
    if not comes_from(cells, "polars", "pyarrow"):
        refuse_id_dtype("users", found)
    elif kind_of(found) not in ("text", "numbers"):
        raise TypeError(f"users must be integers or text, got dtype {found}")

    labels = as_labels(cells)
    whole = labels.dtype.kind in "iu"
    if whole and (labels.size == 0 or (labels.min() >= 0 and labels.max() < 1 << ID_BITS)):
        return labels.astype(np.int64)
    return _each(labels, id_or_none)


def _values(cells: Any) -> NDArray[np.float64]:
    found = _type(cells)
    if not _is_objects(cells) and kind_of(found) not in ("text", "numbers", "bool"):
        raise TypeError(f"values must be numbers, got dtype {found}")
    with np.errstate(all="ignore"):  # a warning would reveal a value
        return np.asarray(numbers_of_cells(cells))


def _each(labels: NDArray[Any], number: Callable[[Any], int]) -> Ints:
    """Return the number of each label, computed once for equal numbers and equal texts."""
    if labels.dtype.kind in "iufb":
        distinct, place = np.unique(labels, return_inverse=True)
        found = np.array([number(one) for one in distinct], np.int64)
        return found[place.reshape(-1)] if distinct.size else np.zeros(0, np.int64)
    cells = labels.tolist()
    known = {text: number(text) for text in {cell for cell in cells if type(cell) is str}}
    every = (known[cell] if type(cell) is str else number(cell) for cell in cells)
    return np.fromiter(every, np.int64, len(cells))
