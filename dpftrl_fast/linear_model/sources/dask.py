# SPDX-License-Identifier: Apache-2.0
"""Rows of Dask arrays and dataframes: workers compute the sums, the noise stays with the caller.

The chunks are cut at batch boundaries, so that each sum has the same rows in the same order as in
memory. Workers receive public data: the objective with the last iterate, or the bounds of a plan.
They return the sums of a batch, which are as secret as the rows; only the calling process adds
noise and takes steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice, pairwise
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from dask.base import compute, persist
from dask.delayed import Delayed, delayed
from dask.optimization import cull

from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.linear_model.sources.source import (
    Encode,
    Ints,
    RowSource,
    Stepper,
    SumStepper,
    join,
)
from dpftrl_fast.tables.labels import Kind, as_labels, kind_of

T = TypeVar("T")

# Dask has types for only some of its functions.
_compute: Any = compute
_cull: Any = cull
_delayed: Any = delayed
_Delayed: Any = Delayed
_persist: Any = persist


def open_dask(X: Any, y: Any, *, numbers: bool) -> DaskRows:
    """Return the rows of Dask collections, dense numbers or bool.

    Unknown chunk sizes are computed. `y` may name a column of the dataframe. `numbers` is whether
    targets are numbers, not labels.
    """
    names: list[str] | None = None
    kind: Kind | None = None
    if hasattr(X, "to_dask_array"):
        lengths: Any = True
        if isinstance(y, str):
            if y not in X.columns:
                raise ValueError(f"the dataframe must have a column {y!r}, got {[*X.columns]}")
            X, y = X.drop(columns=y), X[y]
            kind = _label_kind(y)
            y = _series(y, numbers, lengths)
            lengths = [*y.chunks[0]]
        columns = [*X.columns]
        names = columns if all(isinstance(name, str) for name in columns) else None
        dtype = _float_type("X", [*X.dtypes])
        X = X.astype(dtype).to_dask_array(lengths=lengths)
    kind = kind or _label_kind(y)
    if hasattr(y, "to_dask_array"):
        y = _series(y, numbers, True)
    for name, value in {"X": X, "y": y}.items():
        if not hasattr(value, "to_delayed"):
            raise TypeError(f"{name} must be a Dask collection, got {type(value).__name__}")
    if type(X._meta) is not np.ndarray:
        raise TypeError(f"X must have dense chunks, got chunks of {type(X._meta).__name__}")
    if numbers:
        _float_type("y", [y.dtype])
    X, y = (a.copy().compute_chunk_sizes() if _unknown(a) else a for a in (X, y))
    if X.ndim != 2 or y.ndim != 1 or len(X) != len(y):
        raise ValueError(
            f"X and y must be of shapes (n, p) and (n,), got {tuple(X.shape)} and {tuple(y.shape)}"
        )
    if 0 in X.shape:
        raise ValueError(f"X must hold at least 1 row and 1 column, got shape {tuple(X.shape)}")
    rows = DaskRows(X, y, names)
    rows.label_kind = kind
    return rows


class DaskRows(RowSource):
    """Rows of a dense (n, p) Dask array, each a unit, with (n,) targets.

    Examples
    --------
    >>> import dask.array as da
    >>> rows = DaskRows(da.zeros((10, 2), chunks=(4, 1)), da.zeros(10))
    >>> rows.units, rows.n_features
    (10, 2)
    """

    def __init__(self, X: Any, y: Any, feature_names: Sequence[str] | None = None) -> None:
        self.units, self.n_features = (int(size) for size in X.shape)
        self.rows = self.units
        self.feature_names = feature_names
        self._dtype = _float_type("X", [X.dtype])
        self._bounds = np.concatenate([[0], np.cumsum(X.chunks[0])]).astype(np.int64)
        self._rows = _Chunks(X.rechunk({1: -1}))
        self._targets = _Chunks(y.rechunk((X.chunks[0],)))

    def feed(
        self,
        run: Stepper,
        order: Iterable[slice | Ints],
        encode: Encode,
        progress: Callable[[], None],
    ) -> None:
        """Take a step with the sums of every batch of `order`, which is the row order."""
        if not isinstance(run, SumStepper):
            raise TypeError(f"Dask rows need an engine that takes sums, got {type(run).__name__}")
        workers = _workers()
        steps = [*self._parts(order)]
        visits = groupby(chain.from_iterable(steps), lambda part: part.visit // workers)
        loads = (self._loaded([*parts], encode) for _, parts in visits)
        pieces = chain.from_iterable(_one_ahead(loads))
        # A task is made when it is needed: at the iterate after all earlier steps.
        tasks: Iterator[_Task] = (
            _Task.of(run.summing(), [*islice(pieces, len(step))]) for step in steps
        )
        if not run.sums_follow_model:
            tasks = _started_early(tasks, 2 * workers)
        for task in tasks:
            run.advance(_compute(task.sums, optimize_graph=False)[0])
            progress()

    def _parts(self, order: Iterable[slice | Ints]) -> Iterator[list[_Part]]:
        """Yield the parts of chunks that hold the rows of each step."""
        bounds, visit, before = self._bounds, -1, -1
        for units in order:
            assert isinstance(units, slice)  # they are not shuffled
            first = int(np.searchsorted(bounds, units.start, side="right")) - 1
            last = int(np.searchsorted(bounds, units.stop, side="left"))
            parts = []
            for chunk in range(first, last):
                begin = max(units.start - int(bounds[chunk]), 0)
                end = min(units.stop, int(bounds[chunk + 1])) - int(bounds[chunk])
                if begin < end:
                    if chunk != before or units.start == 0:  # another chunk, or another epoch
                        visit, before = visit + 1, chunk
                    parts.append(_Part(visit, chunk, begin, end))
            yield parts

    def _loaded(self, parts: list[_Part], encode: Encode) -> Sequence[Any]:
        """Return parts of a few chunks, cut and kept by the workers."""
        cut = []
        for chunk, own in groupby(parts, lambda part: part.chunk):
            rows, targets = self._rows[chunk], self._targets[chunk]
            declared = int(self._bounds[chunk + 1] - self._bounds[chunk])
            form = _Form(declared, self._dtype, encode)
            cut += [_later(_cut, rows, targets, p.begin, p.end, form) for p in own]
        return cast(Sequence[Any], _persist(*cut))


class _Chunks:
    """Chunks of an array along its rows, each with only the tasks that it needs."""

    def __init__(self, array: Any) -> None:
        self._chunks = array.to_delayed().reshape(-1)
        self._graph = dict(self._chunks[0].dask)  # for all chunks: too slow to send each time

    def __getitem__(self, number: int) -> Any:
        key = self._chunks[number].key
        tasks, _ = _cull(self._graph, [key])
        return _Delayed(key, tasks)


class _Part(NamedTuple):
    """Rows of a chunk that belong to a step."""

    visit: int
    chunk: int
    begin: int
    end: int


class _Form(NamedTuple):
    """Declared number of rows of a chunk, and how its rows and targets are encoded."""

    rows: int
    dtype: np.dtype[Any]
    encode: Encode


class _Task(NamedTuple):
    """Sums of a batch, with its rows, which workers keep only while they are held here."""

    sums: Any
    rows: list[Any]

    @classmethod
    def of(cls, summing: Callable[[Batch], Any], rows: list[Any]) -> _Task:
        return cls(_later(_sums, summing, rows), rows)


def _started_early(tasks: Iterator[_Task], count: int) -> Iterator[_Task]:
    """Yield running tasks, started `count` at a time and as many ahead."""

    def start(group: list[_Task]) -> list[_Task]:
        started = _persist(*(task.sums for task in group))
        return [task._replace(sums=sums) for task, sums in zip(group, started, strict=True)]

    groups = iter(lambda: [*islice(tasks, count)], [])
    return chain.from_iterable(_one_ahead(map(start, groups)))


# ---- Work of the workers ----


def _cut(rows: Any, targets: Any, begin: int, end: int, form: _Form) -> Batch:
    # Fewer rows than declared would let later ones move up into other batches.
    if not len(rows) == len(targets) == form.rows:
        raise RuntimeError(
            f"a chunk must have the {form.rows} rows that its collection declares, got "
            f"{len(rows)} rows and {len(targets)} targets: a task may not drop rows; compute the "
            "chunk sizes after it"
        )
    X = np.ascontiguousarray(rows[begin:end], dtype=form.dtype)
    return Batch(X, form.encode(np.asarray(targets[begin:end])))


def _sums(summing: Callable[[Batch], Any], parts: list[Batch]) -> Any:
    batch: Any = join(parts)
    # Arrays from another process may be unaligned.
    X, y = (np.require(part, requirements=["C", "A"]) for part in (batch.X, batch.y))
    return summing(Batch(X, y))


# ---- Tasks ----


def _later(function: Callable[..., Any], *arguments: Any) -> Any:
    return _delayed(function, pure=False)(*arguments)


def _one_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield each item once the next one has been made."""
    end: list[Any] = [None]
    for item, _ in pairwise(chain(items, end)):
        yield item


