# SPDX-License-Identifier: Apache-2.0
"""State and checks of a stream of `partial_fit` calls, which are refused for public facts only."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.guard.ids import user_id
from dpftrl_fast.convex.row_batches import Batch, Rows, SparseRows
from dpftrl_fast.linear_model._stream_journal import StreamJournal
from dpftrl_fast.linear_model._targets import ClassTargets, Targets
from dpftrl_fast.linear_model.sources.frames import is_typed_frame
from dpftrl_fast.linear_model.sources.labels import labels_of_users, numbers_in_order
from dpftrl_fast.linear_model.sources.memory import MemoryRows
from dpftrl_fast.linear_model.sources.source import join
from dpftrl_fast.tables.labels import as_labels, comes_from, kind_of

#: Attributes of an estimator that hold its locks, and its folder; not pickled nor copied.
TURN, JOURNAL = "_turn", "_journal"
_MOST_PARTS = 64  # of held rows, before they are joined


@dataclass
class Stream:
    """Declarations of the first call, and the engine (None before the first accepted call).

    `units` is the horizon, in rows or users; `released` counts the steps whose model was released;
    `charged` are the privacy budgets that have the stream. `held` has the rows of the next batch,
    which is not full yet: they are private, and no model depends on them. `taken` counts the rows
    (users) in steps. A kept stream has a `journal`, knows its `features` (number and names of the
    columns), and has `begun` once its key is on the disk.
    """

    run: Any
    parameters: dict[str, Any]
    targets: Targets
    units: int
    released: int = 0
    charged: tuple[Any, ...] = ()
    held: tuple[Batch, ...] = ()
    taken: int = 0
    journal: StreamJournal | None = None
    features: tuple[int, list[str] | None] | None = None
    begun: bool = False

    @property
    def waiting(self) -> int:
        """Number of rows that are held."""
        return sum(len(part.y) for part in self.held)

    def refuse_interrupted(self) -> None:
        """Refuse a call after one that took its step and released no model."""
        if self.journal is not None:
            self.journal.refuse_closed()
            self.journal.refuse_interrupted(self.released)
        if self.run is not None and self.run.steps_taken != self.released:
            raise RuntimeError(
                f"step {self.run.steps_taken} of this stream was interrupted, or is running in "
                "another thread: its rows are in the sums, and it cannot be repeated; clone the "
                "estimator for a new run"
            )

    def cut(self, batch: Batch) -> tuple[list[Batch], tuple[Batch, ...]]:
        """Return the full batches that these rows complete, and the rows that have to wait.

        Row i of the stream is in batch i // batch_size, whatever the calls are. Users are not cut:
        theirs is one batch. Nothing changes here.
        """
        size, taken = self.parameters["batch_size"], self.released
        waiting = self.waiting
        if batch.starts is not None:
            self._refuse_other_size(batch, waiting)
            return [batch], ()
        rows, left = len(batch.y), self.units - taken * size - waiting
        if not 1 <= rows <= left:
            raise ValueError(
                f"a call must have between 1 and {left} rows, the rest of the horizon, got {rows}"
            )
        if self.held and type(self.held[0].X) is not type(batch.X):
            raise ValueError("the rows of a batch must be all dense or all sparse, got both")
        if self.held and [f is None for f in self.held[0]] != [f is None for f in batch]:
            raise ValueError("the rows of a batch must all have a sample_weight or none, got both")
        full, held, start = [], self.held, 0
        while start < rows:
            stop = start + min(size, self.units - taken * size) - waiting
            if stop > rows:
                held = (*held, _copied(_rows_of(batch, start, rows)))
                held = held if len(held) < _MOST_PARTS else (join(held),)
                break
            full.append(join([*held, _rows_of(batch, start, stop)]))
            held, waiting, start, taken = (), 0, stop, taken + 1
        return full, held

    def _refuse_other_size(self, batch: Batch, waiting: int) -> None:
        """Refuse a batch that does not have `batch_size` users; the last may have fewer."""
        if waiting:
            raise ValueError(
                f"groups must be None, as in the calls before, of which {waiting} rows are held "
                "for the next batch"
            )
        assert batch.starts is not None
        size, users = self.parameters["batch_size"], batch.starts.size - 1
        left = self.units - self.released * size
        if left > size and users != size:
            raise ValueError(f"a batch must have batch_size={size} users, got {users}")
        if not 1 <= users <= left:
            raise ValueError(
                f"the last batch must have between 1 and {left} users, the rest of the horizon, "
                f"got {users}"
            )


def _rows_of(batch: Batch, start: int, stop: int) -> Batch:
    """Return some rows, with every field that has an entry per row."""
    fields: list[Any] = [None if part is None else part[start:stop] for part in batch]
    return Batch(*fields)


def _copied(batch: Batch) -> Batch:
    """Return rows that the caller cannot change, nor keeps the memory of all of a call."""
    fields: list[Any] = [None if part is None else _copy_of(part) for part in batch]
    return Batch(*fields)


def _copy_of(part: Any) -> Any:
    return SparseRows.of(part.to_scipy().copy()) if isinstance(part, SparseRows) else part.copy()


def turn_of(model: Any) -> Any:
    """Return the lock of an estimator in this process: calls that fit it take turns.

    Two threads that began one stream together would make two keys and two guards, which would admit
    a user once each. `setdefault` of a dictionary is atomic, so that all threads get one lock.
    """
    turns: dict[int, Any] = vars(model).setdefault(TURN, {})
    return turns.setdefault(os.getpid(), threading.RLock())  # a fork may have copied a held one


def refuse_another_start(model: Any) -> None:
    """Refuse a stream on an estimator that has a model but no engine to continue with."""
    if not hasattr(model, "coef_"):
        return
    if model.n_steps_ < model.plan_.steps:
        raise ValueError(
            f"this stream stopped at step {model.n_steps_} of {model.plan_.steps} and cannot "
            "continue: pickles and copies hold no key and no sums, a folder (keep_stream) does; "
            "clone the estimator for a new run"
        )
    raise ValueError(
        f"all {model.plan_.steps} declared steps are taken: the epsilon covers no more; clone the "
        "estimator for another run"
    )


def refuse_other_classes(targets: Targets, classes: Any) -> None:
    """Refuse classes other than those of the stream."""
    if classes is None:
        return
    if not isinstance(targets, ClassTargets):
        raise ValueError("classes must be None for a regression, got some")
    if not np.array_equal(np.unique(np.asarray(classes)), targets.classes):
        raise ValueError(
            f"classes must be {targets.classes.tolist()}, as declared, got "
            f"{np.asarray(classes).tolist()}"
        )


def stream_batch(
    X: Rows,
    targets: NDArray[np.float64],
    groups: Any = None,
    weights: NDArray[np.float64] | None = None,
    stand_in: Callable[[int], int] | None = None,
    id_of: Callable[[object], int] = user_id,
) -> Batch:
    """Return the rows of one call of a stream; a user has the same id in every step.

    Labels are private values, so that none is refused here: a row whose label is missing or stands
    for no user is one of a user of its own, and counts as zero. `stand_in` gives the id of such a
    user from the number of its row; without it, ids are random. `id_of` gives those of the others.
    """
    if groups is None:
        source = MemoryRows(X, targets, None, weights)
        return source.batch(slice(0, source.units), targets)
    labels, missing = labels_of_users(groups, len(X))
    numbers = numbers_in_order(labels)
    numbers[missing] = len(X) + np.arange(np.count_nonzero(missing))
    targets = targets.copy()
    targets[missing] = np.nan
    source = MemoryRows(X, targets, numbers, weights)
    batch = source.batch(slice(0, source.units), source.y)
    _, first = np.unique(numbers_in_order(numbers), return_index=True)
    if stand_in is None:
        stand_in = _random_id
    ids = [stand_in(int(row)) if missing[row] else id_of(labels[row]) for row in first]
    return batch._replace(ids=np.array(ids, dtype=np.int64))


def _random_id(row: int) -> int:
    return secrets.randbits(63)


def refuse_objects(name: str, value: Any) -> None:
    """Refuse lists and object dtypes: whether objects are numbers depends on values.

    Typed frames and columns are checked where they are read.
    """
    if is_typed_frame(value) or comes_from(value, "polars", "pyarrow"):
        return
    dtypes = [value.dtype] if hasattr(value, "dtype") else list(getattr(value, "dtypes", ()))
    if not dtypes:
        raise TypeError(f"{name} must be an array of real numbers, got {type(value).__name__}")
    for dtype in dtypes:
        if getattr(dtype, "kind", "O") not in "iufb":
            raise TypeError(f"{name} must be an array of real numbers, got dtype {dtype}")


def stream_labels(y: Any, targets: Targets) -> NDArray[Any]:
    """Return the labels of a batch unchanged; refuse lists, whose dtype depends on values.

    A dtype whose labels no class equals is refused too.
    """
    dtype = y.type if comes_from(y, "pyarrow") else getattr(y, "dtype", None)
    if dtype is None and not hasattr(y, "dtypes"):
        raise TypeError(f"y must be an array of labels, got {type(y).__name__}")
    if dtype is not None:
        targets.refuse_kind(kind_of(dtype))
    return as_labels(y)
