# SPDX-License-Identifier: Apache-2.0
"""One pass of the FTRL or SGD update over a long vector that lies in many tensors.

The update reads and writes ten vectors and computes little, so its cost is its memory traffic;
array operations would make one more trip each. Gradients are read and results written in place, by
address: a call for each of a thousand tensors would cost as much as the work. Every operation is
rounded where it is written, in the vectors' own dtype: the same bits on every machine and for every
cut of the vectors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, from_dtype  # type: ignore[attr-defined]

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.exact import half_of, on_grid, two_sum
from dpftrl_fast.kernels.jit import compiled, exact_helper, pointer, read_only, writable


@exact_helper
def _summed(s: float, low: float, g: float) -> tuple[float, float]:
    # Only low + error is rounded: by 2^-48 (|s| + |total|) in float32.
    total, error = two_sum(s, g)
    return two_sum(total, low + error)


@exact_helper
def _noisy(s: float, low: float, noise: float, grid: float, half: float) -> float:
    # As dpftrl_fast.rounding.noisy_sum, in the vectors' dtype.
    return on_grid(s + (low + noise), grid, half)


@exact_helper
def _soft(q: float, c: float) -> float:
    return q - min(max(q, -c), c)


@exact_helper
def _plain_piece(
    g: Array, s: Array, low: Array, theta_0: Array, noise: Array, out: Array,
    grid: float, half: float, a: float, c: float,
) -> None:  # fmt: skip
    for i in range(s.size):
        s[i], low[i] = _summed(s[i], low[i], g[i])
        x = _noisy(s[i], low[i], noise[i], grid, half)
        out[i] = _soft(theta_0[i] - a * x, c)


@exact_helper
def _momentum_piece(
    g: Array, s: Array, low: Array, v: Array, theta_0: Array, noise: Array, out: Array,
    grid: float, half: float, gamma: float, share: float, a: float, b: float, c: float,
) -> None:  # fmt: skip
    for i in range(s.size):
        s[i], low[i] = _summed(s[i], low[i], g[i])
        x = _noisy(s[i], low[i], noise[i], grid, half)
        v[i] = gamma * v[i] + share * x
        out[i] = _soft(theta_0[i] - (a * x + b * v[i]), c)


@exact_helper
def _sgd_piece(
    g: Array, s: Array, low: Array, last: Array, theta: Array, noise: Array, out: Array,
    grid: float, half: float, a: float, c: float,
) -> None:  # fmt: skip
    for i in range(s.size):
        s[i], low[i] = _summed(s[i], low[i], g[i])
        x = _noisy(s[i], low[i], noise[i], grid, half)
        theta[i] = theta[i] - a * (x - last[i])
        last[i] = x
        out[i] = _soft(theta[i], c)


@exact_helper
def _sgd_momentum_piece(
    g: Array, s: Array, low: Array, u: Array, last: Array, theta: Array, noise: Array, out: Array,
    grid: float, half: float, gamma: float, share: float, a: float, b: float, c: float,
) -> None:  # fmt: skip
    for i in range(s.size):
        s[i], low[i] = _summed(s[i], low[i], g[i])
        x = _noisy(s[i], low[i], noise[i], grid, half)
        r = x - last[i]
        last[i] = x
        u[i] = gamma * u[i] + share * r
        theta[i] = theta[i] - (a * r + b * u[i])
        out[i] = _soft(theta[i], c)


def _plain(
    pieces: Array, g_at: Array, out_at: Array, numbers: Array, grid: float,
    s: Array, low: Array, theta_0: Array, noise: Array,
) -> None:  # fmt: skip
    half = half_of(grid)
    for k in range(pieces.shape[0]):
        start, stop, group = pieces[k, 0], pieces[k, 1], pieces[k, 2]
        g = carray(pointer(g_at[k], s), (stop - start,))
        out = carray(pointer(out_at[k], s), (stop - start,))
        _plain_piece(
            g, s[start:stop], low[start:stop], theta_0[start:stop], noise[start:stop], out,
            grid, half, numbers[group, 2], numbers[group, 4],
        )  # fmt: skip


def _with_momentum(
    pieces: Array, g_at: Array, out_at: Array, numbers: Array, grid: float,
    s: Array, low: Array, v: Array, theta_0: Array, noise: Array,
) -> None:  # fmt: skip
    half = half_of(grid)
    for k in range(pieces.shape[0]):
        start, stop, group = pieces[k, 0], pieces[k, 1], pieces[k, 2]
        g = carray(pointer(g_at[k], s), (stop - start,))
        out = carray(pointer(out_at[k], s), (stop - start,))
        _momentum_piece(
            g, s[start:stop], low[start:stop], v[start:stop], theta_0[start:stop],
            noise[start:stop], out, grid, half,
            numbers[group, 0], numbers[group, 1], numbers[group, 2], numbers[group, 3],
            numbers[group, 4],
        )  # fmt: skip


def _sgd_plain(
    pieces: Array, g_at: Array, out_at: Array, numbers: Array, grid: float,
    s: Array, low: Array, last: Array, theta: Array, noise: Array,
) -> None:  # fmt: skip
    half = half_of(grid)
    for k in range(pieces.shape[0]):
        start, stop, group = pieces[k, 0], pieces[k, 1], pieces[k, 2]
        g = carray(pointer(g_at[k], s), (stop - start,))
        out = carray(pointer(out_at[k], s), (stop - start,))
        _sgd_piece(
            g, s[start:stop], low[start:stop], last[start:stop], theta[start:stop],
            noise[start:stop], out, grid, half, numbers[group, 2], numbers[group, 4],
        )  # fmt: skip


def _sgd_with_momentum(
    pieces: Array, g_at: Array, out_at: Array, numbers: Array, grid: float,
    s: Array, low: Array, u: Array, last: Array, theta: Array, noise: Array,
) -> None:  # fmt: skip
    half = half_of(grid)
    for k in range(pieces.shape[0]):
        start, stop, group = pieces[k, 0], pieces[k, 1], pieces[k, 2]
        g = carray(pointer(g_at[k], s), (stop - start,))
        out = carray(pointer(out_at[k], s), (stop - start,))
        _sgd_momentum_piece(
            g, s[start:stop], low[start:stop], u[start:stop], last[start:stop], theta[start:stop],
            noise[start:stop], out, grid, half,
            numbers[group, 0], numbers[group, 1], numbers[group, 2], numbers[group, 3],
            numbers[group, 4],
        )  # fmt: skip


@functools.cache
def ftrl_loop(dtype: str, momentum: bool) -> Callable[..., None]:
    """Return the compiled update for vectors of a dtype, with or without momentum.

    With s + low the running sum, x = s + low + noise rounded to the grid, soft the soft threshold
    and (gamma, share, a, b, c) the numbers of a piece's group, for each element

        s + low += g,    out = soft(theta_0 - a x, c)
        s + low += g,    v = gamma v + share x,    out = soft(theta_0 - (a x + b v), c)

    Parameters
    ----------
    dtype : {"float32", "float64"}
        Of all vectors; a call of the loop refuses other dtypes and layouts.
    momentum : bool
        True for the second form.

    Returns
    -------
    callable
        ``loop(pieces, g_at, out_at, numbers, grid, s, low, theta_0, noise)``, with v before theta_0
        in the second form. `grid` is a power of two, a number of the dtype. `pieces` (k, 3) of
        int64 has a start, a stop and a group each; `g_at` and `out_at` (k,) of int64 have the
        **addresses** of a piece's gradients and results, contiguous numbers of the dtype; `numbers`
        is (groups, 5), the vectors are of one size. **Nothing of
        this is checked but the types.** s, low, v and the memory at `out_at` are written and share
        no memory with others. The loop does not hold the GIL.

    Examples
    --------
    >>> import numpy as np
    >>> s, low, out, g = np.zeros(2), np.zeros(2), np.zeros(2), np.array([2.0, 4.0])
    >>> loop = ftrl_loop("float64", False)
    >>> pieces, numbers = np.array([[0, 2, 0]]), np.array([[0.0, 0.0, 0.5, 0.0, 0.25]])
    >>> at = [np.array([x.ctypes.data]) for x in (g, out)]
    >>> loop(pieces, *at, numbers, 0.25, s, low, np.ones(2), np.zeros(2))
    >>> s.tolist(), out.tolist()
    ([2.0, 4.0], [0.0, -0.75])
    """
    given, changed = read_only(dtype, 1), writable(dtype, 1)
    if momentum:
        return compiled(_with_momentum, *_head(dtype), changed, given, given)
    return compiled(_plain, *_head(dtype), given, given)


@functools.cache
def sgd_loop(dtype: str, momentum: bool) -> Callable[..., None]:
    """Return the compiled update of SGD on the differences of noisy running sums.

    With the names of :func:`ftrl_loop`, and x' the x of the step before, for each element

        s + low += g,    r = x - x',    theta -= a r,    out = soft(theta, c)
        s + low += g,    r = x - x',    u = gamma u + share r,    theta -= a r + b u,
                                                                  out = soft(theta, c)

    Parameters
    ----------
    dtype : {"float32", "float64"}
        Of all vectors; a call of the loop refuses other dtypes and layouts.
    momentum : bool
        True for the second form.

    Returns
    -------
    callable
        ``loop(pieces, g_at, out_at, numbers, grid, s, low, last, theta, noise)``, with u before
        last in the second form; as that of :func:`ftrl_loop`. `last` is x', and is overwritten by
        x; theta and u are written too.

    Examples
    --------
    >>> import numpy as np
    >>> s, low, last, theta, out = (np.zeros(2) for _ in range(5))
    >>> loop, g = sgd_loop("float64", False), np.array([2.0, 4.0])
    >>> pieces, at = np.array([[0, 2, 0]]), [np.array([x.ctypes.data]) for x in (g, out)]
    >>> for rate in (1.0, 0.5):
    ...     numbers = np.array([[0.0, 0.0, rate, 0.0, 0.0]])
    ...     loop(pieces, *at, numbers, 0.25, s, low, last, theta, np.zeros(2))
    >>> s.tolist(), out.tolist()
    ([4.0, 8.0], [-3.0, -6.0])
    """
    given, changed = read_only(dtype, 1), writable(dtype, 1)
    if momentum:
        return compiled(_sgd_with_momentum, *_head(dtype), changed, changed, changed, given)
    return compiled(_sgd_plain, *_head(dtype), changed, changed, given)


def _head(dtype: str) -> tuple[Any, ...]:
    """Return the types of the arguments that all loops begin with, up to s and low."""
    changed = writable(dtype, 1)
    places = (read_only("int64", 2), read_only("int64", 1), read_only("int64", 1))
    return (*places, read_only(dtype, 2), from_dtype(np.dtype(dtype)), changed, changed)
