# SPDX-License-Identifier: Apache-2.0
"""Bytes of a text file cut into lines, each of which becomes UTF-8 by itself.

A decoder that reads on over a line end could let one row change another: some encodings keep a
state, and a byte that is no text may take the line end with it. So lines are cut as bytes. One that
is no text in its encoding becomes `NO_TEXT`, in its place.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpftrl_fast.tables.csv_format import unmarked

#: Line that stands for one that is no text in its encoding: no UTF-8 either.
NO_TEXT = b"\xff"
# Encodings in which each unit is decoded by itself (a pair of surrogates holds no line end). Many
# lines give the same text together as one by one; one of too many units is too long in UTF-8, too.
_UNITS = re.compile(r"iso8859-\d+|cp125\d|utf-(16|32)-[bl]e")
#: Bytes at the start of a file that tell its byte order mark, or that it is no text.
START = 10
_MARKS = (
    (codecs.BOM_UTF8, None),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins as the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_PACKED = (
    (rb"\x1f\x8b", "a gzip file, not text: add .gz to its name, or unpack it"),
    (rb"BZh[1-9]1AY&SY", "a bzip2 file, not text: add .bz2 to its name, or unpack it"),
    (rb"\x28\xb5\x2f\xfd", "a zstd file, not text: add .zst to its name, or unpack it"),
    (rb"PK\x03\x04", "a zip archive, not text: unpack it, or save a spreadsheet as CSV"),
    (rb"PAR1\x15", "a Parquet file, not text: add .parquet to its name"),
    (rb"\xd0\xcf\x11\xe0", "a document of Microsoft Office, not text: save it as CSV"),
)


@dataclass(frozen=True)
class RawText:
    r"""Lines of a file by its encoding (None for UTF-8) and its line end.

    With `carriage_returns` a line ends with a carriage return, as on the first Macs; line feeds
    are then characters of a line.

    Examples
    --------
    >>> text = RawText("utf-16-le")
    >>> text.utf8("ä\n2\n".encode("utf-16-le"), 99).decode(), text.cut(b"1\0\n\0002\0")
    ('ä\n2\n', 4)
    >>> RawText(None, carriage_returns=True).utf8(b"1\r2\n\r", 99)
    b'1\n2\r\n'
    """

    codec: str | None = None
    carriage_returns: bool = False

    @property
    def end(self) -> bytes:
        """Bytes of a line end."""
        return self._bytes("\r" if self.carriage_returns else "\n")

    def cut(self, data: bytes) -> int:
        """Return the offset after the last line end, 0 if there is none."""
        end = self.end
        if len(end) == 1:
            return data.rfind(end) + 1
        ends = self._ends(data)
        return int(ends[-1]) + len(end) if ends.size else 0

    def first(self, data: bytes) -> int:
        """Return the offset of the first line end, -1 if there is none."""
        end = self.end
        if len(end) == 1:
            return data.find(end)
        ends = self._ends(data)
        return int(ends[0]) if ends.size else -1

    def whole(self, data: bytes) -> int:
        """Return the number of bytes up to the last whole unit of the encoding."""
        return len(data) - len(data) % len(self.end)

    def longest(self, characters: int) -> int:
        """Return the most bytes of a line; UTF-8 of so many characters has no fewer than them."""
        return characters * len(self.end)

    def utf8(self, block: bytes, characters: int) -> bytes:
        """Return whole lines as UTF-8 in which a line feed ends each line.

        A line of more bytes than `longest` allows is `NO_TEXT`.
        """
        if self.codec is not None:
            if _UNITS.fullmatch(self.codec):
                whole = self._line(block, lines=True)
                if whole is not NO_TEXT:
                    return whole
            most = self.longest(characters)
            lines = [
                NO_TEXT if len(line) > most else self._line(line) for line in self._lines(block)
            ]
            block = b"\n".join([*lines, b""])
        elif self.carriage_returns:
            block = block.translate(_SWAPPED)
        return block

    def _lines(self, block: bytes) -> list[bytes]:
        end = self.end
        if len(end) == 1:
            return block[:-1].split(end)
        ends = self._ends(block).tolist()
        starts = [0, *(at + len(end) for at in ends)]
        return [block[start:at] for start, at in zip(starts, ends, strict=False)]

    def _line(self, line: bytes, *, lines: bool = False) -> bytes:
        assert self.codec is not None
        try:
            text = line.decode(self.codec)
            if self.carriage_returns:
                text = text.translate({10: "\r", 13: "\n"})
            utf8 = text.encode()
        except ValueError:
            return NO_TEXT
        return NO_TEXT if b"\n" in utf8 and not lines else utf8

    def _ends(self, data: bytes) -> npt.NDArray[np.int64]:
        end = self.end
        units = np.frombuffer(data[: self.whole(data)], np.uint8).reshape(-1, len(end))
        return np.flatnonzero((units == np.frombuffer(end, np.uint8)).all(axis=1)) * len(end)

    def _bytes(self, character: str) -> bytes:
        return character.encode("utf-8" if self.codec is None else self.codec)


_SWAPPED = bytes.maketrans(b"\r\n", b"\n\r")


def marked_text(start: bytes, codec: str | None, name: str) -> tuple[RawText, int]:
    r"""Return the text of a file by its first bytes, and the length of its byte order mark.

    Raises
    ------
    ValueError
        If the bytes are those of a packed file, or the mark is that of another encoding.

    Examples
    --------
    >>> marked_text(b"\xff\xfea\0", None, "'t.csv'")
    (RawText(codec='utf-16-le', carriage_returns=False), 2)
    """
    for pattern, words in _PACKED:
        if re.match(pattern, start):
            raise ValueError(f"{name} is {words}")
    for mark, own in _MARKS:
        if start.startswith(mark):
            if codec is None or own == codec or (own or "").startswith(f"{codec}-"):
                return RawText(own), len(mark)
            raise ValueError(
                f"{name} begins with the byte order mark of {own or 'utf-8'}, got encoding "
                f"{codec!r}: leave it out"
            )
    return RawText(None if codec is None else unmarked(codec)), 0


def first_line(data: bytes, raw: RawText, name: str, *, ended: bool) -> tuple[RawText, int] | None:
    r"""Return the text with the line end of its first line, and the offset of that end.

    None where more bytes are needed. The offset is -1 for a file of one line without an end.

    Raises
    ------
    ValueError
        If the line ends with several carriage returns and a line feed.

    Examples
    --------
    >>> first_line(b"a\r1\r", RawText(), "'t.csv'", ended=True)
    (RawText(codec=None, carriage_returns=True), 1)
    """
    lone = RawText(raw.codec, carriage_returns=True)
    feed, back = raw.first(data), lone.first(data)
    if back < 0 or 0 <= feed < back:
        return (raw, feed) if feed >= 0 or ended else None
    size = len(raw.end)
    after = back + size
    while data[after : after + size] == lone.end:
        after += size
    if len(data) < after + size and not ended:
        return None
    if data[after : after + size] != raw.end:
        return lone, back
    if after > back + size:
        raise ValueError(
            f"lines of {name} must end with a line feed, a carriage return or both, got several "
            "carriage returns and a line feed after the header"
        )
    return raw, after
