# SPDX-License-Identifier: Apache-2.0
"""The un-noised sums of a batch for private least squares, in the process that has the rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.least_squares.weights import weights_of
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.kernels.least_squares import RankUpdate
from dpftrl_fast.kernels.packed import packed_size

FloatArray = NDArray[np.float64]


def batch_sums(plan: LeastSquaresPlan, batch: Batch) -> tuple[FloatArray, FloatArray]:
    """Return the sums of a batch for `LeastSquares.step_sums`.

    Returns
    -------
    bias : (plan.bias_size(p),) array of float64
        Sums of y x, target after target, each with that of y^2 behind it if the plan has it.
        Secret.
    packed : (p (p + 1) / 2,) array of float64
        Upper triangle of the sum of x x^T. Secret.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast import accounting
    >>> plan = LeastSquaresPlan(10.0, 1.0, 13.0, accounting.SinglePass(3))
    >>> [part.tolist() for part in batch_sums(plan, Batch(np.array([[1.0, 2.0]]), np.ones(1)))]
    [[1.0, 2.0], [1.0, 2.0, 4.0]]
    """
    p = int(batch.X.shape[1]) + (plan.constant > 0)
    bias, total, low = (
        np.empty(plan.bias_size(p)),
        np.zeros(packed_size(p)),
        np.zeros(packed_size(p)),
    )
    # low stays zero up to MOST_ROWS rows.
    update_of(plan, p).add(batch.X, batch.y, total, low, bias, weights_of(plan, batch))
    return bias, total + low


def update_of(plan: LeastSquaresPlan, p: int) -> RankUpdate:
    """Return the update that scales rows into the bounds of a plan and adds their products."""
    return RankUpdate(
        p,
        x_norm_bound=plan.x_norm_bound,
        y_bound=plan.y_bound,
        constant=plan.constant,
        targets=plan.targets,
        squares=plan.squares,
        long_rows=plan.long_rows,
    )
