# SPDX-License-Identifier: Apache-2.0
"""The objective of a linear model, and its clipped gradient sum over a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.convex.row_batches import Batch, Rows, SparseRows, row_norms
from dpftrl_fast.kernels.gradients import Numbers, check_numbers, sum_clipped

FloatArray = NDArray[np.float64]

#: Bound on the second derivative of a loss in z; non-smooth losses have none.
CURVATURE = {"squared": 1.0, "huber": 1.0, "logistic": 0.25, "multinomial": 0.5}


@dataclass(frozen=True)
class Objective:
    """Public settings of a gradient sum.

    Parameters
    ----------
    loss : str
        A loss of one output, or "multinomial" or "hinge" with several
        (`dpftrl_fast.kernels.losses`).
    n_features : int
        Columns of the rows.
    outputs : int
        Parameter vectors: 1, or one per class.
    clip_norm : float
        L: bound on the norm of the contribution of each row, or each user.
    loss_param : float
        k of the Huber, epsilon-insensitive and quantile losses.
    row_bound : float, optional
        Rows beyond this norm are scaled onto it.
    constant : float
        Entry of the constant column, 0 for none.

    Raises
    ------
    TypeError, ValueError
        For an unknown loss or a number outside its range.

    Examples
    --------
    >>> Objective("squared", 3, constant=1.0).shape
    (1, 4)
    """

    loss: str
    n_features: int
    outputs: int = 1
    clip_norm: float = 1.0
    loss_param: float = 1.0
    row_bound: float | None = None
    constant: float = 0.0

    def __post_init__(self) -> None:
        self.numbers  # noqa: B018 - checks them

    @cached_property
    def numbers(self) -> Numbers:
        """The checked numbers, as the kernels take them."""
        return check_numbers(
            self.clip_norm,
            self.loss,
            self.loss_param,
            self.row_bound,
            self.constant,
            several=self.outputs != 1,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of theta: outputs, and columns with the constant's."""
        return self.outputs, self.n_features + (self.constant != 0.0)

    @property
    def size(self) -> int:
        """Number of parameters."""
        outputs, columns = self.shape
        return outputs * columns


def clipped_sum(
    objective: Objective,
    theta: FloatArray,
    batch: Batch,
    *,
    threads: int = 1,
    seen: NDArray[np.int64] | None = None,
) -> FloatArray:
    """Return the sum of the clipped gradients of a batch, of rows or of users, like theta.

    See `dpftrl_fast.kernels.clipped_sum`. The result has no noise: it is secret, as `seen` is. It
    is the same for any number of threads, and in any process on the same kind of processor.

    Examples
    --------
    >>> objective = Objective("squared", 1, clip_norm=2.0)
    >>> batch = Batch(np.ones((3, 1)), np.array([-1.0, -9.0, np.nan]))
    >>> clipped_sum(objective, np.zeros((1, 1)), batch).round(5).tolist()
    [[3.0]]
    """
    rows = batch.X
    if rows.shape[1] != objective.n_features:
        raise ValueError(f"X must have {objective.n_features} columns, got {rows.shape[1]}")
    return sum_clipped(
        rows,
        batch.y,
        theta,
        objective.numbers,
        users=batch.starts,
        weights=batch.weights,
        seen=seen,
        threads=threads,
    )


def outputs_of(objective: Objective, theta: FloatArray, rows: Rows) -> FloatArray:
    """Return the outputs of scaled rows with their constant, shape (n, outputs): NOT PRIVATE.

    Examples
    --------
    >>> outputs_of(Objective("squared", 1, constant=2.0), np.array([[3.0, 1.0]]), np.ones((1, 1)))
    array([[5.]])
    """
    p = objective.n_features
    matrix = rows.to_scipy() if isinstance(rows, SparseRows) else rows
    z = np.asarray(matrix @ theta[:, :p].T, dtype=np.float64)
    if objective.row_bound is not None:
        z *= np.minimum(1.0, objective.row_bound / row_norms(rows))[:, np.newaxis]
    if objective.constant != 0.0:
        z += objective.constant * theta[:, p]
    return z
