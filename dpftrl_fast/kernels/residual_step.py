# SPDX-License-Identifier: Apache-2.0
"""One pass that releases noisy sums on a grid and keeps the remainders, over many tensors.

A coordinate is read once (noise, sum, remainder) and written once (sum, remainder): the cost is
that memory traffic, and array operations would make one more trip each. Sums are changed in place,
by address, as in :mod:`dpftrl_fast.kernels.ftrl_step`. Every operation is rounded where it is
written, in the dtype that array operations would have: the same bits as theirs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numba import carray, from_dtype  # type: ignore[attr-defined]

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.exact import half_of, on_grid
from dpftrl_fast.kernels.jit import compiled, exact_helper, pointer, read_only, writable


@exact_helper
def _piece(
    g: Array, remainder: Array, noise: Array, grid: float, half: float, divisor: float
) -> None:
    for i in range(g.size):
        x = remainder[i] + noise.dtype.type(noise[i] + g[i])
        w = on_grid(x, grid, half)
        remainder[i] = x - w
        g[i] = g.dtype.type(w) / divisor


def _residual(
    pieces: Array, g_at: Array, like: Array, grid: float, divisor: float,
    remainder: Array, noise: Array,
) -> None:  # fmt: skip
    half = half_of(grid)
    for k in range(pieces.shape[0]):
        start, stop = pieces[k, 0], pieces[k, 1]
        g = carray(pointer(g_at[k], like), (stop - start,))
        _piece(g, remainder[start:stop], noise[start:stop], grid, half, divisor)


@functools.cache
def residual_loop(dtype: str, sums: str) -> Callable[..., None]:
    """Return the compiled pass for vectors of `dtype` and sums of `sums`.

    For each element, with the noise n of a step and what earlier roundings left in the remainder r,

        x = r + (n + g),    w = grid floor(x/grid + 1/2),    r = x - w,    g = w / divisor

    Parameters
    ----------
    dtype, sums : {"float32", "float64"}
        Of noise and remainder, and of the sums; a call of the loop refuses other dtypes and
        layouts. n + g is in the wider of the two, then rounded to `dtype`; w is rounded to `sums`
        before it is divided.

    Returns
    -------
    callable
        ``loop(pieces, g_at, like, grid, divisor, remainder, noise)``. `pieces` (k, 3) of int64 has
        a start, a stop and a group each; `g_at` (k,) of int64 has the **addresses** of a piece's
        sums, contiguous numbers of `sums`; `like` is any vector of `sums`, `grid` a power of two
        and a number of `dtype`, `divisor` a number of `sums`; remainder and noise are of one size.
        **Nothing of this is checked but the types.** The memory at `g_at` and the remainder are
        written and share no memory with others. The loop does not hold the GIL.

    Examples
    --------
    >>> import numpy as np
    >>> g, r = np.array([1.0, -2.0]), np.zeros(2)
    >>> loop = residual_loop("float64", "float64")
    >>> pieces, at = np.array([[0, 2, 0]]), np.array([g.ctypes.data])
    >>> loop(pieces, at, g[:0], 0.5, 2.0, r, np.array([0.3, 0.2]))
    >>> g.tolist(), r.round(2).tolist()
    ([0.75, -1.0], [-0.2, 0.2])
    """
    grid, divisor = (from_dtype(np.dtype(name)) for name in (dtype, sums))
    places = read_only("int64", 2), read_only("int64", 1), read_only(sums, 1)
    return compiled(
        _residual, *places, grid, divisor, writable(dtype, 1), read_only(dtype, 1), exact=True
    )
