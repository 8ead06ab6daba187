# SPDX-License-Identifier: Apache-2.0
"""Rows of a fit: in memory, with all values checked, or opened as another source.

An in-memory fit checks all values before it releases anything, and names a bad row: before the
first step, or in the steps themselves, which read the values anyway. Rows of a stream are checked
for shape and dtype only, since a refusal between two releases would reveal values.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import _get_feature_names, column_or_1d

from dpftrl_fast.convex.row_batches import Batch, Rows, SparseRows, take_users
from dpftrl_fast.kernels.finite import first_bad
from dpftrl_fast.linear_model._messages import showing_no_entry
from dpftrl_fast.linear_model.sources.frames import is_typed_frame, numbers_of_column, rows_of_frame
from dpftrl_fast.linear_model.sources.labels import group_numbers
from dpftrl_fast.linear_model.sources.source import (
    CheckingStepper,
    Encode,
    Ints,
    RowSource,
    Stepper,
)
from dpftrl_fast.mechanisms import Layout
from dpftrl_fast.plan.epoch_order import EpochBatches, epochs_with_new_order
from dpftrl_fast.tables.labels import comes_from


class MemoryRows(RowSource):
    """Rows in memory; a unit is a row, or with groups a user.

    Parameters
    ----------
    X : (n, p) array or SparseRows
        As `check_rows` returns it.
    y : (n,) array
    groups : (n,) array_like, optional
        User of every row. Batches take users in order of first appearance.
    weights : (n,) array of float64, optional
        Weights of the rows, at most 1.

    Attributes
    ----------
    weighted : bool
        Whether rows may have other weights than 1, as those of users may.

    Examples
    --------
    >>> source = MemoryRows(np.eye(3), np.zeros(3), groups=["b", "a", "b"])
    >>> source.units, source.batch(slice(0, 1), np.zeros(3)).X[:, 2].tolist()
    (2, [0.0, 1.0])
    """

    def __init__(
        self, X: Rows, y: Any, groups: Any = None, weights: NDArray[np.float64] | None = None
    ) -> None:
        self.X, self.y = X, y
        self._unchecked = False
        self._weights = weights
        self.n_features = int(X.shape[1])
        self.units = self.rows = len(X)
        self._bounds: Ints | None = None
        self.weighted = groups is not None or weights is not None
        if groups is not None:
            numbers = group_numbers(groups, len(X))
            self._rows = np.argsort(numbers, kind="stable")
            self._bounds = np.concatenate([[0], np.cumsum(np.bincount(numbers))])
            self.units = self._bounds.size - 1

    def refuse_bad_rows(self, *, in_steps: bool) -> None:
        """Refuse rows with NaN or infinity, now or `in_steps`: in `feed`, when a step meets one.

        In steps only with an engine that tells of them (`met_bad_row`), and if nobody is told of a
        step before the last.
        """
        self._unchecked = in_steps
        if not in_steps:
            refuse_bad_rows(self.X)

    def with_weights(self, weights: NDArray[np.float64]) -> MemoryRows:
        """Return the same rows with weights."""
        found = copy.copy(self)
        found._weights, found.weighted = weights, True
        return found

    def batch(self, units: slice | Ints, targets: NDArray[np.float64]) -> Batch:
        """Return the batch of these units; `targets` are the encoded targets of all rows."""
        if self._bounds is None:
            ids = None if isinstance(units, slice) else units
            return Batch(self.X[units], targets[units], None, ids, self._weights_of(units))
        users = np.arange(self.units)[units]
        places, starts = take_users(self._bounds, users)
        rows = self._rows[places]
        return Batch(self.X[rows], targets[rows], starts, users, self._weights_of(rows))

    def _weights_of(self, rows: slice | Ints) -> NDArray[np.float64] | None:
        return None if self._weights is None else self._weights[rows]

    def feed(
        self,
        run: Stepper,
        order: Iterable[slice | Ints],
        encode: Encode,
        progress: Callable[[], None],
    ) -> None:
        """Take a step with every batch of `order`."""
        targets = encode(self.y)
        checking: CheckingStepper | None = None
        if self._unchecked:
            assert isinstance(run, CheckingStepper)
            checking = run
        for units in order:
            run.step(self.batch(units, targets))
            if checking is not None and checking.met_bad_row():
                refuse_bad_rows(self.X)
                checking = None  # all are finite: a squared norm has overflowed
            progress()


def batch_order(
    units: int,
    batch_size: int,
    epochs: int,
    layout: Layout | None,
    *,
    shuffle: bool = False,
    random_state: Any = None,
) -> Iterator[slice | Ints]:
    """Return the units of each step: slices in row order, or with `shuffle` of a permutation.

    The order is public. An epoch has a new permutation where its first step begins a block of the
    plan's `layout` (None for a single epoch), as `FixedEpochs` declares; otherwise that of the
    epoch before.

    Examples
    --------
    >>> [*batch_order(5, 2, 1, None)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    per_epoch = -(-units // batch_size)
    permutation: Callable[[int], Ints] | None = None
    new_orders: list[int] = []
    if shuffle:
        generator = check_random_state(random_state)

        def permutation(number: int) -> Ints:  # called in ascending order
            return generator.permutation(units)  # type: ignore[no-any-return]

        if layout is not None:
            new_orders = epochs_with_new_order(layout, per_epoch, epochs)
    order = EpochBatches(units, batch_size, permutation, new_orders)
    return map(order.batch, range(1, epochs * per_epoch + 1))


def check_rows(X: Any, *, estimator: Any) -> Rows:
    """Return rows as a float array or as `SparseRows`, without looking at values.

    float32 and float64 are kept; other numbers become float64.

    Raises
    ------
    TypeError, ValueError
        If `X` is not a matrix of real numbers, or only some of its columns have names.
    """
    _get_feature_names(X)  # refuses them now, not after the last step
    if is_typed_frame(X):
        X = rows_of_frame(X)
    with showing_no_entry("X"):
        checked = check_array(
            X,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            order="C",
            ensure_all_finite=False,
            ensure_min_samples=0,
            estimator=estimator,
            input_name="X",
        )
    return SparseRows.of(checked) if scipy.sparse.issparse(checked) else np.asarray(checked)


def check_targets(y: Any, rows: int, *, numbers: bool) -> NDArray[Any]:
    """Return targets as a vector of the right length, without looking at values."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    if numbers:
        y = numbers_of_column(y)
    with showing_no_entry("y"):
        targets = np.asarray(column_or_1d(y, warn=True))
    if numbers and targets.dtype.kind not in "iufb":
        if targets.dtype.kind != "O":
            raise ValueError(f"y must hold real numbers, got dtype {targets.dtype}")
        with showing_no_entry("y"):
            targets = targets.astype(np.float64)
    if targets.size != rows:
        raise ValueError(f"X and y must have as many rows, got {rows} and {targets.size}")
    return targets


def check_weights(weights: Any, rows: int) -> NDArray[np.float64]:
    """Return weights as a float64 vector of the right length, without looking at values."""
    with showing_no_entry("sample_weight"):
        found = np.array(weights, dtype=np.float64)
    if found.shape != (rows,):
        raise ValueError(f"sample_weight must have shape ({rows},), got shape {found.shape}")
    return found


def refuse_bad_weights(weights: NDArray[np.float64]) -> None:
    """Refuse weights that are not finite or negative; for use before the first step only."""
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if bad.size:
        raise ValueError(f"sample_weight must be finite and >= 0, got another in row {bad[0]}")
    if not np.any(weights > 0):
        raise ValueError("sample_weight must have a weight above 0, got zeros only")


def refuse_bad_rows(X: Rows) -> None:
    """Refuse rows with NaN or infinity, naming the first; for use before a release only."""
    values = X.data if isinstance(X, SparseRows) else X.reshape(-1)
    place = first_bad(values)
    if place is None:
        return
    row = (
        int(np.searchsorted(X.indptr, place, side="right")) - 1
        if isinstance(X, SparseRows)
        else place // X.shape[1]
    )
    value = "NaN" if np.isnan(values[place]) else "infinity"
    raise ValueError(
        f"X must be finite, got {value} in row {row}: fill in a public number before fit, as "
        "BoundedScaler does, or use partial_fit, where such a row counts as zero"
    )


def open_source(
    X: Any, y: Any, groups: Any = None, *, numbers: bool, shuffle: bool
) -> RowSource | None:
    """Return the source of rows outside memory (dataset, path, Dask), None for anything else.

    Each package is imported for its own rows only. `numbers` is whether targets are numbers, not
    labels; a shuffled order is refused.

    Examples
    --------
    >>> open_source([[1.0]], [2.0], numbers=True, shuffle=False) is None
    True
    """
    if isinstance(X, RowSource):
        return X
    if isinstance(X, (str, os.PathLike)) or comes_from(X, "pyarrow._dataset", "pyarrow.dataset"):
        from dpftrl_fast.linear_model.sources.parquet import open_dataset

        _refuse_shuffle(shuffle, "a dataset is read in file order", "write it in another order")
        return open_dataset(X, y, groups, numbers=numbers)
    if comes_from(X, "dask", "dask_expr"):
        from dpftrl_fast.linear_model.sources.dask import open_dask

        _refuse_shuffle(shuffle, "a batch would need rows of all chunks", "shuffle X and y before")
        if groups is not None:
            raise ValueError(
                "groups must be None with Dask, got some: a user's rows may lie in several chunks; "
                "use a pyarrow dataset in which each user's rows are adjacent"
            )
        return open_dask(X, y, numbers=numbers)
    return None


def _refuse_shuffle(shuffle: bool, reason: str, remedy: str) -> None:
    if shuffle:
        raise ValueError(f"shuffle must be False here, got True: {reason}; {remedy}")
