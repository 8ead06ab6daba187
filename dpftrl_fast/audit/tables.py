# SPDX-License-Identifier: Apache-2.0
"""The record of a table whose gradient is largest: a canary from private rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpftrl_fast.audit.slopes import class_slopes, slope
from dpftrl_fast.tables import Encoder, TableError, TableReader


def largest_record(
    table: TableReader, *, loss: str, loss_param: float | None = None
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], float]:
    """Return features and target of the row with the largest gradient at theta = 0: NOT PRIVATE.

    Parameters
    ----------
    table : TableReader
        Without a group column.
    loss : str
        Of `DPFTRLRegressor` or `DPFTRLClassifier`, or "squared" for least squares.
    loss_param : float, optional

    Raises
    ------
    ValueError
        If the schema has a column of groups or weights, or no valid row has a gradient.
    """
    schema = table.schema
    if schema.group_column is not None:
        raise ValueError(
            "an audit inserts single records, got a schema with a group column; leave it out"
        )
    if schema.weight_column is not None:
        raise ValueError(
            "an audit inserts records of weight 1, got a schema with a weight column; leave it out"
        )
    encoder, outputs = Encoder(schema), schema.outputs
    best, found = 0.0, None
    for block in table.blocks():
        rows = encoder.encode(block)
        matrix = rows.matrix(schema.n_features)
        norms = np.sqrt(np.asarray(matrix.power(2).sum(axis=1)).reshape(-1))
        for i in np.flatnonzero(rows.valid).tolist():
            y = float(rows.target[i])
            slopes = (
                np.array([slope(loss, loss_param, y)])
                if schema.task == "regression"
                else class_slopes(loss, int(y), outputs)
            )
            size = float(np.linalg.norm(slopes) * norms[i])
            if size > best:
                best, found = size, (matrix[[i]].toarray().astype(np.float64).reshape(-1), y)
    if found is None:
        raise TableError(f"no row of {str(table.path)!r} has a gradient that is not zero")
    return found
