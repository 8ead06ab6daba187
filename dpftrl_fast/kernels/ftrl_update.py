# SPDX-License-Identifier: Apache-2.0
"""The FTRL update in one pass: running sum, noise, momentum, threshold, ball, sums of iterates.

A coordinate costs a handful of operations, so with some hundred parameters the calls of an array
library would cost more than the arithmetic. Here a step is one loop over the coordinates, and a
second one for the ball.

Every operation is rounded where it is written (`exact`): the rounding errors of the running sum
depend on it, and so do the bits of a run that is saved and resumed elsewhere. The one sum over
coordinates, of the norm, has eight lanes, which are added up in pairs.

A state is a matrix of `ROWS` rows. A step reads one and writes another, so that an interrupted
caller still has the old one whole.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numba import types

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.exact import on_grid, two_sum
from dpftrl_fast.kernels.jit import compiled, exact_helper, read_only, writable

#: Rows of a state: the running sum, its rounding errors, v_t, and the sums of the iterates
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


def _project(x: Array, radius: float) -> None:
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


_project_helper = exact_helper(_project)


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
    grid: float,
    new_state: Array,
    new_theta: Array,
) -> None:
    for j in range(theta.size):
        total, error = two_sum(state[SUM, j], gradient_sum[j])  # s_t
        low = state[SUM_LOW, j] + error
        new_state[SUM, j] = total
        new_state[SUM_LOW, j] = low
        # v_t = gamma v_(t-1) + (s_t + n_t) / B
        noisy = total + (low + np.float64(noise[j]))
        if grid > 0.0:
            noisy = on_grid(noisy, grid, 0.5)
        v = noisy / batch_size
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
        _project_helper(new_theta, radius)


@functools.cache
def update_loop(noise: str) -> Callable[..., None]:
    """Return the loop of a step for noise of a dtype, given by its character.

    It takes the arguments of `_update` and writes the new state and iterate; a radius of infinity
    is no ball.
    """
    return compiled(
        _update,
        *(read_only(_F64, 2), read_only(_F64, 1), read_only(_F64, 1), read_only(noise, 1)),
        *(read_only(_F64, 1), *[types.float64] * 5, types.boolean, types.float64),
        *(writable(_F64, 2), writable(_F64, 1)),
        exact=True,
    )


@functools.cache
def project_loop() -> Callable[..., None]:
    """Return ``project(x, radius)``, which scales x into the ball about 0, in place.

    A vector that is not finite stays as it is.
    """
    return compiled(_project, writable(_F64, 1), types.float64, exact=True)
