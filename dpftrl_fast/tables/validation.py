# SPDX-License-Identifier: Apache-2.0
"""A look at the values of a table for the owner of the data: NOT private, apart from any fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpftrl_fast.schema import NumericColumn
from dpftrl_fast.tables.cells import MISSING, UNKNOWN, codes, numbers
from dpftrl_fast.tables.encoding import Encoder
from dpftrl_fast.tables.reader import TableReader

__all__ = ["NOT_PRIVATE", "validate"]

NOT_PRIVATE = "counts of private rows: NOT private, for the owner of the data only"


def validate(table: TableReader) -> dict[str, Any]:
    """Count what a fit would clip, zero or skip.

    Parameters
    ----------
    table : TableReader
        The rows; they are read once.

    Returns
    -------
    dict
        "label" (these counts are not private), "rows_declared", "rows_in_file", "rows_invalid",
        and under "columns" for each column "missing" and "below" and "above" the bounds
        (numeric), or "missing" and "unknown" (categorical).
    """
    schema = table.schema
    encoder = Encoder(schema)
    columns = (*schema.columns, schema.target)
    counts: dict[str, dict[str, int]] = {column.name: {} for column in columns}
    rows = invalid = 0
    for block in table:
        rows += block.num_rows
        invalid += int(np.count_nonzero(~encoder.encode(block).valid))
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
    return {
        "label": NOT_PRIVATE,
        "rows_declared": schema.rows,
        "rows_in_file": rows,
        "rows_invalid": invalid,
        "columns": counts,
    }
