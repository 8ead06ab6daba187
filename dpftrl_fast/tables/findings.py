# SPDX-License-Identifier: Apache-2.0
"""Kinds of cells and lines that add nothing, or are clipped: NOT private, and without contents."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpftrl_fast.tables.cells import NO_NUMBER, grouped_pattern, number_of_text
from dpftrl_fast.tables.csv_format import NumberFormat
from dpftrl_fast.tables.csv_slots import NOT_TEXT

EMPTY = "empty"
MISSING_WORD = "a word for a missing number, such as NA"
NOT_FINITE = "not finite"
NO_NUMBER_AT_ALL = "not a number"
QUOTED = "quotes in the cell"
BELOW, ABOVE = "below the bounds: clipped", "above the bounds: clipped"
UNKNOWN_CATEGORY = "a category that is not declared"
NEGATIVE = "negative"
NO_CELL = "no cell of the column can be read"
SURPLUS = "row beyond those declared: the file would be refused"
ABSENT = "declared slot without a row: it adds nothing"
NOT_READ = "null, or no text"

_MARKS = ",.'\u2019 \u00a0\u202f_"
_DIGITS = {ord(digit): "0" for digit in "123456789"}
_SHORT, _MOST_SHAPES = 24, 10_000
_ENCODING = "--encoding, such as cp1252"

#: Kind of a cell, and a hint or None.
Kind: TypeAlias = tuple[str, str | None]


@dataclass
class Finding:
    """Cells (or lines, where `column` is None) of one kind: their number and the first of them."""

    column: str | None
    kind: str
    count: int
    first: int
    hint: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return {
            "column": self.column,
            "kind": self.kind,
            "count": self.count,
            "first": self.first,
            "hint": self.hint,
        }


class Findings:
    """Counts of findings over the blocks of a file.

    Examples
    --------
    >>> found = Findings(NumberFormat())
    >>> found.numbers("x", ["1,5", None], np.array([5, 10]))
    >>> [(f.kind, f.count, f.first, f.hint) for f in found]
    [('a decimal comma', 1, 5, "--decimal ','"), ('null, or no text', 1, 10, None)]
    """

    def __init__(self, form: NumberFormat) -> None:
        self._form = form
        self._kinds: dict[str, Kind] = {}
        self._found: dict[tuple[str | None, str, str | None], Finding] = {}

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found.values())

    def add(
        self, column: str | None, kind: str, places: npt.NDArray[np.int64], hint: str | None = None
    ) -> None:
        """Count the rows at these places in the file."""
        if places.size:
            self.count(column, kind, places.size, int(places.min()), hint)

    def count(
        self, column: str | None, kind: str, number: int, first: int, hint: str | None = None
    ) -> None:
        """Count so many cells or lines, whose first place in the file is given."""
        start = Finding(column, kind, 0, first, hint)
        found = self._found.setdefault((column, kind, hint), start)
        found.count += number
        found.first = min(found.first, first)

    def lines(self, faults: dict[int, str], start: int) -> None:
        """Count the lines of a block that are no record; `start` is the place of the first line."""
        kinds = [(kind, _ENCODING if kind == NOT_TEXT else None) for kind in faults.values()]
        self._add_each(None, kinds, np.array([*faults], dtype=np.int64) + start)

    def numbers(self, column: str, cells: Iterable[Any], places: npt.NDArray[np.int64]) -> None:
        """Count cells of a numeric column that are no finite number, by their kind."""
        self._add_each(column, [self._kind(cell) for cell in cells], places)

    def _kind(self, cell: Any) -> Kind:
        # Cells of digits and marks are of one kind if their marks stand at the same places.
        if not isinstance(cell, str) or len(cell) > _SHORT or cell.lower() != cell.upper():
            return kind_of_cell(cell, self._form)
        shape = cell.translate(_DIGITS)
        kind = self._kinds.get(shape)
        if kind is None:
            kind = kind_of_cell(cell, self._form)
            if len(self._kinds) < _MOST_SHAPES:
                self._kinds[shape] = kind
        return kind

    def _add_each(
        self, column: str | None, kinds: list[Kind], places: npt.NDArray[np.int64]
    ) -> None:
        for kind, number in Counter(kinds).items():
            self.count(column, kind[0], number, int(places[kinds.index(kind)]), kind[1])


def kind_of_cell(cell: Any, form: NumberFormat) -> Kind:
    """Return the kind of a cell that is no finite number, and a hint or None.

    Examples
    --------
    >>> kind_of_cell("1 234,5", NumberFormat())
    ('a mark of thousands and a decimal comma', "--thousands ' ' --decimal ','")
    >>> kind_of_cell("'7'", NumberFormat()), kind_of_cell("-inf", NumberFormat())
    (('quotes in the cell', None), ('not finite', None))
    """
    if isinstance(cell, float) and not math.isfinite(cell):
        return NOT_FINITE, None
    if not isinstance(cell, str):
        return NOT_READ, None
    text = cell.strip()
    if not text:
        return EMPTY, None
    number = number_of_text(text)
    if text in NO_NUMBER:
        return MISSING_WORD, None
    if math.isinf(number) or text.lower().lstrip("+-") == "nan":
        return NOT_FINITE, None
    marked = _marked(text, form)
    if marked is not None:
        return marked
    if text[0] in "\"'" or text[-1] in "\"'":
        return QUOTED, None
    return NO_NUMBER_AT_ALL, None


def _marked(text: str, form: NumberFormat) -> tuple[str, str] | None:
    """Return the kind of a number in other formats, and the options that read it."""
    other = "," if form.decimal == "." else "."
    name = "a decimal comma" if other == "," else "a decimal point"
    grouped = [m for m in _MARKS if m != form.decimal and _fits(text, form.decimal, m)]
    if _fits(text, other, None):
        if grouped:
            return f"a mark of thousands or {name}", f"--thousands {other!r} or --decimal {other!r}"
        return name, f"--decimal {other!r}"
    if grouped:
        return "a mark of thousands", f"--thousands {grouped[0]!r}"
    both = [m for m in _MARKS if m != other and _fits(text, other, m)]
    if both:
        return f"a mark of thousands and {name}", f"--thousands {both[0]!r} --decimal {other!r}"
    return None


def _fits(text: str, decimal: str, thousands: str | None) -> bool:
    if thousands is not None:
        return re.match(grouped_pattern(NumberFormat(decimal, thousands)), text) is not None
    mark = re.escape(decimal)
    return re.fullmatch(rf"[+-]?[0-9]+(?:{mark}[0-9]*)?(?:[eE][+-]?[0-9]+)?", text) is not None
