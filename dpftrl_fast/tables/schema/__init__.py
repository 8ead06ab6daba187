# SPDX-License-Identifier: Apache-2.0
"""The schema of a table: facts that are declared in public, never learned from the rows.

A schema says how many row slots there are, which columns are numeric (with bounds) and which are
categorical (with their categories), what is predicted, by what public number rows are divided, and
whose rows belong together. Everything that shapes the computation (the number of features, which
batch a row is in, the number of steps) follows from it, so none of it depends on what a private row
holds. `columns` has the columns, `declared` the schema, `entries` the checks of plain data and
`texts` the two forms of a file.
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
