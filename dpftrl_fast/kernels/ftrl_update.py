# SPDX-License-Identifier: Apache-2.0
"""The FTRL update in one pass: running sum, noise, momentum, threshold, ball, sums of iterates.

All of it is a handful of operations a coordinate, so that with some hundred parameters the calls of
an array library cost more than the arithmetic. Here a step is one loop over the coordinates, and a
second one where there is a ball.

Every operation is rounded where it is written: these loops are compiled without the licence to
reorder or to fuse that the others of this package have. The rounding errors of the running sum
depend on it, and so do the bits of a run that is saved and goes on elsewhere. The one sum over
coordinates, of the norm, has eight lanes, which are added up in pairs.

A state is a matrix of `ROWS` rows. A step reads one and writes another: who is interrupted still
has the old one whole.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from dpftrl_fast.kernels._jit import compiled, exact_helper, read_only, writable

Array = np.ndarray[Any, np.dtype[Any]]

#: Rows of a state: the running sum, what its roundings lost, v_t, and the sums of the iterates
#: theta_1, ..., theta_t and of those with t > T // 2.
SUM, SUM_LOW, VELOCITY, ITERATES, TAIL = range(5)
ROWS = 5

_F64 = "d"
_LANES = 8


@exact_helper
def _sum_of_squares(x: Array, scale: float) -> float:
    """Return the sum of (x_j / scale)^2."""
    whole = x.size - x.size % _LANES
    lanes = np.zeros(_LANES)
    for start in range(0, whole, _LANES):
        for lane in range(_LANES):
            unit = x[start + lane] / scale
            lanes[lane] += unit * unit
    left = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
    total = left + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))
    for j in range(whole, x.size):
        unit = x[j] / scale
        total += unit * unit
    return float(total)


@exact_helper
def _project(x: Array, radius: float) -> None:
    """Scale x into the ball of the radius about 0; leave it as it is if it is not finite."""
    largest = 0.0
    for j in range(x.size):
        size = abs(x[j])
        if not size < math.inf:
            return
        largest = max(largest, size)
    if largest == 0.0:
        return
    # Divided by the largest entry first: squares must not overflow or vanish.
    norm = math.sqrt(_sum_of_squares(x, largest))
    if norm * largest > radius:
        for j in range(x.size):
            x[j] = x[j] / largest / norm * radius


@exact_helper
def _update(
    state: Array,
    theta: Array,
    gradient_sum: Array,
    noise: Array,
    theta_0: Array,
    learning_rate: float,
    batch_size: float,
    momentum: float,
    threshold: float,
    radius: float,
    in_tail: bool,
    new_state: Array,
    new_theta: Array,
) -> None:
    for j in range(theta.size):
        # s_t, with the rounding error of the addition beside it (Knuth, TAOCP 2, 4.2.2).
        a, b = state[SUM, j], gradient_sum[j]
        total = a + b
        b_part = total - a
        low = state[SUM_LOW, j] + ((a - (total - b_part)) + (b - b_part))
        new_state[SUM, j] = total
        new_state[SUM_LOW, j] = low
        # v_t = gamma v_(t-1) + (s_t + n_t) / B
        v = ((total + low) + np.float64(noise[j])) / batch_size
        if momentum > 0.0:
            v += momentum * state[VELOCITY, j]
        new_state[VELOCITY, j] = v
        # soft(theta_0 - v_t / lambda, c_t / lambda)
        q = v * -learning_rate + theta_0[j]
        if threshold > 0.0:
            q -= -threshold if q < -threshold else (threshold if q > threshold else q)
        new_theta[j] = q
        new_state[ITERATES, j] = state[ITERATES, j] + theta[j]
        new_state[TAIL, j] = state[TAIL, j] + theta[j] if in_tail else state[TAIL, j]
    if radius < math.inf:
        _project(new_theta, radius)


def update(
    state: Array,
    theta: Array,
    gradient_sum: Array,
    noise: Array,
    theta_0: Array,
    learning_rate: float,
    batch_size: float,
    momentum: float,
    threshold: float,
    radius: float,
    in_tail: bool,
    new_state: Array,
    new_theta: Array,
) -> None:
    """Write the state and the iterate after a step; a radius of infinity is no ball."""
    _update(
        state,
        theta,
        gradient_sum,
        noise,
        theta_0,
        learning_rate,
        batch_size,
        momentum,
        threshold,
        radius,
        in_tail,
        new_state,
        new_theta,
    )


def project(x: Array, radius: float) -> None:
    """Scale x into the ball, in place."""
    _project(x, radius)


@functools.cache
def update_loop(noise: str) -> Callable[..., None]:
    """Return `update`, compiled for noise of a dtype, given by its character."""
    return compiled(
        update,
        *(read_only(_F64, 2), read_only(_F64, 1), read_only(_F64, 1), read_only(noise, 1)),
        *(read_only(_F64, 1), *[types.float64] * 5, types.boolean),
        *(writable(_F64, 2), writable(_F64, 1)),
    )


@functools.cache
def project_loop() -> Callable[..., None]:
    """Return `project`, compiled."""
    return compiled(project, writable(_F64, 1), types.float64)
