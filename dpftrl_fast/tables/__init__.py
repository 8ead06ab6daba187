# SPDX-License-Identifier: Apache-2.0
"""Tables: CSV and Parquet files streamed in file order into rows of features.

`reader` opens files and cuts mini-batches, `users` groups rows by user, `encoding` turns columns
into features, `cells` parses cells, `csv_slots` keeps one line in one slot; `draft` and
`validation` help to write a schema.
"""

from dpftrl_fast.tables.csv_format import CsvOptions
from dpftrl_fast.tables.draft import draft_schema
from dpftrl_fast.tables.encoding import Encoder, Rows
from dpftrl_fast.tables.reader import TableReader, minibatches, passes
from dpftrl_fast.tables.table_error import TableError
from dpftrl_fast.tables.users import UserNumbers, UserRows, rows_by_user
from dpftrl_fast.tables.validation import NOT_PRIVATE, validate

__all__ = [
    "NOT_PRIVATE",
    "CsvOptions",
    "Encoder",
    "Rows",
    "TableError",
    "TableReader",
    "UserNumbers",
    "UserRows",
    "draft_schema",
    "minibatches",
    "passes",
    "rows_by_user",
    "validate",
]