def _workers() -> int:
    """Return the number of workers of the current cluster, 1 without one."""
    distributed: Any = sys.modules.get("distributed")
    if distributed is None:
        return 1
    try:
        return max(1, len(distributed.default_client().nthreads()))
    except ValueError:  # no client
        return 1


# ---- Checks ----


def _series(y: Any, numbers: bool, lengths: Any) -> Any:
    """Return a series as an array, of floats if targets are numbers."""
    if y.ndim != 1:
        raise ValueError(f"y must have one column, got {[*y.columns]}")
    if numbers:
        _float_type("y", [y.dtype])
        y = y.astype(np.float64)
    elif not isinstance(y.dtype, np.dtype):  # strings, categories, integers with nulls
        y = y.map_partitions(_objects, meta=(y.name, object))
    return y.to_dask_array(lengths=lengths)


def _label_kind(y: Any) -> Kind | None:
    """Return the kind of labels; categories are often unknown before the graph runs."""
    dtype = getattr(y, "dtype", None)
    return None if dtype is None or hasattr(dtype, "categories") else kind_of(dtype)


def _objects(y: Any) -> Any:
    """Return a series of labels as objects, whatever text it holds."""
    return type(y)(as_labels(y), index=y.index, name=y.name, dtype=object)


def _float_type(name: str, dtypes: Sequence[Any]) -> np.dtype[Any]:
    """Return float32 if it holds all columns, else float64."""
    found = [getattr(dtype, "numpy_dtype", dtype) for dtype in dtypes]  # pandas' types have one
    for dtype in found:
        if getattr(dtype, "kind", "O") not in "iufb":
            raise TypeError(f"{name} must be of numbers or bool, got dtype {dtype}")
    single = bool(found) and np.result_type(*found) == np.float32
    return np.dtype(np.float32 if single else np.float64)


def _unknown(array: Any) -> bool:
    return any(np.isnan(size) for sizes in array.chunks for size in sizes)
