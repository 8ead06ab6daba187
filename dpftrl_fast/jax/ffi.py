# SPDX-License-Identifier: Apache-2.0
"""One handler of XLA's foreign function interface, written in Python: buffers without copies.

A Python callback of JAX copies its arguments and its results, at 10^7 coordinates twice the time of
the noise itself. XLA's typed FFI hands a call frame with the addresses of the buffers to a C
function, here one that `ctypes` makes of a Python function. Of the frame only the fields of the C
API are read that all of its versions have in the same place. Nothing of jaxlib is linked.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
import weakref
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

TARGET = "dpftrl_fast_residual_noise"

_METADATA = 1  # type of the extension by which XLA asks for the version
_INVALID_ARGUMENT = 3  # code of an error
_DTYPES = {4: np.dtype(np.int32), 8: np.dtype(np.uint32), 11: np.dtype(np.float32)} | {
    12: np.dtype(np.float64)
}


class Called(Protocol):
    """Object whose `called` gets the buffers of a call: arguments read-only, results to fill."""

    def called(self, arguments: Sequence[NDArray[Any]], results: Sequence[NDArray[Any]]) -> None:
        """Fill the results, or raise an error, which the caller of the compiled function gets."""


class _Extension(Structure):
    _fields_ = [("struct_size", c_size_t), ("type", c_int), ("next", c_void_p)]


class _ApiVersion(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", c_void_p),
        ("major", c_int), ("minor", c_int),
    ]  # fmt: skip


class _Metadata(Structure):
    _fields_ = [("struct_size", c_size_t), ("api_version", _ApiVersion), ("traits", c_uint32)]


class _MetadataExtension(Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class _Values(Structure):  # XLA_FFI_Args and XLA_FFI_Rets
    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", c_void_p), ("size", c_int64),
        ("types", c_void_p), ("values", POINTER(c_void_p)),
    ]  # fmt: skip


class _Attributes(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", c_void_p), ("size", c_int64),
        ("types", c_void_p), ("names", c_void_p), ("values", POINTER(c_void_p)),
    ]  # fmt: skip


class _Api(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", c_void_p), ("api_version", _ApiVersion),
        ("internal_api", c_void_p), ("error_create", c_void_p),
    ]  # fmt: skip


class _CallFrame(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", POINTER(_Extension)),
        ("api", POINTER(_Api)), ("context", c_void_p), ("stage", c_int),
        ("arguments", _Values), ("results", _Values), ("attributes", _Attributes),
    ]  # fmt: skip


class _Buffer(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", c_void_p), ("dtype", c_int),
        ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64)),
    ]  # fmt: skip


class _Scalar(Structure):
    _fields_ = [("dtype", c_int), ("value", POINTER(c_int64))]


class _ErrorArguments(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension_start", c_void_p),
        ("message", c_char_p), ("code", c_int),
    ]  # fmt: skip


_ERROR_CREATE = ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))
_HANDLER = ctypes.CFUNCTYPE(c_void_p, POINTER(_CallFrame))

_objects: weakref.WeakValueDictionary[int, Called] = weakref.WeakValueDictionary()
_numbers: weakref.WeakKeyDictionary[Called, int] = weakref.WeakKeyDictionary()
_unused = itertools.count(1)  # addresses would come again, after the end of an object


def number_of(called: Called) -> int:
    """Return the number by which compiled functions find an object that is still in use.

    Examples
    --------
    >>> class Doubling:
    ...     def called(self, arguments, results):
    ...         results[0][...] = 2 * arguments[0]
    >>> doubling = Doubling()
    >>> number_of(doubling) == number_of(doubling)
    True
    """
    if called not in _numbers:
        _numbers[called] = next(_unused)
        _objects[_numbers[called]] = called
    return _numbers[called]


def call(
    number: int, results: Sequence[Any], *arguments: Any, reused: dict[int, int]
) -> Sequence[Any]:
    """Call an object from within a compiled function, on the CPU.

    Parameters
    ----------
    number : int
        Of `number_of`.
    results : sequence of jax.ShapeDtypeStruct
    *arguments : jax.Array
        Of int32, uint32, float32 or float64.
    reused : dict of int to int
        Arguments whose memory is that of a result, by their places; XLA copies an argument first
        that is still needed.

    Returns
    -------
    sequence of jax.Array
    """
    register()
    into = jax.ffi.ffi_call(
        TARGET, list(results), has_side_effect=True, input_output_aliases=reused
    )
    made: Sequence[Any] = into(*arguments, number=np.int64(number))
    return made


@functools.cache
def register() -> None:
    """Register the handler with XLA, once in a process."""
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_handler), platform="cpu")


@functools.cache
def _minor_version() -> int:
    """Return the minor version of the C API that this jaxlib has."""
    header = Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h"
    major, minor = (
        int(found.group(1))
        for name in ("MAJOR", "MINOR")
        if (found := re.search(rf"#define XLA_FFI_API_{name} (\d+)", header.read_text("utf-8")))
    )
    if major != 0:
        raise RuntimeError(
            f"expected version 0 of XLA's FFI, got {major}: take transport='callback'"
        )
    return minor


def _handle(frame: Any) -> int | None:
    """Answer one call of XLA: fill its results, return an error, or tell the version."""
    call_frame = frame.contents
    extension = call_frame.extension_start
    if extension and extension.contents.type == _METADATA:
        metadata = ctypes.cast(extension, POINTER(_MetadataExtension)).contents.metadata.contents
        metadata.api_version.major, metadata.api_version.minor = 0, _minor_version()
        metadata.traits = 0
        return None
    try:
        scalar = ctypes.cast(call_frame.attributes.values[0], POINTER(_Scalar)).contents
        called = _objects.get(scalar.value[0])
        if called is None:
            raise ReferenceError(
                "the object that residual_noise returned is gone, and with it the noise's key: "
                "keep it as long as functions that use it"
            )
        arguments, results = _arrays(call_frame.arguments), _arrays(call_frame.results)
        for array in arguments:
            array.flags.writeable = False
        try:
            called.called(arguments, results)
        except BaseException:
            for array in results:  # some have the memory of arguments
                array.fill(0)
            raise
    except BaseException as error:
        return _error(call_frame.api.contents, f"{type(error).__name__}: {error}")
    return None


_handler = _HANDLER(_handle)


def _arrays(values: Any) -> list[NDArray[Any]]:
    """Return the buffers of a call as arrays of one dimension over XLA's memory."""
    arrays = []
    for i in range(values.size):
        buffer = ctypes.cast(values.values[i], POINTER(_Buffer)).contents
        dtype = _DTYPES[buffer.dtype]
        size = int(np.prod([buffer.dims[k] for k in range(buffer.rank)], dtype=np.int64))
        if size == 0:
            arrays.append(np.empty(0, dtype))
            continue
        memory = (ctypes.c_uint8 * (size * dtype.itemsize)).from_address(buffer.data)
        arrays.append(np.ctypeslib.as_array(memory).view(dtype))
    return arrays


def _error(api: Any, message: str) -> int:
    create: Callable[..., int] = _ERROR_CREATE(api.error_create)
    text = message.encode()
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, text, _INVALID_ARGUMENT)
    return create(ctypes.byref(arguments))
