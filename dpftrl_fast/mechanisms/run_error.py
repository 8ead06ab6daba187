# SPDX-License-Identifier: Apache-2.0
"""The error of a run: the standard deviation of the noise in its running sums, step by step.

With n_t = carry + b_t the noise in the running sum at step t (the carry collects the noise at the
end of every earlier tree), a model that is trained with momentum gamma sees

    v_t = gamma v_(t-1) + n_t,   v_0 = 0,

and (1 - gamma) v_t is on the scale of n_t. Both are computed from their exact covariances in
O(T log T), not by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast import _core
from dpftrl_fast._validate import non_negative
from dpftrl_fast.accounting.participation import Participation, check_participation
from dpftrl_fast.mechanisms.choices import Variant, check_variant
from dpftrl_fast.mechanisms.tree_layout import Complete, Trees, resolve_trees

#: The most steps for which errors are computed: two arrays of this length are 1 GiB.
MAX_ERROR_STEPS = 2**26


class NoiseStd(NamedTuple):
    """Standard deviations of the noise at each step, arrays of float64 of shape (steps,).

    Attributes
    ----------
    prefix : ndarray
        Of n_t, the noise in the running sum at step t = 1, .., T.
    smoothed : ndarray
        Of (1 - momentum) v_t, the noise in the momentum-smoothed running sums.
    """

    prefix: NDArray[np.float64]
    smoothed: NDArray[np.float64]


def noise_std(
    steps: int | Participation,
    *,
    restart_every: int | None = None,
    tree_lengths: Sequence[int] | None = None,
    complete: Complete = False,
    variant: Variant = "honaker",
    momentum: float = 0.0,
) -> NoiseStd:
    """Return the standard deviation of the noise in the running sum at every step of a run.

    Parameters
    ----------
    steps : int or participation
        Steps T of the run, at most 2^26, or the pattern that declares them.
    restart_every, tree_lengths, complete
        Restarts and completion, as for :func:`~dpftrl_fast.accounting.sensitivity_squared`. The
        noise at the end of a tree stays in all later running sums.
    variant : {"honaker", "vanilla"}
        How a prefix is put together from the nodes.
    momentum : float
        gamma, 0 <= gamma < 1.

    Returns
    -------
    NoiseStd
        ``prefix`` and ``smoothed``, each of shape (T,), for a clip norm of 1 and a noise multiplier
        of 1: times ``clip_norm * noise_multiplier`` they are those of a coordinate of the run's
        noise. Without momentum the two are equal.

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above.

    Notes
    -----
    In one tree Var(b_t) is the number of set bits of t (vanilla), or the sum over these bits l of
    1/(2 - 2^-l) (Honaker's estimator from below [1]_).

    References
    ----------
    .. [1] Kairouz et al., "Practical and Private (Deep) Learning Without Sampling or Shuffling",
       2021, Appendix B.1.

    Examples
    --------
    >>> (noise_std(32).prefix[[24, 31]] ** 2).round(2).tolist()
    [2.05, 0.51]
    >>> carried = noise_std(64, restart_every=32, momentum=0.9)
    >>> float((carried.prefix[-1] ** 2).round(2))
    1.02
    """
    trees = resolve_trees(
        steps if isinstance(steps, SupportsIndex) else check_participation(steps).steps,
        restart_every=restart_every,
        tree_lengths=tree_lengths,
        complete=complete,
    )
    check_variant(variant)
    return std_of_trees(trees, variant, check_momentum(momentum))


def check_momentum(momentum: float) -> float:
    """Return ``momentum`` as a float if it is a number with 0 <= momentum < 1, else raise."""
    value = non_negative("momentum", momentum)
    if not value < 1:
        raise ValueError(f"momentum must be a number with 0 <= momentum < 1, got {value!r}")
    return value


def check_error_steps(steps: int) -> int:
    """Return ``steps`` if errors can be computed for so many, else raise."""
    if steps > MAX_ERROR_STEPS:
        raise ValueError(
            f"steps must be at most 2^26 = {MAX_ERROR_STEPS} for an error a step, got {steps}"
        )
    return steps


def std_of_trees(trees: Trees, variant: Variant, momentum: float) -> NoiseStd:
    """Return what :func:`noise_std` does, from resolved trees and checked arguments."""
    steps = check_error_steps(trees.steps)
    prefix, smoothed = np.empty(steps), np.empty(steps)
    runs = [(run.steps, run.count, run.completed) for run in trees.runs]
    _core.prefix_error(runs, variant, momentum, prefix, smoothed)
    return NoiseStd(np.sqrt(prefix, out=prefix), np.sqrt(smoothed, out=smoothed))


def root_mean_square(std: NDArray[np.float64]) -> float:
    """Return the square root of the mean of the squares.

    Examples
    --------
    >>> round(root_mean_square(np.array([3.0, 4.0])), 4)
    3.5355
    """
    return math.sqrt(float(np.dot(std, std)) / std.size)
