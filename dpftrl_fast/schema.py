# SPDX-License-Identifier: Apache-2.0
"""The schema of a table: facts that are declared in public, never learned from the rows.

A schema says how many row slots there are, which columns are numeric (with bounds) and which are
categorical (with their categories), what is predicted, and by what public number rows are divided.
Everything that shapes the computation (the number of features, which batch a row is in, the number
of steps) follows from it, so none of it depends on what a private row holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

__all__ = ["CategoricalColumn", "LabelTarget", "NumericColumn", "Schema", "SchemaError"]

SCHEMA_VERSION = 1


class SchemaError(ValueError):
    """A schema that cannot be used; the message says which entry and why."""


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
        """Return the entry as it stands in a schema file, without the name."""
        entry: dict[str, Any] = {"bounds": [self.low, self.high], "divisor": self.divisor}
        if self.offset:
            entry["offset"] = self.offset
        return entry


@dataclass(frozen=True)
class CategoricalColumn:
    """A categorical column, one indicator feature per declared category.

    Categories are compared as text, so ``1`` and ``"1"`` are the same category.
    """

    name: str
    categories: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as it stands in a schema file, without the name."""
        return {"categories": list(self.categories)}


@dataclass(frozen=True)
class LabelTarget(CategoricalColumn):
    """The target of a classification: two categories, the second is the positive class."""


