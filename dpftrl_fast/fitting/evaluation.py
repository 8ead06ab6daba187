# SPDX-License-Identifier: Apache-2.0
"""Scores of linear models on a public table, and a non-private reference model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dpftrl_fast.tables import Encoder, Rows, TableError, TableReader
from dpftrl_fast.tables.schema import Schema

FloatArray = npt.NDArray[np.float64]

_CHUNK = 1 << 13


def metric_name(schema: Schema) -> str:
    """Return "R^2" for a regression, "accuracy" for a classification."""
    return "R^2" if schema.task == "regression" else "accuracy"


def scores(table: TableReader, models: npt.ArrayLike) -> FloatArray:
    """Score several models in one pass over a public table.

    Parameters
    ----------
    table : TableReader
        Public rows; invalid ones are skipped.
    models : array_like of shape (m, p), or (m, k, p) for a multinomial task with k classes
        Coefficients of m models.

    Returns
    -------
    ndarray of shape (m,)
        R^2 of the clipped and scaled target, or the accuracy. Of two labels the positive one is
        predicted where x.theta > 0; of several the first one with the largest x.theta.

    Raises
    ------
    TableError
        If no row is valid, or all targets are equal (R^2 is undefined).
    """
    models = np.asarray(models, dtype=np.float64)
    vectors = models.reshape(-1, table.schema.n_features)
    regression = table.schema.task == "regression"
    encoder = Encoder(table.schema)
    count = 0
    right = np.zeros(len(models))
    squared = np.zeros(len(models))
    # Spread of the target about its mean, merged chunk by chunk (Chan, Golub, LeVeque 1979).
    mean = spread = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # a diverged model has a score too
        for rows in _chunks(table, encoder):
            y = rows.target[rows.valid]
            if y.size == 0:
                continue
            predicted = (rows.matrix(table.schema.n_features) @ vectors.T)[rows.valid]
            if regression:
                squared += np.square(predicted - y[:, None]).sum(axis=0)
                shift = y.mean() - mean
                spread += np.square(y - y.mean()).sum()
                spread += shift**2 * count * y.size / (count + y.size)
                mean += shift * y.size / (count + y.size)
            elif models.ndim == 3:
                classes = predicted.reshape(y.size, *models.shape[:2]).argmax(axis=2)
                right += (classes == y[:, None]).sum(axis=0)
            else:
                right += ((predicted > 0.0) == (y[:, None] > 0.5)).sum(axis=0)
            count += y.size
    if count == 0:
        raise TableError(f"expected valid rows in {str(table.path)!r}, got none")
    if not regression:
        return right / count
    if not spread > 0:
        raise TableError(f"R^2 needs targets that differ in {str(table.path)!r}, got equal ones")
    return 1.0 - squared / spread


def ridge_reference(table: TableReader, penalty: float = 1e-3) -> FloatArray:
    """Return the ridge coefficients of a regression: NOT private, for public data.

    `penalty` is added to the diagonal of X^T X.
    """
    schema = table.schema
    if schema.task != "regression":
        raise ValueError("the ridge reference needs a numeric target, got a classification")
    encoder = Encoder(schema)
    gram = penalty * np.eye(schema.n_features)
    moment = np.zeros(schema.n_features)
    for rows in _chunks(table, encoder):
        x = rows.matrix(schema.n_features)
        gram += (x.T @ x).toarray()
        moment += x.T @ rows.target
    return np.asarray(np.linalg.solve(gram, moment), dtype=np.float64)


def _chunks(table: TableReader, encoder: Encoder) -> Iterator[Rows]:
    for block in table:
        rows = encoder.encode(block)
        for start in range(0, len(rows), _CHUNK):
            yield rows[start : start + _CHUNK]
