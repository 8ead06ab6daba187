# SPDX-License-Identifier: Apache-2.0
"""Loops over dense rows.

A row is read from memory once. Its first pass (dot product with theta and squared norm) brings it
into the L1 cache; then two rows at a time are added to the float64 accumulator, from cache. Two
rows, since the accumulator is then loaded and stored half as often, while two float32 rows of 1000
entries, theta and the accumulator (24 KB) still leave room in 32 KB of L1 for the rows that the
hardware prefetches; with four rows they do not, and the loop waits for memory. The first pass takes
the rows one after another, not side by side: memory then sees one ascending stream. theta and the
accumulator start on cache lines, otherwise every 64-byte load of them touches two, and at fixed
offsets in a page, whatever memory the allocator returns. Rows without a bound, a constant and
weights have a branch of their own: what lies between two passes delays the next rows from memory.

All arithmetic is in float64: three multiply-adds an entry. On a core that does eight of them a
cycle, that is 3/8 of a cycle an entry at best, whatever the speed of memory.

Rows are addressed by index, never by a view: Numba's runtime counts views with atomic instructions,
each of which drains the pipeline.

The accumulator is emptied into `out` every `CHUNK` = 2^12 rows. The roundings of a sum of up to
2^16 rows of norm at most L are then below (2^12 + 2^4) 2^-53 2^16 L. Sums of more rows are made of
such blocks (`dpftrl_fast.kernels.threads`), and `dpftrl_fast.rounding` shows that all roundings of
two sums over neighbouring batches fit together in the margin 2^-20 L that clipping leaves.
"""

from __future__ import annotations

import math

import numpy as np

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.clipping import (
    LARGEST_SQUARE,
    SMALLEST_SQUARE,
    clip_factor,
    exceeds,
    row_scale,
    scaled_square,
    weight_of,
)
from dpftrl_fast.kernels.jit import helper, wide_vectors
from dpftrl_fast.kernels.losses import slope
from dpftrl_fast.rounding import PLAIN_SUMMANDS

CHUNK = PLAIN_SUMMANDS

_PAGE = 4096 // 8  # float64 in a page


