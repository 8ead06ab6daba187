# SPDX-License-Identifier: Apache-2.0
"""Rows of a pyarrow dataset, read in order and re-cut to the batches of the steps.

Memory holds a batch, a block of rows and one read of pyarrow (a row group of a Parquet file). Types
are checked before the first step, values never: a row with a null, NaN or infinity keeps its slot
and counts as zero.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray
from pyarrow import types

from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.linear_model.sources.source import Encode, Ints, RowSource, Stepper, join
from dpftrl_fast.tables.damaged import readable
from dpftrl_fast.tables.labels import kind_of

_TEXT = tuple(
    f".{kind}{packed}"
    for kind in ("csv", "tsv", "txt", "json", "jsonl")
    for packed in ("", ".gz", ".bz2", ".zst")
)
_BLOCK = 1 << 18  # entries of a record batch: 2 MiB as float64


def open_dataset(X: Any, y: Any, groups: Any, *, numbers: bool) -> DatasetRows:
    """Return the rows of a dataset, or of a Parquet file or folder.

    `y` and `groups` name the columns of targets and (optionally) users; `numbers` is whether
    targets are numbers, not labels.
    """
    path = isinstance(X, (str, os.PathLike))
    if path and os.fspath(X).lower().endswith(_TEXT):
        raise ValueError(
            f"X must be a Parquet file or folder, rows in memory or a dataset, got {os.fspath(X)!r}"
            ": the cells of a text file have no types. Read it (pandas.read_csv) and fit the frame "
            "behind a BoundedScaler (dpftrl_fast.linear_model.from_schema), or fit the file with "
            "dpftrl-fast fit, or write it as Parquet"
        )
    with readable("the dataset"):
        dataset = ds.dataset(os.fspath(X), format="parquet") if path else X
    for name, value in {"y": y, "groups": groups}.items():
        if not isinstance(value, str) and not (name == "groups" and value is None):
            raise TypeError(
                f"{name} must be the name of a column of the dataset, got {type(value).__name__}"
            )
    return DatasetRows(dataset, y, groups, numbers=numbers)


class DatasetRows(RowSource):
    """Rows of a dataset; a unit is a row, or with a column of users a user.

    The number of rows is public. Targets are numbers or bool; labels may also be strings, plain or
    as a dictionary. The rows of each user are adjacent.

    Examples
    --------
    >>> table = pa.table({"x": [1.0, 2.0, 3.0], "who": ["b", "b", "a"], "y": [0, 1, 0]})
    >>> rows = DatasetRows(ds.dataset(table), "y", "who", numbers=True)
    >>> rows.units, rows.feature_names
    (2, ['x'])
    """

    def __init__(self, dataset: Any, target: str, users: str | None, *, numbers: bool) -> None:
        _refuse_text(dataset)
        self._dataset, self._target, self._numbers = dataset, target, numbers
        schema = dataset.schema
        with readable("the names of columns"):
            _ = schema.names
        special = [target] if users is None else [target, users]
        if len({*special}) < len(special):
            raise ValueError(f"y and groups must be two columns, got {target!r} for both")
        doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if doubled:
            raise ValueError(f"columns of a dataset must have different names, got two {doubled}")
        for name in special:
            if name not in schema.names:
                raise ValueError(f"the dataset must have a column {name!r}, got {schema.names}")
        self._features = [name for name in schema.names if name not in special]
        self.feature_names, self.n_features = self._features, len(self._features)
        if self.n_features == 0:
            raise ValueError(f"the dataset must have columns besides {special}, got none")
        for name in self._features:
            if not _is_number(schema.field(name).type):
                raise ValueError(
                    f"columns must be of numbers or bool, got {name!r} of type "
                    f"{schema.field(name).type}; encode it, or select columns before"
                )
        kind = schema.field(target).type
        if not (_is_number(kind) or (not numbers and _is_label(kind))):
            wanted = "numbers or bool" if numbers else "numbers, bool or strings"
            raise ValueError(f"the column of y must be of {wanted}, got {target!r} of type {kind}")
        _refuse_other_types(dataset, {*self._features, *special})
        self.label_kind = kind_of(kind)
        found = [schema.field(name).type.to_pandas_dtype() for name in self._features]
        self._dtype = np.dtype(np.float32 if np.result_type(*found) == np.float32 else np.float64)
        with readable("the dataset"):
            self.rows: int = dataset.count_rows()
        if self.rows == 0:
            raise ValueError("the dataset must hold at least 1 row, got none")
        self.units = self.rows
        self._bounds: Ints | None = None
        if users is not None:
            self._bounds = self._bounds_of_users(users)
            self.units = self._bounds.size - 1

    def feed(
        self,
        run: Stepper,
        order: Iterable[slice | Ints],
        encode: Encode,
        progress: Callable[[], None],
    ) -> None:
        """Take a step with every batch of `order`, which is the row order."""
        cutter: _Cutter | None = None
        for units in order:
            assert isinstance(units, slice)  # they are not shuffled
            if cutter is None:
                cutter = _Cutter(self._blocks(encode), self.rows)
            if self._bounds is None:
                run.step(cutter.take(units.stop - units.start))
            else:
                bounds = self._bounds[units.start : units.stop + 1]
                batch = cutter.take(int(bounds[-1] - bounds[0]))
                users = np.arange(units.start, units.stop)
                run.step(batch._replace(starts=bounds - bounds[0], ids=users))
            if units.stop == self.units:  # another epoch reads the rows again
                cutter.refuse_more()
                cutter = None
            progress()

    def _blocks(self, encode: Encode) -> Iterator[Batch]:
        """Yield all rows, a block at a time."""
        names = [*self._features, self._target]
        p = self.n_features
        for record in self._scan(names, max(1, _BLOCK // p)):
            X = np.empty((record.num_rows, p), dtype=self._dtype)
            for column, values in enumerate(record.columns[:p]):
                X[:, column] = _as_floats(values, self._dtype)
            yield Batch(X, self._encoded(record.column(p), encode))

    def _encoded(self, values: Any, encode: Encode) -> NDArray[np.float64]:
        if self._numbers:
            return encode(_as_floats(values, np.dtype(np.float64)))
        known = values.is_valid().to_numpy(zero_copy_only=False)
        if types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if not _is_number(values.type):
            labels, readable = _labels(values)
            return np.where(known & readable, encode(labels), np.nan)
        if values.null_count:
            values = values.fill_null(False if types.is_boolean(values.type) else 0)
        return np.where(known, encode(values.to_numpy(zero_copy_only=False)), np.nan)

    def _bounds_of_users(self, column: str) -> Ints:
        """Return the first row of each user, and the number of rows."""
        kind = self._dataset.schema.field(column).type
        if not (_is_number(kind) or _is_label(kind)):
            raise ValueError(
                f"the column of groups must be of numbers or strings, got {column!r} of type {kind}"
            )
        seen: set[Any] = set()
        starts: list[int] = []
        row, last = 0, object()
        for record in self._scan([column], _BLOCK):
            values = record.column(0)
            if types.is_dictionary(values.type):
                values = values.dictionary_decode()
            if not _is_number(values.type):
                values = _bytes(values)
            if values.null_count or (
                types.is_floating(values.type)
                and not np.all(np.isfinite(values.to_numpy(zero_copy_only=False)))
            ):
                raise ValueError("groups must be finite and not null, got NaN, infinity or null")
            codes = values.dictionary_encode()
            changes = np.flatnonzero(np.diff(codes.indices.to_numpy(), prepend=-1))
            for place, user in zip(
                changes.tolist(), values.take(pa.array(changes)).to_pylist(), strict=True
            ):
                if user == last:  # continues from the previous block
                    continue
                if user in seen:
                    raise ValueError(
                        "the rows of a user must be adjacent in the dataset, got a user again in "
                        f"row {row + place}; sort the dataset by {column!r}"
                    )
                seen.add(user)
                starts.append(row + place)
                last = user
            row += record.num_rows
        if row != self.rows:
            raise _changed(self.rows)
        return np.array([*starts, row], dtype=np.int64)

    def _scan(self, columns: list[str], most_rows: int) -> Iterator[Any]:
        # One thread and minimal readahead, so that memory does not grow with the files.
        options: dict[str, Any] = {"batch_readahead": 1, "fragment_readahead": 1}
        options |= {"use_threads": False, "batch_size": most_rows}
        options |= _parquet_options(self._dataset)
        with readable("the dataset"):
            yield from self._dataset.to_batches(columns=columns, **options)


class _Cutter:
    """Cuts blocks of any size into batches of the requested sizes."""

    def __init__(self, blocks: Iterator[Batch], rows: int) -> None:
        self._blocks, self.rows = blocks, rows
        self._rest = Batch(np.empty((0, 0)), np.empty(0))

    def take(self, count: int) -> Batch:
        """Return the next rows."""
        parts: list[Batch] = []
        while count > 0:
            if len(self._rest.y) == 0:
                self._rest = self._next()
            part, self._rest = _rows_of(self._rest, 0, count), _rows_of(self._rest, count, None)
            parts.append(part)
            count -= len(part.y)
        return join([part for part in parts if len(part.y) > 0])

    def refuse_more(self) -> None:
        """Refuse remaining rows."""
        if len(self._rest.y) > 0 or any(len(block.y) > 0 for block in self._blocks):
            raise _changed(self.rows)

    def _next(self) -> Batch:
        block = next(self._blocks, None)
        if block is None:
            raise _changed(self.rows)
        return block


def _rows_of(batch: Batch, begin: int, end: int | None) -> Batch:
    return Batch(batch.X[begin:end], batch.y[begin:end])


def _changed(rows: int) -> RuntimeError:
    return RuntimeError(
        f"the dataset must not change while it is read, got another number of rows than {rows}"
    )


def _as_floats(values: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return numbers as floats, NaN for null; no value raises."""
    floats = values.cast(pa.from_numpy_dtype(dtype), safe=False)
    return np.asarray(floats.to_numpy(zero_copy_only=False))


