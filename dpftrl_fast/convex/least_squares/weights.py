# SPDX-License-Identifier: Apache-2.0
"""Weights of rows in both sums of private least squares.

A row of weight w counts as w x x^T and w y x: least squares with weights, in which a linear model
is found without bias as long as weights do not depend on the errors of y. So the weight of a user
follows from its x alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import vector_of
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.row_batches import Batch, row_norms
from dpftrl_fast.rounding import clip_limit

FloatArray = NDArray[np.float64]


def weights_of(plan: LeastSquaresPlan, batch: Batch) -> FloatArray | None:
    """Return the weights of the rows of a batch in [0, 1], None if all are 1.

    The rows of a user have w = min(1, L / sum of ||x||) in common, with the norms of clipped rows,
    constant column included: then its products sum to at most L^2 and L y_bound, since
    ||w sum x x^T|| <= w sum ||x||^2 <= L w sum ||x|| and ||w sum y x|| <= y_bound w sum ||x||.

    Parameters
    ----------
    plan : LeastSquaresPlan
        The bounds.
    batch : Batch
        Its weights are clipped to [0, 1], one that is not finite to 0; a user's row of weight v
        counts as v ||x|| in the sum above, and has the weight v w.

    Raises
    ------
    TypeError, ValueError
        If `starts` or weights are no arrays that fit the rows, or a plan with sums of squares is
        given users, whose weights do not bound these.

    Examples
    --------
    Two users, of three rows and one.

    >>> from dpftrl_fast import accounting
    >>> plan = LeastSquaresPlan(1.0, 1.0, 13.0, accounting.SinglePass(3))
    >>> users = Batch(np.eye(4), np.ones(4), np.array([0, 3, 4]))
    >>> weights_of(plan, users).round(3).tolist()
    [0.333, 0.333, 0.333, 1.0]
    """
    given, starts, n = batch.weights, batch.starts, len(batch.X)
    if given is not None:
        given = vector_of("weights", given, n, (np.dtype(np.float64),))
        given = np.clip(np.where(np.isfinite(given), given, 0.0), 0.0, 1.0)
    if starts is None:
        return given
    if plan.squares > 0:
        raise ValueError(
            "sums of squares (intervals) must be those of single records, got rows of users "
            "(groups): the errors of a user's rows may depend on each other"
        )
    counts = np.diff(starts)
    if not (starts.size > 0 and starts[0] == 0 and starts[-1] == n and np.all(counts >= 0)):
        raise ValueError(f"starts must ascend from 0 to the number of rows, {n}, got others")
    norms = np.minimum(row_norms(batch.X), clip_limit(plan.x_norm_bound))
    norms = np.hypot(np.where(np.isnan(norms), 0.0, norms), clip_limit(plan.constant))
    if given is not None:
        norms = norms * given
    users = np.repeat(np.arange(counts.size), counts)
    sums = np.bincount(users, weights=norms, minlength=counts.size)
    limit = clip_limit(plan.row_norm)
    shares = np.divide(limit, sums, out=np.ones_like(sums), where=sums > limit)[users]
    return shares if given is None else shares * given
