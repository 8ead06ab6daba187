# SPDX-License-Identifier: Apache-2.0
"""Integers of 64 bits through a secure aggregation that adds numbers modulo 2^32.

Flower's SecAgg+ clips floats to [-c, c], maps them to integers from 0 to T with stochastic
rounding, adds masks and sums modulo 2^32. With c = T/2 the map is x -> x + c, and a whole number x
needs no rounding. So each integer is cut into limbs of `limb_bits` bits, T = 2^limb_bits, each sent
as one whole number in [-c, c). With n T < 2^32 no sum of n limbs wraps, and the sum of the integers
follows from the sums of their limbs.

A vector ends with two numbers more: 1 for an update, 0 for none; and 1 for an update within the
clip norm, -1 above it, 0 for none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MODULUS_BITS = 32
_MOST = 1 << 24
_NEAR = 2.0**-8  # Flower divides by the number of clients: the error is below 2^-19

Vector = NDArray[np.float64]


class Limbs(NamedTuple):
    """Division of the integers of a round into limbs: public.

    Examples
    --------
    >>> limbs = Limbs.of(clients=5, size=2, modulus_bits=36)
    >>> limbs
    Limbs(bits=29, each=2, size=2)
    >>> parts = [limbs.cut(np.array([1, 2**36 - x], np.uint64), 1) for x in range(1, 6)]
    >>> total, updates, within = limbs.joined(sum(parts), 5)
    >>> (total % 2**36).tolist(), updates, within
    ([5, 68719476721], 5, 5)
    """

    bits: int
    """Bits of a limb."""
    each: int
    """Limbs of an integer."""
    size: int
    """Integers of a vector."""

    @classmethod
    def of(cls, clients: int, size: int, modulus_bits: int) -> Limbs:
        """Return the longest limbs whose sums over so many clients do not wrap."""
        if not 1 <= clients <= _MOST:
            raise ValueError(
                f"a secure aggregation must have at most {_MOST} clients, got {clients}"
            )
        bits = _MODULUS_BITS - clients.bit_length()
        return cls(bits, -(-modulus_bits // bits), size)

    @property
    def length(self) -> int:
        """Numbers that a client sends."""
        return self.each * self.size + 2

    @property
    def centre(self) -> int:
        """Half of 2^bits."""
        return 1 << (self.bits - 1)

    def cut(self, integers: NDArray[np.uint64], within: int) -> Vector:
        """Return integers modulo 2^(bits each) as whole numbers in [-centre, centre)."""
        vector, mask = np.empty(self.length), np.uint64((1 << self.bits) - 1)
        for limb in range(self.each):
            part = (integers >> np.uint64(limb * self.bits)) & mask
            vector[limb * self.size : (limb + 1) * self.size] = part
        vector[:-2] -= self.centre
        vector[-2:] = abs(within), within
        return vector

    def joined(self, sums: NDArray[Any], clients: int) -> tuple[NDArray[np.uint64], int, int]:
        """Return the sums over `clients` vectors: integers modulo 2^64, and the last numbers.

        `sums` is the sum of their vectors, whole numbers but for rounding errors below 2^-8.

        Raises
        ------
        ValueError
            If it cannot be the sum of so many vectors.
        """
        if sums.shape != (self.length,):
            raise ValueError(f"sums must have shape {(self.length,)}, got {sums.shape}")
        most = clients * self.centre
        with np.errstate(invalid="ignore"):
            nearest = np.rint(sums)
            if not bool(((nearest >= -most) & (nearest <= most - clients)).all()):
                raise ValueError(f"sums of limbs must be in [{-most}, {most - clients}]")
            if not bool((np.abs(sums - nearest) < _NEAR).all()):
                raise ValueError("sums of limbs must be whole numbers")
        whole = nearest.astype(np.int64)
        limbs = (whole[:-2] + most).astype(np.uint64).reshape(self.each, self.size)
        total = np.zeros(self.size, np.uint64)
        for limb in range(self.each):
            total += limbs[limb] << np.uint64(limb * self.bits)
        return total, int(whole[-2]), int(whole[-1])
