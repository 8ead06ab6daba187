# SPDX-License-Identifier: Apache-2.0
"""A linear model to learn: training and test rows, public facts about them, and the score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import issparse
from scipy.special import logsumexp, softmax

from dpftrl_fast.convex.row_batches import Rows, SparseRows

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Rows of norm at most 1 and targets, for training and for testing.

    X and Z are the training and test rows (arrays or CSR arrays of float32), y and z their targets
    within [-1, 1] or numbers of classes; a regression has 1 class. `constant` is the entry of the
    constant column of the models, 0 for none. The rows of a user are contiguous, users 0, 1, .. in
    order.
    """

    X: Any
    y: FloatArray
    Z: Any
    z: FloatArray
    classes: int = 1
    constant: float = 0.0
    users: NDArray[np.int64] | None = None

    @property
    def loss(self) -> str:
        """The loss of the gradient methods."""
        return "squared" if self.classes == 1 else "multinomial"

    @property
    def rows(self) -> Rows:
        """The training rows as the engines take them."""
        return SparseRows.of(self.X) if issparse(self.X) else self.X

    @property
    def units(self) -> int:
        """Number of protected units: users, or else rows."""
        return len(self.y) if self.users is None else self.user_bounds.size - 1

    @property
    def user_bounds(self) -> NDArray[np.int64]:
        """First row of each user, and the number of rows."""
        assert self.users is not None
        starts = np.flatnonzero(np.diff(self.users, prepend=-1))
        return np.append(starts, len(self.users)).astype(np.int64)

    def validation(self, rows: int) -> Problem:
        """Return a copy with the last training rows as test rows, to choose settings."""
        cut = len(self.y) - rows
        if self.users is not None:
            raise ValueError("validation must have a problem without users, got one with users")
        return replace(self, X=self.X[:cut], y=self.y[:cut], Z=self.X[cut:], z=self.y[cut:])

    def score(self, theta: FloatArray) -> float:
        """Return R^2 of a regression (at least -1), or the share of correct classes, on test rows.

        `theta` has the shape (outputs, columns), the constant column last if there is one.
        """
        p = self.X.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            outputs = self.Z @ theta[:, :p].T
            if self.constant != 0.0:
                outputs = outputs + self.constant * theta[:, p]
            if self.classes > 1:
                return float(np.mean(np.argmax(outputs, axis=1) == self.z))
            squares = float(np.sum(np.square(outputs[:, 0] - self.z)))
        r2 = 1.0 - squares / float(np.sum(np.square(self.z - self.z.mean())))
        return max(r2, -1.0) if np.isfinite(r2) else -1.0

    def without_privacy(self, penalty: float = 1e-3) -> FloatArray:
        """Return the parameters of a fit without privacy: ridge, or multinomial by L-BFGS.

        The penalty is added to the diagonal of X^T X; for a classifier it is the weight of
        ||theta||^2/2 beside the sum of the losses.
        """
        X, p = self.X, self.X.shape[1]
        if self.classes == 1:  # sums of many rows need double precision
            X = X.astype(np.float64)
        if self.constant != 0.0:
            column = np.full((len(self.y), 1), self.constant, dtype=X.dtype)
            X = np.hstack([X.toarray() if issparse(X) else X, column])
            p += 1
        if self.classes == 1:
            gram = X.T @ X
            gram = np.asarray(gram.toarray() if issparse(gram) else gram, dtype=np.float64)
            gram[np.diag_indices(p)] += penalty
            return np.asarray(np.linalg.solve(gram, X.T @ self.y))[np.newaxis]
        n, right = len(self.y), self.y.astype(np.intp)

        def value(flat: FloatArray) -> tuple[float, FloatArray]:
            theta = flat.reshape(self.classes, p)
            z = np.asarray(X @ theta.T.astype(X.dtype), dtype=np.float64)
            loss = np.sum(logsumexp(z, axis=1) - z[np.arange(n), right])
            slopes = softmax(z, axis=1)
            slopes[np.arange(n), right] -= 1.0
            gradient = np.asarray(slopes.T.astype(X.dtype) @ X, dtype=np.float64).reshape(-1)
            total = loss + penalty / 2.0 * (flat @ flat)
            return float(total / n), (gradient + penalty * flat) / n

        start = np.zeros(self.classes * p)
        found = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": 300})
        return np.asarray(found.x, dtype=np.float64).reshape(self.classes, p)