@helper
def _aligned_pair(size: int) -> tuple[Array, Array]:
    """Return two empty float64 vectors, which begin 0 and 1 KiB after the begin of a page."""
    stride = -(-size // _PAGE) * _PAGE + _PAGE // 4
    block = np.empty(stride + size + _PAGE)
    first = -(block.ctypes.data // 8) % _PAGE
    return block[first : first + size], block[first + stride : first + stride + size]


@helper
def _add_extreme_row(
    X: Array,
    i: int,
    y: Array,
    weights: Array,
    theta: Array,
    limit: float,
    loss: int,
    loss_param: float,
    row_bound: float,
    constant: float,
    seen: Array,
    total: Array,
) -> None:
    """Add the clipped gradient of a row whose squared norm is out of range, zero or not finite."""
    p = X.shape[1]
    largest = 0.0
    for j in range(p):
        size = abs(np.float64(X[i, j]))
        if not size <= LARGEST_SQUARE:
            seen[0] = 1
            return
        largest = max(largest, size)
    if largest == 0.0 and constant == 0.0:
        return
    own = math.frexp(largest)[1]
    square = 0.0
    for j in range(p):
        v = math.ldexp(np.float64(X[i, j]), -own)
        square += v * v
    # The row with its constant is 2^exponent (factor x 2^-own, constant 2^-exponent).
    bounded = exceeds(1.0, square, own, row_bound)
    exponent = own if constant == 0.0 else max(own, math.frexp(constant)[1])
    exponent = 0 if bounded else exponent
    factor = row_bound / math.sqrt(square) if bounded else math.ldexp(1.0, own - exponent)
    last = math.ldexp(constant, -exponent)
    dot = last * theta[p] if constant != 0.0 else 0.0
    square = last * last
    for j in range(p):
        v = factor * math.ldexp(np.float64(X[i, j]), -own)
        dot += v * theta[j]
        square += v * v
    g = slope(loss, loss_param, math.ldexp(dot, exponent), np.float64(y[i]))
    g *= weight_of(weights, i)
    if not math.isfinite(g):
        return
    clip = exceeds(g, square, exponent, limit)
    f = math.copysign(limit / math.sqrt(square), g) if clip else g
    if clip or bounded:
        for j in range(p):
            total[j] += f * (factor * math.ldexp(np.float64(X[i, j]), -own))
    else:
        for j in range(p):
            total[j] += f * X[i, j]
    if constant != 0.0:
        total[p] += f * (last if clip else constant)


@helper
def _clipped_sum(
    X: Array,
    y: Array,
    weights: Array,
    theta: Array,
    limit: float,
    loss: int,
    loss_param: float,
    row_bound: float,
    constant: float,
    seen: Array,
    total: Array,
    out: Array,
) -> None:
    wide_vectors()
    n = X.shape[0]
    p = X.shape[1]
    has_constant = constant != 0.0
    constant_square = constant * constant
    constant_dot = constant * theta[p] if has_constant else 0.0
    plain = not (has_constant or row_bound < math.inf or weights.size > 0)
    out[:] = 0.0
    for start in range(0, n, CHUNK):
        stop = min(start + CHUNK, n)
        total[:] = 0.0
        for i in range(start, stop, 2):
            a = i
            b = min(i + 1, stop - 1)
            dot_a = 0.0
            square_a = 0.0
            for j in range(p):
                v = np.float64(X[a, j])
                dot_a += v * theta[j]
                square_a += v * v
            dot_b = 0.0
            square_b = 0.0
            for j in range(p):
                v = np.float64(X[b, j])
                dot_b += v * theta[j]
                square_b += v * v
            # fa and fb are the factors of the rows as they stand, ca and cb those of the constant.
            fa = 0.0
            ca = 0.0
            s = row_scale(square_a, row_bound)
            square = scaled_square(square_a, row_bound) + constant_square
            if plain and SMALLEST_SQUARE <= square_a <= LARGEST_SQUARE:
                fa = clip_factor(slope(loss, loss_param, dot_a, np.float64(y[a])), square_a, limit)
            elif square_a <= LARGEST_SQUARE and SMALLEST_SQUARE <= square <= LARGEST_SQUARE:
                g = slope(loss, loss_param, s * dot_a + constant_dot, np.float64(y[a]))
                g *= weight_of(weights, a)
                f = clip_factor(g, square, limit)
                fa = f * s
                ca = f * constant
            else:
                _add_extreme_row(
                    X,
                    a,
                    y,
                    weights,
                    theta,
                    limit,
                    loss,
                    loss_param,
                    row_bound,
                    constant,
                    seen,
                    total,
                )
            fb = 0.0
            cb = 0.0
            if b != a:
                s = row_scale(square_b, row_bound)
                square = scaled_square(square_b, row_bound) + constant_square
                if plain and SMALLEST_SQUARE <= square_b <= LARGEST_SQUARE:
                    fb = clip_factor(
                        slope(loss, loss_param, dot_b, np.float64(y[b])), square_b, limit
                    )
                elif square_b <= LARGEST_SQUARE and SMALLEST_SQUARE <= square <= LARGEST_SQUARE:
                    g = slope(loss, loss_param, s * dot_b + constant_dot, np.float64(y[b]))
                    g *= weight_of(weights, b)
                    f = clip_factor(g, square, limit)
                    fb = f * s
                    cb = f * constant
                else:
                    _add_extreme_row(
                        X,
                        b,
                        y,
                        weights,
                        theta,
                        limit,
                        loss,
                        loss_param,
                        row_bound,
                        constant,
                        seen,
                        total,
                    )
            if has_constant:
                total[p] += ca + cb
            # A row with factor 0 may hold NaN: it is not read again, its partner stands in for it.
            if fb == 0.0:
                if fa == 0.0:
                    continue
                b = a
            elif fa == 0.0:
                a = b
            for j in range(p):
                total[j] += fa * X[a, j] + fb * X[b, j]
        for j in range(total.size):
            out[j] += total[j]


def clipped_sum(
    X: Array,
    y: Array,
    weights: Array,
    theta: Array,
    limit: float,
    loss: int,
    loss_param: float,
    row_bound: float,
    constant: float,
    seen: Array,
    out: Array,
) -> None:
    """Set out to the sum over rows of clip(w l'(<x, theta>, y) x), x with its constant entry.

    seen[0] becomes 1 if a row is not finite.
    """
    wide_vectors()
    aligned_theta, total = _aligned_pair(theta.size)
    for j in range(theta.size):  # a slice brings Numba's message of unlike shapes: slow to compile
        aligned_theta[j] = theta[j]
    _clipped_sum(
        X, y, weights, aligned_theta, limit, loss, loss_param, row_bound, constant, seen, total, out
    )


def predictions(X: Array, theta: Array, out: Array) -> None:
    """Set out[i] to <X[i], theta>."""
    wide_vectors()
    for i in range(X.shape[0]):
        dot = 0.0
        for j in range(X.shape[1]):
            dot += np.float64(X[i, j]) * theta[j]
        out[i] = dot
