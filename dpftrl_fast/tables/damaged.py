# SPDX-License-Identifier: Apache-2.0
"""Errors of Arrow for files that are damaged, in words that show nothing of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def readable(name: str, refusal: type[ValueError] = ValueError) -> Iterator[None]:
    """Raise a `refusal` that names the file where Arrow says that it cannot be read.

    Errors of the operating system pass: a file that is missing or may not be read.

    Examples
    --------
    >>> import pyarrow as pa
    >>> with readable("'t.parquet'"):
    ...     raise pa.ArrowInvalid("a row: 0.5, Smith")
    Traceback (most recent call last):
    ...
    ValueError: 't.parquet' must be a file that Arrow can read, got a damaged one, or one whose \
content does not fit into memory
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, MemoryError, UnicodeError, OverflowError) as error:
        if isinstance(error, OSError) and (
            error.errno is not None or isinstance(error, (FileNotFoundError, PermissionError))
        ):
            raise
        raise refusal(
            f"{name} must be a file that Arrow can read, got a damaged one, or one whose content "
            "does not fit into memory"
        ) from None