def _bytes(values: Any) -> Any:
    """Return strings as bytes: a file can hold strings that are no UTF-8, and none raises."""
    return values.cast(pa.large_binary() if types.is_large_string(values.type) else pa.binary())


def _labels(values: Any) -> tuple[NDArray[np.object_], NDArray[np.bool_]]:
    """Return strings as objects, and whether each is valid UTF-8; "" for one that is not."""
    coded = _bytes(values).dictionary_encode()
    texts: list[str] = []
    valid: list[bool] = []
    for word in coded.dictionary.to_pylist():
        try:
            texts.append(word.decode())
            valid.append(True)
        except UnicodeDecodeError:
            texts.append("")
            valid.append(False)
    code = np.asarray(coded.indices.fill_null(len(texts)))
    return np.array([*texts, ""], dtype=object)[code], np.array([*valid, False])[code]


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_label(kind: Any) -> bool:
    if types.is_dictionary(kind):
        kind = kind.value_type
        return _is_number(kind) or _is_label(kind)
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _refuse_text(dataset: Any) -> None:
    """Refuse formats in which a value can fail to parse: the failure would reveal it."""
    for part in [dataset, *getattr(dataset, "children", ())]:
        kind = getattr(part, "format", None)
        if isinstance(kind, (ds.CsvFileFormat, ds.JsonFileFormat)):
            raise ValueError(
                "a dataset must have typed files, such as Parquet or Arrow, got "
                f"{kind.default_extname}: a value that fails to parse would end the fit and be "
                "revealed"
            )


def _refuse_other_types(dataset: Any, names: set[str]) -> None:
    """Refuse files in which a column has another type than in the dataset.

    Arrow would convert it, which fails for values that do not fit: the failure would reveal one.
    """
    with readable("the dataset"):
        parts = [(part, part.physical_schema) for part in dataset.get_fragments()]
    for part, schema in parts:
        for name in names.intersection(schema.names):
            found, wanted = schema.field(name).type, dataset.schema.field(name).type
            if found != wanted:
                raise ValueError(
                    f"all files of a dataset must have the same types, got {name!r} of type {found}"
                    f" beside {wanted} in {getattr(part, 'path', 'a fragment')!r}"
                )


def _parquet_options(dataset: Any) -> dict[str, Any]:
    """Return options that keep a Parquet file from being buffered whole."""
    kind = getattr(dataset, "format", None)
    if not isinstance(kind, ds.ParquetFileFormat):
        return {}
    keys = ("decryption_properties", "parquet_decryption_config")  # not copied
    if any(getattr(kind.default_fragment_scan_options, name, None) is not None for name in keys):
        return {}
    options = copy.copy(kind.default_fragment_scan_options)
    options.pre_buffer = False
    return {"fragment_scan_options": options}
