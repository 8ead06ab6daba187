# SPDX-License-Identifier: Apache-2.0
"""How the loops of this package are compiled.

Three choices hold for all of them. Of the fast-math flags only `contract` and `reassoc` are on:
sums may be cut into lanes, but infinities and NaN keep their meaning, since a row is recognised as
invalid by them. Loops are compiled for argument types on first use and kept in Numba's cache on
disk. And their inputs are typed read-only: Numba passes a writable array for a read-only one but
not the reverse, so one compilation serves memory-mapped, Arrow-backed and ordinary arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import types

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"fastmath": {"contract", "reassoc"}, "error_model": "numpy"}


def helper(function: _F) -> _F:
    """Make `function` callable from a compiled loop."""
    return cast(_F, numba.njit(**_OPTIONS)(function))


def compiled(function: _F, *argument_types: Any) -> _F:
    """Compile `function` for these types: without the GIL, cached on disk where that can be."""
    signature = types.void(*argument_types)
    try:
        loop = numba.njit(signature, cache=True, nogil=True, **_OPTIONS)(function)
    except RuntimeError:
        # No folder for the cache (a read-only installation without a home): compile for this
        # process only.
        loop = numba.njit(signature, nogil=True, **_OPTIONS)(function)
    return cast(_F, loop)


def read_only(dtype: np.dtype[Any], dimensions: int) -> Any:
    """Return the Numba type of a C-contiguous input array."""
    return types.Array(numba.from_dtype(dtype), dimensions, "C", readonly=True)


def writable(dtype: np.dtype[Any], dimensions: int) -> Any:
    """Return the Numba type of a C-contiguous output array."""
    return types.Array(numba.from_dtype(dtype), dimensions, "C")
