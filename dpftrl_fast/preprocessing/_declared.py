# SPDX-License-Identifier: Apache-2.0
"""Declared bounds and categories of columns, from each form that `BoundedScaler` takes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from dpftrl_fast._validate import real, shown
from dpftrl_fast.tables.schema import CategoricalColumn, NumericColumn, Schema
from dpftrl_fast.tables.schema.columns import read_column
from dpftrl_fast.tables.values import category_form


@dataclass(frozen=True)
class Numeric:
    """A numeric column: values are clipped to [low, high], `centre` becomes 0."""

    low: float
    high: float
    missing: float = 0.0  # in [-1, 1]

    @property
    def centre(self) -> float:
        """Middle of the bounds."""
        return self.low / 2 + self.high / 2

    @property
    def half_width(self) -> float:
        """Half of the distance of the bounds."""
        return self.high / 2 - self.low / 2

    @property
    def width(self) -> int:
        """Number of output columns."""
        return 1


@dataclass(frozen=True)
class Categories:
    """A categorical column: one indicator per declared category, of which at most one is 1."""

    names: tuple[str, ...]
    missing: int = -1  # code of a missing cell

    @property
    def width(self) -> int:
        """Number of output columns."""
        return len(self.names)


Column: TypeAlias = Numeric | Categories


@dataclass(frozen=True)
class Declared:
    """Declared columns; `names` is None where they have none.

    With `every` the single column stands for any number of columns.
    """

    columns: tuple[Column, ...]
    names: tuple[str, ...] | None = None
    every: bool = False

    def for_width(self, width: int) -> tuple[Column, ...]:
        """Return one column for each of `width` input columns."""
        if self.every:
            return self.columns * width
        if len(self.columns) != width:
            raise ValueError(f"X must have {len(self.columns)} columns, as declared, got {width}")
        return self.columns


def declared(bounds: Any, missing: Any = None) -> Declared:
    """Read the `bounds` of a scaler.

    Examples
    --------
    >>> declared((0, 10)).columns[0].half_width, declared({"town": ["A", "B"]}).names
    (5.0, ('town',))
    """
    if isinstance(bounds, (str, os.PathLike)):
        bounds = Schema.load(os.fspath(bounds))
    if isinstance(bounds, Schema):
        bounds = {column.name: column for column in bounds.columns}
    if isinstance(bounds, Mapping):
        names = tuple(bounds)
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"names of columns must be text, got {shown(name)}")
        columns = [_column(repr(name), entry) for name, entry in bounds.items()]
        return _with_missing(Declared(tuple(columns), names), missing)
    entries = _listed("bounds", bounds)
    if len(entries) == 2 and all(_is_number(entry) for entry in entries):
        return _with_missing(Declared((_column("every column", entries),), every=True), missing)
    columns = [_column(f"column {place}", entry) for place, entry in enumerate(entries)]
    return _with_missing(Declared(tuple(columns)), missing)


def _listed(name: str, value: Any) -> list[Any]:
    """Return a sequence as a list; sets are refused, since they have no order."""
    if isinstance(value, (str, bytes, set, frozenset)) or not isinstance(value, Iterable):
        raise TypeError(
            f"{name} must be (low, high), a list of categories, a sequence or a mapping of these, "
            f"a schema or its path, got {shown(value)}"
        )
    found = [*value]
    if not found:
        raise ValueError(f"{name} must declare at least one column or category, got none")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (Real, np.number)) and not isinstance(value, (bool, np.bool_))


def _column(name: str, entry: Any) -> Column:
    """Read one column: two numbers are bounds, any other list has categories."""
    if isinstance(entry, NumericColumn):
        return Numeric(entry.low, entry.high)
    if isinstance(entry, CategoricalColumn):
        return Categories(entry.categories)
    if isinstance(entry, Mapping):  # an entry of a schema
        found = read_column(name, entry)
        return _column(name, found)
    if entry is None:
        raise TypeError(
            f"bounds of {name} must be public facts, (low, high) or a list of categories, got "
            "None: fill them in, or leave the column out"
        )
    values = _listed(f"bounds of {name}", entry)
    if len(values) == 2 and all(_is_number(value) for value in values):
        low, high = (real(f"a bound of {name}", value) for value in values)
        if not low < high:
            raise ValueError(f"bounds of {name} must have low < high, got [{low}, {high}]")
        column = Numeric(low, high)
        if not column.half_width > 0:
            raise ValueError(f"bounds of {name} must be further apart, got [{low}, {high}]")
        return column
    forms: dict[str, None] = {}
    for value in values:
        form = category_form(value)
        if form is None:
            raise ValueError(
                f"categories of {name} must be text, numbers or bool, got {shown(value)}"
            )
        if form in forms:
            raise ValueError(f"categories of {name} must differ, got {shown(value)} twice")
        forms[form] = None
    return Categories(tuple(forms))


def _with_missing(given: Declared, missing: Any) -> Declared:
    """Return the columns with the declared values of missing cells."""
    if missing is None:
        return given
    if given.every:
        return Declared((_fill("missing", given.columns[0], missing),), every=True)
    if not isinstance(missing, Mapping):
        raise TypeError(
            "missing must be a mapping of a column's name (without names: its number) to a value, "
            f"got {shown(missing)}"
        )
    places = given.names if given.names is not None else tuple(range(len(given.columns)))
    for key in missing:
        if key not in places:
            raise ValueError(f"missing must have declared columns only, got {shown(key)}")
    return Declared(
        tuple(
            _fill(f"missing of {place!r}", column, missing[place]) if place in missing else column
            for place, column in zip(places, given.columns, strict=True)
        ),
        given.names,
    )


def _fill(name: str, column: Column, value: Any) -> Column:
    if isinstance(column, Numeric):
        number = real(name, value, least=column.low, most=column.high)
        return Numeric(column.low, column.high, (number - column.centre) / column.half_width)
    form = category_form(value)
    if form is None or form not in column.names:
        raise ValueError(f"{name} must be a declared category, got {shown(value)}")
    return Categories(column.names, column.names.index(form))
