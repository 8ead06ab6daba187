# SPDX-License-Identifier: Apache-2.0
"""Labels of rows and of users as arrays: no conversion shows a label in an error."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.guard.ids import canonical_id, refuse_id_dtype
from dpftrl_fast.linear_model._sources import Ints


def group_numbers(groups: Any, rows: int) -> Ints:
    """Return the user of every row as a number, in order of first appearance.

    Raises
    ------
    TypeError
        For a dtype in which a user has no single form (see `accounting.guard.ids`).
    ValueError
        For another shape than (rows,), and for a label that is missing or stands for no user. The
        message shows no label.

    Examples
    --------
    >>> group_numbers(["b", "a", "b"], 3).tolist()
    [0, 1, 0]
    """
    given, missing = labels_of_users(groups, rows)
    if missing.any():
        raise ValueError(
            "groups must name a user for every row, by an integer or a text, got NaN, infinity, a "
            f"missing or another label in row {np.argmax(missing)}"
        )
    return numbers_in_order(given)


def numbers_in_order(labels: NDArray[Any]) -> Ints:
    """Return a number for every label, in order of first appearance."""
    if labels.dtype.kind == "O":
        numbers: dict[Any, int] = {}
        return np.array([numbers.setdefault(label, len(numbers)) for label in labels], np.int64)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(first.size, dtype=np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[inverse.reshape(-1)]


def labels_of_users(groups: Any, rows: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the labels of users, one a row, and which of them stand for no user.

    Labels are integers or canonical texts (`canonical_id`), which are equal for one user only. What
    they are where no user stands is of no meaning.
    """
    dtype = getattr(groups, "dtype", None)
    if dtype is not None:
        refuse_id_dtype("groups", dtype)
    given = as_labels(groups)
    if given.shape != (rows,):
        raise ValueError(f"groups must have shape ({rows},), one a row, got shape {given.shape}")
    if given.dtype.kind in "iu":
        return given, np.zeros(rows, dtype=np.bool_)
    if given.dtype.kind == "f":
        # Beyond this bound two integers are one float.
        bound = 2.0 ** (np.finfo(given.dtype).nmant + 1)
        user = (np.abs(given) < bound) & (np.floor(given) == given)
        return np.where(user, given, 0).astype(np.int64), ~user
    found = [_canonical(label) for label in given.tolist()]
    missing = np.array([text is None for text in found], dtype=np.bool_)
    return np.array(["" if text is None else text for text in found], dtype=object), missing


def as_labels(values: Any) -> NDArray[Any]:
    """Return labels as an array, each with its own type kept.

    Text that is not valid UTF-8, which pandas' Arrow columns can hold, raises nothing: its bytes
    that are not are lone surrogates, as in Python's file names, so that it equals no valid text.
    """
    kind: Any = getattr(values, "dtype", None)
    if isinstance(kind, np.dtype):
        labels: NDArray[Any] = np.asarray(values)
        return _valid_code_points(labels) if kind.kind == "U" else labels
    if hasattr(kind, "categories"):  # of pandas: their labels and codes
        array = getattr(values, "array", values)
        named: NDArray[Any] = np.array([*as_labels(kind.categories).tolist(), None], dtype=object)
        codes: Ints = np.asarray(array.codes)
        return named[codes]
    try:
        return np.asarray(values, dtype=object)
    except Exception:  # its message may show a label
        return _text_of_any_bytes(values)


def _text_of_any_bytes(values: Any) -> NDArray[np.object_]:
    column = values.iloc[:, 0] if getattr(values, "ndim", 1) == 2 else values
    arrow = getattr(getattr(column, "array", column), "__arrow_array__", None)
    if arrow is None:
        raise TypeError(f"labels must be an array, got {type(values).__name__} that is none")
    import pyarrow as pa

    cells = arrow().cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
    labels = np.empty(len(cells), dtype=object)
    labels[:] = [None if cell is None else cell.decode(errors="surrogateescape") for cell in cells]
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


def _canonical(label: Any) -> str | None:
    try:
        return canonical_id(label)
    except Exception:  # of the label's own class too
        return None
