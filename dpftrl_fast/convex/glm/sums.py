# SPDX-License-Identifier: Apache-2.0
"""The objective of a linear model, and the clipped gradient sum of a batch by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import norm_bound
from dpftrl_fast.convex.row_batches import Batch, Rows, SparseRows, row_norms
from dpftrl_fast.kernels import (
    clipped_gradient_sum,
    clipped_gradient_sum_csr,
    clipped_multi_sum,
    clipped_multi_sum_csr,
    clipped_user_sum,
    clipped_user_sum_csr,
)
from dpftrl_fast.kernels._checks import check_constant, check_loss, check_row_bound
from dpftrl_fast.kernels.losses import LOSS_CODES, MULTI_LOSS_CODES

FloatArray = NDArray[np.float64]

#: A bound on the second derivative of a loss in z; losses with corners have none.
CURVATURE = {"squared": 1.0, "huber": 1.0, "logistic": 0.25, "multinomial": 0.5}


@dataclass(frozen=True)
class Objective:
    """Everything public that a gradient sum depends on, but for the parameters theta.

    Parameters
    ----------
    loss : str
        A loss of one output, or "multinomial" or "hinge" with several
        (`dpftrl_fast.kernels.losses`).
    n_features : int
        Columns of the rows.
    outputs : int
        Parameter vectors: 1, or one a class.
    clip_norm : float
        L: what each row, or each user, adds to a sum has at most this norm.
    loss_param : float
        k of the Huber, epsilon-insensitive and quantile losses.
    row_bound : float, optional
        Rows beyond this norm are scaled onto it.
    constant : float
        Entry of the constant column, 0 for none.

    Raises
    ------
    TypeError, ValueError
        If a field is not what is described above.

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
        codes = LOSS_CODES if self.outputs == 1 else MULTI_LOSS_CODES
        check_loss(self.loss, self.loss_param, codes)
        norm_bound("clip_norm", self.clip_norm)
        check_row_bound(self.row_bound)
        check_constant(self.constant)

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
    objective: Objective, theta: FloatArray, batch: Batch, *, threads: int = 1
) -> FloatArray:
    """Return the sum of the clipped gradients of a batch, of rows or of users.

    The result is raw: secret until noise is added. It is the same for any number of threads, and in
    any process of the same kind of machine.

    Parameters
    ----------
    objective : Objective
    theta : (outputs, columns) array of float64
        Parameters.
    batch : Batch
    threads : int

    Returns
    -------
    array of float64
        Like theta.

    Raises
    ------
    TypeError, ValueError
        For wrong types, dtypes and shapes; never for the values of rows.

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
    sparse = isinstance(rows, SparseRows)
    data: tuple[Any, ...] = (rows,)
    if isinstance(rows, SparseRows):
        data = (rows.data, rows.indices, rows.indptr)
    options: dict[str, Any] = {
        "row_bound": objective.row_bound,
        "constant": objective.constant,
        "threads": threads,
    }
    limit_and_loss = (objective.clip_norm, objective.loss)
    if batch.starts is not None:
        options["loss_param"] = objective.loss_param
        call: Any = clipped_user_sum_csr if sparse else clipped_user_sum
        total = call(*data, batch.starts, batch.y, theta, *limit_and_loss, **options)
    elif objective.outputs > 1:
        call = clipped_multi_sum_csr if sparse else clipped_multi_sum
        total = call(*data, batch.y, theta, *limit_and_loss, **options)
    else:
        options["loss_param"] = objective.loss_param
        call = clipped_gradient_sum_csr if sparse else clipped_gradient_sum
        total = call(*data, batch.y, theta[0], *limit_and_loss, **options)
    return np.asarray(total, dtype=np.float64).reshape(objective.shape)


def outputs_of(objective: Objective, theta: FloatArray, rows: Rows) -> FloatArray:
    """Return the outputs of rows, scaled and with the constant, of shape (n, outputs): NOT PRIVATE.

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
