# SPDX-License-Identifier: Apache-2.0
"""Counts of the values of a table, for the owner of the data: NOT private."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpftrl_fast.tables.cells import MISSING, UNKNOWN, codes, numbers
from dpftrl_fast.tables.encoding import Encoder
from dpftrl_fast.tables.reader import TableReader
from dpftrl_fast.tables.schema import NumericColumn
from dpftrl_fast.tables.users import UserNumbers

NOT_PRIVATE = "counts of private rows: NOT private, for the owner of the data only"


def validate(table: TableReader) -> dict[str, Any]:
    """Count the values that a fit would clip, zero or skip.

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
        the same holds.
    """
    schema = table.schema
    encoder = Encoder(schema)
    columns = (*schema.columns, schema.target)
    counts: dict[str, dict[str, int]] = {column.name: {} for column in columns}
    users = UserNumbers()
    rows_of_users = np.zeros(0, dtype=np.int64)
    rows = invalid = ownerless = missing = negative = 0
    for block in table:
        rows += block.num_rows
        valid = encoder.encode(block).valid
        if schema.group_column is not None:
            owner = users.of(block[schema.group_column])
            valid &= owner >= 0
            ownerless += int(np.count_nonzero(owner < 0))
            found_here = np.bincount(owner + 1, minlength=len(users) + 1)[1:]
            found_here[: rows_of_users.size] += rows_of_users
            rows_of_users = found_here
        invalid += int(np.count_nonzero(~valid))
        if schema.weight_column is not None:
            weight = numbers(block[schema.weight_column])
            missing += int(np.count_nonzero(np.isnan(weight)))
            negative += int(np.count_nonzero(weight < 0))
        for column in columns:
            if isinstance(column, NumericColumn):
                value = numbers(block[column.name])
                found = {
                    "missing": np.isnan(value),
                    "below": value < column.low,
                    "above": value > column.high,
                }
            else:
                code = codes(block[column.name], column.categories)
                found = {"missing": code == MISSING, "unknown": code == UNKNOWN}
            entry = counts[column.name]
            for key, where in found.items():
                entry[key] = entry.get(key, 0) + int(np.count_nonzero(where))
    report: dict[str, Any] = {
        "label": NOT_PRIVATE,
        "rows_declared": schema.rows,
        "rows_in_file": rows,
        "rows_invalid": invalid,
        "columns": counts,
    }
    if schema.group_column is not None:
        counts.setdefault(schema.group_column, {})["missing"] = ownerless
        report["users_declared"] = schema.users
        report["users_in_file"] = len(users)
        report["rows_of_the_largest_user"] = int(rows_of_users.max(initial=0))
    if schema.weight_column is not None:
        counts.setdefault(schema.weight_column, {}).update(missing=missing, negative=negative)
    return report
