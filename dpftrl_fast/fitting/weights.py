# SPDX-License-Identifier: Apache-2.0
"""Weights of the rows of a table: those of its column of weights, and public ones of classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dpftrl_fast._validate import non_negative, shown
from dpftrl_fast.tables import Rows
from dpftrl_fast.tables.schema import LabelTarget, Schema

FloatArray = npt.NDArray[np.float64]
#: Weights of a batch of rows, None if all are 1.
Weights: TypeAlias = Callable[[Rows], "FloatArray | None"]


def check_class_weight(
    schema: Schema, class_weight: Mapping[str, float] | None
) -> dict[str, float] | None:
    """Return public weights of labels as floats, None for None.

    Raises
    ------
    TypeError, ValueError
        If the target has no labels, a label is not declared, or a weight is not >= 0.

    Examples
    --------
    >>> schema = Schema.from_dict({
    ...     "rows": 9, "columns": {}, "target": {"name": "y", "categories": ["no", "yes"]},
    ... })
    >>> check_class_weight(schema, {"yes": 3})
    {'yes': 3.0}
    """
    if class_weight is None:
        return None
    if not isinstance(schema.target, LabelTarget):
        raise ValueError(
            f"class_weight must be None for a numeric target, got {shown(dict(class_weight))}"
        )
    labels = schema.target.categories
    for label in class_weight:
        if label not in labels:
            raise ValueError(
                f"class_weight must have labels of {[*labels]} as keys, got {shown(label)}"
            )
    return {label: non_negative("class_weight", one) for label, one in class_weight.items()}


def weights_for(
    schema: Schema, class_weight: Mapping[str, float] | None, unit: float = 1.0
) -> Weights:
    """Return the function that weighs rows: the weight of the row, times that of its class.

    Weights of rows are in units of `unit`. Invalid rows count as zero, whatever their weight is.

    Examples
    --------
    >>> schema = Schema.from_dict({
    ...     "rows": 9, "columns": {}, "target": {"name": "y", "categories": ["no", "yes"]},
    ... })
    >>> target, nothing = np.array([1.0, 0.0, 1.0]), np.zeros((3, 0))
    >>> rows = Rows(nothing, nothing, target, target >= 0, np.array([1.0, 2.0, 0.5]))
    >>> weights_for(schema, {"yes": 3.0})(rows).tolist()
    [3.0, 2.0, 1.5]
    """
    of_class: FloatArray | None = None
    if class_weight is not None and isinstance(schema.target, LabelTarget):
        of_class = np.array([class_weight.get(label, 1.0) for label in schema.target.categories])

    @np.errstate(all="ignore")  # a warning would reveal a weight
    def weigh(rows: Rows) -> FloatArray | None:
        found = None if rows.weight is None else rows.weight / unit
        if of_class is None:
            return found
        own: FloatArray = of_class[rows.target.astype(np.int64)]
        return own if found is None else own * found

    return weigh
