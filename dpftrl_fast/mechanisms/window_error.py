# SPDX-License-Identifier: Apache-2.0
"""The error of windows: the standard deviation of the difference of two released running sums.

The sum over steps s + 1 .. t of a stream is the running sum at t less that at s, so its noise is
n_t - n_s. A block that lies between s and t adds the noise at its end, the block of s the change of
its noise from s to its end, the block of t its noise at t; they are independent. In one block the
noise at s and at t share their vectors, so the difference often has less noise than either sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import integer
from dpftrl_fast.mechanisms.blocks import BlockLayout
from dpftrl_fast.mechanisms.mechanism import Layout
from dpftrl_fast.mechanisms.run_error import check_error_steps

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

_CHUNK = 2**18  # steps computed at a time


def window_std(layout: Layout, since: int, until: int) -> float:
    """Return the standard deviation of the noise in the sum over steps since + 1 .. until.

    Parameters
    ----------
    layout : TreeLayout or ToeplitzLayout
        The mechanism of a run, laid out over its steps: ``mechanism.layout(steps)``.
    since, until : int
        Steps s < t of the two running sums whose difference is taken; s = 0 is the empty sum, which
        has no noise.

    Returns
    -------
    float
        That of n_t - n_s, for a clip norm of 1 and a noise multiplier of 1. Multiply by
        ``clip_norm * noise_multiplier`` for the noise of a run.

    Raises
    ------
    TypeError, ValueError
        If s and t are not integers with 0 <= s < t <= steps; for Toeplitz mechanisms also if a
        block that is read has more than 2^26 steps, or the noise overflows.

    Notes
    -----
    Exact, for sums at real steps: a tree that is completed after the last step has other noise
    then. Trees O(log T), and O(1) for each kind of block between; Toeplitz mechanisms O(T) for
    the T steps of the blocks of s and t.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import BufferedToeplitz, Tree
    >>> layout = Tree().layout(1024)
    >>> round(window_std(layout, 0, 1000), 3), round(window_std(layout, 993, 1000), 3)
    (1.746, 1.183)
    >>> round(window_std(BufferedToeplitz([0.99], [0.3]).layout(1024), 993, 1000), 3)
    1.872
    """
    first = integer("since", since, 0, layout.steps - 1)
    last = integer("until", until, first + 1, layout.steps)
    with np.errstate(over="ignore", invalid="ignore"):
        variance = window_variance(layout, first, last)
    _check_finite(np.float64(variance))
    return math.sqrt(max(variance, 0.0))


def window_stds(layout: Layout, width: int) -> Floats:
    """Return the standard deviation of the noise in a sliding window at every step of a run.

    Parameters
    ----------
    layout : TreeLayout or ToeplitzLayout
        The mechanism of a run of at most 2^26 steps, laid out over them.
    width : int
        Steps of the window, >= 1. Windows that would begin before the first step begin with it.

    Returns
    -------
    array of float64, shape (steps,)
        That of n_t - n_max(t - width, 0) for t = 1, .., T: :func:`window_std` for each of them.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or the noise overflows.

    Notes
    -----
    O(T) for trees, and for Toeplitz mechanisms of one block; blocks that end within a window cost
    O(T log width).

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import Identity, Tree
    >>> window_stds(Identity().layout(5), 4).round(3).tolist()
    [1.0, 1.414, 1.732, 2.0, 2.0]
    >>> window_stds(Tree("vanilla").layout(5), 1).round(3).tolist()
    [1.0, 1.414, 1.0, 1.732, 1.0]
    """
    steps = check_error_steps(layout.steps)
    with np.errstate(over="ignore", invalid="ignore"):
        variances = window_variances(layout, min(integer("width", width, 1), steps))
    _check_finite(variances)
    return np.asarray(np.sqrt(np.maximum(variances, 0.0)))


def _check_finite(variance: np.float64 | Floats) -> None:
    if not np.isfinite(variance).all():
        raise ValueError(
            "the noise in a window must stay finite, got one that overflows: the inverse of these "
            "bands grows with every step"
        )


@singledispatch
def window_variance(layout: Layout, since: int, until: int) -> float:
    """Return the variance of n_until - n_since; registered for the type of each layout."""
    raise TypeError(f"no error of windows is registered for layouts of type {_type(layout)}")


@singledispatch
def window_variances(layout: Layout, width: int) -> Floats:
    """Return that of n_t - n_max(t - width, 0) for each t; registered for each type."""
    raise TypeError(f"no error of windows is registered for layouts of type {_type(layout)}")


def _type(layout: object) -> str:
    return type(layout).__name__


# ---- Layouts of blocks ----


def pair_variance(
    layout: BlockLayout[Any], since: int, until: int, within: Callable[[int, int], float]
) -> float:
    """Return the variance of n_until - n_since from those of one block.

    Parameters
    ----------
    layout : BlockLayout
    since, until : int
        0 <= since < until <= steps.
    within : callable
        ``within(u, v)`` is the variance of b_v - b_u, with b_t the noise at step t of a block and
        b_0 = 0. The layout's blocks differ in their lengths only.
    """
    block, u = layout.locate(since) if since else (0, 0)
    last, v = layout.locate(until)
    if block == last:
        return within(u, v)
    parts = [within(u, layout.run_of(block).end), within(0, v)]
    before = 0  # blocks of the runs gone through
    for run in layout.runs:
        between = min(before + run.count, last) - max(before, block + 1)
        if between > 0:
            parts.append(between * within(0, run.end))
        before += run.count
    return math.fsum(parts)


class BlockWindows(Protocol):
    """Variances in one block of the windows of one width."""

    def within(self, since: Steps, until: Steps) -> Floats:
        """Return those of b_until - b_since: of the width apart, or since = 0."""

    def to_end(self, run: Steps, since: Steps) -> Floats:
        """Return those of b_end - b_since, of blocks of the runs with these numbers.

        since is at most the width before the block's last step.
        """


def sliding_variances(layout: BlockLayout[Any], width: int, windows: BlockWindows) -> Floats:
    """Return the variance of n_t - n_max(t - width, 0) for every t from those of one block."""
    found = np.empty(layout.steps)
    runs, none = layout.runs, np.zeros(1, np.int64)
    whole = np.array([float(windows.within(none, none + run.end)[0]) for run in runs])
    counts = np.array([run.count for run in runs], np.int64)
    blocks_to = np.cumsum(counts)  # blocks of the runs up to each, and the noise that they carry
    carried_to = np.cumsum(counts * whole)
    for start in range(0, layout.steps, _CHUNK):
        until = np.arange(start, min(start + _CHUNK, layout.steps))
        since = until - width  # counted from 0 here, so that -1 is the empty sum
        last_run, last, v = layout.places_of(until)
        run, block, u = layout.places_of(np.maximum(since, 0))
        v, u = v + 1, np.where(since >= 0, u + 1, 0)
        chunk = found[start : start + until.size]
        alone = block == last
        chunk[alone] = windows.within(u[alone], v[alone])
        run, block, u, last_run, last, v = (x[~alone] for x in (run, block, u, last_run, last, v))
        # Whole blocks between: those of one run counted, else the rest of the first run, whole
        # runs, and the first blocks of the last run.
        between = np.where(
            run == last_run,
            (last - block - 1) * whole[run],
            (blocks_to[run] - block - 1) * whole[run]
            + (carried_to[last_run - 1] - carried_to[run])
            + (last - blocks_to[last_run - 1]) * whole[last_run],
        )
        chunk[~alone] = windows.to_end(run, u) + between + windows.within(np.zeros_like(v), v)
    return found
