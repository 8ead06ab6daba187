# SPDX-License-Identifier: Apache-2.0
"""Derivatives of the losses at a prediction of zero, written apart from the kernels."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def slope(loss: str, given: float | None, y: float) -> float:
    """Return the derivative of a loss at the prediction 0."""
    if loss == "squared":
        return -y
    if loss == "linear":
        return y
    if loss == "huber":
        k = 1.0 if given is None else given
        return -min(max(y, -k), k)
    if loss == "epsilon_insensitive":
        k = 0.1 if given is None else given
        return -math.copysign(1.0, y) if abs(y) > k else 0.0
    assert loss == "quantile"
    k = 0.5 if given is None else given
    return -k if y > 0.0 else (1.0 - k if y < 0.0 else 0.0)


def class_slopes(loss: str, place: int, outputs: int) -> Vector:
    """Return the derivatives of a loss at predictions of 0, for a class."""
    if outputs == 1:
        sign = 1.0 if place == 1 else -1.0
        return np.array([-sign if loss == "hinge" else -0.5 * sign])
    target = np.zeros(outputs)
    target[place] = 1.0
    return 1.0 - 2.0 * target if loss == "hinge" else 1.0 / outputs - target
