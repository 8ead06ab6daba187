# SPDX-License-Identifier: Apache-2.0
"""The compiled loops of :mod:`dpftrl_fast.kernels.client_sums`.

Arrays of an update come by address, one call for all of them, and are walked in blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.jit import (
    Unsigned,
    compiled,
    exact_helper,
    helper,
    pointer,
    read_only,
    writable,
)

BLOCK = 4096
FULL = 2**31 - 1  # room of a block of int32 after it was drained
LARGE = 2**27  # blocks with larger integers go to int64 at once
# 1.5 2^52: added to a number below 2^51 it leaves the number, rounded, in the last bits.
_SHIFT = 6755399441055744.0
_SHIFT_BITS = 0x4338000000000000
INTEGERS: dict[str, Any] = {"f": np.int32, "d": np.int64}  # as wide as the floats


@helper
def _block(values: Array, bits: Array, magnitude: int) -> tuple[float, int]:
    # As integers, absolute values are in order: infinity above all numbers, NaN above infinity.
    square, peak = 0.0, magnitude & 0
    for i in range(values.size):
        x = np.float64(values[i])
        square += x * x
        peak = max(peak, bits[i] & magnitude)
    return square, peak


@exact_helper
def _plus(a: float, b: float) -> float:
    return a + b


def _measure(
    addresses: Array, sizes: Array, blocks: Array, like: Array, like_bits: Array, magnitude: int,
    square: Array, peaks: Array,
) -> None:  # fmt: skip
    for k in range(addresses.size):
        values = carray(pointer(addresses[k], like), (sizes[k],))
        bits = carray(pointer(addresses[k], like_bits), (sizes[k],))
        total, block = 0.0, blocks[k]
        for first in range(0, sizes[k], BLOCK):
            stop = min(first + BLOCK, sizes[k])
            one, peak = _block(values[first:stop], bits[first:stop], magnitude)
            total = _plus(total, one)
            peaks[block] = peak
            block += 1
        square[0] = _plus(square[0], total)


@exact_helper
def _add_small(total: Array, values: Array, factor: float) -> None:
    for i in range(values.size):
        total[i] += np.int32(np.rint(np.float64(values[i]) * factor))


@exact_helper
def _add_large(total: Array, values: Array, factor: float) -> None:
    # Few processors convert float64 to int64 in vectors: the sum with the shift does it for all.
    for i in range(values.size):
        shifted = np.float64(values[i]) * factor + _SHIFT
        total[i] += np.float64(shifted).view(np.int64) - _SHIFT_BITS


def _drain(total: Array, pending: Array) -> None:
    for i in range(total.size):
        total[i] += np.int64(pending[i])
        pending[i] = 0


_drain_helper = exact_helper(_drain)


def _add(
    addresses: Array, sizes: Array, starts: Array, blocks: Array, like: Array, peaks: Array,
    factor: float, total: Array, pending: Array, room: Array,
) -> None:  # fmt: skip
    for k in range(addresses.size):
        values = carray(pointer(addresses[k], like), (sizes[k],))
        block = blocks[k]
        for first in range(0, sizes[k], BLOCK):
            stop = min(first + BLOCK, sizes[k])
            a, b = starts[k] + first, starts[k] + stop
            largest = np.int64(peaks[block] * factor) + 2
            if largest > LARGE:
                _add_large(total[a:b], values[first:stop], factor)
            else:
                if largest > room[block]:
                    _drain_helper(total[a:b], pending[a:b])
                    room[block] = FULL
                room[block] -= largest
                _add_small(pending[a:b], values[first:stop], factor)
            block += 1


def _add_to_int64(
    addresses: Array, sizes: Array, starts: Array, like: Array, factor: float, total: Array
) -> None:
    for k in range(addresses.size):
        values = carray(pointer(addresses[k], like), (sizes[k],))
        _add_large(total[starts[k] : starts[k] + sizes[k]], values, factor)


def _scale(
    addresses: Array, sizes: Array, starts: Array, like: Array, factor: float, out: Array
) -> None:
    for k in range(addresses.size):
        values = carray(pointer(addresses[k], like), (sizes[k],))
        start = Unsigned(starts[k])
        for i in range(Unsigned(sizes[k])):
            out[start + i] = np.float64(values[i]) * factor


@functools.cache
def measure_loop(dtype: str) -> Callable[..., Any]:
    """Return the loop that adds squares to ``square[0]`` and stores the bits of largest values."""
    bits, magnitude = ("i", types.int32) if dtype == "f" else ("l", types.int64)
    inputs = *[read_only("l", 1)] * 3, read_only(dtype, 1), read_only(bits, 1), magnitude
    return compiled(_measure, *inputs, writable("d", 1), writable(bits, 1))


@functools.cache
def add_loop(dtype: str) -> Callable[..., Any]:
    """Return the loop that adds to int32 while there is room, else to int64."""
    inputs = *[read_only("l", 1)] * 4, read_only(dtype, 1), read_only("d", 1), types.float64
    return compiled(_add, *inputs, writable("l", 1), writable("i", 1), writable("l", 1))


@functools.cache
def add_large_loop(dtype: str) -> Callable[..., Any]:
    """Return the loop that adds to int64."""
    inputs = *[read_only("l", 1)] * 3, read_only(dtype, 1), types.float64
    return compiled(_add_to_int64, *inputs, writable("l", 1))


@functools.cache
def scale_loop(dtype: str) -> Callable[..., Any]:
    """Return the loop that writes values times a power of two."""
    inputs = *[read_only("l", 1)] * 3, read_only(dtype, 1), types.float64
    return compiled(_scale, *inputs, writable("d", 1))


@functools.cache
def drain_loop() -> Callable[..., Any]:
    """Return the loop that moves int32 into int64."""
    return compiled(_drain, writable("l", 1), writable("i", 1))
