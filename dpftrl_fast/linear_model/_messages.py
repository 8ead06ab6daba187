# SPDX-License-Identifier: Apache-2.0
"""Errors of NumPy, pandas and scikit-learn about arrays, in words that show no entry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# First lines of messages about shapes, dtypes and names only, and what is said after them.
_RESHAPE = (
    ". Reshape your data: array.reshape(-1, 1) for a single column, array.reshape(1, -1) for a "
    "single row"
)
_PUBLIC = {
    "Expected 2D array, got 1D array": _RESHAPE,
    "Expected 2D array, got scalar array": _RESHAPE,
    "Expected 2D array, got": "",
    "Expected a 2-dimensional": "",
    "Complex data not supported": "",
    "Found array with": "",
    "Input X contains": "",
    "Found input variables with inconsistent numbers of samples": "",
    "A sparse ": "",
    "Sparse data was passed": "",
    "setting an array element with a sequence": "",
    "float() argument must be": "",
    "y should be a 1d array": "",
    "y contains ": "",
    "Feature names are ": "",
    "The feature names should match": "",
    "X has ": "",
}


@contextmanager
def showing_no_entry(name: str) -> Iterator[None]:
    """Raise errors about an array, called `name`, without its entries.

    A message of scikit-learn prints an array of a wrong shape, one of NumPy the text that is no
    number. Those that are known to be about shapes, dtypes and names keep their first line; any
    other is replaced, also that of an entry's own class.

    Examples
    --------
    >>> with showing_no_entry("X"):
    ...     float("Smith")
    Traceback (most recent call last):
    ...
    ValueError: X must hold real numbers, got an object or text that is none
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        message = f"{name} must hold real numbers, got an object or text that is none"
        first = f"{error}".partition("\n")[0] if type(error) in (TypeError, ValueError) else ""
        for start, more in _PUBLIC.items():
            if first.startswith(start):
                message = first.removesuffix(":") + more
                break
        raise kind(message) from None
