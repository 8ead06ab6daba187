# SPDX-License-Identifier: Apache-2.0
"""Sums of clipped client updates in integers: each update measured once, rounded and added once.

An update is a whole model, and its norm is known only when all of it was read. It is read twice,
but written nowhere: the first pass takes the sum of squares and the largest absolute values, the
second multiplies by one number, rounds and adds. The second pass finds the update in the last-level
cache if that can hold a model; its limit is the accumulator, which is read and written. So integers
go to an int32 accumulator first, which is half the traffic. Largest values are kept for blocks of
4096: they show when a block of int32 might overflow and has to be drained into int64, and which
blocks hold a number so large that int64 takes them at once.

The result of an update is defined entry by entry, q = round(x * factor), product and rounding in
float64 (nearest, ties to even), with one factor for the whole update: the same integers whichever
accumulator they go to, and however the update is cut into arrays. The norm is a sum over blocks of
each array, in an order that neither the memory layout nor the cut of calls can change.

Guarantee of clipping to `limit` and rounding. Blocks of 4096 squares and the sum over up to 2^24
blocks have relative errors below 2^-29, products and quotients below 2^-50, so that the scaled
update has a norm of at most limit/unit (1 + 2^-28) units, and rounding adds sqrt(d)/2 units. With
limit = L (1 - 2^-20) and a unit of at most 2^-21 L/sqrt(d) the rounded update has a norm of at most
(1 - 2^-20)(1 + 2^-28) + 2^-22 < 1 times L, in exact arithmetic. It is at most L also if another
library has set the processor to round in one direction, when rounding adds up to sqrt(d) units.

Squares leave float64 for entries beyond 2^511, sums of 2^36 of them beyond 2^493, and they vanish
below 2^-537: an update whose largest value is beyond 2^490 or below 2^-490 is scaled by a power of
two first, exactly. It takes a copy, and is never met in float32.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpftrl_fast._validate import FLOATS, Array, array, real
from dpftrl_fast.kernels._checks import INT64, check_length
from dpftrl_fast.kernels.loops.client import (
    BLOCK,
    FULL,
    INTEGERS,
    add_large_loop,
    add_loop,
    drain_loop,
    measure_loop,
    scale_loop,
)

# Within, no square overflows, and the squares that underflow do not matter.
_SMALLEST, _LARGEST = 2.0**-490, 2.0**490
_MOST_SCALING = 1000
_MAGNITUDE = {"f": np.int32(0x7FFFFFFF), "d": np.int64(0x7FFFFFFFFFFFFFFF)}  # all but the sign
_LIKE = {char: np.empty(0, char) for char in "fdil"}


class Part(NamedTuple):
    """Arrays of one dtype of an update by address, each contiguous and aligned."""

    char: str
    """"f" for float32, "d" for float64."""
    addresses: Array
    sizes: Array
    starts: Array
    """Coordinates of their first values in the flat update."""
    blocks: Array
    """Indices of their first blocks in the whole update; each array begins a new block."""
    memory: Any
    """The arrays at the addresses, kept alive."""

    @classmethod
    def of(cls, arrays: Sequence[Array], starts: Sequence[int], blocks: Sequence[int]) -> Part:
        """Return the part of these arrays.

        Examples
        --------
        >>> Part.of([np.zeros(3), np.zeros(2)], [0, 3], [0, 1]).sizes.tolist()
        [3, 2]
        """
        return cls(
            arrays[0].dtype.char,
            np.array([own.ctypes.data for own in arrays], np.int64),
            np.array([own.size for own in arrays], np.int64),
            np.array(starts, np.int64),
            np.array(blocks, np.int64),
            arrays,
        )


def blocks_of(sizes: Iterable[int]) -> int:
    """Return the number of blocks of arrays of these sizes.

    Examples
    --------
    >>> blocks_of([1, 4096, 4097, 0])
    4
    """
    return sum(-(-size // BLOCK) for size in sizes)


class Measured(NamedTuple):
    """An update whose norm is known."""

    parts: Sequence[Part]
    """The update over 2^exponent: the given parts, unless values are extreme."""
    norm: float
    """Norm of these parts; non-finite if and only if a value of the update is."""
    peaks: Array
    """Largest absolute value in each block of these parts."""
    exponent: int

    def length(self) -> float:
        """Return the norm of the whole update, at most the largest float64."""
        if not math.isfinite(self.norm):
            return self.norm
        mantissa, power = math.frexp(self.norm)
        if power + self.exponent > sys.float_info.max_exp:
            return sys.float_info.max
        return math.ldexp(mantissa, power + self.exponent)


def add_clipped(total: Array, update: Array, limit: float, unit: float) -> float:
    """Add an update, clipped to a norm of `limit` and rounded to units, to a sum.

    Nothing is added for an update that is not finite. A finite one is clipped, however large.

    Parameters
    ----------
    total : (d,) array of int64, C-contiguous
        Changed in place, in units. Overflow is not checked.
    update : (d,) array of float32 or float64, C-contiguous
        Must not be changed by others during the call.
    limit : float
        Norm to clip to, in [1e-101, 1e100].
    unit : float
        A power of two, from 2^-50 to 1 times the limit.

    Returns
    -------
    float
        Norm of the update before clipping; infinity or NaN if nothing was added.

    Notes ----- **Formal guarantee.** Setting the update to zero changes `total` by at most limit (1
    + 2^-28) plus sqrt(d)/2 units in L2 norm. No noise is added: the sum is not private.

    Examples
    --------
    >>> total = np.zeros(2, np.int64)
    >>> add_clipped(total, np.array([3.0, -4.0]), 1.0, 0.25)
    5.0
    >>> add_clipped(total, np.array([0.25, np.nan]), 1.0, 0.25)
    nan
    >>> total.tolist()
    [2, -3]
    """
    total = array("total", total, INT64, 1)
    update = array("update", update, FLOATS, 1)
    if not total.flags.writeable:
        raise ValueError("total must be writable, got a read-only array")
    check_length("update", update, total.size, "the size of total")
    limit, unit = real("limit", limit, least=1e-101, most=1e100), real("unit", unit)
    if not (2.0**-50 * limit <= unit <= limit and math.frexp(unit)[0] == 0.5):
        raise ValueError(
            f"unit must be a power of two from 2^-50 to 1 times the limit {limit}, got {unit}"
        )
    measured = measure([Part.of([update], [0], [0])], blocks_of([update.size]))
    if math.isfinite(measured.norm):
        factor = rounding_factor(measured, limit, unit)
        for part in measured.parts:
            like = _LIKE[part.char]
            add_large_loop(part.char)(part.addresses, part.sizes, part.starts, like, factor, total)
    return measured.length()


def measure(parts: Sequence[Part], blocks: int) -> Measured:
    """Measure an update that is given in parts, which have `blocks` blocks together.

    Examples
    --------
    >>> measured = measure([Part.of([np.array([3.0, -4.0]), np.array([12.0])], [0, 2], [0, 1])], 2)
    >>> measured.norm, measured.peaks.tolist(), measured.exponent
    (13.0, [4.0, 12.0], 0)
    """
    norm, peaks = _norm_and_peaks(parts, blocks)
    peak = float(peaks.max(initial=0.0))
    if peak == 0.0 or _SMALLEST <= peak <= _LARGEST:
        return Measured(parts, norm, peaks, 0)
    if not math.isfinite(peak):
        return Measured(parts, peak, peaks, 0)
    exponent = max(math.frexp(peak)[1], -_MOST_SCALING)
    scaled = [_scaled(part, exponent) for part in parts]
    return Measured(scaled, *_norm_and_peaks(scaled, blocks), exponent)


def _norm_and_peaks(parts: Sequence[Part], blocks: int) -> tuple[float, Array]:
    square, peaks = np.zeros(1), np.zeros(blocks)
    for part in parts:
        char, integer = part.char, INTEGERS[part.char]
        bits = np.zeros(blocks, integer)
        measure_loop(char)(
            part.addresses, part.sizes, part.blocks, _LIKE[char], _LIKE[bits.dtype.char],
            _MAGNITUDE[char], square, bits,
        )  # fmt: skip
        # Blocks of other parts are zeros; NaN wins, and may be a signalling one.
        with np.errstate(invalid="ignore"):
            np.maximum(peaks, bits.view(char), out=peaks)
    return math.sqrt(square[0]), peaks


def _scaled(part: Part, exponent: int) -> Part:
    """Return the part over 2^exponent, in float64."""
    ends = np.cumsum(part.sizes)
    values = np.zeros(int(ends[-1]))
    addresses = values.ctypes.data + 8 * (ends - part.sizes)
    like = _LIKE[part.char]
    scale_loop(part.char)(
        part.addresses, part.sizes, ends - part.sizes, like, math.ldexp(1.0, -exponent), values
    )
    return part._replace(char="d", addresses=addresses, memory=values)


def rounding_factor(measured: Measured, limit: float, unit: float) -> float:
    """Return the factor of the parts of a finite update, min(1, limit/norm)/unit.

    `limit` and `unit` are as for `add_clipped`.

    Examples
    --------
    >>> part = Part.of([np.array([3.0, -4.0])], [0], [0])
    >>> rounding_factor(measure([part], 1), 1.0, 0.25)
    0.8
    """
    norm, exponent = measured.norm, measured.exponent
    # Extreme updates are above or below every limit.
    if exponent > 0 or (exponent == 0 and norm > limit):
        return limit / norm / unit
    return math.ldexp(1.0, exponent) / unit


class IntegerSum:
    """A sum of rounded updates: int64, with an int32 accumulator before it.

    Parameters
    ----------
    size : int
        Coordinates (d).
    blocks : int
        Blocks of an update.

    Examples
    --------
    >>> sums = IntegerSum(2, 1)
    >>> sums.add(measure([Part.of([np.array([0.5, -2.0])], [0], [0])], 1), 3.0)
    >>> sums.total().tolist()
    [2, -6]
    """

    def __init__(self, size: int, blocks: int) -> None:
        self._total = np.zeros(size, np.int64)
        self._pending = np.zeros(size, np.int32)
        self._room = np.full(blocks, FULL, np.int64)

    def add(self, measured: Measured, factor: float) -> None:
        """Add round(value * factor) for all values of a finite update.

        Products must be below 2^51, and sums within int64; neither is checked.
        """
        for part in measured.parts:
            add_loop(part.char)(
                part.addresses, part.sizes, part.starts, part.blocks, _LIKE[part.char],
                measured.peaks, factor, self._total, self._pending, self._room,
            )  # fmt: skip

    def total(self) -> Array:
        """Return the sum, shape (d,), int64: the memory itself, no copy."""
        drain_loop()(self._total, self._pending)
        self._room.fill(FULL)
        return self._total

    def clear(self) -> None:
        """Set the sum to zero."""
        self._total.fill(0)
        self._pending.fill(0)
        self._room.fill(FULL)
