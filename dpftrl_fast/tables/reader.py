# SPDX-License-Identifier: Apache-2.0
"""Tables on disk, streamed in file order and cut into mini-batches.

Wrong columns, wrong types and too many rows are errors, the first two before the first batch. A
reader is one pass; another pass over a changed file is refused, since rows would be in other
batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpftrl_fast.tables.cells import is_category, is_number, numbers
from dpftrl_fast.tables.column_file import ColumnFile, file_state
from dpftrl_fast.tables.csv_format import CsvOptions, NumberFormat
from dpftrl_fast.tables.csv_slots import Faults
from dpftrl_fast.tables.encoding import Encoder, Rows
from dpftrl_fast.tables.schema import NumericColumn, Schema
from dpftrl_fast.tables.table_error import TableError

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Unpack


class TableReader:
    """A CSV or Parquet file whose columns and types fit a schema.

    Parameters
    ----------
    path : str or Path
        ``.parquet`` or ``.pq``, or a folder of such files, read by name; ``.csv``, ``.tsv`` or
        ``.txt``, also followed by ``.gz``, ``.bz2`` or ``.zst``; "-" for CSV from the standard
        input, which is read once.
    schema : Schema
        Declares the columns to read; other columns are skipped.
    target : bool
        Read the target too, and the columns of users and weights if the schema has them.
    **csv
        Options of CSV files: `CsvOptions`.

    Raises
    ------
    TableError
        For missing or duplicate columns, a column of the wrong type (Parquet), or an empty file.
    """

    def __init__(
        self,
        path: str | Path,
        schema: Schema,
        *,
        target: bool = True,
        **csv: Unpack[CsvOptions],
    ) -> None:
        self.path = Path(path)
        self.schema = schema
        self._options: dict[str, Any] = {"target": target, **csv}
        names = schema.file_columns if target else schema.file_columns[:-1]
        if target:
            names = (*names, *_further(schema))
        self.columns = tuple(dict.fromkeys(names))
        self._numeric = [name for name, number in _kinds(schema) if number and name in self.columns]
        self._file = ColumnFile(path, self.columns, declared=self._declared(), **csv)
        #: Number of rows where the file states it (Parquet), else None.
        self.rows = self._file.rows
        if not self._file.is_text:
            self._check_types()

    def __iter__(self) -> Iterator[pa.Table | pa.RecordBatch]:
        """Yield the needed columns block by block, in file order; a second pass is refused.

        Numeric columns of CSV are float64, NaN for a cell that is no finite number.
        """
        for block, _ in self._file.read(list(self.columns)):
            yield self.with_numbers(block)

    def blocks(
        self, columns: Sequence[str] | None = None, *, text: bool = False
    ) -> Iterator[pa.Table | pa.RecordBatch]:
        """Yield the blocks of a private file, whose number of rows is declared.

        `columns` are some of the needed columns, by default all; with `text` cells of CSV are text.
        More rows than declared, a public fact, raise `TableError`.
        """
        seen = 0
        if self.rows is not None and self.rows > self.schema.rows:
            raise self._too_many()
        for block, _ in self._file.read(list(self.columns if columns is None else columns)):
            seen += block.num_rows
            if seen > self.schema.rows:
                raise self._too_many()
            yield block if text else self.with_numbers(block)

    def explained(self) -> Iterator[tuple[pa.Table | pa.RecordBatch, Faults]]:
        """Yield blocks whose cells of CSV are text, with the faults of their lines: NOT private."""
        return self._file.read(list(self.columns), explain=True)

    def with_numbers(self, block: Any) -> Any:
        """Return a block of text with its numeric columns as float64; one of Parquet as it is."""
        if not self._file.is_text:
            return block
        for name in self._numeric:
            if name in block.column_names:
                place = block.column_names.index(name)
                cells = numbers(block[name], self._file.numbers)
                block = block.set_column(place, name, [cells])
        return block

    @property
    def numbers_of(self) -> NumberFormat:
        """Marks within numbers of a CSV file."""
        return self._file.numbers

    @property
    def first_line(self) -> int:
        """Number of the first row, as a line of a CSV file or a row of Parquet."""
        return 2 if self._file.is_text else 1

    def again(self) -> TableReader:
        """Return a reader for another pass; raise `TableError` if the file has changed."""
        if self._file.is_standard:
            raise TableError("the standard input is read once, got another pass: write a file")
        self.refuse_change()
        reader = TableReader(self.path, self.schema, **self._options)
        reader._file.state = self._file.state
        reader.refuse_change()  # the file that was opened is the same
        return reader

    def refuse_change(self) -> None:
        """Raise `TableError` when size, time or identity of the file have changed."""
        if file_state(self.path) != self._file.state:
            raise TableError(
                f"expected the same rows in every pass, but {str(self.path)!r} has changed"
            )

    def _check_types(self) -> None:
        for name, numeric in _kinds(self.schema):
            if name not in self.columns:
                continue
            kind = self._file.type_of(name)
            if not (is_number(kind) if numeric else is_category(kind)):
                wanted = "a number or boolean" if numeric else "text, a whole number or boolean"
                raise TableError(f"column {name!r} must hold {wanted}, got {kind}")

    def _declared(self) -> set[str]:
        return {*self.schema.file_columns, *_further(self.schema)}

    def _too_many(self) -> TableError:
        return TableError(
            f"expected at most {self.schema.rows} rows (declared in the schema), "
            f"got more in {str(self.path)!r}; blank lines count as rows"
        )


def _kinds(schema: Schema) -> list[tuple[str, bool]]:
    """Return the columns of a table, and whether each is read as a number."""
    declared = (*schema.columns, schema.target)
    kinds = [(column.name, isinstance(column, NumericColumn)) for column in declared]
    if schema.group_column is not None:
        kinds.append((schema.group_column, False))
    if schema.weight_column is not None:
        kinds.append((schema.weight_column, True))
    return kinds


def _further(schema: Schema) -> tuple[str, ...]:
    """Return the columns of users and weights."""
    named = (schema.group_column, schema.weight_column)
    return tuple(name for name in named if name is not None)


def minibatches(
    table: TableReader, batch_size: int, *, encoder: Encoder | None = None
) -> Iterator[Rows]:
    """Yield exactly ceil(rows / batch_size) mini-batches: row i of the file is in batch i // size.

    Slots without a row are absent from the last batches, which may be empty. More rows than
    declared raise `TableError`.
    """
    encoder = Encoder(table.schema) if encoder is None else encoder
    steps = -(-table.schema.rows // batch_size)
    done = 0
    for batch in recut((encoder.encode(block) for block in table.blocks()), batch_size):
        yield batch
        done += 1
    empty = encoder.empty(0)
    for _ in range(done, steps):
        yield empty


def passes(
    table: TableReader, epochs: int, batch_size: int, *, encoder: Encoder | None = None
) -> Iterator[Rows]:
    """Yield the mini-batches of several passes over a file, the same in every pass.

    A file that changes before the last pass ends raises `TableError`.
    """
    encoder = Encoder(table.schema) if encoder is None else encoder
    first: int | None = None
    for epoch in range(epochs):
        reader = table if epoch == 0 else table.again()
        rows = 0
        for batch in minibatches(reader, batch_size, encoder=encoder):
            rows += len(batch)
            yield batch
        if epochs > 1:
            reader.refuse_change()
        first = rows if first is None else first
        if rows != first:
            raise TableError(
                f"expected {first} rows in every pass over {str(table.path)!r}, got {rows}"
            )


def recut(blocks: Iterator[Rows], size: int) -> Iterator[Rows]:
    """Cut a stream of blocks into pieces of `size` rows, the last one possibly shorter."""
    held: list[Rows] = []
    count = 0
    for block in blocks:
        start = 0
        while count + len(block) - start >= size:
            stop = start + size - count
            yield Rows.concatenate([*held, block[start:stop]])
            held, count, start = [], 0, stop
        if start < len(block):
            held.append(block[start:])
            count += len(block) - start
    if held:
        yield Rows.concatenate(held)
