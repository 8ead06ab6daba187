# SPDX-License-Identifier: Apache-2.0
"""Rows by user: a table in memory, in which the rows of each user are adjacent.

The file is read twice, first the group column alone. Users are numbered in order of first
appearance, which is as public as the group column; their maximum number is declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpftrl_fast.tables.cells import texts
from dpftrl_fast.tables.encoding import Encoder, Rows
from dpftrl_fast.tables.reader import TableReader
from dpftrl_fast.tables.table_error import TableError

Ints = npt.NDArray[np.int64]


class UserNumbers:
    """Numbers users in order of first appearance, by the text of their cells.

    Cells are compared as bytes: text that is no UTF-8, which a Parquet file can hold, raises
    nothing and is a user like any other.

    Examples
    --------
    >>> import pyarrow as pa
    >>> users = UserNumbers()
    >>> users.of(pa.array(["b", "", "a", "b"])).tolist(), users.of(pa.array([None, "a"])).tolist()
    ([0, -1, 1, 0], [-1, 1])
    >>> len(users)
    2
    """

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, column: Any) -> Ints:
        """Return the number of the user of every cell, -1 for a missing cell."""
        import pyarrow as pa

        coded = texts(column).cast(pa.binary()).dictionary_encode()
        parts = coded.chunks if isinstance(coded, pa.ChunkedArray) else [coded]
        found = [self._of_part(part) for part in parts]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def _of_part(self, coded: Any) -> Ints:
        labels: list[bytes] = coded.dictionary.to_pylist()
        numbers = [
            self._numbers.setdefault(label, len(self._numbers)) if label else -1 for label in labels
        ]
        code: Ints = np.asarray(coded.indices.fill_null(len(labels)))
        users: Ints = np.array([*numbers, -1], dtype=np.int64)
        return users[code]


@dataclass(frozen=True)
class UserRows:
    """All rows of a table, user after user.

    The rows of user i are those from ``bounds[i]`` to ``bounds[i + 1] - 1``.
    """

    rows: Rows
    bounds: Ints

    def batches(self, users: int, batch_size: int) -> Iterator[tuple[Rows, Ints]]:
        """Yield ceil(users / batch_size) batches of whole users: rows, and the starts of users.

        `users` is the declared number. Users that the file lacks are absent from the last batches,
        which may be empty.
        """
        found = self.bounds.size - 1
        for first in range(0, users, batch_size):
            part = self.bounds[min(first, found) : min(first + batch_size, found) + 1]
            yield self.rows[int(part[0]) : int(part[-1])], part - part[0]


def rows_by_user(table: TableReader, *, encoder: Encoder | None = None) -> UserRows:
    """Read a table in two passes and return the rows user after user, in file order.

    A row without a user counts as zero. The schema has a group column. Memory: 8 bytes for each
    entry of a row (one a column and one for the intercept) and 9 for each row; during reading, 40
    more for each row. More rows or users than declared, or a file that changes between the passes,
    raise `TableError`.
    """
    schema = table.schema
    encoder = Encoder(schema) if encoder is None else encoder
    if schema.group_column is None or schema.users is None:
        raise TableError("expected a schema with a group column, got none")
    users = UserNumbers()
    parts: list[Ints] = [np.zeros(0, dtype=np.int64)]
    for block in table.blocks((schema.group_column,), text=True):
        parts.append(users.of(block[schema.group_column]))
        if len(users) > schema.users:
            raise TableError(
                f"expected at most {schema.users} users (declared) in column "
                f"{schema.group_column!r}, got more in {str(table.path)!r}"
            )
    owner = np.concatenate(parts)
    counts = np.bincount(owner + 1, minlength=len(users) + 1)  # first the rows without a user
    place = np.empty_like(owner)
    place[np.argsort(owner, kind="stable")] = np.arange(owner.size) - counts[0]
    rows = encoder.empty(owner.size - int(counts[0]))
    second, seen = table.again(), 0
    for block in second.blocks():
        start, seen = seen, seen + block.num_rows
        if seen > owner.size:
            break
        at = place[start:seen]
        owned = at >= 0
        encoded = encoder.encode(block)
        for name in ("values", "indices", "target", "valid"):
            getattr(rows, name)[at[owned]] = getattr(encoded, name)[owned]
        if rows.weight is not None and encoded.weight is not None:
            rows.weight[at[owned]] = encoded.weight[owned]
    second.refuse_change()
    if seen != owner.size:
        raise TableError(f"expected {owner.size} rows in every pass over {str(table.path)!r}")
    return UserRows(rows, np.concatenate([[0], np.cumsum(counts[1:])]))
