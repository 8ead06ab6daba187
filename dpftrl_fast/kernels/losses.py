# SPDX-License-Identifier: Apache-2.0
"""Losses of a generalised linear model: l(z, y) with z = <x, theta>, whose gradient is l'(z, y) x.

=================== ========================================= ================================
name                l(z, y)                                   l'(z, y)
=================== ========================================= ================================
squared             (z - y)^2 / 2                             z - y
huber               (z - y)^2 / 2 where |z - y| <= k,         min(max(z - y, -k), k)
                    k |z - y| - k^2 / 2 beyond
logistic            log(1 + exp(-s z))                        -s / (1 + exp(s z))
hinge               max(0, 1 - s z)                           -s where s z < 1, else 0
epsilon_insensitive max(0, |z - y| - k)                       sign(z - y) where |z - y| > k,
                                                              else 0
quantile            max(k (y - z), (1 - k) (z - y))           -k where z < y, 1 - k where z > y
linear              y z, that is <d, theta> with d = y x      y
=================== ========================================= ================================

k is `loss_param`: > 0 for `huber`, >= 0 for `epsilon_insensitive`, in (0, 1) for `quantile`, not
read by the others. s is the class: +1 where y > 0, else -1; labels {0, 1} and {-1, +1} are
equivalent.
At a corner the subgradient is 0.

Losses of several outputs z_1, .., z_K, the class y being one of 0, .., K - 1:

=================== ========================================= ================================
multinomial         log(sum over k of exp(z_k)) - z_y         softmax(z)_k - [k = y]
hinge               sum over k of max(0, 1 - s_k z_k),        -s_k where s_k z_k < 1, else 0
                    s_k = +1 where k = y, else -1
=================== ========================================= ================================
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.jit import helper

Loss = Literal["squared", "logistic", "huber", "hinge", "epsilon_insensitive", "quantile", "linear"]
MultiLoss = Literal["multinomial", "hinge"]

SQUARED, LOGISTIC, HUBER, HINGE, EPSILON_INSENSITIVE, QUANTILE, LINEAR, MULTINOMIAL = range(8)

LOSS_CODES: dict[str, int] = {
    "squared": SQUARED,
    "logistic": LOGISTIC,
    "huber": HUBER,
    "hinge": HINGE,
    "epsilon_insensitive": EPSILON_INSENSITIVE,
    "quantile": QUANTILE,
    "linear": LINEAR,
}
MULTI_LOSS_CODES: dict[str, int] = {"multinomial": MULTINOMIAL, "hinge": HINGE}


@helper
def slope(loss: int, loss_param: float, z: float, y: float) -> float:
    """Return l'(z, y); NaN where z or y is not finite."""
    if not (math.isfinite(z) and math.isfinite(y)):
        return math.nan
    if loss == SQUARED:
        return z - y
    if loss == HUBER:
        return min(max(z - y, -loss_param), loss_param)
    if loss == LINEAR:
        return y
    if loss == EPSILON_INSENSITIVE:
        return math.copysign(1.0, z - y) if abs(z - y) > loss_param else 0.0
    if loss == QUANTILE:
        return -loss_param if z < y else (1.0 - loss_param if z > y else 0.0)
    s = 1.0 if y > 0.0 else -1.0
    m = s * z
    if loss == HINGE:
        return -s if m < 1.0 else 0.0
    # 1 / (1 + exp(m)) without overflow, and without a branch on the sign of m.
    e = math.exp(-abs(m))
    return -s * ((e if m > 0.0 else 1.0) / (1.0 + e))


@helper
def slopes(loss: int, loss_param: float, z: Array, y: float) -> float:
    """Replace the outputs z by the slopes; return their squared norm, NaN for a bad row.

    A row is bad if an output or the target is not finite or, with several outputs, the target is
    not one of the classes.
    """
    outputs = z.size
    if outputs == 1:
        z[0] = slope(loss, loss_param, z[0], y)
        return z[0] * z[0] if math.isfinite(z[0]) else math.nan
    if not (0.0 <= y < outputs and y == math.floor(y)):
        return math.nan
    largest = z[0]
    for k in range(outputs):
        if not math.isfinite(z[k]):
            return math.nan
        largest = max(largest, z[k])
    label = int(y)
    square = 0.0
    if loss == HINGE:
        for k in range(outputs):
            z[k] = slope(loss, loss_param, z[k], 1.0 if k == label else -1.0)
            square += z[k] * z[k]
        return square
    total = 0.0
    for k in range(outputs):
        z[k] = math.exp(z[k] - largest)
        total += z[k]
    # The slope of the row's own class is minus the sum of the others: no cancellation near 1.
    others = 0.0
    for k in range(outputs):
        z[k] /= total
        if k != label:
            others += z[k]
            square += z[k] * z[k]
    z[label] = -others
    return square + others * others


def loss_values(loss: str, loss_param: float, z: Array, y: Array) -> Array:
    """Return l(z, y) of every row, in float64: NOT PRIVATE, for measuring.

    z has shape (n,), or (n, K) for several outputs; y has shape (n,).

    Examples
    --------
    >>> loss_values("quantile", 0.25, np.array([0.0, 0.0]), np.array([4.0, -4.0])).tolist()
    [1.0, 3.0]
    """
    z, y = np.asarray(z, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if z.ndim == 2:
        rows, label = np.arange(len(z)), y.astype(np.int64)
        if loss == "multinomial":
            return np.asarray(np.logaddexp.reduce(z, axis=1) - z[rows, label])
        signs = np.full(z.shape, -1.0)
        signs[rows, label] = 1.0
        return np.asarray(np.maximum(0.0, 1.0 - signs * z).sum(axis=1))
    d = z - y
    m = np.where(y > 0.0, z, -z)
    if loss == "huber":
        near = np.minimum(np.abs(d), loss_param)
        values = near * (np.abs(d) - near / 2.0)
    elif loss == "logistic":
        values = np.logaddexp(0.0, -m)
    elif loss == "hinge":
        values = np.maximum(0.0, 1.0 - m)
    elif loss == "epsilon_insensitive":
        values = np.maximum(0.0, np.abs(d) - loss_param)
    elif loss == "quantile":
        values = np.maximum(-loss_param * d, (1.0 - loss_param) * d)
    else:
        values = y * z if loss == "linear" else d * d / 2.0
    return np.asarray(values)
