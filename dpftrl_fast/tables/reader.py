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

from dpftrl_fast.tables.cells import is_category, is_number
from dpftrl_fast.tables.csv_slots import STANDARD_INPUT, CsvLines, arrow_input
from dpftrl_fast.tables.damaged import readable
from dpftrl_fast.tables.encoding import Encoder, Rows
from dpftrl_fast.tables.schema import NumericColumn, Schema

if TYPE_CHECKING:
    import pyarrow as pa

_PARQUET = (".parquet", ".pq")
_PARQUET_ROWS = 1 << 16
_CSV_BLOCK = 1 << 21


class TableError(ValueError):
    """A file that cannot be read with this schema."""


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
    delimiter : str or None
        Delimiter of CSV cells; None means a comma, or a tab for ``.tsv``.
    target : bool
        Read the target too, and the columns of users and weights if the schema has them.

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
        delimiter: str | None = None,
        target: bool = True,
    ) -> None:
        self.path = Path(path)
        self.schema = schema
        self._options: dict[str, Any] = {"delimiter": delimiter, "target": target}
        names = schema.file_columns if target else schema.file_columns[:-1]
        if target:
            names = (*names, *_further(schema))
        self.columns = tuple(dict.fromkeys(names))
        self._standard = str(path) == STANDARD_INPUT
        kind, default = file_kind(self.path)
        if not (self._standard or self.path.is_file() or self.path.is_dir()):
            raise TableError(f"no such file: {str(path)!r}")
        self._state = _file_state(self.path)
        self._used = False
        self._csv: CsvLines | None = None
        #: Number of rows where the file states it (Parquet), else None.
        self.rows: int | None = None
        if kind == "csv":
            try:
                self._csv = CsvLines(self.path, default if delimiter is None else delimiter)
            except ValueError as error:
                raise TableError(str(error)) from None
            header = self._csv.names
        else:
            header = self._open_parquet()
        for name in self.columns:
            if header.count(name) != 1:
                found = "no such column" if name not in header else "more than one"
                # A file without a header begins with a row, which is not shown.
                among = (
                    f"among: {', '.join(map(repr, header))}"
                    if kind == "parquet" or not {*header}.isdisjoint(self._declared())
                    else f"among {len(header)} columns of which none is declared; the first line "
                    "must be a header"
                )
                raise TableError(
                    f"expected one column {name!r} in {str(path)!r}, got {found} {among}"
                )
        if kind == "parquet":
            self._check_types()

    def __iter__(self) -> Iterator[pa.Table | pa.RecordBatch]:
        """Yield the needed columns block by block, in file order; a second pass is refused."""
        return self._read(list(self.columns))

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table | pa.RecordBatch]:
        """Yield the blocks of a private file, whose number of rows is declared.

        `columns` are some of the needed columns, by default all. More rows than declared, a public
        fact, raise `TableError`.
        """
        seen = 0
        if self.rows is not None and self.rows > self.schema.rows:
            raise self._too_many()
        for block in self._read(list(self.columns if columns is None else columns)):
            seen += block.num_rows
            if seen > self.schema.rows:
                raise self._too_many()
            yield block

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

    def _read(self, columns: list[str]) -> Iterator[pa.Table | pa.RecordBatch]:
        if self._used:
            raise RuntimeError(f"expected one pass over {str(self.path)!r}, got a second one")
        self._used = True
        if self._csv is None:
            with readable(repr(str(self.path)), TableError):
                yield from self._file.iter_batches(_PARQUET_ROWS, columns=columns)
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
        for text, count in self._lines(self._csv):
            fault = RuntimeError(f"expected {count} records from {count} lines: an internal error")
            try:
                table = csv.read_csv(arrow_input(text), read, parse, convert)
            except ArrowInvalid:  # its message shows a row
                raise fault from None
            if table.num_rows != count:
                raise fault
            yield table
        self._csv.close()

    @staticmethod
    def _lines(lines: CsvLines) -> Iterator[tuple[bytes, int]]:
        try:
            yield from lines
        except ValueError as error:
            raise TableError(str(error)) from None

    def _open_parquet(self) -> list[str]:
        self._file = open_parquet(self.path)
        folder = isinstance(self._file, _ParquetFolder)
        self.rows = self._file.rows if folder else self._file.metadata.num_rows
        if self.rows <= 0:
            raise TableError(f"expected rows in {str(self.path)!r}, got none")
        with readable(repr(str(self.path)), TableError):
            return list(self._file.schema_arrow.names)

    def _check_types(self) -> None:
        arrow = self._file.schema_arrow
        declared = (*self.schema.columns, self.schema.target)
        kinds = [(column.name, isinstance(column, NumericColumn)) for column in declared]
        if self.schema.group_column is not None:
            kinds.append((self.schema.group_column, False))
        if self.schema.weight_column is not None:
            kinds.append((self.schema.weight_column, True))
        for name, numeric in kinds:
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


