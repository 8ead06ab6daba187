# SPDX-License-Identifier: Apache-2.0
"""Contributions of records to a running sum: clipped to a norm, or to bounds of each coordinate."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import norm_bound, shown
from dpftrl_fast.rounding import PLAIN_SUMMANDS, clip_limit, two_sum

Floats = NDArray[np.float64]


class Contributions(ABC):
    """The rule by which a record becomes a vector of norm at most `clip_norm`.

    A contribution is in units of its own: `restored` takes released sums back to those of the
    records.
    """

    clip_norm: float

    @abstractmethod
    def of(self, records: Floats) -> Floats:
        """Return the contribution of each record, arrays of shape (n, size).

        A record that is not finite contributes zero.
        """

    @property
    @abstractmethod
    def unit(self) -> Floats:
        """Size of one unit of a contribution in each coordinate, an array of shape (size,)."""

    @abstractmethod
    def restored(self, sums: Floats, records: NDArray[np.int64] | int) -> Floats:
        """Return sums of contributions in units of the records; `records` is how many they are."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the rule as JSON-able data."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The rule in a few words."""


@dataclass(frozen=True)
class Clipped(Contributions):
    """Records are scaled down to an L2 norm, `clip_norm`; `size` is their length.

    Examples
    --------
    >>> Clipped(1.0, 2).of(np.array([[0.3, 0.4], [np.nan, 1.0]])).tolist()
    [[0.3, 0.4], [0.0, 0.0]]
    """

    clip_norm: float
    size: int

    def of(self, records: Floats) -> Floats:
        """Divide by the largest entry first, so that squares neither overflow nor vanish.

        Sums of squares are taken from the first coordinate to the last, as the compiled loop for
        many steps does.
        """
        bound = clip_limit(self.clip_norm)
        with np.errstate(all="ignore"):  # a warning would reveal a value
            largest = np.abs(records).max(axis=1)
            usable = np.isfinite(largest) & (largest > 0)
            scale = np.where(usable, largest, 1.0)
            rows = np.where(usable[:, None], records, 0.0)
            units = rows / scale[:, None]
            lengths = np.sqrt(np.cumsum(units * units, axis=1)[:, -1])
            too_long = (lengths * scale > bound)[:, None]
            return np.where(too_long, units * (bound / lengths)[:, None], rows)

    @property
    def unit(self) -> Floats:
        """One."""
        return np.ones(self.size)

    def restored(self, sums: Floats, records: NDArray[np.int64] | int) -> Floats:
        """Return the sums as they are."""
        return sums

    def to_dict(self) -> dict[str, Any]:
        """Return the clip norm."""
        return {"clip_norm": self.clip_norm}

    @property
    def words(self) -> str:
        """The clip norm."""
        return f"clip_norm={self.clip_norm:g}"


@dataclass(frozen=True, eq=False)
class Bounded(Contributions):
    """Records are clipped to [low, high] in each coordinate, and centred: in half-widths.

    A contribution is (x - (low + high)/2) / ((high - low)/2), in [-1, 1] in each coordinate. The
    centre times the number of records, which is public, is added back to what is released. A record
    that is not finite somewhere contributes zero, so that it counts as the centre.

    Examples
    --------
    >>> rule = bounded((1000, 1001), 1)
    >>> rule.of(np.array([[1000.5], [1000.75], [7.0], [np.nan]])).ravel().tolist()
    [0.0, 0.5, -1.0, 0.0]
    >>> rule.restored(np.array([-0.5]), 4).item()
    4001.75
    """

    low: Floats
    high: Floats
    clip_norm: float

    @cached_property
    def centre(self) -> Floats:
        """Middle of the bounds."""
        return self.low + self.unit

    @cached_property
    def unit(self) -> Floats:
        """Half the width of the bounds."""
        return self.high / 2 - self.low / 2

    def of(self, records: Floats) -> Floats:
        """Clip to the bounds before the division, which could overflow otherwise."""
        with np.errstate(all="ignore"):
            usable = np.isfinite(records).all(axis=1, keepdims=True)
            inside = np.minimum(np.maximum(records, self.low), self.high)
            found = (inside - self.centre) / self.unit
            return np.where(usable, np.minimum(np.maximum(found, -1.0), 1.0), 0.0)

    def restored(self, sums: Floats, records: NDArray[np.int64] | int) -> Floats:
        """Multiply by the half-widths, and add the centre of every record."""
        count = np.asarray(records, np.float64)[..., None]
        return np.asarray(sums * self.unit + count * self.centre)

    def to_dict(self) -> dict[str, Any]:
        """Return the bounds."""
        return {"bounds": [self.low.tolist(), self.high.tolist()]}

    @property
    def words(self) -> str:
        """The bounds."""
        return f"bounds=({shown(self.low.tolist())}, {shown(self.high.tolist())})"


def bounded(bounds: Any, size: int) -> Bounded:
    """Return the rule of public bounds (low, high): numbers, or arrays of shape (size,).

    Raises
    ------
    TypeError, ValueError
        If they are not that, not finite, or low is not below high.
    """
    expected = f"bounds must be (low, high): two finite numbers, or arrays of {size} of them"
    if isinstance(bounds, str) or not hasattr(bounds, "__len__") or len(bounds) != 2:
        raise ValueError(f"{expected}, got {shown(bounds)}")
    ends = []
    for end in bounds:
        array = np.asarray(end)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{expected}, got dtype {array.dtype}")
        if array.shape not in ((), (size,)):
            raise ValueError(f"{expected}, got shape {array.shape}")
        ends.append(np.broadcast_to(array.astype(np.float64), (size,)).copy())
    low, high = ends
    if not bool(np.all((np.abs(low) <= 1e100) & (np.abs(high) <= 1e100) & (low < high))):
        raise ValueError(f"{expected}, in [-1e100, 1e100] and low < high, got {shown(bounds)}")
    if not bool(np.all(high / 2 - low / 2 >= 1e-100)):
        raise ValueError(f"{expected} at least 2e-100 apart, got {shown(bounds)}")
    return Bounded(low, high, _norm_of_box(size))


def _norm_of_box(size: int) -> float:
    """Return the norm of a record at its bounds in every coordinate, with the rounding margin."""
    exact = math.sqrt(size)
    found = exact / clip_limit(1.0)
    while clip_limit(found) < exact:
        found = math.nextafter(found, math.inf)
    return math.nextafter(found, math.inf)


def rule_of(clip_norm: Any, bounds: Any, size: int) -> Contributions:
    """Return the rule of a clip norm or of bounds, of which exactly one is given."""
    if (clip_norm is None) == (bounds is None):
        raise TypeError(
            "expected either clip_norm or bounds, got " + ("neither" if bounds is None else "both")
        )
    if bounds is None:
        return Clipped(norm_bound("clip_norm", clip_norm), size)
    return bounded(bounds, size)


def sum_of_step(rule: Contributions, records: Floats) -> Floats:
    """Return the sum of the contributions of a step's records.

    Blocks are plain sums, and are added up with their rounding errors (`dpftrl_fast.rounding`). A
    record is in the block of its place, whatever the others hold.
    """
    if records.shape[0] == 0:
        return np.zeros(records.shape[1])
    total = rule.of(records[:PLAIN_SUMMANDS]).sum(axis=0)
    low: Floats | float = 0.0
    for start in range(PLAIN_SUMMANDS, records.shape[0], PLAIN_SUMMANDS):
        block = rule.of(records[start : start + PLAIN_SUMMANDS]).sum(axis=0)
        total, error = two_sum(total, block)
        low = low + error
    return np.asarray(total + low)


def real_rows(name: str, x: ArrayLike, size: int, shapes: tuple[int, ...]) -> Floats:
    """Return records as float64, whatever their values are; those that are not numbers are NaN.

    `shapes` are the numbers of dimensions that are allowed, the last of which has length `size`.

    Raises
    ------
    TypeError, ValueError
        If the dtype or the shape is another one.
    """
    array = np.asarray(x)
    if array.dtype.kind not in "fiub" and not hasattr(x, "dtype"):
        # A list with a text or a complex number becomes an array of such. That depends on one
        # value, so it must not refuse the step.
        array = np.asarray(x, dtype=object)
    if array.dtype.kind == "O":  # as a list with None or a very large integer becomes
        array = np.array([_real(cell) for cell in array.flat]).reshape(array.shape)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if array.ndim not in shapes or array.shape[-1] != size:
        letters = {1: f"({size},)", 2: f"(n, {size})", 3: f"(steps, n, {size})"}
        if shapes[0] == 2:  # of many steps
            letters[2] = f"(steps, {size})"
        allowed = " or ".join(letters[ndim] for ndim in shapes)
        raise ValueError(f"{name} must have shape {allowed}, got {array.shape}")
    with np.errstate(all="ignore"):  # a warning would reveal a value
        return np.ascontiguousarray(array, np.float64)


def _real(cell: object) -> float:
    """Return a cell of an array of objects as a float; NaN if it is not a number."""
    if not isinstance(cell, (Real, Decimal)):
        return math.nan
    try:
        return float(cell)
    except (ArithmeticError, TypeError, ValueError):
        return math.nan
