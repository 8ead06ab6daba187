# SPDX-License-Identifier: Apache-2.0
"""Error of the Toeplitz mechanisms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import dpftrl_fast._core as _core
from dpftrl_fast.mechanisms.run_error import check_error_steps, per_step_std, std_at
from dpftrl_fast.mechanisms.toeplitz.layout import ToeplitzLayout
from dpftrl_fast.mechanisms.toeplitz.values import BufferedToeplitz
from dpftrl_fast.mechanisms.workload import Workload

# Operations that a schedule of rates may ask for: about a minute.
_MOST_WORK = 2**36
# Coefficients of an inverse whose absolute values add up to less than so much of the first one are
# left out of a schedule's sum.
_NEGLIGIBLE = 1e-17


@per_step_std.register
def _(layout: ToeplitzLayout, workload: Workload) -> NDArray[np.float64]:
    steps = check_error_steps(layout.steps)
    momentum, decay, rates = workload.momentum, workload.decay, workload.relative_rates(steps)
    blocks = [(run.steps, run.count) for run in layout.runs]
    variance = np.empty(steps)
    mechanism = layout.mechanism
    if rates is not None and isinstance(mechanism, BufferedToeplitz):
        each_decay, each_scale = np.array(mechanism.decay), np.array(mechanism.scale)
        _check_work(steps * (each_decay.size + 2) ** 2)
        _core.workload_error_buffers(
            each_decay, each_scale, momentum, decay, rates, blocks, variance
        )
    else:
        inverse = mechanism.inverse(layout.longest)
        if rates is not None:
            rest = np.cumsum(np.abs(inverse[::-1]))[::-1]
            inverse = inverse[: max(1, int(np.count_nonzero(rest > _NEGLIGIBLE * abs(inverse[0]))))]
            _check_work(steps * inverse.size)
        _core.workload_error(inverse, momentum, decay, rates, blocks, variance)
    return np.sqrt(np.maximum(variance, 0.0, out=variance), out=variance)


@std_at.register
def _(layout: ToeplitzLayout, times: NDArray[np.int64]) -> NDArray[np.float64]:
    if not times.size:
        return np.zeros(0)
    within, carry = layout.with_carry(times, layout.block_variances().tolist())
    return np.sqrt(carry + layout.mechanism.variance_at(within))


def _check_work(operations: int) -> None:
    if operations > _MOST_WORK:
        raise ValueError(
            f"learning_rates must ask for at most 2^36 operations with this mechanism, got "
            f"{operations}: use one rate, fewer bands or buffers, or taps"
        )
