# SPDX-License-Identifier: Apache-2.0
"""The schema of a table: facts that are declared in public, never learned from the rows.

A schema declares the number of row slots, the numeric columns (with bounds), the categorical ones
(with categories), the target, the norm that rows are divided by, and the users. Everything that
shapes the computation (number of features, batch of each row, number of steps) follows from it, and
so does not depend on private rows. `columns` has the columns, `declared` the schema, `entries` the
files and checks of plain data.
"""

from dpftrl_fast.tables.schema.columns import CategoricalColumn, LabelTarget, NumericColumn
from dpftrl_fast.tables.schema.declared import TASKS, Schema, Task
from dpftrl_fast.tables.schema.entries import SchemaError

__all__ = [
    "TASKS",
    "CategoricalColumn",
    "LabelTarget",
    "NumericColumn",
    "Schema",
    "SchemaError",
    "Task",
]
