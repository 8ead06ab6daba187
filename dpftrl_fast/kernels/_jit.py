# SPDX-License-Identifier: Apache-2.0
"""How the loops of this package are compiled.

Three choices hold for all of them. Of the fast-math flags only `contract` and `reassoc` are on:
sums may be cut into lanes, but infinities and NaN keep their meaning, since a row is recognised as
invalid by them. (Operations whose order matters stand in an `exact_helper`.) Loops are compiled for
argument types on first use and kept in Numba's cache on disk. And their inputs are typed read-only:
Numba passes a writable array for a read-only one but not the reverse, so one compilation serves
memory-mapped, Arrow-backed and ordinary arrays.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import types

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"fastmath": {"contract", "reassoc"}, "error_model": "numpy"}


def helper(function: _F) -> _F:
    """Make `function` callable from a compiled loop."""
    return cast(_F, numba.njit(**_OPTIONS)(function))


def exact_helper(function: _F) -> _F:
    """Make `function` callable from a compiled loop, every operation rounded where it is written.

    The flags are set to none: without a setting, Numba gives a helper those of its caller.
    """
    return cast(_F, numba.njit(error_model="numpy", fastmath=False)(function))


def compiled(function: _F, *argument_types: Any) -> _F:
    """Compile `function` for these types: without the GIL, cached on disk where that can be."""
    loop = _cached(function) or numba.njit(nogil=True, **_OPTIONS)(function)
    loop.compile(types.void(*argument_types))
    loop.disable_compile()  # other types are an error, not another compilation
    return cast(_F, loop)


def _cached(function: Callable[..., Any]) -> Any:
    """Return a dispatcher with a cache on disk, or None where there is no folder for one."""
    try:
        loop = numba.njit(cache=True, nogil=True, **_OPTIONS)(function)
    except RuntimeError:  # a read-only installation without a home
        return None
    # Numba takes a cached loop for good as long as the file of the loop is the same. The helpers
    # that are compiled into it are in other files: all of them must be the same.
    cache_file: Any = getattr(loop._cache, "_cache_file", None)
    if not hasattr(cache_file, "_source_stamp"):
        return None
    cache_file._source_stamp = source_stamp()
    return loop


@functools.cache
def source_stamp() -> str:
    """Return a hash of the sources of this package and of its folders."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read_only(dtype: str, dimensions: int) -> Any:
    """Return the Numba type of a C-contiguous input array."""
    return types.Array(numba.from_dtype(np.dtype(dtype)), dimensions, "C", readonly=True)


def writable(dtype: str, dimensions: int) -> Any:
    """Return the Numba type of a C-contiguous output array."""
    return types.Array(numba.from_dtype(np.dtype(dtype)), dimensions, "C")
