# SPDX-License-Identifier: Apache-2.0
"""`Schema`: its entries, derived facts and plain form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from dpftrl_fast._validate import equal, shown
from dpftrl_fast.tables.schema.columns import (
    CategoricalColumn,
    LabelTarget,
    NumericColumn,
    read_column,
    read_target,
)
from dpftrl_fast.tables.schema.entries import (
    SchemaError,
    count,
    known_keys,
    mapping,
    positive,
    read_data,
)

#: In version 1 the default offset of a numeric column was 0, not the middle of its bounds.
SCHEMA_VERSION = 2

Task: TypeAlias = Literal["regression", "classification", "multinomial"]
#: Tasks of a target: a number, one of two labels, one of several.
TASKS: tuple[Task, ...] = get_args(Task)

_ENTRIES = (
    "version",
    "rows",
    "task",
    "target",
    "columns",
    "intercept",
    "row_norm_bound",
    "users",
    "group_column",
    "weight_column",
)


@dataclass(frozen=True)
class Schema:
    """Declared, public facts about a table (see ``docs/runs/cli.md``).

    Parameters
    ----------
    rows : int
        Number of row slots n. Slots without a row count as zero; a file with more rows is refused.
    target : NumericColumn or LabelTarget
        Predicted column.
    columns : tuple of NumericColumn and CategoricalColumn
        Features, in this order.
    intercept : bool
        Append a constant feature 1.
    row_norm_bound : float or None
        Rows are divided by this number, and rows whose norm is still above 1 are scaled to norm 1.
        None is the largest norm that the declared bounds allow, so that no row is scaled further.
    users : int or None
        Number of user slots, for a guarantee per user; a file with more users is refused.
    group_column : str or None
        Column with the user of each row, for a guarantee per user.
    per_class : bool
        Fit a target with two labels like one with more, with coefficients for each label.
    weight_column : str or None
        Numeric column with the private weight of each row.

    Examples
    --------
    >>> schema = Schema.from_dict({
    ...     "version": 2, "rows": 1000,
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
    users: int | None = None
    group_column: str | None = None
    per_class: bool = False
    weight_column: str | None = None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Tasks that fit the target, the default first."""
        if not isinstance(self.target, LabelTarget):
            return ("regression",)
        if len(self.target.categories) > 2:
            return ("multinomial",)
        return ("classification", "multinomial")

    @property
    def task(self) -> Task:
        """Task of the target."""
        return "multinomial" if self.per_class else self.tasks[0]

    @property
    def outputs(self) -> int:
        """Number of coefficient vectors: one a class if the task is multinomial, else one."""
        if self.task == "multinomial" and isinstance(self.target, LabelTarget):
            return len(self.target.categories)
        return 1

    @property
    def units(self) -> int:
        """Number of slots that batches are cut from: users with a group column, else rows."""
        return self.rows if self.group_column is None or self.users is None else self.users

    @property
    def unit(self) -> Literal["record", "user"]:
        """Unit of the guarantee."""
        return "record" if self.group_column is None else "user"

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
        """Number of coefficients p (of each class)."""
        widths = (
            len(c.categories) if isinstance(c, CategoricalColumn) else 1 for c in self.columns
        )
        return sum(widths) + int(self.intercept)

    @property
    def largest_row_norm(self) -> float:
        """Largest norm of an unscaled row within the declared bounds."""
        squares = (c.largest**2 if isinstance(c, NumericColumn) else 1.0 for c in self.columns)
        return math.sqrt(sum(squares) + float(self.intercept))

    @property
    def row_scale(self) -> float:
        """Public number that every row is divided by."""
        return self.largest_row_norm if self.row_norm_bound is None else self.row_norm_bound

    @property
    def file_columns(self) -> tuple[str, ...]:
        """Required columns of the file: features, then the target."""
        return (*(column.name for column in self.columns), self.target.name)

    def with_rows(self, rows: int) -> Schema:
        """Return the same schema with another number of row slots."""
        return replace(self, rows=count(rows, "rows"))

    def with_row_norm_bound(self, bound: float) -> Schema:
        """Return the same schema with rows divided by another number."""
        schema = replace(self, row_norm_bound=positive(bound, "row_norm_bound"))
        schema._refuse_overflow()
        return schema

    def with_task(self, task: str) -> Schema:
        """Return the schema for this task; refuse one that does not fit the target."""
        if not any(equal(task, own) for own in self.tasks):
            given = "bounds"
            if isinstance(self.target, LabelTarget):
                given = f"{len(self.target.categories)} categories"
            wanted = " or ".join(map(repr, self.tasks))
            raise SchemaError(f"task must be {wanted} for a target with {given}, got {shown(task)}")
        return replace(self, per_class=task != self.tasks[0])

    def with_groups(self, column: Any, users: int | None = None) -> Schema:
        """Return the schema for a guarantee per user, grouped by a column.

        `users` is the declared number of users, by default the schema's.
        """
        if not isinstance(column, str) or not column:
            raise SchemaError(f"group_column must be the name of a column, got {shown(column)}")
        if column == self.target.name:
            raise SchemaError(f"group_column must be another column than the target {column!r}")
        users = self.users if users is None else users
        if users is None:
            raise SchemaError(
                f"users must be declared for the group column {column!r}: the maximum number of "
                "users, a public fact"
            )
        return replace(self, users=count(users, "users"), group_column=column)

    def with_weights(self, column: Any) -> Schema:
        """Return the schema whose rows are weighted by a column."""
        if not isinstance(column, str) or not column:
            raise SchemaError(f"weight_column must be the name of a column, got {shown(column)}")
        for name, own in (("target", self.target.name), ("group column", self.group_column)):
            if column == own:
                raise SchemaError(
                    f"weight_column must be another column than the {name} {column!r}"
                )
        return replace(self, weight_column=column)

    def without_groups(self) -> Schema:
        """Return the schema of tables without columns of users and weights, such as test rows."""
        return replace(self, group_column=None, weight_column=None)

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
                for kind in ("group", "weight"):
                    if name == getattr(self, f"{kind}_column"):
                        raise SchemaError(f"the {kind} column {name!r} cannot be the target")
                return replace(self, target=column, columns=rest, per_class=False)
        raise SchemaError(
            f"target must be a numeric column declared in the schema with its bounds, got {name!r}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as plain data; `from_dict` reads it back."""
        optional = ("users", "group_column", "weight_column")
        given = {name: getattr(self, name) for name in optional}
        return {
            "version": SCHEMA_VERSION,
            "rows": self.rows,
            "task": self.task,
            "target": {"name": self.target.name, **self.target.to_dict()},
            "columns": {column.name: column.to_dict() for column in self.columns},
            "intercept": self.intercept,
            "row_norm_bound": self.row_norm_bound,
            **{name: value for name, value in given.items() if value is not None},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schema:
        """Check plain data (from YAML or JSON) and build the schema.

        Raises
        ------
        SchemaError
            Names the wrong entry.
        """
        top = mapping(data, "schema")
        known_keys(top, _ENTRIES, "schema")
        version = top.get("version", SCHEMA_VERSION)
        if not any(equal(version, known) for known in (1, SCHEMA_VERSION)):
            raise SchemaError(f"version must be 1 or {SCHEMA_VERSION}, got {shown(version)}")
        centred = not equal(version, 1)
        for key in ("rows", "target", "columns"):
            if key not in top:
                raise SchemaError(f"schema must have the entry {key!r}, got {sorted(top)}")
        target = read_target(top["target"], centred=centred)
        entries = mapping(top["columns"], "columns")
        columns = tuple(
            read_column(name, entry, centred=centred) for name, entry in entries.items()
        )
        if target.name in entries:
            raise SchemaError(f"the target {target.name!r} must not be among the columns")
        intercept = top.get("intercept", True)
        if not isinstance(intercept, bool):
            raise SchemaError(f"intercept must be true or false, got {shown(intercept)}")
        if not columns and not intercept:
            raise SchemaError("a schema needs at least one column or the intercept")
        bound, users = top.get("row_norm_bound"), top.get("users")
        schema = cls(
            count(top["rows"], "rows"),
            target,
            columns,
            intercept,
            None if bound is None else positive(bound, "row_norm_bound"),
            None if users is None else count(users, "users"),
        )
        schema._refuse_overflow()
        schema = schema.with_task(top.get("task", schema.task))
        group, weight = top.get("group_column"), top.get("weight_column")
        if group is not None:
            schema = schema.with_groups(group)
        return schema if weight is None else schema.with_weights(weight)

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Read a schema from a ``.json``, ``.yaml`` or ``.yml`` file."""
        data = read_data(Path(path))
        try:
            return cls.from_dict(data)
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from None

    def _refuse_overflow(self) -> None:
        try:
            usable = math.isfinite((self.largest_row_norm / self.row_scale) ** 2)
        except OverflowError:
            usable = False
        if not usable:
            raise SchemaError("the declared bounds allow rows whose norm overflows")
