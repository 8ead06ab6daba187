# SPDX-License-Identifier: Apache-2.0
"""Parquet files, and folders of them, with the methods of one file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpftrl_fast.tables.damaged import readable
from dpftrl_fast.tables.table_error import TableError

#: Ends of the names of Parquet files.
PARQUET = (".parquet", ".pq")


class ParquetFolder:
    """Parquet files of a folder in the order of their names, with the methods of one file."""

    def __init__(self, path: Path) -> None:
        from pyarrow import dataset

        self._dataset = dataset.dataset(
            [str(file) for file in parquet_files(path)], format="parquet"
        )
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
        """Yield blocks of at most so many rows."""
        options: dict[str, Any] = {"batch_readahead": 1, "fragment_readahead": 1}
        yield from self._dataset.to_batches(
            columns=columns, batch_size=rows, use_threads=False, **options
        )

    def read(self) -> Any:
        """Return all rows."""
        return self._dataset.to_table(use_threads=False)


def parquet_files(path: Path) -> list[Path]:
    """Return the Parquet files of a folder; those with "." or "_" before their names are skipped.

    A folder inside is read, too, as Hive and Spark write them.
    """
    found = [
        file
        for file in sorted(path.rglob("*"))
        if file.suffix.lower() in PARQUET
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
            return ParquetFolder(path)
    with readable(repr(str(path)), TableError):
        try:
            return parquet.ParquetFile(path)
        except pa.ArrowInvalid as error:
            raise TableError(f"{str(path)!r} is not a Parquet file: {error}") from None
