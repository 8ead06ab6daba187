# SPDX-License-Identifier: Apache-2.0
"""Rows of a fit: in memory, checked once before the first step, or opened as another source.

An in-memory fit checks all values before its first step and names a bad row. Rows of a stream are
checked for shape and dtype only, since a refusal between two releases would reveal values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import _get_feature_names, column_or_1d

from dpftrl_fast.accounting.guard.ids import canonical_id, refuse_id_dtype
from dpftrl_fast.convex.row_batches import Batch, Rows, SparseRows, take_users
from dpftrl_fast.kernels.finite import first_bad
from dpftrl_fast.linear_model._sources import Encode, Ints, RowSource, Stepper
from dpftrl_fast.mechanisms import Layout
from dpftrl_fast.plan.epoch_order import EpochBatches, epochs_with_new_order


class MemoryRows(RowSource):
    """Rows in memory; a unit is a row, or with groups a user.

    Parameters
    ----------
    X : (n, p) array or SparseRows
        As `check_rows` returns it.
    y : (n,) array
    groups : (n,) array_like, optional
        User of every row. Batches take users in order of first appearance.

    Examples
    --------
    >>> source = MemoryRows(np.eye(3), np.zeros(3), groups=["b", "a", "b"])
    >>> source.units, source.batch(slice(0, 1), np.zeros(3)).X[:, 2].tolist()
    (2, [0.0, 1.0])
    """

    def __init__(self, X: Rows, y: Any, groups: Any = None) -> None:
        self.X, self.y = X, y
        self.n_features = int(X.shape[1])
        self.units = len(X)
        self._bounds: Ints | None = None
        if groups is not None:
            numbers = group_numbers(groups, len(X))
            self._rows = np.argsort(numbers, kind="stable")
            self._bounds = np.concatenate([[0], np.cumsum(np.bincount(numbers))])
            self.units = self._bounds.size - 1

    def batch(self, units: slice | Ints, targets: NDArray[np.float64]) -> Batch:
        """Return the batch of these units; `targets` are the encoded targets of all rows."""
        if self._bounds is None:
            ids = None if isinstance(units, slice) else units
            return Batch(self.X[units], targets[units], None, ids)
        users = np.arange(self.units)[units]
        places, starts = take_users(self._bounds, users)
        rows = self._rows[places]
        return Batch(self.X[rows], targets[rows], starts, users)

    def feed(
        self,
        run: Stepper,
        order: Iterable[slice | Ints],
        encode: Encode,
        progress: Callable[[], None],
    ) -> None:
        """Take a step with every batch of `order`."""
        targets = encode(self.y)
        for units in order:
            run.step(self.batch(units, targets))
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


def group_numbers(groups: Any, rows: int) -> Ints:
    """Return the user of every row as a number, in order of first appearance.

    Raises
    ------
    TypeError
        For a dtype in which a user has no single form (see `accounting.guard.ids`).
    ValueError
        For another shape than (rows,), and for a label that is missing or stands for no user. The
        message shows no label.

    Examples
    --------
    >>> group_numbers(["b", "a", "b"], 3).tolist()
    [0, 1, 0]
    """
    given, missing = labels_of_users(groups, rows)
    if missing.any():
        raise ValueError(
            "groups must name a user for every row, by an integer or a text, got NaN, infinity, a "
            f"missing or another label in row {np.argmax(missing)}"
        )
    return numbers_in_order(given)


def numbers_in_order(labels: NDArray[Any]) -> Ints:
    """Return a number for every label, in order of first appearance."""
    if labels.dtype.kind == "O":
        numbers: dict[Any, int] = {}
        return np.array([numbers.setdefault(label, len(numbers)) for label in labels], np.int64)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(first.size, dtype=np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[inverse.reshape(-1)]


def labels_of_users(groups: Any, rows: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the labels of users, one a row, and which of them stand for no user.

    Labels are integers or canonical texts (`canonical_id`), which are equal for one user only. What
    they are where no user stands is of no meaning.
    """
    dtype = getattr(groups, "dtype", None)
    if dtype is not None:
        refuse_id_dtype("groups", dtype)
    given = as_labels(groups)
    if given.shape != (rows,):
        raise ValueError(f"groups must have shape ({rows},), one a row, got shape {given.shape}")
    if given.dtype.kind in "iu":
        return given, np.zeros(rows, dtype=np.bool_)
    if given.dtype.kind == "f":
        # Beyond this bound two integers are one float.
        bound = 2.0 ** (np.finfo(given.dtype).nmant + 1)
        user = (np.abs(given) < bound) & (np.floor(given) == given)
        return np.where(user, given, 0).astype(np.int64), ~user
    found = [_canonical(label) for label in given.tolist()]
    missing = np.array([text is None for text in found], dtype=np.bool_)
    return np.array(["" if text is None else text for text in found], dtype=object), missing


