# SPDX-License-Identifier: Apache-2.0
"""The error of a run: the standard deviation of the noise in the sums that training reads.

With n_t the noise in the running sum at step t (for trees carry + b_t, where the carry collects the
noise at the end of every earlier tree), a model that is trained with momentum gamma sees

    v_t = gamma v_(t-1) + n_t,   v_0 = 0,

and (1 - gamma) v_t is on the scale of n_t. Both are computed from their exact covariances, not by
simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import integer, integer_array, real, step_count
from dpftrl_fast.mechanisms.mechanism import Layout, Mechanism, check_mechanism
from dpftrl_fast.mechanisms.tree import Tree
from dpftrl_fast.mechanisms.workload import Workload, check_workload

#: The most steps for which errors are computed: two arrays of this length are 1 GiB.
MAX_ERROR_STEPS = 2**26


class _HasSteps(Protocol):
    @property
    def steps(self) -> int: ...


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
    steps: int | _HasSteps, mechanism: Mechanism = Tree(), *, momentum: float = 0.0
) -> NoiseStd:
    """Return the standard deviation of the noise in the running sum at every step of a run.

    Parameters
    ----------
    steps : int or participation
        Steps T of the run, at most 2^26, or the pattern that declares them.
    mechanism : mechanism
        The noise of earlier trees and blocks stays in all later running sums.
    momentum : float
        gamma, 0 <= gamma < 1.

    Returns
    -------
    NoiseStd
        :func:`mechanism_error` for running sums (``prefix``) and for ``Workload(momentum)``
        (``smoothed``), each of shape (T,), for a clip norm of 1 and a noise multiplier of 1.
        Multiply by ``clip_norm * noise_multiplier`` for the noise of a run. Without momentum the
        two are equal.

    Raises
    ------
    TypeError, ValueError
        If ``steps`` is not such a number or pattern, the mechanism does not fit it, or momentum is
        out of range.

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
    >>> carried = noise_std(64, Tree(restart_every=32), momentum=0.9)
    >>> float((carried.prefix[-1] ** 2).round(2))
    1.02
    """
    total = step_count("steps", getattr(steps, "steps", steps))
    gamma = check_momentum(momentum)
    return std_of(check_mechanism(mechanism).layout(total), gamma)


@dataclass(frozen=True, eq=False)
class MechanismError:
    """Standard deviations of the noise of a run, for a clip norm and a noise multiplier of 1.

    Multiply by ``clip_norm * noise_multiplier`` for the noise of a run.

    Attributes
    ----------
    per_step : ndarray of float64, shape (steps,)
        Of the noise in one coordinate of the workload's sums at step t = 1, .., T.

    Examples
    --------
    >>> error = mechanism_error(Tree(), 32)
    >>> error.per_step.shape, round(error.rms, 3), round(error.last, 3), round(error.worst, 3)
    ((32,), 1.288, 0.713, 1.813)
    """

    per_step: NDArray[np.float64]

    @property
    def rms(self) -> float:
        """Root mean square over the steps."""
        return math.sqrt(float(np.dot(self.per_step, self.per_step)) / self.per_step.size)

    @property
    def last(self) -> float:
        """That of the last step."""
        return float(self.per_step[-1])

    @property
    def worst(self) -> float:
        """The largest."""
        return float(self.per_step.max())


def mechanism_error(
    mechanism: Mechanism, steps: int | _HasSteps, workload: Workload = Workload()
) -> MechanismError:
    """Return the error of a mechanism for a workload, from exact covariances.

    Parameters
    ----------
    mechanism : mechanism
        Any mechanism. The noise of earlier blocks and trees stays in all later sums.
    steps : int or participation
        Steps T of the run, at most 2^26, or the pattern that declares them.
    workload : Workload
        What training reads: running sums by default.

    Returns
    -------
    MechanismError
        ``rms``, ``last``, ``worst`` and ``per_step``, in units of the clip norm times the noise
        multiplier.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, the mechanism does not fit the steps, the workload has rates
        for another number of steps, these rates ask for more than 2^36 operations, or the error
        overflows.

    Notes
    -----
    With one rate O(T) for Toeplitz mechanisms; with a schedule of rates O(T k^2) for k buffers and
    O(T p) for p taps. Bands have an inverse of T coefficients in general: O(T^2) there, unless it
    ends in zeros.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import BandedInverse, Tree
    >>> error = mechanism_error(BandedInverse.square_root(4), 1000)
    >>> round(error.rms, 6), round(error.last, 4)
    (7.069255, 9.9375)
    >>> mechanism_error(Tree(), 32, Workload(momentum=0.9)).per_step.shape
    (32,)
    """
    total = check_error_steps(step_count("steps", getattr(steps, "steps", steps)))
    layout = check_mechanism(mechanism).layout(total)
    with np.errstate(over="ignore", invalid="ignore"):
        std = per_step_std(layout, check_workload(workload, total))
    if not np.isfinite(std).all():
        raise ValueError(
            "the noise in the workload's sums must stay finite, got one that overflows: a weight "
            "decay times learning rate above 2 (1 + momentum) makes it grow with every step, and "
            "so do bands whose inverse grows"
        )
    return MechanismError(std)


def noise_std_at(
    times: ArrayLike, steps: int | _HasSteps, mechanism: Mechanism = Tree()
) -> NDArray[np.float64]:
    """Return the standard deviation of the noise in the running sum at single steps of a run.

    Parameters
    ----------
    times : array_like of int
        Steps, from 1 to those of the run, in any order.
    steps : int or participation
        Steps T of the run, or the pattern that declares them: at most 2^46, for trees 2^40.
    mechanism : mechanism
        The noise of earlier trees and blocks stays in all later running sums.

    Returns
    -------
    ndarray of float64
        One for each of `times`, for a clip norm of 1 and a noise multiplier of 1.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, and for bands in blocks of more than 2^26 steps.

    Notes
    -----
    In closed form: O(log T) a step for trees, O(k^2) for k buffers, O(1) for taps.

    Examples
    --------
    >>> noise_std_at([25, 32], 32).round(4).tolist()
    [1.4316, 0.7127]
    >>> from dpftrl_fast.mechanisms import BufferedToeplitz
    >>> noise_std_at([1, 10**6], 10**6, BufferedToeplitz([0.98], [0.3])).round(3).tolist()
    [1.0, 62.516]
    """
    total = integer("steps", getattr(steps, "steps", steps), 1)
    at = integer_array("times", times, least=1)
    if at.size and int(at.max()) > total:
        raise ValueError(f"times must be at most the {total} steps of the run, got {at.max()}")
    return std_at(check_mechanism(mechanism).layout(total), at)


def check_momentum(momentum: Any) -> float:
    """Return `momentum` as a float if it is a number with 0 <= momentum < 1."""
    return real("momentum", momentum, least=0.0, below=1.0)


def check_error_steps(steps: int) -> int:
    """Return `steps` if errors can be computed for so many."""
    if steps > MAX_ERROR_STEPS:
        raise ValueError(
            f"steps must be at most 2^26 = {MAX_ERROR_STEPS} for an error a step, got {steps}"
        )
    return steps


def std_of(layout: Layout, momentum: float) -> NoiseStd:
    """Return :func:`noise_std` of a layout."""
    prefix = per_step_std(layout, Workload())
    return NoiseStd(prefix, per_step_std(layout, Workload(momentum)) if momentum else prefix.copy())


@singledispatch
def per_step_std(layout: Layout, workload: Workload) -> NDArray[np.float64]:
    """Return the standard deviation of a layout's noise at each step; registered for each type."""
    raise TypeError(f"no error is registered for layouts of type {type(layout).__name__}")


@singledispatch
def std_at(layout: Layout, times: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return :func:`noise_std_at` of a layout, at steps in its range; registered for each type."""
    raise TypeError(f"no error is registered for layouts of type {type(layout).__name__}")
