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
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpftrl_fast.tables.csv_format import CsvFormat
from dpftrl_fast.tables.damaged import readable
from dpftrl_fast.tables.header import header_names
from dpftrl_fast.tables.raw_text import START, first_line, marked_text

#: Path of the standard input.
STANDARD_INPUT = "-"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK = 1 << 22
_MAX_LINE = 1 << 20

#: Faults of the lines of a block that are no record, by their places in it.
Faults: TypeAlias = dict[int, str]
FEWER_FIELDS = "line with fewer fields than the header"
MORE_FIELDS = "line with more fields than the header"
BLANK = "blank line"
QUOTES = "line with a quote that is not closed, or with text after a closed one"
CARRIAGE_RETURN = "line with a carriage return or another line end inside"
NOT_TEXT = "line that is not text in the encoding of the file"
TOO_LONG = "line longer than 1 MiB"


class CsvLines:
    """Blocks of CSV records in file order, each record exactly one line of the file.

    Parameters
    ----------
    path : str or Path
        A CSV file with a header line; ``.gz``, ``.bz2`` and ``.zst`` are unpacked. "-" is the
        standard input. Its first line tells whether lines end with a line feed (also after a
        carriage return) or with a carriage return alone.
    form : CsvFormat
        Delimiter and encoding.
    may_lack_rows : bool
        Whether a header alone is a file.

    Attributes
    ----------
    names : list of str
        The header.

    Raises
    ------
    ValueError
        If the file has no header or no record, or a name occurs twice in the header.
    """

    def __init__(self, path: str | Path, form: CsvFormat, *, may_lack_rows: bool = False) -> None:
        import pyarrow as pa

        self.delimiter = form.delimiter
        self._delimiter = form.delimiter.encode()
        self._name = repr(str(path))
        self._stream = (
            pa.PythonFile(sys.stdin.buffer, mode="r")
            if str(path) == STANDARD_INPUT
            else pa.input_stream(str(path), compression="detect")
        )
        self._pending = b""
        self._ended = False
        header = self._header(form.codec)
        self.names = header_names(header, self._raw, form.delimiter, self._name)
        self._fields = len(self.names)
        self._blank = self._delimiter * (self._fields - 1)
        self._record = _record_pattern(self._delimiter, self._fields)
        self._any_record = _record_pattern(self._delimiter, None)
        if not self._pending:
            self._fill()
        if not (self._pending or may_lack_rows):
            raise ValueError(f"expected rows in {self._name}, got a header and no row")

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Yield ``(text, count)``: whole lines, each a record that parses, and their number."""
        for text, count, _ in self._blocks(explain=False):
            yield text, count

    def explained(self) -> Iterator[tuple[bytes, int, Faults]]:
        """Yield the blocks with the faults of lines that are no record: NOT private."""
        return self._blocks(explain=True)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _blocks(self, *, explain: bool) -> Iterator[tuple[bytes, int, Faults]]:
        raw = self._raw
        too_long = False
        while True:
            cut = raw.cut(self._pending)
            if cut:
                block, self._pending = self._pending[:cut], self._pending[cut:]
                if too_long:  # the rest of an overlong line: keep its slot as an empty line
                    block = block[raw.first(block) :]
            elif self._ended:
                if not self._pending and not too_long:
                    return
                block = b"" if too_long else self._pending[: raw.whole(self._pending)]
                block, self._pending = block + raw.end, b""
            else:
                block = b""
            if block:
                lines = raw.utf8(block, _MAX_LINE)
                text, count, bad = self._clean(lines)
                faults = self._explained(lines, bad) if explain else {}
                if too_long and explain:
                    faults[0] = TOO_LONG
                too_long = False
                yield text, count, faults
            if len(self._pending) > raw.longest(_MAX_LINE):
                self._pending, too_long = self._pending[raw.whole(self._pending) :], True
            if not self._ended:
                self._fill()

    def _fill(self) -> None:
        with readable(self._name):
            data: Any = self._stream.read(_BLOCK)
        self._ended = not data
        self._pending += data

    def _header(self, codec: str | None) -> bytes:
        """Read the first line, which tells the encoding and the line ends of the file."""
        while len(self._pending) < START and not self._ended:
            self._fill()
        raw, mark = marked_text(self._pending[:START], codec, self._name)
        self._pending = self._pending[mark:]
        if not self._pending and not self._ended:
            self._fill()
        if not self._pending:
            raise ValueError(f"expected a header and rows, got an empty file: {self._name}")
        while (found := first_line(self._pending, raw, self._name, ended=self._ended)) is None:
            if len(self._pending) > _MAX_LINE:
                raise ValueError(f"expected a header line in {self._name}, got no line end")
            self._fill()
        self._raw, end = found
        if end < 0:
            header, self._pending = self._pending, b""
        else:
            header = self._pending[:end]
            self._pending = self._pending[end + len(raw.end) :]
        return header

    def _clean(self, block: bytes) -> tuple[bytes, int, npt.NDArray[np.int64]]:
        """Return the block with its bad lines made blank, the number of lines, the bad lines."""
        counts = self._count_delimiters(block)
        if counts is not None:
            lengths = np.diff(_positions(block, b"\n"), prepend=-1)
            bad = np.flatnonzero((counts != self._fields - 1) | (lengths > _MAX_LINE))
            if bad.size == 0:
                return block, counts.size, bad
            lines = block[:-1].split(b"\n")
        else:
            lines = block[:-1].split(b"\n")
            bad = np.flatnonzero([not self._is_record(line) for line in lines])
        for index in bad:
            lines[index] = self._blank
        return b"\n".join(lines) + b"\n", len(lines), bad

    def _explained(self, block: bytes, bad: npt.NDArray[np.int64]) -> Faults:
        lines = block.split(b"\n") if bad.size else []
        return {int(i): self._fault(lines[i]) for i in bad}

    def _fault(self, line: bytes) -> str:
        line = line.removesuffix(b"\r")
        if len(line) >= _MAX_LINE:
            return TOO_LONG
        if not _is_utf8(line):
            return NOT_TEXT
        if b"\r" in line:
            return CARRIAGE_RETURN
        if not line.strip():
            return BLANK
        if b'"' in line and self._any_record.fullmatch(line) is None:
            return QUOTES
        try:
            fields = next(csv.reader([line.decode()], delimiter=self.delimiter))
            count = len(fields)
        except csv.Error:  # a field beyond the limit of this parser
            count = line.count(self._delimiter) + 1
        return FEWER_FIELDS if count < self._fields else MORE_FIELDS

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


def _record_pattern(delimiter: bytes, fields: int | None) -> re.Pattern[bytes]:
    d = re.escape(delimiter)
    # a quoted field (quotes doubled inside), or one that does not begin with a quote
    field = rb'(?:"[^"\r]*(?:""[^"\r]*)*"|(?:[^"\r%b][^\r%b]*)?)' % (d, d)
    further = b"*" if fields is None else b"{%d}" % (fields - 1)
    return re.compile(rb"%b(?:%b%b)%b\r?" % (field, d, field, further))
