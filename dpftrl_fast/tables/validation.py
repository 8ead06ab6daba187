# SPDX-License-Identifier: Apache-2.0
"""Counts of the values of a table, for the owner of the data: NOT private."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpftrl_fast.tables.cells import MISSING, UNKNOWN, codes, numbers
from dpftrl_fast.tables.csv_slots import Faults
from dpftrl_fast.tables.encoding import Encoder
from dpftrl_fast.tables.findings import (
    ABOVE,
    ABSENT,
    BELOW,
    EMPTY,
    NEGATIVE,
    NO_CELL,
    SURPLUS,
    UNKNOWN_CATEGORY,
    Findings,
)
from dpftrl_fast.tables.reader import TableReader
from dpftrl_fast.tables.schema import NumericColumn
from dpftrl_fast.tables.users import UserNumbers

NOT_PRIVATE = "counts of private rows: NOT private, for the owner of the data only"


def validate(table: TableReader) -> dict[str, Any]:
    """Count the values that a fit or a sum would clip, zero or skip.

    Parameters
    ----------
    table : TableReader
        Rows, read once.

    Returns
    -------
    dict
        "label" (these counts are not private), "rows_declared", "rows_in_file", "rows_invalid",
        and under "columns" for each column "missing" and "below" and "above" the bounds
        (numeric), or "missing" and "unknown" (categorical). With a group column also
        "users_declared", "users_in_file" and "rows_of_the_largest_user", and its "missing" cells,
        whose rows are invalid. With a weight column its "missing" and "negative" cells, of which
        the same holds. Under "findings" the kinds of such cells and of broken lines: "column"
        (None for a line or a slot), "kind", "count", "first" (line of the file, row of Parquet) and
        "hint". Cells of a broken line are missing, and found as a line only.
    """
    counts = _Counts(table)
    for block, faults in table.explained():
        counts.add(block, faults)
    return counts.report()


class _Counts:
    """Counts over the blocks of a table."""

    def __init__(self, table: TableReader) -> None:
        schema = table.schema
        self._table, self._schema = table, schema
        self._encoder = Encoder(schema)
        self._columns = (*schema.columns, schema.target)
        self._counts: dict[str, dict[str, int]] = {column.name: {} for column in self._columns}
        self._users = UserNumbers()
        self._rows_of_users = np.zeros(0, dtype=np.int64)
        self._rows = self._invalid = self._ownerless = 0
        self._found = Findings(table.numbers_of)

    def add(self, block: Any, faults: Faults) -> None:
        """Count a block, whose cells of CSV are text."""
        schema = self._schema
        first = self._table.first_line + self._rows
        places = np.arange(first, first + block.num_rows)
        self._rows += block.num_rows
        self._found.lines(faults, first)
        whole = np.ones(block.num_rows, np.bool_)
        whole[[*faults]] = False
        read = self._table.with_numbers(block)
        valid = self._encoder.encode(read).valid
        if schema.group_column is not None:
            owner = self._users.of(block[schema.group_column])
            valid &= owner >= 0
            self._ownerless += int(np.count_nonzero(owner < 0))
            found_here = np.bincount(owner + 1, minlength=len(self._users) + 1)[1:]
            found_here[: self._rows_of_users.size] += self._rows_of_users
            self._rows_of_users = found_here
            self._found.add(schema.group_column, EMPTY, places[whole & (owner < 0)])
        self._invalid += int(np.count_nonzero(~valid))
        if schema.weight_column is not None:
            name = schema.weight_column
            weight = numbers(read[name])
            self._count(name, "missing", np.isnan(weight))
            self._count(name, "negative", weight < 0)
            self._found.add(name, NEGATIVE, places[weight < 0])
            self._find_numbers(name, block, np.isnan(weight) & whole, places)
        for column in self._columns:
            if isinstance(column, NumericColumn):
                value = numbers(read[column.name])
                missing = np.isnan(value)
                self._count(column.name, "missing", missing)
                self._find_numbers(column.name, block, missing & whole, places)
                for key, where, kind in (
                    ("below", value < column.low, BELOW),
                    ("above", value > column.high, ABOVE),
                ):
                    self._count(column.name, key, where)
                    self._found.add(column.name, kind, places[where])
            else:
                code = codes(read[column.name], column.categories)
                for key, where, kind in (
                    ("missing", code == MISSING, EMPTY),
                    ("unknown", code == UNKNOWN, UNKNOWN_CATEGORY),
                ):
                    self._count(column.name, key, where)
                    self._found.add(column.name, kind, places[where & whole])

    def report(self) -> dict[str, Any]:
        """Return all counts."""
        schema = self._schema
        report: dict[str, Any] = {
            "label": NOT_PRIVATE,
            "rows_declared": schema.rows,
            "rows_in_file": self._rows,
            "rows_invalid": self._invalid,
            "columns": self._counts,
        }
        if schema.group_column is not None:
            self._counts.setdefault(schema.group_column, {})["missing"] = self._ownerless
            report["users_declared"] = schema.users
            report["users_in_file"] = len(self._users)
            report["rows_of_the_largest_user"] = int(self._rows_of_users.max(initial=0))
        first = self._table.first_line
        for kind, start, stop in (
            (SURPLUS, schema.rows, self._rows),
            (ABSENT, self._rows, schema.rows),
        ):
            if stop > start:
                self._found.count(None, kind, stop - start, first + start)
        for name, found in self._counts.items():
            if 0 < self._rows <= found.get("missing", 0):
                self._found.count(name, NO_CELL, self._rows, first)
        report["findings"] = [finding.to_dict() for finding in self._found]
        return report

    def _count(self, column: str, key: str, where: Any) -> None:
        entry = self._counts.setdefault(column, {})
        entry[key] = entry.get(key, 0) + int(np.count_nonzero(where))

    def _find_numbers(self, column: str, block: Any, where: Any, places: Any) -> None:
        at = np.flatnonzero(where)
        if at.size:
            import pyarrow as pa

            cells = block[column].take(pa.array(at)).to_pylist()
            self._found.numbers(column, cells, places[at])
