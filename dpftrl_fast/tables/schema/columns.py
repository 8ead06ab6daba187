# SPDX-License-Identifier: Apache-2.0
"""Columns of a table, and their encoding as features."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpftrl_fast._validate import shown
from dpftrl_fast.tables.schema.entries import (
    SchemaError,
    check_text,
    known_keys,
    mapping,
    number,
    positive,
)


@dataclass(frozen=True)
class NumericColumn:
    """A numeric column (or target): ``(clip(value, low, high) - offset) / divisor``.

    Parameters
    ----------
    name : str
        Name of the column in the file.
    low, high : float
        Public bounds; values beyond them are clipped.
    divisor : float
        Public scale, > 0.
    offset : float
        Public centre, subtracted before the division.
    """

    name: str
    low: float
    high: float
    divisor: float
    offset: float = 0.0

    @property
    def largest(self) -> float:
        """Largest absolute value of the scaled column."""
        return max(abs(self.low - self.offset), abs(self.high - self.offset)) / self.divisor

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of a schema file, without the name."""
        return {
            "bounds": [self.low, self.high],
            "divisor": self.divisor,
            "offset": self.offset,
        }


@dataclass(frozen=True)
class CategoricalColumn:
    """A categorical column, one indicator feature per declared category.

    Categories are compared as text, so ``1`` and ``"1"`` are the same category.
    """

    name: str
    categories: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of a schema file, without the name."""
        return {"categories": list(self.categories)}


@dataclass(frozen=True)
class LabelTarget(CategoricalColumn):
    """Target of a classification: its labels in class order; of two the second is positive."""


def _numeric(name: str, entry: Mapping[str, Any], centred: bool) -> NumericColumn:
    bounds = entry["bounds"]
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        raise SchemaError(f"bounds of {name!r} must be [low, high], got {shown(bounds)}")
    if any(bound is None for bound in bounds):
        raise SchemaError(
            f"bounds of {name!r} must be filled in from public knowledge, got {shown(list(bounds))}"
        )
    low, high = (number(bound, f"a bound of {name!r}") for bound in bounds)
    if not low < high:
        raise SchemaError(f"bounds of {name!r} must have low < high, got [{low}, {high}]")
    centre = low / 2.0 + high / 2.0 if centred else 0.0
    offset = number(entry.get("offset", centre), f"offset of {name!r}")
    reach = max(abs(low - offset), abs(high - offset))
    given = entry.get("divisor")
    divisor = reach if given is None else positive(given, f"divisor of {name!r}")
    if not math.isfinite(reach / divisor):
        raise SchemaError(f"bounds of {name!r} overflow when they are divided by {divisor}")
    return NumericColumn(name, low, high, divisor, offset)


def _categories(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise SchemaError(f"categories of {name!r} must be a non-empty list, got {shown(value)}")
    texts: dict[str, None] = {}  # ordered, with fast lookup
    for item in value:
        if isinstance(item, bool) or not isinstance(item, (str, int)):
            raise SchemaError(
                f"categories of {name!r} must be text or whole numbers "
                f"(quote words like no, yes, on in YAML), got {shown(item)}"
            )
        if isinstance(item, str):
            check_text(item, f"categories of {name!r}")
        if isinstance(item, int) and item.bit_length() > 1024:
            raise SchemaError(f"categories of {name!r} must be short, got an integer of 1024 bits")
        if str(item) in texts:
            raise SchemaError(f"category {shown(item)} of {name!r} stands twice")
        texts[str(item)] = None
    return tuple(texts)


def read_column(
    name: str, entry: Any, *, centred: bool = True
) -> NumericColumn | CategoricalColumn:
    """Return the column declared by an entry.

    With `centred`, the default offset of a numeric column is the middle of its bounds, otherwise 0.
    """
    entry = mapping(entry, f"column {name!r}")
    if "bounds" in entry and "categories" in entry:
        raise SchemaError(f"column {name!r} must have bounds or categories, got both")
    if "bounds" in entry:
        known_keys(entry, ("bounds", "divisor", "offset"), f"column {name!r}")
        return _numeric(name, entry, centred)
    if "categories" in entry:
        known_keys(entry, ("categories",), f"column {name!r}")
        return CategoricalColumn(name, _categories(name, entry["categories"]))
    raise SchemaError(
        f"column {name!r} must declare public bounds: [low, high] or categories: [...], "
        f"got {shown(dict(entry))}"
    )


def read_target(entry: Any, *, centred: bool = True) -> NumericColumn | LabelTarget:
    """Return the declared target."""
    entry = mapping(entry, "target")
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise SchemaError(f"target must have a name, got {shown(name)}")
    rest = {key: value for key, value in entry.items() if key != "name"}
    column = read_column(name, rest, centred=centred)
    if isinstance(column, NumericColumn):
        return column
    if len(column.categories) < 2:
        raise SchemaError(
            "a classification target must have at least two categories (of two: [negative, "
            f"positive]), got {len(column.categories)}"
        )
    return LabelTarget(name, column.categories)
