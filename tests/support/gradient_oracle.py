# SPDX-License-Identifier: Apache-2.0
"""Clipped gradient sums written from the definitions: one row at a time, in extended precision."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse

from dpftrl_fast.kernels import SparseRows, clipped_sum

Array = np.ndarray[Any, np.dtype[Any]]

MARGIN = 1 - 2.0**-20
LONG = np.longdouble


def slope_of(loss: str, z: Any, y: Any, k: float) -> Any:
    """l'(z, y) of one output."""
    s = LONG(1 if y > 0 else -1)
    d = z - y
    return {
        "squared": lambda: d,
        "huber": lambda: d if abs(d) <= k else k * np.sign(d),
        "logistic": lambda: -s / (1 + np.exp(s * z)),
        "hinge": lambda: -s if 1 - s * z > 0 else LONG(0),
        "epsilon_insensitive": lambda: np.sign(d) if abs(d) > k else LONG(0),
        "quantile": lambda: np.where(d > 0, 1 - k, np.where(d < 0, -k, 0)),
        "linear": lambda: LONG(y),
    }[loss]()


def slopes_of(loss: str, z: Array, y: Any, k: float) -> Array:
    """The slopes of all outputs."""
    if z.size == 1:
        return np.array([slope_of(loss, z[0], y, k)], dtype=LONG)
    signs = np.where(np.arange(z.size) == int(y), LONG(1), LONG(-1))
    if loss == "hinge":
        return np.where(signs * z < 1, -signs, LONG(0))
    e = np.exp(z - z.max())
    return np.asarray(e / e.sum() - (signs > 0))


def oracle(
    X: Any,
    y: Any,
    theta: Array,
    clip_norm: float,
    loss: str,
    *,
    k: float = 1.0,
    starts: Any = None,
    row_bound: float | None = None,
    constant: float = 0.0,
) -> Array:
    """Sum over users (without starts, over rows) of their clipped gradients, like theta."""
    theta = np.atleast_2d(theta).astype(LONG)
    total = np.zeros(theta.shape, dtype=LONG)
    starts = np.arange(len(X) + 1) if starts is None else starts
    for first, last in pairwise(starts):
        own = np.zeros(theta.shape, dtype=LONG)
        for x, target in zip(X[first:last].astype(LONG), y[first:last], strict=True):
            norm = np.sqrt(x @ x)
            if row_bound is not None and norm > row_bound:
                x = x * (row_bound / norm)
            if constant:
                x = np.append(x, LONG(constant))
            own += np.outer(slopes_of(loss, theta @ x, target, k), x)
        norm, limit = np.sqrt(np.sum(own * own)), clip_norm * MARGIN
        total += own if norm <= limit else own * (limit / norm)
    return total.astype(np.float64)


def kernel(
    X: Any,
    y: Any,
    theta: Array,
    clip_norm: float,
    loss: Any,
    *,
    k: float = 1.0,
    starts: Any = None,
    sparse: bool = False,
    **options: Any,
) -> Array:
    """The same by the kernels: by row or by user, one output or several, dense or sparse."""
    theta = np.atleast_2d(theta)
    rows = X
    if sparse:
        rows = SparseRows.of(X if scipy.sparse.issparse(X) else scipy.sparse.csr_array(X))
    numbers = {"clip_norm": clip_norm, "loss": loss, "loss_param": k}
    out = np.full(theta.shape, np.nan)
    assert clipped_sum(rows, y, theta, users=starts, out=out, **numbers, **options) is out
    return out
