# SPDX-License-Identifier: Apache-2.0
"""Canaries: records that an audit inserts by the toss of a coin, in coordinates of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import finite_vector, flag, integer, optional
from dpftrl_fast.accounting.statement.statement import Neighbours

Vector = NDArray[np.float64]

#: Norm of the worst canary in clip norms: a clipping to many times the clip norm shows.
BEYOND = 1000.0
# Canaries of a run by default, and the largest number of entries of their matrix.
_CANARIES = 1024
_ENTRIES = 2**21


@dataclass(frozen=True, eq=False)
class Canaries:
    """Equal canaries side by side: canary j is in coordinates j d .. (j + 1) d - 1.

    Attributes
    ----------
    count : int
        Number of canaries (m).
    record : ndarray of float64 or None, shape (d,)
        The contribution of a canary; None for the worst case, of one coordinate.
    flipped : bool
        Canaries that are not included have the opposite sign, instead of being zero.

    Examples
    --------
    >>> made = Canaries(2, np.array([3.0, 4.0]))
    >>> made.vectors(np.array([True, False]), 1.0).tolist()
    [[3.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    >>> made.norm(10.0), made.along(np.array([[3.0, 4.0, 0.0, 0.0]])).tolist()
    (0.5, [[5.0, 0.0]])
    """

    count: int
    record: Vector | None = None
    flipped: bool = False

    @property
    def width(self) -> int:
        """Coordinates of a canary (d)."""
        return 1 if self.record is None else self.record.size

    @property
    def size(self) -> int:
        """Coordinates of all canaries."""
        return self.count * self.width

    @property
    def neighbours(self) -> Neighbours:
        """The neighbours that the two sides of a coin are."""
        return "replace-one" if self.flipped else "zero-out"

    @property
    def words(self) -> str:
        """The canaries in words."""
        kind = "worst-case gradients" if self.record is None else "gradients of a record"
        return f"{kind}, labels flipped" if self.flipped else kind

    def vectors(self, coins: NDArray[np.bool_], clip_norm: float) -> Vector:
        """Return the contribution of each canary for the coins, of shape (m, m d)."""
        one = np.array([BEYOND * clip_norm]) if self.record is None else self.record
        signs = np.where(coins, 1.0, -1.0 if self.flipped else 0.0)
        found = np.zeros((self.count, self.count, self.width))
        found[np.arange(self.count), np.arange(self.count)] = signs[:, None] * one
        return found.reshape(self.count, self.size)

    def norm(self, clip_norm: float) -> float:
        """Return the norm of a clipped canary, in clip norms."""
        if self.record is None:
            return 1.0
        return min(1.0, float(np.linalg.norm(self.record)) / clip_norm)

    def along(self, sums: Vector) -> Vector:
        """Return the parts of sums of shape (steps, m d) along each canary, (steps, m)."""
        if self.record is None:
            return sums
        unit = self.record / np.linalg.norm(self.record)
        return np.asarray(sums.reshape(len(sums), self.count, self.width) @ unit)


def canaries_of(count: int | None, record: ArrayLike | None, label_flip: bool) -> Canaries:
    """Return the canaries of the options of an audit; ValueError for a record that is zero."""
    flipped = flag("label_flip", label_flip)
    vector = None
    if record is not None:
        vector = finite_vector("record", record)
        if not bool(vector.any()):
            raise ValueError("record must have a gradient that is not zero, got zeros")
    width = 1 if vector is None else vector.size
    given = optional(integer, "canaries", count, 1)
    if given is None:
        given = max(16, min(_CANARIES, math.isqrt(_ENTRIES // width)))
    return Canaries(given, vector, flipped)
