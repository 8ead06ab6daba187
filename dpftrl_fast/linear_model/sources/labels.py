# SPDX-License-Identifier: Apache-2.0
"""Labels of users as numbers: no conversion shows a label in an error."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.guard.ids import canonical_id, refuse_id_dtype
from dpftrl_fast.linear_model.sources.source import Ints
from dpftrl_fast.tables.labels import as_labels, comes_from


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
    if comes_from(groups, "polars", "pyarrow"):
        groups = as_labels(groups)
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


def _canonical(label: Any) -> str | None:
    try:
        return canonical_id(label)
    except Exception:  # of the label's own class too
        return None
