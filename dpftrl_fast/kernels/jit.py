# SPDX-License-Identifier: Apache-2.0
"""Compilation of the loops of this package.

Of the fast-math flags only `contract` and `reassoc` are on: sums may be cut into lanes, but
infinities and NaN keep their meaning, since invalid rows are recognised by them. Loops and helpers
whose order of operations matters are compiled without any flag (`exact`).

Loops are compiled for argument types on first use and kept in Numba's cache on disk. Their inputs
are typed read-only: Numba passes a writable array for a read-only one but not the reverse, so one
compilation serves memory-mapped, Arrow-backed and ordinary arrays.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

#: Type of an index that is known not to be negative. Numba wraps a signed index that might be, and
#: LLVM makes no vectors of such a loop.
Unsigned: TypeAlias = np.uint64

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"fastmath": {"contract", "reassoc"}, "error_model": "numpy"}
# Written out: without a setting, Numba gives a helper the flags of its caller.
_EXACT: dict[str, Any] = {**_OPTIONS, "fastmath": False}


def helper(function: _F) -> _F:
    """Make `function` callable from a compiled loop."""
    return cast(_F, numba.njit(**_OPTIONS)(function))


def exact_helper(function: _F) -> _F:
    """Make `function` callable from a compiled loop, with every operation rounded as written."""
    return cast(_F, numba.njit(**_EXACT)(function))


def compiled(function: _F, *argument_types: Any, exact: bool = False) -> _F:
    """Compile `function` for these types: without the GIL, and cached on disk where possible.

    With `exact`, every operation of the function is rounded where it is written.
    """
    options = _EXACT if exact else _OPTIONS
    loop = _cached(function, options) or numba.njit(nogil=True, **options)(function)
    loop.compile(types.void(*argument_types))
    loop.disable_compile()  # other types are an error, not another compilation
    return cast(_F, loop)


def _cached(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Return a dispatcher with a cache on disk, or None where there is no folder for one."""
    try:
        loop = numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # a read-only installation without a home
        return None
    # Numba reuses a cached loop as long as the file of the loop is unchanged. The helpers compiled
    # into it are in other files: all of them must be unchanged.
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


def _pointer_type(typing_context: Any, address: Any, like: Any) -> Any:
    kind = types.CPointer(like.dtype)  # type: ignore[no-untyped-call]

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(kind))

    return kind(address, like), generate


def _wide(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        # llvmlite has no list of such attributes, and checks those that it has.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


wide_vectors: Any = intrinsic(_wide)
"""``wide_vectors()``: let LLVM use vectors of 512 bits in the function that calls it.

On Intel's processors it prefers 256 bits even where there are 512, for the sake of code beside it
that would run at a lower clock: not in loops that take nearly all of the time. Elsewhere this
changes nothing. A helper that is not inlined needs a call of its own.
"""

pointer: Any = intrinsic(_pointer_type)
"""``pointer(address, like)``: make the pointer that ``numba.carray`` takes of an int64 address.

Passing a thousand arrays one by one costs as much as the work on them; addresses cost nothing. The
caller keeps the arrays alive during the call.
"""
