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
        """
        _check_coordinates(size, offset)
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


def _check_coordinates(size: Any, offset: Any) -> None:
    """Refuse coordinates beyond those that the floor of the noise stream is proved for."""
    # A value that is not an integer is left to TreeNoise to refuse.
    if isinstance(size, Integral) and isinstance(offset, Integral):
        end = int(offset) + int(size)
        if end > MAX_COORDINATES:
            raise ValueError(f"offset + size must be at most 2^36 = {MAX_COORDINATES}, got {end}")
