# SPDX-License-Identifier: Apache-2.0
"""`ColumnFile`: a CSV or Parquet file, some columns of which are read in file order."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dpftrl_fast.tables.csv_format import CsvFormat, CsvOptions, NumberFormat
from dpftrl_fast.tables.csv_slots import STANDARD_INPUT, CsvLines, Faults, arrow_input
from dpftrl_fast.tables.damaged import readable
from dpftrl_fast.tables.header import missing_column
from dpftrl_fast.tables.parquet import PARQUET, ParquetFolder, open_parquet, parquet_files
from dpftrl_fast.tables.table_error import TableError

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Unpack

_PARQUET_ROWS = 1 << 16
_CSV_BLOCK = 1 << 21


class ColumnFile:
    """A CSV or Parquet file with a header that has some columns, each once; one pass.

    Parameters
    ----------
    path : str or Path
        As for `TableReader`.
    columns : sequence of str
        The columns to read.
    declared : collection of str
        Names that the file should have, besides: with one of them its header may be shown.
    may_lack_rows : bool
        Whether a file without rows is taken.
    **csv
        Options of CSV files: `CsvOptions`.

    Attributes
    ----------
    rows : int or None
        Number of rows where the file states it (Parquet).

    Raises
    ------
    TableError
        For missing or duplicate columns, a file of another kind, or an empty one.
    """

    def __init__(
        self,
        path: str | Path,
        columns: Collection[str],
        *,
        declared: Collection[str] = (),
        may_lack_rows: bool = False,
        **csv: Unpack[CsvOptions],
    ) -> None:
        self.path, self.columns = Path(path), tuple(columns)
        self.is_standard = str(path) == STANDARD_INPUT
        kind, delimiter = file_kind(self.path)
        refuse_no_file(self.path)
        self.state = file_state(self.path)
        self._used = False
        self._csv: CsvLines | None = None
        self.rows: int | None = None
        try:
            self._form = CsvFormat.of(csv, default_delimiter=delimiter or ",")
            if kind == "csv":
                self._csv = CsvLines(self.path, self._form, may_lack_rows=may_lack_rows)
        except ValueError as error:
            raise TableError(str(error)) from None
        header = self._open_parquet(may_lack_rows) if self._csv is None else self._csv.names
        for name in self.columns:
            if header.count(name) != 1:
                mark = None if self._csv is None else self._form.delimiter
                known = {*self.columns, *declared}
                raise TableError(missing_column(name, header, known, mark, repr(str(path))))

    @property
    def is_text(self) -> bool:
        """Whether it is a CSV file, whose cells are text."""
        return self._csv is not None

    @property
    def numbers(self) -> NumberFormat:
        """Marks within numbers of a CSV file."""
        return self._form.numbers

    def type_of(self, column: str) -> pa.DataType:
        """Return the type of a column of a Parquet file."""
        return self._file.schema_arrow.field(column).type

    def read(
        self, columns: list[str], *, explain: bool = False
    ) -> Iterator[tuple[pa.Table | pa.RecordBatch, Faults]]:
        """Yield blocks of some columns, in file order; cells of CSV are text.

        With `explain` the faults of lines that are no record are told: NOT private.
        """
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

    def _open_parquet(self, may_lack_rows: bool) -> list[str]:
        self._file = open_parquet(self.path)
        folder = isinstance(self._file, ParquetFolder)
        self.rows = self._file.rows if folder else self._file.metadata.num_rows
        if not (self.rows > 0 or may_lack_rows):
            raise TableError(f"expected rows in {str(self.path)!r}, got none")
        with readable(repr(str(self.path)), TableError):
            return list(self._file.schema_arrow.names)


def file_state(path: Path) -> tuple[int, ...]:
    """Return public facts that identify an unchanged file, or the files of a folder."""
    if str(path) == STANDARD_INPUT:
        return ()
    state = path.stat()
    own = (state.st_size, state.st_mtime_ns, state.st_ino)
    return sum((file_state(file) for file in parquet_files(path)), own) if path.is_dir() else own


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
