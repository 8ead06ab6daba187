# SPDX-License-Identifier: Apache-2.0
"""Columns of any frame as arrays of labels: no conversion shows a label in an error."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Kinds of labels: those of two kinds are never equal, but for bool and the numbers 0 and 1.
Kind: TypeAlias = Literal["text", "numbers", "bool", "bytes"]


def as_labels(values: Any) -> NDArray[Any]:
    """Return labels as an array, each with its own type kept.

    Text that is not valid UTF-8, which pandas' Arrow columns can hold, raises nothing: its bytes
    that are not are lone surrogates, as in Python's file names, so that it equals no valid text.

    Examples
    --------
    >>> as_labels(np.array([1, 2])).dtype.kind, as_labels(["a", None]).tolist()
    ('i', ['a', None])
    """
    if comes_from(values, "polars"):
        numeric = values.dtype.is_numeric() and not values.null_count()
        return np.asarray(values.to_numpy()) if numeric else _objects(values.to_list())
    if comes_from(values, "pyarrow"):
        return _of_arrow(values)
    kind: Any = getattr(values, "dtype", None)
    if isinstance(kind, np.dtype):
        labels: NDArray[Any] = np.asarray(values)
        return _valid_code_points(labels) if kind.kind == "U" else labels
    if hasattr(kind, "categories"):  # of pandas: their labels and codes
        array = getattr(values, "array", values)
        named: NDArray[Any] = np.array([*as_labels(kind.categories).tolist(), None], dtype=object)
        codes: NDArray[np.int64] = np.asarray(array.codes)
        return named[codes]
    try:
        return np.asarray(values, dtype=object)
    except Exception:  # its message may show a label
        return _text_of_any_bytes(values)


def as_numbers(column: Any) -> NDArray[np.float64]:
    """Return a column of polars or pyarrow, of numbers or bool, as float64; null is NaN."""
    if comes_from(column, "polars"):
        return np.array(column.cast(float).to_numpy(), dtype=np.float64)
    return np.array(column.cast("float64", safe=False).to_numpy(zero_copy_only=False))


def kind_of(dtype: Any) -> Kind | None:
    """Return the kind of labels of a dtype (NumPy's, pandas', polars' or pyarrow's).

    None stands for objects, and for dtypes of anything else.

    Examples
    --------
    >>> kind_of(np.dtype("int8")), kind_of(np.dtype("U3")), kind_of(np.dtype(object))
    ('numbers', 'text', None)
    """
    if comes_from(dtype, "pyarrow"):
        return _kind_of_arrow(dtype)
    if comes_from(dtype, "polars"):
        name = str(dtype)
        if name.startswith(("String", "Categorical", "Enum")):
            return "text"
        return "bool" if name == "Boolean" else "numbers" if dtype.is_numeric() else None
    if hasattr(dtype, "categories"):
        return kind_of(dtype.categories.dtype)
    if getattr(dtype, "type", None) is str:  # pandas' text
        return "text"
    kinds: dict[str, Kind] = {"b": "bool", "i": "numbers", "u": "numbers", "f": "numbers"}
    kinds |= {"U": "text", "T": "text", "S": "bytes"}
    return kinds.get(dtype.kind)


def _kind_of_arrow(dtype: Any) -> Kind | None:
    from pyarrow import types

    if types.is_dictionary(dtype):
        return _kind_of_arrow(dtype.value_type)
    if types.is_boolean(dtype):
        return "bool"
    if types.is_integer(dtype) or types.is_floating(dtype):
        return "numbers"
    return "text" if types.is_string(dtype) or types.is_large_string(dtype) else None


def comes_from(value: Any, *packages: str) -> bool:
    """Return whether a class of the value is defined in one of these packages.

    Examples
    --------
    >>> comes_from(np.zeros(2), "numpy"), comes_from([], "numpy")
    (True, False)
    """
    modules = [kind.__module__ for kind in type(value).__mro__]
    return any(f"{module}.".startswith(f"{name}.") for module in modules for name in packages)


def _of_arrow(column: Any) -> NDArray[Any]:
    """Return a pyarrow array, chunked or not."""
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    number = types.is_integer(column.type) or types.is_floating(column.type)
    if number and not column.null_count:
        return np.asarray(column.to_numpy())
    if types.is_string(column.type) or types.is_large_string(column.type):
        return _text_of_arrow(column)
    return _objects(column.to_pylist())


def _text_of_any_bytes(values: Any) -> NDArray[np.object_]:
    column = values.iloc[:, 0] if getattr(values, "ndim", 1) == 2 else values
    arrow = getattr(getattr(column, "array", column), "__arrow_array__", None)
    if arrow is None:
        raise TypeError(f"labels must be an array, got {type(values).__name__} that is none")
    return _text_of_arrow(arrow())


def _text_of_arrow(column: Any) -> NDArray[np.object_]:
    import pyarrow as pa

    cells = column.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
    return _objects(
        [None if cell is None else cell.decode(errors="surrogateescape") for cell in cells]
    )


def _objects(cells: list[Any]) -> NDArray[np.object_]:
    labels = np.empty(len(cells), dtype=object)
    labels[:] = cells
    return labels


def _valid_code_points(labels: NDArray[np.str_]) -> NDArray[Any]:
    """Return text with its cells beyond Unicode, which Python cannot hold, as lone surrogates."""
    if labels.dtype.itemsize == 0:
        return labels
    native = np.ascontiguousarray(labels, dtype=labels.dtype.newbyteorder("="))
    codes = native.view(np.uint32)
    bad = codes > 0x10FFFF
    return (
        np.where(bad, 0xDC80, codes).astype(np.uint32).view(native.dtype) if bad.any() else native
    )
