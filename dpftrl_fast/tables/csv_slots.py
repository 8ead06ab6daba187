# SPDX-License-Identifier: Apache-2.0
"""CSV text cut into row slots: each line is one slot, whatever it holds.

A CSV parser lets cells decide where rows end: an unbalanced quote swallows the next rows, a lone
carriage return splits a row, a blank line vanishes. With private rows that would move other
people's rows into other batches. So every line that is not a plain record with the expected number
of fields is replaced by a record of empty cells before the parser reads it. Clean blocks pass
unchanged after a few vectorised byte counts.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpftrl_fast.tables.damaged import readable

#: Path of the standard input.
STANDARD_INPUT = "-"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK = 1 << 22
_MAX_LINE = 1 << 20


class CsvLines:
    """Blocks of CSV records in file order, each record exactly one line of the file.

    Parameters
    ----------
    path : str or Path
        A CSV file in UTF-8 with a header line; ``.gz``, ``.bz2`` and ``.zst`` are unpacked. "-" is
        the standard input.
    delimiter : str
        One ASCII character.

    Attributes
    ----------
    names : list of str
        The header.

    Raises
    ------
    ValueError
        If the file has no header or no record, or a name occurs twice in the header.
    """

    def __init__(self, path: str | Path, delimiter: str = ",") -> None:
        import pyarrow as pa

        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
            raise ValueError(f"delimiter must be one ASCII character, got {delimiter!r}")
        self.delimiter = delimiter
        self._delimiter = delimiter.encode()
        self._name = repr(str(path))
        self._stream = (
            pa.PythonFile(sys.stdin.buffer, mode="r")
            if str(path) == STANDARD_INPUT
            else pa.input_stream(str(path), compression="detect")
        )
        self._pending = b""
        self._ended = False
        header = self._first_line(path)
        try:
            text = header.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError(f"the header of {str(path)!r} is not UTF-8 text") from None
        try:
            self.names: list[str] = next(csv.reader([text], delimiter=delimiter), [])
        except csv.Error as error:
            raise ValueError(f"the header of {str(path)!r} is not a CSV record: {error}") from None
        seen: dict[str, int] = {}
        for place, name in enumerate(self.names, 1):
            if name in seen:  # it is not shown: a file without a header begins with a row
                raise ValueError(
                    f"columns {seen[name]} and {place} have one name in the header of {str(path)!r}"
                )
            seen[name] = place
        if not self.names:
            raise ValueError(f"expected a header line in {str(path)!r}, got an empty line")
        self._fields = len(self.names)
        self._blank = self._delimiter * (self._fields - 1)
        self._record = _record_pattern(self._delimiter, self._fields)
        if not self._pending:
            self._fill()
        if not self._pending:
            raise ValueError(f"expected rows in {str(path)!r}, got a header and no row")

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Yield ``(text, count)``: whole lines, each a record that parses, and their number."""
        too_long = False
        while True:
            cut = self._pending.rfind(b"\n") + 1
            if cut:
                block, self._pending = self._pending[:cut], self._pending[cut:]
                if too_long:  # the rest of an overlong line: keep its slot as an empty line
                    block = block[block.find(b"\n") :]
                    too_long = False
                yield self._clean(block)
            elif self._ended:
                if self._pending or too_long:
                    yield self._clean(b"\n" if too_long else self._pending + b"\n")
                return
            if len(self._pending) > _MAX_LINE:
                self._pending, too_long = b"", True
            if not self._ended:
                self._fill()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _fill(self) -> None:
        with readable(self._name):
            data: Any = self._stream.read(_BLOCK)
        self._ended = not data
        self._pending += data

    def _first_line(self, path: str | Path) -> bytes:
        while b"\n" not in self._pending and not self._ended:
            if len(self._pending) > _MAX_LINE:
                raise ValueError(f"expected a header line in {str(path)!r}, got no line end")
            self._fill()
        if not self._pending:
            raise ValueError(f"expected a header and rows, got an empty file: {str(path)!r}")
        header, _, self._pending = self._pending.partition(b"\n")
        return header.rstrip(b"\r")

    def _clean(self, block: bytes) -> tuple[bytes, int]:
        counts = self._count_delimiters(block)
        if counts is not None:
            lengths = np.diff(_positions(block, b"\n"), prepend=-1)
            bad = np.flatnonzero((counts != self._fields - 1) | (lengths > _MAX_LINE))
            if bad.size == 0:
                return block, counts.size
            lines = block[:-1].split(b"\n")
        else:
            lines = block[:-1].split(b"\n")
            bad = np.flatnonzero([not self._is_record(line) for line in lines])
        for index in bad:
            lines[index] = self._blank
        return b"\n".join(lines) + b"\n", len(lines)

    def _is_record(self, line: bytes) -> bool:
        return len(line) < _MAX_LINE and self._record.fullmatch(line) is not None and _is_utf8(line)

    def _count_delimiters(self, block: bytes) -> npt.NDArray[np.int64] | None:
        """Count the delimiters of each line outside quotes; None for a block that needs a regex.

        It handles UTF-8 blocks without lone carriage returns in which each pair of quotes encloses
        a whole field on one line.
        """
        if block.count(b"\r") != block.count(b"\r\n") or not _is_utf8(block):
            return None
        ends = _positions(block, b"\n")
        delimiters = _positions(block, self._delimiter)
        counts = np.diff(np.searchsorted(delimiters, ends), prepend=0)
        if b'"' not in block:
            return counts
        quotes = _positions(block, b'"')
        if quotes.size % 2:
            return None
        opening, closing = quotes[0::2], quotes[1::2]
        line = np.searchsorted(ends, opening)
        bytes_ = np.frombuffer(block, dtype=np.uint8)
        before = bytes_[opening - 1]  # at 0 this wraps to the last byte, a line end
        after = bytes_[closing + 1]
        d = self._delimiter[0]
        if not (
            np.array_equal(line, np.searchsorted(ends, closing))
            and np.all((before == d) | (before == 10))
            and np.all((after == d) | (after == 10) | (after == 13))
        ):
            return None
        inside = np.searchsorted(delimiters, closing) - np.searchsorted(delimiters, opening)
        np.subtract.at(counts, line, inside)
        return counts


def arrow_input(text: bytes) -> Any:
    """Return whole lines as an input for Arrow's parser.

    Arrow drops a byte order mark at the start of its input. Here the mark is part of a cell, and
    without it a following quote would begin a quoted field; so a second mark is prepended.
    """
    import pyarrow as pa

    return pa.BufferReader(_BYTE_ORDER_MARK + text if text.startswith(_BYTE_ORDER_MARK) else text)


def _positions(block: bytes, byte: bytes) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == byte[0])


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _record_pattern(delimiter: bytes, fields: int) -> re.Pattern[bytes]:
    d = re.escape(delimiter)
    # a quoted field (quotes doubled inside), or one that does not begin with a quote
    field = rb'(?:"[^"\r]*(?:""[^"\r]*)*"|(?:[^"\r%b][^\r%b]*)?)' % (d, d)
    return re.compile(rb"%b(?:%b%b){%d}\r?" % (field, d, field, fields - 1))
