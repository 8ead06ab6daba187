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
from dpftrl_fast.tables.csv_format import CsvFormat, CsvOptions, NumberFormat
from dpftrl_fast.tables.csv_slots import STANDARD_INPUT, CsvLines, Faults, arrow_input
from dpftrl_fast.tables.damaged import readable
from dpftrl_fast.tables.encoding import Encoder, Rows
from dpftrl_fast.tables.header import missing_column
from dpftrl_fast.tables.parquet import PARQUET, ParquetFolder, open_parquet, parquet_files
from dpftrl_fast.tables.schema import NumericColumn, Schema
from dpftrl_fast.tables.table_error import TableError

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Unpack

_PARQUET_ROWS = 1 << 16
_CSV_BLOCK = 1 << 21


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
        self._standard = str(path) == STANDARD_INPUT
        kind, delimiter = file_kind(self.path)
        refuse_no_file(self.path)
        self._state = _file_state(self.path)
        self._used = False
        self._csv: CsvLines | None = None
        #: Number of rows where the file states it (Parquet), else None.
        self.rows: int | None = None
        try:
            self._form = CsvFormat.of(csv, default_delimiter=delimiter or ",")
            if kind == "csv":
                self._csv = CsvLines(self.path, self._form)
        except ValueError as error:
            raise TableError(str(error)) from None
        header = self._open_parquet() if self._csv is None else self._csv.names
        for name in self.columns:
            if header.count(name) != 1:
                mark = None if self._csv is None else self._form.delimiter
                raise TableError(
                    missing_column(name, header, self._declared(), mark, repr(str(path)))
                )
        if kind == "parquet":
            self._check_types()

    def __iter__(self) -> Iterator[pa.Table | pa.RecordBatch]:
        """Yield the needed columns block by block, in file order; a second pass is refused.

        Numeric columns of CSV are float64, NaN for a cell that is no finite number.
        """
        for block, _ in self._read(list(self.columns)):
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
        for block, _ in self._read(list(self.columns if columns is None else columns)):
            seen += block.num_rows
            if seen > self.schema.rows:
                raise self._too_many()
            yield block if text else self.with_numbers(block)

    def explained(self) -> Iterator[tuple[pa.Table | pa.RecordBatch, Faults]]:
        """Yield blocks whose cells of CSV are text, with the faults of their lines: NOT private."""
        return self._read(list(self.columns), explain=True)

    def with_numbers(self, block: Any) -> Any:
        """Return a block of text with its numeric columns as float64; one of Parquet as it is."""
        if self._csv is None:
            return block
        for name in self._numeric:
            if name in block.column_names:
                place = block.column_names.index(name)
                cells = numbers(block[name], self._form.numbers)
                block = block.set_column(place, name, [cells])
        return block

    @property
    def numbers_of(self) -> NumberFormat:
        """Marks within numbers of a CSV file."""
        return self._form.numbers

    @property
    def first_line(self) -> int:
        """Number of the first row, as a line of a CSV file or a row of Parquet."""
        return 1 if self._csv is None else 2

    def again(self) -> TableReader:
        """Return a reader for another pass; raise `TableError` if the file has changed."""
        if self._standard:
            raise TableError("the standard input is read once, got another pass: write a file")
        self.refuse_change()
        reader = TableReader(self.path, self.schema, **self._options)
        reader._state = self._state
        reader.refuse_change()  # the file that was opened is the same
        return reader

    def refuse_change(self) -> None:
        """Raise `TableError` when size, time or identity of the file have changed."""
        if _file_state(self.path) != self._state:
            raise TableError(
                f"expected the same rows in every pass, but {str(self.path)!r} has changed"
            )

    def _read(
        self, columns: list[str], *, explain: bool = False
    ) -> Iterator[tuple[pa.Table | pa.RecordBatch, Faults]]:
        if self._used:
            raise RuntimeError(f"expected one pass over {str(self.path)!r}, got a second one")
        self._used = True
        if self._csv is None:
            with readable(repr(str(self.path)), TableError):
                for batch in self._file.iter_batches(_PARQUET_ROWS, columns=columns):
                    yield batch, {}
            return
        from pyarrow import ArrowInvalid, csv, string

        read = csv.ReadOptions(column_names=self._csv.names, block_size=_CSV_BLOCK)
        parse = csv.ParseOptions(
            delimiter=self._csv.delimiter, newlines_in_values=False, ignore_empty_lines=False
        )
        convert = csv.ConvertOptions(
            include_columns=columns,
            column_types=dict.fromkeys(columns, string()),
            strings_can_be_null=False,
            check_utf8=False,
        )
        for text, count, faults in self._lines(self._csv, explain):
            fault = RuntimeError(f"expected {count} records from {count} lines: an internal error")
            try:
                table = csv.read_csv(arrow_input(text), read, parse, convert)
            except ArrowInvalid:  # its message shows a row
                raise fault from None
            if table.num_rows != count:
                raise fault
            yield table, faults
        self._csv.close()

    @staticmethod
    def _lines(lines: CsvLines, explain: bool) -> Iterator[tuple[bytes, int, Faults]]:
        try:
            if explain:
                yield from lines.explained()
            else:
                yield from ((text, count, {}) for text, count in lines)
        except ValueError as error:
            raise TableError(str(error)) from None

    def _open_parquet(self) -> list[str]:
        self._file = open_parquet(self.path)
        folder = isinstance(self._file, ParquetFolder)
        self.rows = self._file.rows if folder else self._file.metadata.num_rows
        if self.rows <= 0:
            raise TableError(f"expected rows in {str(self.path)!r}, got none")
        with readable(repr(str(self.path)), TableError):
            return list(self._file.schema_arrow.names)

    def _check_types(self) -> None:
        arrow = self._file.schema_arrow
        for name, numeric in _kinds(self.schema):
            if name not in self.columns:
                continue
            kind = arrow.field(name).type
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


def _file_state(path: Path) -> tuple[int, ...]:
    """Return public facts that identify an unchanged file, or the files of a folder."""
    if str(path) == STANDARD_INPUT:
        return ()
    state = path.stat()
    own = (state.st_size, state.st_mtime_ns, state.st_ino)
    return sum((_file_state(file) for file in parquet_files(path)), own) if path.is_dir() else own


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


def refuse_no_file(path: Path) -> None:
    """Raise `TableError` if a path is no file, no folder and not the standard input."""
    if str(path) == STANDARD_INPUT or path.is_file() or path.is_dir():
        return
    if path.exists():
        raise TableError(f"{str(path)!r} must be a file, got a pipe or a device: read it through -")
    raise TableError(f"no such file: {str(path)!r}")


def file_kind(path: Path) -> tuple[str, str]:
    """Return ("csv", default delimiter) or ("parquet", "") from the name of a file."""
    if str(path) == STANDARD_INPUT:
        return "csv", ","
    if path.is_dir():
        return "parquet", ""
    name = path.name.lower()
    for packed in (".gz", ".bz2", ".zst"):
        name = name.removesuffix(packed)
    if name.endswith((".csv", ".txt")):
        return "csv", ","
    if name.endswith(".tsv"):
        return "csv", "\t"
    if path.suffix.lower() in PARQUET:
        return "parquet", ""
    raise TableError(f"expected a .csv, .tsv, .txt or .parquet file, got {str(path)!r}")
