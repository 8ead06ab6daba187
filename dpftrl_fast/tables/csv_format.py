# SPDX-License-Identifier: Apache-2.0
"""Public facts about the text of a CSV file: its delimiter, its encoding and its numbers."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any, TypedDict

from dpftrl_fast._validate import shown

_UTF_8 = ("utf-8", "utf-8-sig")


class CsvOptions(TypedDict, total=False):
    r"""Options of CSV files; None stands for the default of each.

    Attributes
    ----------
    delimiter : str or None
        One ASCII character, or the two characters ``\t`` for a tab. Default: a comma, or a tab for
        ``.tsv``.
    encoding : str or None
        A text encoding of Python, such as "cp1252" or "utf-16". Default: that of the byte order
        mark at the start of the file, or UTF-8 without one.
    decimal : str or None
        Decimal mark of numbers. Default: a point.
    thousands : str or None
        Mark between the digits of whole parts, such as "," in "1,234.5". Default: none.
    """

    delimiter: str | None
    encoding: str | None
    decimal: str | None
    thousands: str | None


def _check_mark(name: str, mark: Any) -> None:
    if not (
        isinstance(mark, str)
        and len(mark) == 1
        and not mark.isalnum()
        and mark not in '+-"\r\n\t\0'
        and mark.isprintable() | mark.isspace()
    ):
        raise ValueError(
            f"{name} must be one character that is no digit, letter, sign or quote, "
            f"got {shown(mark)}"
        )


@dataclass(frozen=True)
class NumberFormat:
    """Marks within numbers.

    Parameters
    ----------
    decimal : str
        Decimal mark.
    thousands : str or None
        Mark between groups of digits, None for none. The last group has three digits, those before
        it two or three.

    Raises
    ------
    ValueError
        If a mark is not one character, a character that numbers may hold, or both are the same.

    Examples
    --------
    >>> NumberFormat(decimal=",", thousands=".")
    NumberFormat(decimal=',', thousands='.')
    """

    decimal: str = "."
    thousands: str | None = None

    def __post_init__(self) -> None:
        _check_mark("decimal", self.decimal)
        if self.decimal.isspace():
            raise ValueError(f"decimal must be no space, got {self.decimal!r}")
        if self.thousands is not None:
            _check_mark("thousands", self.thousands)
            if self.thousands == self.decimal:
                raise ValueError(
                    f"decimal and thousands must differ, got {self.decimal!r} for both"
                )


PLAIN_NUMBERS = NumberFormat()


@dataclass(frozen=True)
class CsvFormat:
    r"""Checked `CsvOptions`; `codec` is Python's name of the encoding, None for the default one.

    Raises
    ------
    ValueError
        If an option is not as `CsvOptions` describes it.

    Examples
    --------
    >>> CsvFormat.of({"delimiter": "\\t", "decimal": ","}, default_delimiter=",")
    CsvFormat(delimiter='\t', codec=None, numbers=NumberFormat(decimal=',', thousands=None))
    """

    delimiter: str = ","
    codec: str | None = None
    numbers: NumberFormat = PLAIN_NUMBERS

    @classmethod
    def of(cls, options: CsvOptions, *, default_delimiter: str) -> CsvFormat:
        """Check the options that were given."""
        given: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
        unknown = given.keys() - CsvOptions.__annotations__.keys()
        if unknown:
            raise TypeError(
                f"options of CSV must be among {', '.join(CsvOptions.__annotations__)}, "
                f"got {min(unknown)!r}"
            )
        delimiter = given.pop("delimiter", default_delimiter)
        if delimiter == r"\t":
            delimiter = "\t"
        if not (
            isinstance(delimiter, str)
            and len(delimiter) == 1
            and delimiter.isascii()
            and delimiter not in '"\r\n\0'
        ):
            raise ValueError(f"delimiter must be one ASCII character, got {shown(delimiter)}")
        encoding = given.pop("encoding", None)
        codec = None if encoding is None else codec_of(encoding)
        return cls(delimiter, codec, NumberFormat(**given))


def codec_of(encoding: Any) -> str | None:
    """Return Python's name of a text encoding; None for UTF-8.

    Raises
    ------
    ValueError
        If Python has no such encoding, or one in which a line end may be part of another character.

    Examples
    --------
    >>> codec_of("Latin1"), codec_of("UTF8"), codec_of("utf-16")
    ('iso8859-1', None, 'utf-16')
    """
    text = "a\n1"
    try:
        found = codecs.lookup(encoding)
        name = str(found.name)
        if name in _UTF_8:
            return None
        end = "\n".encode(unmarked(name))
        parts = text.encode(unmarked(name)).split(end)
        usable = [part.decode(unmarked(name)) for part in parts] == ["a", "1"]
    except (LookupError, TypeError, ValueError):
        usable = False
    if not (usable and len(end.strip(b"\0")) == 1):
        raise ValueError(
            "encoding must be a text encoding of Python, such as utf-8, cp1252, latin-1 or utf-16, "
            f"got {shown(encoding)}"
        )
    return name


def unmarked(codec: str) -> str:
    """Return the name of a codec that writes no byte order mark: little endian, where it matters.

    Examples
    --------
    >>> unmarked("utf-16"), unmarked("cp1252")
    ('utf-16-le', 'cp1252')
    """
    return f"{codec}-le" if codec in ("utf-16", "utf-32") else codec
