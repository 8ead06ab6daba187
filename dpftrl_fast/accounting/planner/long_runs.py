# SPDX-License-Identifier: Apache-2.0
"""Buffers for single passes that are too long for a search over every step."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from dpftrl_fast._validate import MAX_STEPS, MAX_STREAM, float_dtype
from dpftrl_fast.accounting.participation import Participation, SinglePass
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, squared_of
from dpftrl_fast.mechanisms import BufferedToeplitz, Tree
from dpftrl_fast.mechanisms.run_error import noise_std_at
from dpftrl_fast.mechanisms.toeplitz.long_run import Grid, single_pass_buffers
from dpftrl_fast.mechanisms.toeplitz.unbounded import FEWEST_BUFFERS, MOST_BUFFERS
from dpftrl_fast.mechanisms.tree_error import mean_variance
from dpftrl_fast.mechanisms.workload import Workload

# More gain less than 2 % up to 2^30 steps, and take longer to choose.
_MOST_BUFFERS = 6
# Beyond, decays of float32 numbers are too coarse, and the floor of delta for float32 noise is no
# longer small: every step shifts a noise vector.
_MOST_FLOAT32 = 2**26


def long_run_buffers(
    participation: Participation,
    workload: Workload,
    max_vectors: int | None,
    *,
    bound: PlanBound,
    dtype: Any,
    rank_by: Literal["rms", "last", "worst"],
) -> BufferedToeplitz | None:
    """Return buffers with less error than one tree, or None.

    Parameters
    ----------
    participation : participation
        Of more than 2^20 steps. For a stream without a declared end the buffers are those of
        `BufferedToeplitz.unbounded`.
    workload : Workload
        Running sums; None is returned for others, and for patterns other than a single pass.
    max_vectors : int or None
        Vectors that the mechanism may keep: the number of buffers, at most 6 (unbounded: 10).
    bound : {"released", "exact"}
        By which the tree is ranked.
    dtype : {"float32", "float64"} or None
        Of the noise. Up to 2^26 steps, None gives coefficients for both; beyond, "float64" must be
        given, but where the run is too long for a tree.
    rank_by : {"rms", "last", "worst"}
        Error to compare by.

    Examples
    --------
    >>> long_run_buffers(
    ...     SinglePass(2**30), Workload(), 3, bound="released", dtype="float64", rank_by="rms"
    ... ).words
    'buffered Toeplitz noise, 3 buffers'
    """
    if not isinstance(participation, SinglePass) or workload != Workload():
        return None
    steps, most = participation.steps, MOST_BUFFERS if max_vectors is None else max_vectors
    noise = None if dtype is None else float_dtype(dtype)
    if noise is None and steps > MAX_STEPS:
        noise = "float64"
    if steps == MAX_STREAM and noise == "float64" and most >= FEWEST_BUFFERS:
        return BufferedToeplitz.unbounded(buffers=min(most, MOST_BUFFERS))
    if most < 1 or (noise != "float64" and steps > _MOST_FLOAT32):
        return None
    return _best(steps, min(most, _MOST_BUFFERS), noise or "float32", bound, rank_by)


@lru_cache(maxsize=64)
def _best(
    steps: int,
    size: int,
    dtype: Literal["float32", "float64"],
    bound: PlanBound,
    rank_by: Literal["rms", "last", "worst"],
) -> BufferedToeplitz | None:
    found = single_pass_buffers(steps, size, rank_by=rank_by, dtype=dtype)
    if steps > MAX_STEPS:  # no tree has so many
        return found
    grid, pattern = Grid(steps), SinglePass(steps)
    std = noise_std_at(grid.steps, steps, found)
    buffers = float(grid.means(std**2)[-1]) if rank_by == "rms" else float(std[-1] ** 2)
    if rank_by == "rms":
        tree = mean_variance(steps, "honaker")
    else:
        full = (1 << (steps + 1).bit_length() - 1) - 1  # the largest number of live nodes, nearly
        tree = float(noise_std_at([steps if rank_by == "last" else full], steps)[0] ** 2)
    scores = [
        math.log(squared_of(mechanism.layout(steps), pattern, bound)) + np.log(error)
        for mechanism, error in ((found, buffers), (Tree(), tree))
    ]
    return found if scores[0] < scores[1] else None
