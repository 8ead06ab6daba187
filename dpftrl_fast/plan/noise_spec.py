# SPDX-License-Identifier: Apache-2.0
"""`NoiseSpec`: the one maker of planned noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any, Literal

import numpy as np

from dpftrl_fast._validate import float_dtype
from dpftrl_fast.accounting.sensitivity.delta_floor import MAX_COORDINATES
from dpftrl_fast.mechanisms import Layout
from dpftrl_fast.noise.arguments import Memory
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.plan.planned_noise import PlannedNoise, source_of
from dpftrl_fast.rounding import release_grid

# A number of p bits as large as 2^(p - 14) times the least standard deviation lies in a cell with
# 2^5 others or more: a cell has at least 2^-8 of that deviation, and two such numbers are 2^-13
# of it apart.
_PER_CELL_BITS = 14


@dataclass(frozen=True)
class NoiseSpec:
    """The noise of a run, of a stretch of it, or of one tree: made by a plan.

    Parameters
    ----------
    clip_norm : float
        L2 norm of the contributions that the noise covers (L).
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma).
    layout : Layout
        The layout of the plan's mechanism, for the steps of this noise.
    purpose : {"tree", "covariance", "clip-norm"}
        Streams of different purposes under one key are unrelated.
    """

    clip_norm: float
    noise_multiplier: float
    layout: Layout
    purpose: Literal["tree", "covariance", "clip-norm"] = "tree"

    def std(self, dtype: Any) -> float:
        """Return the smallest number of the dtype that is at least clip norm times multiplier."""
        exact = Fraction(self.clip_norm) * Fraction(self.noise_multiplier)
        kind = np.dtype(float_dtype(dtype)).type
        with np.errstate(over="ignore", under="ignore"):
            std = kind(float(exact))
        if not np.isfinite(std):  # TreeNoise refuses it
            return float(exact)
        return float(std if Fraction(float(std)) >= exact else np.nextafter(std, kind(np.inf)))

    def grid(self, dtype: Any) -> float:
        """Return the grid of released sums, as `PlannedNoise.grid`."""
        return release_grid(self.std(dtype) * self.layout.least_std)

    def source(
        self,
        size: int,
        *,
        seed: Seed = None,
        key: bytes | None = None,
        memory: Memory = "stored",
        dtype: Literal["float32", "float64"] = "float32",
        rounds: int = 12,
        threads: int | None = None,
        offset: int = 0,
        make: Callable[..., PlannedNoise] | None = None,
    ) -> PlannedNoise:
        """Return the source of this noise.

        Parameters
        ----------
        size : int
            Number of coordinates; ``offset + size`` at most 2^36.
        seed, key, memory, dtype, rounds, threads, offset
            As for :class:`dpftrl_fast.TreeNoise`.
        make : callable, optional
            A subclass of `PlannedNoise` or a partial call of one; default the class that is
            registered for the layout.

        Raises
        ------
        TypeError, ValueError
            For wrong arguments, and if the noise grows so much in the course of the run that
            numbers of the dtype are too coarse for it: a released sum would show the sum modulo
            their spacing.
        """
        _check_coordinates(size, offset)
        self._check_spacing(dtype)
        make = make or source_of(self.layout)
        return make(
            size,
            self.std(dtype),
            layout=self.layout,
            purpose=self.purpose,
            seed=seed,
            key=key,
            memory=memory,
            dtype=dtype,
            rounds=rounds,
            threads=threads,
            offset=offset,
        )

    def _check_spacing(self, dtype: Any) -> None:
        """Refuse noise whose numbers, where it is largest, are few to a cell of the grid."""
        kind = float_dtype(dtype)
        growth = self.layout.largest_std / self.layout.least_std
        most = 2.0 ** (np.finfo(kind).nmant + 1 - _PER_CELL_BITS)
        if growth > most:
            wider = "dtype='float64', or " if kind == "float32" else ""
            raise ValueError(
                f"dtype must be one whose numbers are fine enough for the noise, got {kind!r}, "
                f"where the noise of a running sum grows to {growth:.3g} times that of one step "
                f"(at most {most:.3g}): take {wider}a mechanism with less noise, fewer steps or "
                "fewer restarts"
            )


def _check_coordinates(size: Any, offset: Any) -> None:
    """Refuse coordinates beyond those that the floor of the noise stream is proved for."""
    # A value that is not an integer is left to TreeNoise to refuse.
    if isinstance(size, Integral) and isinstance(offset, Integral):
        end = int(offset) + int(size)
        if end > MAX_COORDINATES:
            raise ValueError(f"offset + size must be at most 2^36 = {MAX_COORDINATES}, got {end}")
