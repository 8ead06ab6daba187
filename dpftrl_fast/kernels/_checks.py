# SPDX-License-Identifier: Apache-2.0
"""Checks of rows and of output arrays: types, shapes and memory, never private values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpftrl_fast._validate import FLOATS, Array, array
from dpftrl_fast.kernels.rows import Rows, SparseRows

FLOAT64 = (np.dtype(np.float64),)
INT64 = (np.dtype(np.int64),)
_INTEGERS = (np.dtype(np.int32), *INT64)


def check_length(name: str, value: Array, length: int, why: str) -> None:
    """Refuse a vector of another length."""
    if value.size != length:
        raise ValueError(f"{name} must have {length} entries ({why}), got {value.size}")


def check_rows(rows: Rows) -> dict[str, Array]:
    """Return the arrays of the rows by name, one dense array or the three of CSR."""
    if not isinstance(rows, SparseRows):
        return {"rows": array("rows", rows, FLOATS, 2)}
    data = array("data", rows.data, FLOATS, 1)
    indices = array("indices", rows.indices, _INTEGERS, 1)
    indptr = array("indptr", rows.indptr, (indices.dtype,), 1)
    check_length("indices", indices, data.size, "the length of data")
    if indptr.size == 0:
        raise ValueError("indptr must have at least 1 entry, got 0")
    return {"data": data, "indices": indices, "indptr": indptr}


def check_changed(
    name: str,
    value: object,
    shape: tuple[int, ...],
    why: str,
    inputs: Mapping[str, Array],
    dtypes: tuple[np.dtype[np.generic], ...] = FLOAT64,
) -> Array:
    """Return `value` if it is a writable array of this shape that shares no memory with inputs."""
    changed = array(name, value, dtypes, len(shape))
    if changed.shape != shape:
        raise ValueError(f"{name} must have shape {shape} ({why}), got {changed.shape}")
    if not changed.flags.writeable:
        raise ValueError(f"{name} must be writable, got a read-only array")
    for other, memory in inputs.items():
        if np.may_share_memory(changed, memory):  # exact for contiguous arrays
            raise ValueError(f"{name} must not overlap {other}, got shared memory")
    return changed
