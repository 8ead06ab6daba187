# SPDX-License-Identifier: Apache-2.0
"""Noisy sums from the models of a run: the FTRL update, solved for its input."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def sums_of_models(
    models: Vector, rate: float, *, momentum: float = 0.0, nesterov: bool = False
) -> Vector:
    """Return x_1 .. x_T from models q_t = rate v_t, v_t = momentum v_(t-1) + x_t.

    Models are no more than these sums: what is a canary's there is a canary's here.

    Parameters
    ----------
    models : array of float64, shape (steps, size)
        Model minus the first model, after every step.
    rate : float
        Signed learning rate over the divisor of the sums.
    momentum, nesterov
        Of the update; with Nesterov's q_t = rate (x_t + momentum v_t).

    Examples
    --------
    >>> sums_of_models(np.array([[2.0], [5.0]]), 2.0, momentum=0.5).tolist()
    [[1.0], [2.0]]
    """
    found = np.empty_like(models)
    velocity = np.zeros(models.shape[1])
    for t, model in enumerate(models / rate):
        if nesterov:
            found[t] = (model - momentum * momentum * velocity) / (1.0 + momentum)
        else:
            found[t] = model - momentum * velocity
        velocity = momentum * velocity + found[t]
    return found
