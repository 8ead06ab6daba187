# SPDX-License-Identifier: Apache-2.0
"""Norms and sums of per-example gradients in the dtypes of JAX, with bounds on their rounding.

Without ``jax_enable_x64`` there is no float64, and XLA adds up in an order of its own: a norm over
10^7 float32 coordinates can be half of the true one, and a sum of 1,000 gradients can move by 1.06
L where a gradient of norm L is taken away. So sums are made in steps of few additions, which bounds
the roundings on the way of each number, and the limit of the clipping is reduced by the bound. The
barriers keep XLA from merging the steps.

Let u be the unit of the dtype (2^-24 or 2^-53).

- **Norms.** At each level 128 numbers are added, in any order, with at most 127 roundings. A
  computed sum of squares is at least (1 - k u) of the true one, k = 1 + 127 for each level, plus
  those of the sum over leaves. `inflation` is more than 1 + k u, and the norm is multiplied by it:
  it exceeds the true norm by a factor of at least 1 + k u / 2 - 8 u, which covers the roundings of
  the root, the division and the product too (an error of 2^-18 in all of them, as on a GPU or TPU,
  is left for in float32). Squares are of gradients in units of a power of two near the clip norm:
  what underflows is less than 2^-60 of it.
- **Sums.** m gradients of norm l at most are added in a tree of depth h, with an error of at most
  h u m l. Sums of such microbatches are added with their rounding errors kept beside them (Knuth's
  two-sum, which is exact); these are added up with an error of at most K^2 u^2 B l for K
  microbatches of B examples in all, and the total is rounded once, by u B l. Two neighbours differ
  in one gradient, so in one microbatch, and move by at most

      l (1 + 2 u (h m + (1 + K^2 u) B)).

  If the result is one of n that are added up, n B examples have (n - 1) further roundings:
  2 u n (n B) more in the bracket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpftrl_fast._validate import real
from dpftrl_fast.rounding import clip_limit, two_sum

#: Range of clip norms: in units of a power of two near one, no square of another matters.
SMALLEST, LARGEST = 2.0**-60, 2.0**60

_CHUNK = 128
_WAYS = 8  # sums of a level of the tree
_SLACK = 2.0**-16  # of the clipping, for roots and divisions that are not rounded correctly


def clip_norm_of(value: Any) -> float:
    """Return a clip norm that float32 sums can have."""
    return real("clip_norm", value, least=SMALLEST, most=LARGEST)


def sum_dtype(dtype: Any) -> Any:
    """Return the dtype of the sums for parameters of a dtype: float64, or else float32.

    Examples
    --------
    >>> sum_dtype(jnp.bfloat16).name, sum_dtype(jnp.float64).name
    ('float32', 'float64')
    """
    wide = np.dtype(np.float64)
    return wide if np.dtype(dtype) == wide else np.dtype(np.float32)


def unit_of(dtypes: Sequence[Any]) -> float:
    """Return the largest unit of rounding of some dtypes of sums."""
    return max(float(np.finfo(dtype).eps) / 2 for dtype in dtypes)


def levels(size: int) -> int:
    """Return the levels in which so many numbers are added up.

    Examples
    --------
    >>> levels(1), levels(128), levels(129), levels(10**7)
    (0, 1, 2, 4)
    """
    count = 0
    while size > 1:
        size, count = -(-size // _CHUNK), count + 1
    return count


def inflation(sizes: Sequence[int], unit: float) -> float:
    """Return the factor by which the norm over leaves of these sizes is multiplied.

    Examples
    --------
    >>> f"{inflation([10**7], 2.0**-24) - 1:.1e}"
    '4.6e-05'
    """
    additions = (_CHUNK - 1) * (max(map(levels, sizes)) + levels(len(sizes)))
    return 1.0 + 1.01 * (1 + additions + 8) * unit + _SLACK


def squared_norm(x: Any) -> Any:
    """Return the sum of squares of an array, in levels.

    Examples
    --------
    >>> float(squared_norm(jnp.full(1000, 2.0)))
    4000.0
    """
    return _summed(jnp.square(x.reshape(-1)))


def joint_norm(leaves: Sequence[Any], scale: float) -> Any:
    """Return the norm of all leaves together, times a power of two, not inflated.

    Examples
    --------
    >>> float(joint_norm([jnp.full(9, 1.0), jnp.full(16, 1.0)], 2.0))
    10.0
    """
    squares = [squared_norm(x * np.array(scale, x.dtype)) for x in leaves]
    wide = jnp.result_type(*squares)
    return jnp.sqrt(_summed(jnp.stack([square.astype(wide) for square in squares])))


def _summed(x: Any) -> Any:
    while x.size > 1:
        padding = -x.size % _CHUNK if x.size > _CHUNK else 0
        rows = jnp.pad(x, (0, padding)).reshape(-1, min(_CHUNK, x.size + padding))
        x = jax.lax.optimization_barrier(rows.sum(axis=1))
    return x.reshape(())


def depth(count: int) -> int:
    """Return the additions on the way of a summand in `tree_sum` of so many.

    Examples
    --------
    >>> depth(1), depth(8), depth(64), depth(100)
    (0, 3, 6, 9)
    """
    found = 0
    while count > 1:
        count, found = -(-count // _WAYS), found + 3
    return found


def tree_sum(x: Any) -> Any:
    """Return the sum over the first axis, as a tree.

    Examples
    --------
    >>> tree_sum(jnp.ones((100, 2))).tolist()
    [100.0, 100.0]
    """
    while (count := x.shape[0]) > 1:
        part = -(-count // _WAYS)
        padded = jnp.pad(x, [(0, part * _WAYS - count)] + [(0, 0)] * (x.ndim - 1))
        a, b, c, d, e, f, g, h = (padded[i * part : (i + 1) * part] for i in range(_WAYS))
        x = jax.lax.optimization_barrier(((a + b) + (c + d)) + ((e + f) + (g + h)))
    return x.reshape(x.shape[1:])


def add_kept(total: Any, low: Any, x: Any) -> tuple[Any, Any]:
    """Return total + x rounded, and low with the rounding error added (Knuth's two-sum).

    Examples
    --------
    >>> total, low = add_kept(jnp.float32(2.0**25), jnp.float32(0), jnp.float32(1))
    >>> float(total), float(low)
    (33554432.0, 1.0)
    """
    rounded, error = two_sum(total, x)
    return rounded, low + error


def contribution_limit(
    clip_norm: float, examples: int, microbatch: int, *, unit: float, addends: int = 1
) -> float:
    """Return the norm to clip to, so that one example moves the computed sum by at most L.

    Parameters
    ----------
    clip_norm : float
        L.
    examples, microbatch : int
        B and m, public.
    unit : float
        Of the dtype of the sums (u).
    addends : int
        Such sums that are added up afterwards (n).

    Examples
    --------
    >>> f"{1 - contribution_limit(1.0, 256, 64, unit=2.0**-24):.1e}"
    '7.8e-05'
    """
    count = -(-examples // microbatch)
    errors = depth(microbatch) * microbatch + (1 + count * count * unit) * examples
    errors += (addends > 1) * addends * addends * examples
    return clip_limit(clip_norm) / (1.0 + 2.0 * 1.01 * unit * errors)


def power_of_two(clip_norm: float) -> float:
    """Return a power of two that times the clip norm is in [1, 2).

    Examples
    --------
    >>> power_of_two(0.3), power_of_two(4.0)
    (4.0, 0.25)
    """
    return math.ldexp(1.0, 1 - math.frexp(clip_norm)[1])