@dataclass(frozen=True)
class Schema:
    """Declared, public facts about a table (see the module's text and ``docs/cli.md``).

    Parameters
    ----------
    rows : int
        Number of row slots n. Steps are ceil(n / batch size). Slots that the file does not fill
        are empty (they count as zero); a file with more rows is refused.
    target : NumericColumn or LabelTarget
        What is predicted.
    columns : tuple of NumericColumn and CategoricalColumn
        The features, in this order.
    intercept : bool
        Whether a constant feature 1 is appended.
    row_norm_bound : float or None
        Rows are divided by this number and rows whose norm is still above 1 are scaled to norm 1.
        None takes the largest norm that the declared bounds allow, so nothing is cut.

    Examples
    --------
    >>> schema = Schema.from_dict({
    ...     "version": 1, "rows": 1000,
    ...     "target": {"name": "pay", "bounds": [0, 100]},
    ...     "columns": {"age": {"bounds": [18, 70]}, "town": {"categories": ["A", "B"]}},
    ... })
    >>> schema.feature_names
    ('age', 'town=A', 'town=B', 'intercept')
    """

    rows: int
    target: NumericColumn | LabelTarget
    columns: tuple[NumericColumn | CategoricalColumn, ...]
    intercept: bool = True
    row_norm_bound: float | None = None

    @property
    def task(self) -> Literal["regression", "classification"]:
        """What the target asks for."""
        return "classification" if isinstance(self.target, LabelTarget) else "regression"

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features in the order of the coefficients."""
        names: list[str] = []
        for column in self.columns:
            if isinstance(column, NumericColumn):
                names.append(column.name)
            else:
                names.extend(f"{column.name}={category}" for category in column.categories)
        if self.intercept:
            names.append("intercept")
        return tuple(names)

    @property
    def n_features(self) -> int:
        """Number of coefficients p."""
        widths = (
            len(c.categories) if isinstance(c, CategoricalColumn) else 1 for c in self.columns
        )
        return sum(widths) + int(self.intercept)

    @property
    def largest_row_norm(self) -> float:
        """The largest norm of an unscaled row that the declared bounds allow."""
        squares = (c.largest**2 if isinstance(c, NumericColumn) else 1.0 for c in self.columns)
        return math.sqrt(sum(squares) + float(self.intercept))

    @property
    def row_scale(self) -> float:
        """The public number that every row is divided by."""
        return self.largest_row_norm if self.row_norm_bound is None else self.row_norm_bound

    @property
    def file_columns(self) -> tuple[str, ...]:
        """Columns that must be in the file, the target last."""
        return (*(column.name for column in self.columns), self.target.name)

    def with_rows(self, rows: int) -> Schema:
        """Return the same schema with another number of row slots."""
        return replace(self, rows=_rows(rows))

    def with_target(self, name: str) -> Schema:
        """Return the schema that predicts the declared numeric column `name`.

        The column leaves the features; the former target does not become one.
        """
        if name == self.target.name:
            return self
        for column in self.columns:
            if column.name == name and isinstance(column, NumericColumn):
                rest = tuple(other for other in self.columns if other is not column)
                if not rest and not self.intercept:
                    raise SchemaError(f"no feature is left when {name!r} is the target")
                return replace(self, target=column, columns=rest)
        raise SchemaError(
            f"target must be a numeric column declared in the schema with its bounds, got {name!r}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as plain data; `from_dict` reads it back."""
        return {
            "version": SCHEMA_VERSION,
            "rows": self.rows,
            "target": {"name": self.target.name, **self.target.to_dict()},
            "columns": {column.name: column.to_dict() for column in self.columns},
            "intercept": self.intercept,
            "row_norm_bound": self.row_norm_bound,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schema:
        """Check plain data (from YAML or JSON) and build the schema.

        Raises
        ------
        SchemaError
            Says which entry is wrong, what was expected and what came.
        """
        top = _mapping(data, "schema")
        known = ("version", "rows", "task", "target", "columns", "intercept", "row_norm_bound")
        _known_keys(top, known, "schema")
        if top.get("version", SCHEMA_VERSION) != SCHEMA_VERSION:
            raise SchemaError(f"version must be {SCHEMA_VERSION}, got {top['version']!r}")
        for key in ("rows", "target", "columns"):
            if key not in top:
                raise SchemaError(f"schema must have the entry {key!r}, got {sorted(top)}")
        target = _target(top["target"])
        entries = _mapping(top["columns"], "columns")
        columns = tuple(_column(name, entry) for name, entry in entries.items())
        if target.name in entries:
            raise SchemaError(f"the target {target.name!r} must not be among the columns")
        intercept = top.get("intercept", True)
        if not isinstance(intercept, bool):
            raise SchemaError(f"intercept must be true or false, got {intercept!r}")
        if not columns and not intercept:
            raise SchemaError("a schema needs at least one column or the intercept")
        bound = top.get("row_norm_bound")
        if bound is not None:
            bound = _number(bound, "row_norm_bound")
            if not bound > 0:
                raise SchemaError(f"row_norm_bound must be > 0, got {bound}")
        schema = cls(_rows(top["rows"]), target, columns, intercept, bound)
        try:
            usable = math.isfinite((schema.largest_row_norm / schema.row_scale) ** 2)
        except OverflowError:
            usable = False
        if not usable:
            raise SchemaError("the declared bounds allow rows whose norm overflows")
        if top.get("task", schema.task) != schema.task:
            raise SchemaError(
                f"task must be {schema.task!r} for a target with "
                f"{'bounds' if schema.task == 'regression' else 'categories'}, got {top['task']!r}"
            )
        return schema

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Read a schema from a ``.json``, ``.yaml`` or ``.yml`` file."""
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix not in (".json", ".yaml", ".yml"):
            raise SchemaError(f"a schema file ends in .yaml, .yml or .json, got {str(path)!r}")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise SchemaError(f"a schema is UTF-8 text, got other bytes in {str(path)!r}") from None
        data = _from_json(text) if suffix == ".json" else _from_yaml(text)
        try:
            return cls.from_dict(data)
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from None


def _from_json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise SchemaError(f"{key!r} stands twice in one mapping")
            seen[key] = value
        return seen

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise SchemaError(f"not valid JSON: {error}") from None


def _from_yaml(text: str) -> Any:
    import yaml

    class UniqueKeys(yaml.SafeLoader):
        """A safe loader that refuses a key given twice (YAML's default keeps the last)."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key_node, _ in node.value:
                key = str(self.construct_object(key_node, deep=True))
                if key in seen:
                    raise SchemaError(f"{key!r} stands twice in one mapping")
                seen.add(key)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader=UniqueKeys)
    except yaml.YAMLError as error:
        raise SchemaError(f"not valid YAML: {error}") from None


def _mapping(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise SchemaError(f"{where} must be a mapping, got {type(data).__name__}")
    for key in data:
        if not isinstance(key, str) or not key:
            raise SchemaError(f"names in {where} must be text (quote them in YAML), got {key!r}")
    return data


def _known_keys(data: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in data:
        if key not in known:
            raise SchemaError(f"unknown entry {key!r} in {where}; known: {', '.join(known)}")


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = " (in YAML write 1.0e-6, not 1e-6)" if isinstance(value, str) else ""
        raise SchemaError(f"{where} must be a finite number, got {value!r}{hint}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SchemaError(f"{where} must be a finite number, got {value!r}")
    return number


def _rows(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not value >= 1:
        raise SchemaError(f"rows must be a declared whole number >= 1, got {value!r}")
    return value


def _numeric(name: str, entry: Mapping[str, Any]) -> NumericColumn:
    bounds = entry["bounds"]
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        raise SchemaError(f"bounds of {name!r} must be [low, high], got {bounds!r}")
    if any(bound is None for bound in bounds):
        raise SchemaError(
            f"bounds of {name!r} must be filled in from public knowledge, got {list(bounds)}"
        )
    low, high = (_number(bound, f"a bound of {name!r}") for bound in bounds)
    if not low < high:
        raise SchemaError(f"bounds of {name!r} must have low < high, got [{low}, {high}]")
    offset = _number(entry.get("offset", 0.0), f"offset of {name!r}")
    reach = max(abs(low - offset), abs(high - offset))
    given = entry.get("divisor")
    divisor = reach if given is None else _number(given, f"divisor of {name!r}")
    if not divisor > 0:
        raise SchemaError(f"divisor of {name!r} must be > 0, got {divisor}")
    if not math.isfinite(reach / divisor):
        raise SchemaError(f"bounds of {name!r} overflow when they are divided by {divisor}")
    return NumericColumn(name, low, high, divisor, offset)


def _categories(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise SchemaError(f"categories of {name!r} must be a non-empty list, got {value!r}")
    texts: list[str] = []
    for item in value:
        if isinstance(item, bool) or not isinstance(item, (str, int)):
            raise SchemaError(
                f"categories of {name!r} must be text or whole numbers "
                f"(quote words like no, yes, on in YAML), got {item!r}"
            )
        if str(item) in texts:
            raise SchemaError(f"category {item!r} of {name!r} stands twice")
        texts.append(str(item))
    return tuple(texts)


def _column(name: str, entry: Any) -> NumericColumn | CategoricalColumn:
    entry = _mapping(entry, f"column {name!r}")
    if "bounds" in entry and "categories" in entry:
        raise SchemaError(f"column {name!r} must have bounds or categories, got both")
    if "bounds" in entry:
        _known_keys(entry, ("bounds", "divisor", "offset"), f"column {name!r}")
        return _numeric(name, entry)
    if "categories" in entry:
        _known_keys(entry, ("categories",), f"column {name!r}")
        return CategoricalColumn(name, _categories(name, entry["categories"]))
    raise SchemaError(
        f"column {name!r} must declare public bounds: [low, high] or categories: [...], "
        f"got {dict(entry)}"
    )


def _target(entry: Any) -> NumericColumn | LabelTarget:
    entry = _mapping(entry, "target")
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise SchemaError(f"target must have a name, got {name!r}")
    rest = {key: value for key, value in entry.items() if key != "name"}
    column = _column(name, rest)
    if isinstance(column, NumericColumn):
        return column
    if len(column.categories) != 2:
        raise SchemaError(
            f"a classification target has two categories [negative, positive], "
            f"got {len(column.categories)}"
        )
    return LabelTarget(name, column.categories)
