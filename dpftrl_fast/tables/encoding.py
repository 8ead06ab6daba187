# SPDX-License-Identifier: Apache-2.0
"""Encoding of rows as features, by the declared facts alone.

A row becomes a fixed number of (index, value) pairs: one per numeric column, one per categorical
column (its indicator), one for the intercept. This is compressed sparse row form with a constant
row length, so no row can change the layout of another. No value raises: a number beyond its bounds
is clipped, an unknown category is an indicator of value zero, and a missing or unparsable cell
makes the whole row zero, in its slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import scipy.sparse

from dpftrl_fast.tables.cells import MISSING, codes, numbers
from dpftrl_fast.tables.schema import CategoricalColumn, LabelTarget, NumericColumn, Schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Rows:
    """Encoded rows: `values` and `indices` of shape (n, width), `target` of shape (n,).

    An invalid row has all values, its target and its weight zero; `valid` marks the others (for the
    owner of the data and for public files, not for release). `weight` is that of each row, where
    the schema has a column of weights.
    """

    values: npt.NDArray[np.float32]
    indices: npt.NDArray[np.int32]
    target: npt.NDArray[np.float64]
    valid: npt.NDArray[np.bool_]
    weight: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, part: slice) -> Rows:
        weight = None if self.weight is None else self.weight[part]
        own = (self.values[part], self.indices[part], self.target[part], self.valid[part])
        return Rows(*own, weight)

    def matrix(self, n_features: int) -> scipy.sparse.csr_array:
        """Return the rows as a sparse matrix in float64."""
        n, width = self.indices.shape
        starts = np.arange(0, n * width + 1, width)
        parts = (self.values.ravel().astype(np.float64), self.indices.ravel(), starts)
        return scipy.sparse.csr_array(parts, shape=(n, n_features))

    @classmethod
    def concatenate(cls, parts: list[Rows]) -> Rows:
        """Join rows end to end."""
        if len(parts) == 1:
            return parts[0]
        weights = [part.weight for part in parts if part.weight is not None]
        return cls(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.indices for part in parts]),
            np.concatenate([part.target for part in parts]),
            np.concatenate([part.valid for part in parts]),
            np.concatenate(weights) if weights else None,
        )


class Encoder:
    """Encodes columns as `Rows`; never raises because of a value.

    Parameters
    ----------
    schema : Schema
        Declared facts.
    target : bool
        Encode the target, and the weights if the schema has some; otherwise the target is zero.
    """

    def __init__(self, schema: Schema, *, target: bool = True) -> None:
        self.schema = schema
        self._target = target
        self._weight = schema.weight_column if target else None
        starts: list[int] = []
        at = 0
        for column in schema.columns:
            starts.append(at)
            at += len(column.categories) if isinstance(column, CategoricalColumn) else 1
        if schema.intercept:
            starts.append(at)
        #: Pairs per row.
        self.width = len(starts)
        self._starts = np.array(starts, dtype=np.int32)
        # With the default scale no row exceeds norm 1 (up to rounding).
        self._cuts = schema.row_scale < schema.largest_row_norm * (1 - 1e-12)

    def empty(self, rows: int) -> Rows:
        """Return this many empty rows."""
        return Rows(
            np.zeros((rows, self.width), np.float32),
            np.zeros((rows, self.width), np.int32),
            np.zeros(rows, np.float64),
            np.zeros(rows, np.bool_),
            None if self._weight is None else np.zeros(rows, np.float64),
        )

    @np.errstate(all="ignore")  # an error or a warning would reveal a value
    def encode(self, table: pa.Table | pa.RecordBatch) -> Rows:
        """Encode a block of the file."""
        n = table.num_rows
        values = np.ones((n, self.width), dtype=np.float64)
        indices = np.tile(self._starts, (n, 1))
        valid = np.ones(n, dtype=np.bool_)
        for j, column in enumerate(self.schema.columns):
            if isinstance(column, CategoricalColumn):
                code = codes(table[column.name], column.categories)
                valid &= code != MISSING
                values[:, j] = code >= 0
                indices[:, j] += np.maximum(code, 0)
            else:
                number = numbers(table[column.name])
                valid &= np.isfinite(number)
                values[:, j] = _scaled(number, column)
        target = self.schema.target
        if not self._target:
            y = np.zeros(n)
        elif isinstance(target, LabelTarget):
            label = codes(table[target.name], target.categories)
            valid &= label >= 0
            y = label.astype(np.float64)
        else:
            number = numbers(table[target.name])
            valid &= np.isfinite(number)
            y = _scaled(number, target)
        weight = None
        if self._weight is not None:
            weight = numbers(table[self._weight])
            valid &= weight >= 0.0  # False for a missing one
            weight[~valid] = 0.0
        values /= self.schema.row_scale
        if self._cuts:
            norm = np.sqrt(np.einsum("ij,ij->i", values, values))
            values /= np.maximum(norm, 1.0)[:, None]
        values[~valid] = 0.0
        y[~valid] = 0.0
        return Rows(values.astype(np.float32), indices, y, valid, weight)


def _scaled(number: npt.NDArray[np.float64], column: NumericColumn) -> npt.NDArray[np.float64]:
    clipped: npt.NDArray[np.float64] = np.clip(number, column.low, column.high)
    clipped -= column.offset
    clipped /= column.divisor
    return clipped