def as_labels(values: Any) -> NDArray[Any]:
    """Return labels as an array, each with its own type kept.

    Text that is not valid UTF-8, which pandas' Arrow columns can hold, raises nothing: its bytes
    that are not are lone surrogates, as in Python's file names, so that it equals no valid text.
    """
    kind: Any = getattr(values, "dtype", None)
    if isinstance(kind, np.dtype):
        labels: NDArray[Any] = np.asarray(values)
        return _valid_code_points(labels) if kind.kind == "U" else labels
    if hasattr(kind, "categories"):  # of pandas: their labels and codes
        array = getattr(values, "array", values)
        named: NDArray[Any] = np.array([*as_labels(kind.categories).tolist(), None], dtype=object)
        codes: Ints = np.asarray(array.codes)
        return named[codes]
    try:
        return np.asarray(values, dtype=object)
    except Exception:  # its message may show a label
        return _text_of_any_bytes(values)


def _text_of_any_bytes(values: Any) -> NDArray[np.object_]:
    column = values.iloc[:, 0] if getattr(values, "ndim", 1) == 2 else values
    arrow = getattr(getattr(column, "array", column), "__arrow_array__", None)
    if arrow is None:
        raise TypeError(f"labels must be an array, got {type(values).__name__} that is none")
    import pyarrow as pa

    cells = arrow().cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
    labels = np.empty(len(cells), dtype=object)
    labels[:] = [None if cell is None else cell.decode(errors="surrogateescape") for cell in cells]
    return labels


def _valid_code_points(labels: NDArray[np.str_]) -> NDArray[Any]:
    """Return text with its cells beyond Unicode, which Python cannot hold, as lone surrogates."""
    if labels.dtype.itemsize == 0:
        return labels
    native = np.ascontiguousarray(labels, dtype=labels.dtype.newbyteorder("="))
    codes = native.view(np.uint32)
    bad = codes > 0x10FFFF
    return (
        np.where(bad, 0xDC80, codes).astype(np.uint32).view(native.dtype) if bad.any() else native
    )


def _canonical(label: Any) -> str | None:
    try:
        return canonical_id(label)
    except Exception:  # of the label's own class too
        return None


def check_rows(X: Any, *, estimator: Any) -> Rows:
    """Return rows as a float array or as `SparseRows`, without looking at values.

    float32 and float64 are kept; other numbers become float64.

    Raises
    ------
    TypeError, ValueError
        If `X` is not a matrix of real numbers, or only some of its columns have names.
    """
    _get_feature_names(X)  # refuses them now, not after the last step
    try:
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
    except ValueError as error:
        if "could not convert" not in str(error):
            raise
        # NumPy's message shows the text.
        raise ValueError("X must hold real numbers, got text that is none") from None
    return SparseRows.of(checked) if scipy.sparse.issparse(checked) else np.asarray(checked)


def check_targets(y: Any, rows: int, *, numbers: bool) -> NDArray[Any]:
    """Return targets as a vector of the right length, without looking at values."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    targets = np.asarray(column_or_1d(y, warn=True))
    if numbers and targets.dtype.kind not in "iufb":
        if targets.dtype.kind != "O":
            raise ValueError(f"y must hold real numbers, got dtype {targets.dtype}")
        try:
            targets = targets.astype(np.float64)
        except (TypeError, ValueError):  # its message shows the value
            raise ValueError("y must hold real numbers, got an object that is none") from None
    if targets.size != rows:
        raise ValueError(f"X and y must have as many rows, got {rows} and {targets.size}")
    return targets


def refuse_bad_rows(X: Rows) -> None:
    """Refuse rows with NaN or infinity, naming the first; for use before the first step only."""
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
    raise ValueError(f"X must be finite, got {value} in row {row}")


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
    if isinstance(X, (str, os.PathLike)) or _comes_from(X, "pyarrow._dataset", "pyarrow.dataset"):
        from dpftrl_fast.linear_model._parquet import open_dataset

        _refuse_shuffle(shuffle, "a dataset is read in file order", "write it in another order")
        return open_dataset(X, y, groups, numbers=numbers)
    if _comes_from(X, "dask", "dask_expr"):
        from dpftrl_fast.linear_model._dask import open_dask

        _refuse_shuffle(shuffle, "a batch would need rows of all chunks", "shuffle X and y before")
        if groups is not None:
            raise ValueError(
                "groups must be None with Dask, got some: a user's rows may lie in several chunks; "
                "use a pyarrow dataset in which each user's rows are adjacent"
            )
        return open_dask(X, y, numbers=numbers)
    return None


def _comes_from(value: Any, *packages: str) -> bool:
    """Return whether a class of the value is defined in one of these packages."""
    modules = [kind.__module__ for kind in type(value).__mro__]
    return any(f"{module}.".startswith(f"{name}.") for module in modules for name in packages)


def _refuse_shuffle(shuffle: bool, reason: str, remedy: str) -> None:
    if shuffle:
        raise ValueError(f"shuffle must be False here, got True: {reason}; {remedy}")
