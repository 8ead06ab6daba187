# SPDX-License-Identifier: Apache-2.0
"""Distance of computed float64 noise from the real normals of the proof.

A run releases, for each of d coordinates and T steps, a sum with noise rounded to the grid g. Let
P be the law of these values with real normals, and P' that of the computed ones. Then for every
data set, chosen adaptively, and every set A of released values,

    P'(A) <= e^tau P(A) + beta,    P(A) <= e^tau P'(A) + beta,
    tau = m a^2/2 + a sqrt(2 m ln(1/beta_2)),  m = d/2 rounded up,  a = 2 T D (8/g + 12.5 c),

where D bounds the error that a released sum adds, but for a probability that is part of beta, and c
is the norm of the normals that take such an error back.
docs/guarantees/floating_point.md has the proof, and the derivation of the numbers below. All
lengths are in standard deviations of a node's noise.
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import NamedTuple

import numpy as np

from dpftrl_fast.mechanisms import Layout, ToeplitzLayout
from dpftrl_fast.mechanisms.run_error import check_error_steps, std_of
from dpftrl_fast.mechanisms.toeplitz.columns import solve_banded
from dpftrl_fast.mechanisms.tree_layout import TreeLayout

_UNIT = 2.0**-53  # relative error of one operation
_NORMAL = 10 * _UNIT  # error of a normal times its deviation, in units of its pair's radius
_MEAN_RADIUS = 1.2534  # sqrt(pi/2), rounded up
_MEAN_SIZE = 0.8  # sqrt(2/pi), rounded up
_TAIL = 12.0  # standard deviations; see _EVENTS
_SLACK = 1.01  # for products of relative errors, and for the roundings of these formulas

# For each pair of coordinates and each step: fewer than 64 events beyond _TAIL, of which each has a
# probability of at most e^-72; and fewer than 4 radius words that are too small, with 2^-82 each.
_EVENTS = 64 * math.exp(-(_TAIL**2) / 2) + 4 * 2.0**-82

# The density changes by a factor below 1.5 over an interval of the grid, 12 conditional standard
# deviations from its centre.
_GRIDS_A_DEVIATION = 16
_MOVE = _TAIL + 0.5  # a move by v changes a normal vector's density by e^(_MOVE v) at most, v <= 1


class Distance(NamedTuple):
    """(tau, beta) between computed and real noise, see the module."""

    tau: float
    beta: float


class Correction(NamedTuple):
    """Norms of normals that change sums of noise as a shift by 1 does."""

    alone: float
    """Of one sum alone, by its own normals and later ones. Given all other sums and the normals
    before, its noise has at least the standard deviation 1/alone."""
    later: float
    """Of all sums after a step, by what the step leaves to them: by later normals."""


def computed_distance(layout: Layout, grid: float, dimension: int, probability: float) -> Distance:
    """Return the distance between the released values with computed and with real noise.

    Parameters
    ----------
    layout : Layout
        Steps and mechanism of the run.
    grid : float
        Of the released sums, in standard deviations of a node's noise.
    dimension : int
        Coordinates of the sum (d).
    probability : float
        beta_2, > 0.

    Returns
    -------
    Distance
        tau is infinite where the conditions of the proof do not hold.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import Tree
    >>> found = computed_distance(Tree().layout(1000), 2.0**-8, 10**5, 1e-12)
    >>> 1e-5 < found.tau < 1e-3, found.beta < 2e-12
    (True, True)
    """
    pairs = dimension // 2 + dimension % 2
    beta = pairs * layout.steps * _EVENTS + probability
    norms = correction(layout)
    if norms.alone * _GRIDS_A_DEVIATION * grid > 1:
        return Distance(math.inf, beta)
    one = 2 * layout.steps * release_error(layout) * (8 / grid + _MOVE * norms.later)
    chance = math.sqrt(2 * pairs * -math.log(probability))
    return Distance(_SLACK * (pairs * one * one / 2 + one * chance), beta)


@singledispatch
def release_error(layout: Layout) -> float:
    """Bound the error of the noise of every released sum (D); registered for each layout."""
    raise TypeError(f"no error is registered for layouts of type {type(layout).__name__}")


@singledispatch
def correction(layout: Layout) -> Correction:
    """Bound the norms of the normals that take a shift by 1 back; registered for each layout."""
    raise TypeError(f"no correction is registered for layouts of type {type(layout).__name__}")


@release_error.register
def _tree_error(layout: TreeLayout) -> float:
    levels, size = layout.tallest.bit_length(), _MEAN_SIZE + _TAIL
    if layout.variant == "honaker":
        weight = 1 / (2 - 0.5 ** np.arange(levels))
        # The nodes that end with a step weigh 1, 1/2, 1/4, .. in the value of the largest of them.
        made = _NORMAL * (_MEAN_RADIUS * 2 + _TAIL * math.sqrt(4 / 3))
        made += _UNIT * 2 * size * (1 + math.sqrt(2))
    else:
        weight = np.ones(levels)
        made = _NORMAL * (_MEAN_RADIUS + _TAIL)
    earlier = layout.noise_limits[0] - levels
    partial = np.sqrt(np.cumsum(weight[::-1]) + earlier)
    # Once more for the sum's low part, which is added to the noise.
    added = _UNIT * size * (partial.sum() + partial[-1] + np.sqrt(weight).sum())
    return float(_SLACK * (made + added))


@correction.register
def _tree_correction(layout: TreeLayout) -> Correction:
    found = math.sqrt(2 * layout.tallest.bit_length() + 6)
    return Correction(alone=found, later=found)


@release_error.register
def _toeplitz_error(layout: ToeplitzLayout) -> float:
    longest = check_error_steps(layout.longest)
    kind, first, second = layout.mechanism.engine
    inverse = layout.mechanism.inverse(longest)
    std = math.sqrt(inverse @ inverse)  # of what a step adds
    size = _MEAN_SIZE + _TAIL
    if kind == "taps":
        terms = _MEAN_SIZE * np.abs(first).sum() + _TAIL * std
    elif kind == "bands":
        terms = size * (1 + np.abs(first).sum() * std) / first[0]
    else:
        past = [solve_banded([1.0, -decay], inverse) for decay in first]
        held = np.array([math.sqrt(each @ each) for each in past])
        terms = size * (1 + np.abs(second) @ (held + std))
    made = _NORMAL * (_MEAN_RADIUS + _TAIL) * inverse[0]
    filtered = _UNIT * (2 * len(first) + 2) * terms
    added = 2 * _UNIT * size * std_of(layout, 0.0).prefix.max()  # as for trees
    return float(_SLACK * (made + filtered + added))


@correction.register
def _toeplitz_correction(layout: ToeplitzLayout) -> Correction:
    column = layout.mechanism.strategy(check_error_steps(layout.longest))
    change = np.diff(column, prepend=0.0)
    carried = column @ column if layout.count > 1 else 0.0  # the next block takes it back
    return Correction(
        alone=math.sqrt(change @ change + carried),
        later=math.sqrt(max(change @ change, column @ column)),
    )
