# SPDX-License-Identifier: Apache-2.0
"""Public weights of classes, as a weight of every row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import non_negative, shown
from dpftrl_fast.linear_model._targets import ClassTargets

FloatArray = NDArray[np.float64]


def check_class_weight(value: Any) -> dict[Any, float] | None:
    """Return weights of classes as a dictionary of floats, None for None.

    Raises
    ------
    TypeError, ValueError
        For anything else; "balanced" would count private labels.
    """
    if value is None:
        return None
    if isinstance(value, str):
        raise ValueError(
            f"class_weight must be a dict from class to weight, got {shown(value)}: weights that "
            "follow from the labels would reveal how many there are of each; declare public ones"
        )
    if not isinstance(value, dict):
        raise TypeError(
            f"class_weight must be a dict from class to weight, got {type(value).__name__}"
        )
    return {label: non_negative("class_weight", weight) for label, weight in value.items()}


def class_weights(weights: dict[Any, float], targets: ClassTargets, labels: Any) -> FloatArray:
    """Return the weight of every row: that of its class, 1 for a class without one.

    Examples
    --------
    >>> targets = ClassTargets(np.array(["a", "b", "c"]))
    >>> class_weights({"b": 3.0, "c": 0.5}, targets, np.array(["b", "a", "c", "b", "?"])).tolist()
    [3.0, 1.0, 0.5, 3.0, 0.0]
    """
    classes = targets.classes.tolist()
    unknown = [label for label in weights if label not in classes]
    if unknown:
        raise ValueError(
            f"class_weight must have classes of {classes} as keys, got {shown(unknown[0])}"
        )
    table = np.array([weights.get(label, 1.0) for label in classes] + [0.0])
    numbers = targets.encode(labels)
    place = np.where(np.isnan(numbers), len(classes), numbers).astype(np.int64)
    found: FloatArray = table[place]
    return found
