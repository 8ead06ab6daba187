# SPDX-License-Identifier: Apache-2.0
"""Header of a CSV file: its names, and refusals that show no row.

A file without a header begins with a private row. So a name is shown only if the line must be a
header: a declared name is in it, and no field is a number or empty.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence

from dpftrl_fast.tables.raw_text import RawText

_DELIMITERS = (",", ";", "\t", "|")
_BYTE_ORDER_MARK = "\ufeff"


def header_names(line: bytes, raw: RawText, delimiter: str, file: str) -> list[str]:
    r"""Return the names in the first line of a file.

    Raises
    ------
    ValueError
        If the line is empty, is no text, or no CSV record, or if a name occurs twice.

    Examples
    --------
    >>> header_names(b'id,"a,b"\r', RawText(), ",", "'t.csv'")
    ['id', 'a,b']
    """
    text = _text(line, raw, file)
    try:
        names: list[str] = next(csv.reader([text], delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        fault = str(error)
        if "unexpected end" in fault:
            fault = "a quote is not closed in it"
        elif "expected after" in fault:
            fault = (
                f"a quoted name is not followed by {delimiter!r}; if columns are delimited by "
                "another character, give it (--delimiter)"
            )
        raise ValueError(f"the header of {file} is not a CSV record: {fault}") from None
    if not names:
        raise ValueError(f"expected a header line in {file}, got an empty line")
    seen: dict[str, int] = {}
    for place, name in enumerate(names, 1):
        if name in seen:
            raise ValueError(
                f"columns {seen[name]} and {place} have one name in the header of {file}"
            )
        seen[name] = place
    return names


def _text(line: bytes, raw: RawText, file: str) -> str:
    utf8 = raw.utf8(line + raw.end, len(line))[:-1].rstrip(b"\r")
    try:
        text = utf8.decode()
    except UnicodeDecodeError:
        known = "UTF-8" if raw.codec is None else raw.codec
        raise ValueError(
            f"the header of {file} is not {known} text: give its encoding (--encoding), such as "
            "cp1252 or latin-1"
        ) from None
    if "\0" in text:
        raise ValueError(
            f"the header of {file} holds NUL characters: is it UTF-16? Give its encoding "
            "(--encoding), such as utf-16"
        )
    return text.removeprefix(_BYTE_ORDER_MARK)


def missing_column(
    name: str, names: Sequence[str], declared: Collection[str], delimiter: str | None, file: str
) -> str:
    """Return the refusal of a file without a column; `delimiter` is None for Parquet.

    Examples
    --------
    >>> print(missing_column("x", ["id;x"], {"x"}, ",", "'t.csv'"))
    expected one column 'x' in 't.csv', got one field in the header, which holds that name between \
';': give the delimiter (--delimiter)
    """
    expected = f"expected one column {name!r} in {file}, got "
    if name in names:
        return f"{expected}{list(names).count(name)} of that name"
    if delimiter is None:
        return f"{expected}no such column among: {', '.join(map(repr, names))}"
    count = "one field" if len(names) == 1 else f"{len(names)} fields"
    for other in _DELIMITERS:
        if other != delimiter and name in _fields(delimiter.join(names), other):
            return (
                f"{expected}{count} in the header, which holds that name between {other!r}: give "
                "the delimiter (--delimiter)"
            )
    for own in names:
        if own.strip().casefold() == name.strip().casefold():
            return f"{expected}{own!r}, which differs in case or spaces"
    if is_header(names, declared):
        return f"{expected}no such column among: {', '.join(map(repr, names))}"
    return (
        f"{expected}{count} in the first line, none of them that name; the first line must be a "
        "header"
    )


def is_header(names: Sequence[str], declared: Collection[str]) -> bool:
    """Return whether names may be shown: one is declared, and none is a number or empty.

    Examples
    --------
    >>> is_header(["id", "x"], {"x"}), is_header(["7", "x"], {"x"}), is_header(["id"], {"x"})
    (True, False, False)
    """
    return not {*names}.isdisjoint(declared) and not any(map(_may_be_a_value, names))


def _may_be_a_value(name: str) -> bool:
    return not any(character.isalpha() for character in name) or name[:1].isdigit()


def _fields(text: str, delimiter: str) -> list[str]:
    try:
        return [field.strip() for field in next(csv.reader([text], delimiter=delimiter), [])]
    except csv.Error:
        return []
