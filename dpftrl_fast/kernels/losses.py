# SPDX-License-Identifier: Apache-2.0
"""Losses of a generalised linear model: l(z, y) with z = <x, theta>, whose gradient is l'(z, y) x.

======== ============================================ =====================================
name     l(z, y)                                      l'(z, y)
======== ============================================ =====================================
squared  (z - y)^2 / 2                                z - y
huber    (z - y)^2 / 2 where |z - y| <= k,            min(max(z - y, -k), k)
         k |z - y| - k^2 / 2 beyond
logistic log(1 + exp(-s z))                           -s / (1 + exp(s z))
hinge    max(0, 1 - s z)                              -s where s z < 1, else 0
======== ============================================ =====================================

k is `loss_param`, read by `huber` only. s is the class: +1 where y > 0, else -1; so labels {0, 1}
and {-1, +1} mean the same. The subgradient of the hinge at its corner is 0.
"""

from __future__ import annotations

import math
from typing import Literal

from dpftrl_fast.kernels._jit import helper

Loss = Literal["squared", "logistic", "huber", "hinge"]

SQUARED, LOGISTIC, HUBER, HINGE = 0, 1, 2, 3

LOSS_CODES: dict[str, int] = {
    "squared": SQUARED,
    "logistic": LOGISTIC,
    "huber": HUBER,
    "hinge": HINGE,
}


@helper
def slope(loss: int, loss_param: float, z: float, y: float) -> float:
    """Return l'(z, y); NaN where z or y is not finite."""
    if not (math.isfinite(z) and math.isfinite(y)):
        return math.nan
    if loss == SQUARED:
        return z - y
    if loss == HUBER:
        return min(max(z - y, -loss_param), loss_param)
    s = 1.0 if y > 0.0 else -1.0
    m = s * z
    if loss == HINGE:
        return -s if m < 1.0 else 0.0
    # 1 / (1 + exp(m)) without overflow, and without a branch on the sign of m.
    e = math.exp(-abs(m))
    return -s * ((e if m > 0.0 else 1.0) / (1.0 + e))
