# SPDX-License-Identifier: Apache-2.0
"""Rows in memory: checked once, then handed out batch by batch without copies where they can be.

Before the first step of an in-memory fit all values are looked at, and a bad row is named. Rows of
a stream are checked for shape and dtype only: a refusal between two releases would tell of their
values. There, a row with NaN or infinity keeps its slot and counts as zero.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.validation import _get_feature_names, column_or_1d

from dpftrl_fast.convex.row_batches import Batch, Rows, SparseRows, take_users
from dpftrl_fast.kernels.finite import first_bad
from dpftrl_fast.linear_model._protocols import Stepper

Ints = NDArray[np.int64]


class RowSource(ABC):
    """Where a fit takes its batches from.

    Attributes
    ----------
    units : int
        How many units there are, rows or (with groups) users: public.
    n_features : int
    feature_names : sequence of str, optional
        Of the columns, where they have names.
    """

    units: int
    n_features: int
    feature_names: Sequence[str] | None = None

    @abstractmethod
    def feed(
        self,
        run: Stepper,
        order: Iterable[slice | Ints],
        encode: Callable[[Any], NDArray[np.float64]],
        progress: Callable[[], None],
    ) -> None:
        """Take a step with every batch of the order.

        Parameters
        ----------
        run : Stepper
        order : iterable of slice or array of int64
            The units of each step.
        encode : callable
            From targets to the numbers that the losses read.
        progress : callable
            Called after every step.
        """


class MemoryRows(RowSource):
    """Rows in memory, each a unit, or with groups those of a user.

    Parameters
    ----------
    X : (n, p) array or SparseRows
        As `check_rows` returns it.
    y : (n,) array
        Targets.
    groups : (n,) array_like, optional
        The user of every row. Users are numbered in the order in which they first appear, which is
        then the order of the batches.

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
        """Return the batch of some units; `targets` are the encoded targets of all rows."""
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
        encode: Callable[[Any], NDArray[np.float64]],
        progress: Callable[[], None],
    ) -> None:
        """Take a step with every batch of the order."""
        targets = encode(self.y)
        for units in order:
            run.step(self.batch(units, targets))
            progress()


def join(parts: Sequence[Batch]) -> Batch:
    """Return dense rows that lie in several places as one batch; those of one place are not copied.

    Examples
    --------
    >>> part = Batch(np.ones((2, 3)), np.zeros(2))
    >>> join([part, part]).X.shape
    (4, 3)
    """
    if len(parts) == 1:
        return parts[0]
    rows: Any = [part.X for part in parts]
    return Batch(np.concatenate(rows), np.concatenate([part.y for part in parts]))


def group_numbers(groups: Any, rows: int) -> Ints:
    """Return the user of every row as a number, users being numbered as they first appear.

    Raises
    ------
    ValueError
        For another shape than (rows,), and for a user that is NaN, infinite or missing.

    Examples
    --------
    >>> group_numbers(["b", "a", "b"], 3).tolist()
    [0, 1, 0]
    """
    given = _as_labels(groups)
    if given.shape != (rows,):
        raise ValueError(f"groups must have shape ({rows},), one a row, got shape {given.shape}")
    if given.dtype.kind == "O":
        if any(_is_missing(label) for label in given):
            raise ValueError("groups must name a user for every row, got a missing one")
        numbers: dict[Any, int] = {}
        return np.array([numbers.setdefault(label, len(numbers)) for label in given], np.int64)
    if given.dtype.kind in "fcmM" and not np.all(np.isfinite(given)):
        raise ValueError("groups must be finite, got NaN, infinity or NaT")
    _, first, inverse = np.unique(given, return_index=True, return_inverse=True)
    rank = np.empty(first.size, dtype=np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[inverse.reshape(-1)]


def _as_labels(values: Any) -> NDArray[Any]:
    """Return labels as an array in which none changes what another one is."""
    kind = getattr(values, "dtype", None)
    return np.asarray(values, dtype=None if isinstance(kind, np.dtype) else object)


def _is_missing(label: Any) -> bool:
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas' NA is neither equal nor different
        return True


def check_rows(X: Any, *, estimator: Any) -> Rows:
    """Return rows as a float array or as `SparseRows`; values are not looked at.

    float32 and float64 stay what they are; other numbers become float64.

    Raises
    ------
    TypeError, ValueError
        If `X` is not a matrix of real numbers, or only some of its columns have names.
    """
    _get_feature_names(X)  # refuses them now, not after the last step
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
    """Return targets as a vector of the right length; values are not looked at."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    targets = np.asarray(column_or_1d(y, warn=True))
    if numbers and targets.dtype.kind not in "iufb":
        if targets.dtype.kind != "O":
            raise ValueError(f"y must hold real numbers, got dtype {targets.dtype}")
        targets = targets.astype(np.float64)
    if targets.size != rows:
        raise ValueError(f"X and y must have as many rows, got {rows} and {targets.size}")
    return targets


def refuse_bad_rows(X: Rows) -> None:
    """Refuse rows with NaN or infinity, naming the first: before the first step only."""
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


def stream_batch(X: Rows, targets: NDArray[np.float64], groups: Any = None) -> Batch:
    """Return the batch of one step of a stream, whose users keep their ids from step to step."""
    source = MemoryRows(X, targets, groups)
    batch = source.batch(slice(0, source.units), targets)
    if groups is None:
        return batch
    _, first = np.unique(group_numbers(groups, len(X)), return_index=True)
    labels = _as_labels(groups)[first].tolist()
    return batch._replace(ids=np.array([_lasting_id(label) for label in labels], dtype=np.int64))


def _lasting_id(label: Any) -> int:
    """Return 63 bits of the hash of a user's label: the same for 5, 5.0 and a NumPy 5."""
    if isinstance(label, Integral):
        label = int(label)
    elif isinstance(label, Real) and float(label).is_integer():
        label = int(float(label))
    return int.from_bytes(hashlib.sha256(str(label).encode()).digest()[:8], "big") >> 1


def refuse_objects(name: str, value: Any) -> None:
    """Refuse what has no dtype of numbers: whether objects are numbers is a matter of values.

    Raises
    ------
    TypeError
        For lists, and for arrays and data frames with objects in them.
    """
    dtypes = [value.dtype] if hasattr(value, "dtype") else list(getattr(value, "dtypes", ()))
    if not dtypes:
        raise TypeError(f"{name} must be an array of real numbers, got {type(value).__name__}")
    for dtype in dtypes:
        if getattr(dtype, "kind", "O") not in "iufb":
            raise TypeError(f"{name} must be an array of real numbers, got dtype {dtype}")


def stream_labels(y: Any) -> NDArray[Any]:
    """Return the labels of a batch, each of them as it came.

    Raises
    ------
    TypeError
        For lists: of which type their labels become depends on their values.
    """
    if not (hasattr(y, "dtype") or hasattr(y, "dtypes")):
        raise TypeError(f"y must be an array of labels, got {type(y).__name__}")
    return _as_labels(y)