def _further(schema: Schema) -> tuple[str, ...]:
    """Return the columns of users and weights."""
    named = (schema.group_column, schema.weight_column)
    return tuple(name for name in named if name is not None)


class _ParquetFolder:
    """Parquet files of a folder in the order of their names, with the methods of one file."""

    def __init__(self, path: Path) -> None:
        from pyarrow import dataset

        self._dataset = dataset.dataset([str(file) for file in _files(path)], format="parquet")
        self.schema_arrow = self._dataset.schema
        types = dict(zip(self.schema_arrow.names, self.schema_arrow.types, strict=True))
        for part in self._dataset.get_fragments():
            found = part.physical_schema
            # Arrow would convert the types, which fails for some values only.
            if dict(zip(found.names, found.types, strict=True)) != types:
                raise TableError(
                    f"the files of {str(path)!r} must have the same columns and types, got others "
                    f"in {part.path!r}"
                )
        self.rows: int = self._dataset.count_rows()

    def iter_batches(self, rows: int, columns: list[str]) -> Iterator[Any]:
        options: dict[str, Any] = {"batch_readahead": 1, "fragment_readahead": 1}
        yield from self._dataset.to_batches(
            columns=columns, batch_size=rows, use_threads=False, **options
        )

    def read(self) -> Any:
        return self._dataset.to_table(use_threads=False)


def _files(path: Path) -> list[Path]:
    """Return the Parquet files of a folder; those with "." or "_" before their names are skipped.

    A folder inside is read, too, as Hive and Spark write them.
    """
    found = [
        file
        for file in sorted(path.rglob("*"))
        if file.suffix.lower() in _PARQUET
        and file.is_file()
        and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    ]
    if not found:
        raise TableError(f"expected .parquet files in the folder {str(path)!r}, got none")
    return found


def open_parquet(path: Path) -> Any:
    """Open a Parquet file or folder; `TableError` if it is none."""
    import pyarrow as pa
    from pyarrow import parquet

    if path.is_dir():
        with readable(repr(str(path)), TableError):
            return _ParquetFolder(path)
    with readable(repr(str(path)), TableError):
        try:
            return parquet.ParquetFile(path)
        except pa.ArrowInvalid as error:
            raise TableError(f"{str(path)!r} is not a Parquet file: {error}") from None


def _file_state(path: Path) -> tuple[int, ...]:
    """Return public facts that identify an unchanged file, or the files of a folder."""
    if str(path) == STANDARD_INPUT:
        return ()
    state = path.stat()
    own = (state.st_size, state.st_mtime_ns, state.st_ino)
    return sum((_file_state(file) for file in _files(path)), own) if path.is_dir() else own


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
    if path.suffix.lower() in _PARQUET:
        return "parquet", ""
    raise TableError(f"expected a .csv, .tsv, .txt or .parquet file, got {str(path)!r}")
