# SPDX-License-Identifier: Apache-2.0
"""Packed triangles of symmetric matrices: the checked calls.

A triangle is the upper one, row after row; see `dpftrl_fast.kernels.loops.triangle`. Every call
raises TypeError or ValueError for wrong types, dtypes, shapes, layouts and memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from numba import types

from dpftrl_fast._validate import FLOATS, Array, array
from dpftrl_fast.kernels._checks import FLOAT64, check_changed, check_length
from dpftrl_fast.kernels.jit import compiled, read_only, writable
from dpftrl_fast.kernels.loops import triangle as triangle_loops

_F64 = "d"


def packed_size(p: int) -> int:
    """Return the entries of a triangle, p (p + 1) / 2.

    Examples
    --------
    >>> packed_size(4)
    10
    """
    return p * (p + 1) // 2


@functools.cache
def _add_packed() -> Callable[..., None]:
    return compiled(
        triangle_loops.add_packed, read_only(_F64, 1), writable(_F64, 1), writable(_F64, 1)
    )


@functools.cache
def _add_noise(noise: str) -> Callable[..., None]:
    return compiled(
        triangle_loops.add_noise,
        *(read_only(_F64, 1), read_only(_F64, 1), types.int64, types.float64, writable(noise, 1)),
        exact=True,
    )


@functools.cache
def _unpack(packed: str) -> Callable[..., None]:
    return compiled(triangle_loops.unpack, read_only(packed, 1), types.float64, writable(_F64, 2))


@functools.cache
def _product(packed: str) -> Callable[..., None]:
    return compiled(
        triangle_loops.product,
        *(read_only(packed, 1), types.float64, read_only(_F64, 1), writable(_F64, 1)),
    )


def add_packed(packed: Array, total: Array, low: Array) -> None:
    """Add a packed triangle to a packed sum, with the rounding errors beside it.

    Parameters
    ----------
    packed : (m,) array of float64
        Triangle to add, for example the sums of a batch that another process computed.
    total, low : (m,) arrays of float64
        As for `RankUpdate.add`.

    Examples
    --------
    >>> import numpy as np
    >>> total, low = np.array([1e16]), np.zeros(1)
    >>> add_packed(np.array([1.0]), total, low)
    >>> total.item(), low.item()
    (1e+16, 1.0)
    """
    inputs = {"packed": array("packed", packed, FLOAT64, 1)}
    inputs["total"] = check_changed("total", total, packed.shape, "that of packed", inputs)
    check_changed("low", low, packed.shape, "that of packed", inputs)
    _add_packed()(packed, total, low)


def add_noise(total: Array, low: Array, noise: Array, grid: float) -> None:
    """Turn the noise of a step into the noisy sum, in place.

    The noise off the diagonal is divided by sqrt(2): the noise matrix is then the projection on
    symmetric matrices of one with independent entries of the noise's standard deviation.

    The noisy sum is made in float64, rounded to multiples of `grid`, and then to the noise's dtype.
    So no low-order bits of the un-noised sum are exposed, as they would be where sum and noise
    nearly cancel.

    Parameters
    ----------
    total, low : (p (p + 1) / 2,) arrays of float64
        The packed sum.
    noise : (p (p + 1) / 2,) array of float32 or float64
        Independent normals, overwritten with the noisy sum.
    grid : float
        A power of two, that of the noise.

    Examples
    --------
    >>> import numpy as np
    >>> noise = np.array([1.0, 1.0, 1.0], np.float32)
    >>> add_noise(np.array([1.0, 2.0, 3.0]), np.zeros(3), noise, 2.0**-4)
    >>> noise.tolist()
    [2.0, 2.6875, 4.0]
    """
    if not (0.0 < grid < math.inf and math.frexp(grid)[0] == 0.5):
        raise ValueError(f"grid must be a power of two, got {grid}")
    total = array("total", total, FLOAT64, 1)
    low = array("low", low, FLOAT64, 1)
    check_length("low", low, total.size, "the size of total")
    p = _columns("total", total)
    inputs = {"total": total, "low": low}
    noise = check_changed("noise", noise, total.shape, "that of total", inputs, FLOATS)
    _add_noise(noise.dtype.char)(total, low, p, float(grid), noise)


def unpack(packed: Array, ridge: float, out: Array) -> Array:
    """Write a triangle plus ``ridge`` times the identity to the upper triangle of a matrix.

    Parameters
    ----------
    packed : (p (p + 1) / 2,) array of float32 or float64
        Upper triangle, row after row.
    ridge : float
        Added to the diagonal.
    out : (p, p) array of float64, C-contiguous
        Entries below the diagonal stay as they are.

    Returns
    -------
    (p, p) array of float64
        `out`.

    Examples
    --------
    >>> import numpy as np
    >>> unpack(np.array([1.0, 2.0, 3.0]), 0.5, np.zeros((2, 2))).tolist()
    [[1.5, 2.0], [0.0, 3.5]]
    """
    packed = array("packed", packed, FLOATS, 1)
    p = _columns("packed", packed)
    out = check_changed("out", out, (p, p), "the columns of the matrix", {"packed": packed})
    _unpack(packed.dtype.char)(packed, float(ridge), out)
    return out


def packed_product(packed: Array, ridge: float, v: Array, out: Array) -> Array:
    """Compute (S + ridge I) v for the symmetric matrix S of a triangle.

    Parameters
    ----------
    packed, ridge
        As for `unpack`.
    v, out : (p,) arrays of float64
        The vector, and the array that is overwritten with the product.

    Returns
    -------
    (p,) array of float64
        `out`.

    Examples
    --------
    >>> import numpy as np
    >>> packed_product(np.array([1.0, 2.0, 3.0]), 0.5, np.array([1.0, -1.0]), np.empty(2)).tolist()
    [-0.5, -1.5]
    """
    packed = array("packed", packed, FLOATS, 1)
    p = _columns("packed", packed)
    v = array("v", v, FLOAT64, 1)
    check_length("v", v, p, "the columns of the matrix")
    check_changed("out", out, (p,), "the columns of the matrix", {"packed": packed, "v": v})
    _product(packed.dtype.char)(packed, float(ridge), v, out)
    return out


def _columns(name: str, packed: Array) -> int:
    p = (math.isqrt(8 * packed.size + 1) - 1) // 2
    if p < 1 or packed_size(p) != packed.size:
        raise ValueError(
            f"{name} must have p (p + 1) / 2 entries for some p >= 1, got {packed.size}"
        )
    return p
