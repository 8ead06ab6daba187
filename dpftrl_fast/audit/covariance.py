# SPDX-License-Identifier: Apache-2.0
"""Covariance over time of the noise in running sums, and the best score for a shift of them.

Written from the definitions of the mechanisms, apart from the sources of noise and from the
accountant: an audit compares what they do with these matrices.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from dpftrl_fast._validate import integer
from dpftrl_fast.accounting import (
    FixedEpochs,
    FixedOrder,
    Participation,
    SinglePass,
)
from dpftrl_fast.mechanisms import Layout, ToeplitzLayout, TreeLayout, Variant

Matrix = NDArray[np.float64]

#: Largest number of steps of an audit: its matrices have the square of this size.
MAX_STEPS = 2048


def noise_factor(layout: Layout, *, finished: bool = False) -> Matrix:
    """Return F with n = F z: the noise of all running sums from independent unit normals z.

    Parameters
    ----------
    layout : TreeLayout or ToeplitzLayout
        Of at most 2048 steps.
    finished : bool
        The sum after the last step has the noise of a tree that is completed first.

    Returns
    -------
    array of float64, shape (steps, vectors)
        Row t - 1 is the noise of the running sum at step t, for a noise multiplier and a clip norm
        of 1, with that of earlier blocks.

    Raises
    ------
    TypeError, ValueError
        For another layout, or a longer one.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import Tree
    >>> f = noise_factor(Tree("vanilla").layout(4))
    >>> (f @ f.T).astype(int).tolist()
    [[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 2, 0], [0, 0, 0, 1]]
    """
    check_steps(layout.steps)
    if isinstance(layout, TreeLayout):
        trees = [(_tree_factor(r.steps, r.end, layout.variant), r.count) for r in layout.runs]
        found = _chained(trees)
        if finished:
            carried = trees[-1][0][1]
            found[-1, found.shape[1] - carried.size :] = carried
        return found
    if isinstance(layout, ToeplitzLayout):
        return _chained(
            (_toeplitz_factor(layout.mechanism.inverse(run.steps)), run.count)
            for run in layout.runs
        )
    raise TypeError(f"layout must be of a tree or Toeplitz, got {type(layout).__name__}")


def _chained(blocks: Iterable[tuple[tuple[Matrix, Matrix], int]]) -> Matrix:
    """Join (noise at each step, noise that is carried on) of each kind of block."""
    parts = [block for block, count in blocks for _ in range(count)]
    found = np.zeros((sum(len(f) for f, _ in parts), sum(carried.size for _, carried in parts)))
    step = vector = 0
    for f, carried in parts:
        columns = slice(vector, vector + carried.size)
        found[step : step + len(f), columns] = f
        found[step + len(f) :, columns] = carried
        step, vector = step + len(f), vector + carried.size
    return found


def _toeplitz_factor(inverse: NDArray[np.float64]) -> tuple[Matrix, Matrix]:
    """Return A C^-1 of a block, A all ones on and below the diagonal, and its last row."""
    column = np.cumsum(inverse)
    lag = np.subtract.outer(np.arange(column.size), np.arange(column.size))
    f = np.where(lag >= 0, column[lag], 0.0)
    return f, f[-1]


@lru_cache(maxsize=8)
def _tree_factor(steps: int, end: int, variant: Variant) -> tuple[Matrix, Matrix]:
    """Return the noise of prefixes 1 .. steps of a tree of `end` leaves, and that of all leaves.

    A complete node of level l covers 2^l leaves and has a normal of its own. The vanilla prefix at
    t is the sum of the nodes of the binary digits of t. Honaker's estimate of a node's sum is the
    mean of its own noisy value and of the sum of the estimates of its two halves, weighted by the
    inverses of their variances.
    """
    levels = end.bit_length()
    place: dict[tuple[int, int], int] = {}
    for level in range(levels):
        for k in range(end >> level):
            place[level, k] = len(place)
    estimate = np.zeros((len(place), len(place)))
    variance = 1.0
    for level in range(levels):
        halves = 2.0 * variance  # of the sum of two estimates one level below
        weight = 1.0 if level == 0 or variant == "vanilla" else halves / (1.0 + halves)
        for k in range(end >> level):
            row = estimate[place[level, k]]
            row[place[level, k]] = weight
            if weight != 1.0:
                below = place[level - 1, 2 * k], place[level - 1, 2 * k + 1]
                row += (1.0 - weight) * (estimate[below[0]] + estimate[below[1]])
        variance = weight if variant == "honaker" else 1.0

    def prefix(t: int) -> Matrix:
        found, before = np.zeros(len(place)), 0
        for level in reversed(range(levels)):
            if t >> level & 1:
                found += estimate[place[level, before >> level]]
                before += 1 << level
        return found

    return np.array([prefix(t) for t in range(1, steps + 1)]), prefix(end)


def check_steps(steps: int) -> int:
    """Return `steps` if an audit can be made of so many."""
    return integer("the steps of an audit", steps, 1, MAX_STEPS)


# ---- Participation ----


def uses_matrix(participation: Participation) -> Matrix:
    """Return in each column how often one id takes part up to each step, for patterns to try.

    Parameters
    ----------
    participation : SinglePass, FixedEpochs, FixedOrder or MinSeparation

    Returns
    -------
    array of float64, shape (steps, patterns)
        For a single pass every step, for epochs every place of a fixed order, for an order its ids;
        for a least separation uses as often and as close as allowed, from every step on.

    Examples
    --------
    >>> uses_matrix(FixedEpochs(2, 2)).T.astype(int).tolist()
    [[1, 1, 2, 2], [0, 1, 1, 2]]
    """
    total = check_steps(participation.steps)
    if isinstance(participation, FixedOrder):
        _, patterns = np.unique(participation.ids, return_inverse=True)
        found = np.zeros((total, int(patterns.max()) + 1))
        np.add.at(found, (participation.step_of_uses(), patterns), 1.0)
        return np.asarray(np.unique(found.cumsum(axis=0), axis=1))
    taken: list[range]
    if isinstance(participation, SinglePass):
        taken = [range(step, step + 1) for step in range(total)]
    elif isinstance(participation, FixedEpochs):
        each = participation.steps_per_epoch
        taken = [range(place, total, each) for place in range(each)]
    else:
        apart, most = participation.min_separation, participation.most_participations
        taken = [range(start, total, apart)[:most] for start in range(total)]
    found = np.zeros((total, len(taken)))
    for column, steps in enumerate(taken):
        found[list(steps), column] = 1.0
    return np.asarray(found.cumsum(axis=0))


# ---- Scores ----


class Whitener:
    """Linear map after which the noise of a plan's running sums is independent unit normals.

    Parameters
    ----------
    layout : Layout
        Of the plan's mechanism, of at most 2048 steps.
    noise_multiplier : float
        Of the plan.
    finished : bool
        As for :func:`noise_factor`.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import Identity
    >>> white = Whitener(Identity().layout(2), 2.0)
    >>> white(np.array([[1.0], [3.0]])).tolist()
    [[0.5], [1.0]]
    """

    def __init__(self, layout: Layout, noise_multiplier: float, *, finished: bool = False) -> None:
        f = noise_factor(layout, finished=finished)
        # Rows of F as R^T Q^T: n = R^T z' with z' = Q^T z, again independent unit normals.
        self._lower = np.asarray(np.linalg.qr(f.T, mode="r")).T * noise_multiplier

    def __call__(self, sums: Matrix) -> Matrix:
        """Return running sums of shape (steps, n), in clip norms, with whitened noise."""
        return np.asarray(solve_triangular(self._lower, sums, lower=True))

    def worst(self, participation: Participation) -> tuple[Matrix, Matrix]:
        """Return the pattern of the largest mu of those tried, and its whitened shift.

        Returns
        -------
        uses : array of float64, shape (steps,)
            Participations up to each step, by contributions of the clip norm in one direction.
        shift : array of float64, shape (steps,)
            Its norm is mu, and the inner product with it the best score.
        """
        uses = uses_matrix(participation)
        shifts = self(uses)
        place = int(np.argmax(np.einsum("ij,ij->j", shifts, shifts)))
        return uses[:, place], shifts[:, place]
