# SPDX-License-Identifier: Apache-2.0
"""`RoundSum`: the exact sum of a round's clipped updates, one update at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import norm_bound, real
from dpftrl_fast.federated.sums.grid import centred, check_unit, most_contributions, norm_of
from dpftrl_fast.federated.sums.layout import Array, Arrays, ModelLayout
from dpftrl_fast.kernels.client_sums import (
    IntegerSum,
    Part,
    blocks_of,
    measure,
    rounding_factor,
)
from dpftrl_fast.rounding import clip_limit

# Shorter arrays are copied together, which is faster than reading the address of each.
_WORTH_AN_ADDRESS = 1 << 12


class RoundSum:
    """Sum of clipped updates in integers: exact, so the same for every order of the clients.

    Each update is clipped as a whole, over all arrays together, to a norm below the clip norm, and
    rounded to the grid; the vector that is added has a norm of at most the clip norm, in exact
    arithmetic. An update that is not finite adds nothing. Memory does not depend on the number of
    updates: 12 bytes a coordinate, and a copy of those arrays of one update that are not long
    contiguous arrays of float32 or float64.

    `unit` is that of the grid, from :func:`dpftrl_fast.federated.sums.grid.sum_unit`.

    Notes
    -----
    Holds an un-noised sum: a secret. Calls from several threads must take turns. Numbers are
    collected in int32 (see :mod:`dpftrl_fast.kernels.client_sums`) until they might not fit, or
    `total` is read; how often that happens changes no bit.

    Examples
    --------
    >>> layout = ModelLayout({"w": np.zeros(2), "b": np.zeros(1)})
    >>> sums = RoundSum(layout, clip_norm=1.0, unit=2.0**-31)
    >>> sums.add({"w": np.array([3.0, 4.0]), "b": np.zeros(1)})
    5.0
    >>> sums.add({"w": np.array([0.0, np.nan]), "b": np.zeros(1)})
    nan
    >>> (sums.total * sums.unit).round(5).tolist(), sums.count
    ([0.6, 0.8, 0.0], 1)
    """

    def __init__(self, layout: ModelLayout, clip_norm: float, unit: float) -> None:
        self.layout = layout
        self.clip_norm = clip_norm = norm_bound("clip_norm", clip_norm)
        self.unit = check_unit(clip_norm, layout.size, real("unit", unit))
        self._limit = clip_limit(clip_norm)
        self._most = most_contributions(clip_norm, unit)
        sizes = np.diff(layout.starts)
        blocks = np.array([blocks_of([size]) for size in sizes.tolist()])
        self._blocks = int(blocks.sum())
        # Of each array: its size, its first coordinate, the number of its first block.
        self._facts = sizes, np.array(layout.starts[:-1]), np.cumsum(blocks) - blocks
        self._is_long = (sizes >= _WORTH_AN_ADDRESS).tolist()
        self._sum = IntegerSum(layout.size, self._blocks)
        self.count = 0  # updates in the sum
        self._copies: dict[str, Array] = {}

    @property
    def total(self) -> NDArray[np.int64]:
        """The sum in units, shape (size,): a read-only view, which later calls change."""
        view = self._sum.total().view()
        view.flags.writeable = False
        return view

    def add(self, update: Arrays, weight: float = 1.0) -> float:
        """Add an update, clipped and then times `weight`; return its norm before, a secret.

        `weight` is public and in (0, 1]: the vector that is added has a norm of at most the clip
        norm, and of at most weight + 2^-22 clip norms, since it is rounded last. The norm that is
        returned is at most the largest float64, and infinity or NaN if the update is not finite, in
        which case nothing was added. The update must not be changed during the call.

        Raises
        ------
        ValueError
            If the update does not fit the model.
        OverflowError
            If one more update could overflow int64. In both cases nothing is changed.
        """
        parts = self._parts(self.layout.arrays(update))
        if self.count >= self._most:
            raise OverflowError(f"a sum on this grid takes at most {self._most} updates")
        measured = measure(parts, self._blocks)
        if not math.isfinite(measured.norm):
            return measured.norm
        self.count += 1
        self._sum.add(measured, rounding_factor(measured, self._limit, self.unit) * weight)
        return measured.length()

    def add_total(self, total: object, updates: int, *, modulus_bits: int = 64) -> None:
        """Add a sum of clipped updates that was made elsewhere, in the same units.

        Parameters
        ----------
        total : vector, or arrays in the structure of the model
            Integers, modulo 2^modulus_bits.
        updates : int
            Number of updates in it.
        modulus_bits : int
            At least `bits_of_sum`.

        Raises
        ------
        ValueError
            If the total does not fit the model, or its norm is above that of so many updates.
        OverflowError
            If so many updates could overflow int64. In both cases nothing is changed.
        """
        vector = centred(self.layout.integers(total), modulus_bits)
        if self.count + updates > self._most:
            raise OverflowError(f"a sum on this grid takes at most {self._most} updates")
        # The limit of one update is below the clip norm by far more than the error of this norm.
        if not norm_of(vector) * self.unit <= updates * self.clip_norm:
            raise ValueError(
                f"total must be the sum of {updates} clipped updates, in units of {self.unit} and "
                f"modulo 2^{modulus_bits}, got a norm above {updates} clip norms"
            )
        memory = self._sum.total()
        memory += vector
        self.count += updates

    def _parts(self, arrays: list[Array]) -> list[Part]:
        """Return the float64 arrays, and the others converted to float32, as parts."""
        doubles = [array.dtype.itemsize == 8 for array in arrays]
        if all(doubles) or not any(doubles):
            return [self._part(range(len(arrays)), arrays, "d" if doubles[0] else "f", self._facts)]
        parts = []
        for char, wanted in (("f", False), ("d", True)):
            places = [place for place, double in enumerate(doubles) if double == wanted]
            facts = tuple(each[places] for each in self._facts)
            parts.append(self._part(places, [arrays[place] for place in places], char, facts))
        return parts

    def _part(
        self, places: Sequence[int], arrays: list[Array], char: str, facts: tuple[Array, ...]
    ) -> Part:
        sizes, starts, blocks = facts
        addresses = np.zeros(len(arrays), np.int64)
        short: list[int] = []
        for k, (place, array) in enumerate(zip(places, arrays, strict=True)):
            if self._is_long[place] and _is_vector(array, char):
                addresses[k] = array.ctypes.data
            else:
                short.append(k)
        memory: list[Array] = arrays
        if short:
            ends = np.cumsum(sizes[short])
            copy = self._copy([arrays[k] for k in short], char, int(ends[-1]))
            addresses[short] = copy.ctypes.data + copy.itemsize * (ends - sizes[short])
            memory = [*arrays, copy]
        return Part(char, addresses, sizes, starts, blocks, memory)

    def _copy(self, arrays: list[Array], char: str, size: int) -> Array:
        if char not in self._copies or self._copies[char].size < size:
            self._copies[char] = np.empty(size, char)
        with np.errstate(invalid="ignore"):  # a NaN may be of the kind that signals
            parts = [array.ravel() for array in arrays]
            return np.concatenate(parts, out=self._copies[char][:size])

    def clear(self) -> None:
        """Reset the sum to zero."""
        self._sum.clear()
        self.count = 0


def _is_vector(array: Array, char: str) -> bool:
    dtype, flags = array.dtype, array.flags
    return dtype.char == char and dtype.isnative and flags.c_contiguous and flags.aligned
