# SPDX-License-Identifier: Apache-2.0
"""Arrays and instructions in Flower's records.

Bytes from clients are not trusted. An array is read only as a view of the bytes that came, after
their number was compared with the header: a header that announces a terabyte allocates nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from dpftrl_fast.files import array_in

RECORD = "dpftrl"
"""Name of the ConfigRecord that server and clients exchange."""

TOKEN, CLIP_NORM, UPDATE, CLIENT_ID = "token", "clip-norm", "update", "client-id"

DIFFERENCE = "difference"
"""Marks the arrays of a reply as a difference; without it they are a model."""

_NUMPY = "numpy.ndarray"

Arrays = dict[str, NDArray[Any]]


def array_of(array: Array) -> NDArray[Any]:
    """Return a read-only view of a received array, in its own shape and dtype.

    ValueError if the bytes are not a complete array of numbers in NumPy's format.
    """
    if array.stype != _NUMPY:
        raise ValueError(f"expected an array serialised as {_NUMPY!r}, got {array.stype!r}")
    return array_in(array.data)


def arrays_of(record: ArrayRecord) -> Arrays:
    """Return the arrays of a record by name, as views; ValueError names an invalid one."""
    arrays: Arrays = {}
    for name, array in record.items():
        try:
            arrays[name] = array_of(array)
        except ValueError as error:
            raise ValueError(f"array {name!r}: {error}") from None
    return arrays


def array_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return arrays as a record."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def trained(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the arrays that are trained: the floating-point ones."""
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def untrained(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return copies of the untrained arrays, of integers and bools; ValueError for other dtypes."""
    others = {name: array for name, array in arrays.items() if array.dtype.kind != "f"}
    for name, array in others.items():
        if array.dtype.kind not in "biu":
            raise ValueError(
                f"array {name!r} must be of floating-point numbers, integers or bools, got "
                f"{array.dtype.name}"
            )
    return {name: array.copy() for name, array in others.items()}


def only_arrays(content: RecordDict) -> tuple[str, Arrays]:
    """Return name and arrays of the one ArrayRecord of a message; ValueError if it is not so."""
    records = list(content.array_records.items())
    if len(records) != 1:
        raise ValueError(f"expected one ArrayRecord, got {len(records)}")
    ((name, record),) = records
    return name, arrays_of(record)


def instructions(content: RecordDict) -> ConfigRecord | None:
    """Return the record that server and clients exchange, or None."""
    return content.config_records.get(RECORD)


def difference(arrays: Mapping[str, NDArray[Any]], sent: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return trained minus sent, array by array, in float32 at least.

    An array that `sent` lacks, or has in another shape or dtype, is returned unchanged, for the
    check of names, shapes and dtypes. Nothing is broadcast.
    """
    update: Arrays = {}
    with np.errstate(all="ignore"):  # a warning would reveal something about a value
        for name, array in arrays.items():
            before = sent.get(name)
            if before is None or before.shape != array.shape or array.dtype.kind != "f":
                update[name] = array
                continue
            wide = np.promote_types(np.result_type(array.dtype, before.dtype), np.float32)
            update[name] = np.subtract(array, before, dtype=wide)
    return update


def addressed(
    messages: Iterable[Message], nodes: Collection[int], own: ConfigRecord
) -> Iterator[Message]:
    """Yield the first message to each of `nodes`, with a record added and its token as group.

    Messages may share their content, as Flower's do.
    """
    left = set(nodes)
    for message in messages:
        node = message.metadata.dst_node_id
        if node in left:
            left.discard(node)
            message.content[RECORD] = own
            message.metadata.group_id = str(own[TOKEN])
            yield message
