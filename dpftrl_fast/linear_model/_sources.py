# SPDX-License-Identifier: Apache-2.0
"""Which kind of rows a fit was given: packages that hold them are imported only for their own."""

from __future__ import annotations

import os
from typing import Any

from dpftrl_fast.linear_model._data import RowSource


def open_source(
    X: Any, y: Any, groups: Any = None, *, numbers: bool, shuffle: bool
) -> RowSource | None:
    """Return the source of rows that are not arrays in memory, or None.

    Parameters
    ----------
    X, y, groups
        As `fit` was given them.
    numbers : bool
        Whether targets are numbers, not labels.
    shuffle : bool
        Whether rows are to be dealt to batches by a permutation, which these sources refuse.

    Returns
    -------
    RowSource or None
        None for everything else, which may be an array.

    Raises
    ------
    TypeError, ValueError
        If the source, its columns and their types are not what they should be.

    Examples
    --------
    >>> open_source([[1.0]], [2.0], numbers=True, shuffle=False) is None
    True
    """
    if isinstance(X, RowSource):
        return X
    if isinstance(X, (str, os.PathLike)) or _comes_from(X, "pyarrow._dataset", "pyarrow.dataset"):
        from dpftrl_fast.linear_model._parquet import open_dataset

        _refuse_shuffle(shuffle, "a dataset is read in its order", "write it in another order")
        return open_dataset(X, y, groups, numbers=numbers)
    if _comes_from(X, "dask", "dask_expr"):
        from dpftrl_fast.linear_model._dask import open_dask

        _refuse_shuffle(shuffle, "a batch would have rows of all chunks", "shuffle X and y before")
        if groups is not None:
            raise ValueError(
                "groups must be None with Dask, got some: the rows of a user may lie in several "
                "chunks; a pyarrow dataset in which they lie together can be fitted with groups"
            )
        return open_dask(X, y, numbers=numbers)
    return None


def _comes_from(value: Any, *packages: str) -> bool:
    """Say whether a class of the value was made in one of these packages, without imports."""
    modules = [kind.__module__ for kind in type(value).__mro__]
    return any(f"{module}.".startswith(f"{name}.") for module in modules for name in packages)


def _refuse_shuffle(shuffle: bool, reason: str, remedy: str) -> None:
    if shuffle:
        raise ValueError(f"shuffle must be False here, got True: {reason}; {remedy}")
