# SPDX-License-Identifier: Apache-2.0
"""Loops over rows with several outputs: one parameter vector per class.

The gradient of a row is the outer product of its slopes s and of the row x, of norm |s| |x|. Slopes
are bounded here (|s| <= sqrt(2) for the softmax, sqrt(K) for hinges, times the weight of the row),
so that only rows whose squared norm overflows count as zero. `_LOST` covers squares that vanish: of
slopes beside a large row, and of a row beside a large weight.

Dense rows are taken four at a time, in passes over two outputs: six numbers that are loaded serve
eight multiply-adds. Two outputs and four rows fit into the L1 cache, the sum in equal parts of at
most `_PART` columns.

- The outputs are dot products in the dtype of the rows: float32 for float32 rows. So an output, and
  with it the gradient, has the accuracy of float32. The bound does not depend on it: the norm of a
  contribution is that of the slopes used and of the row, both in float64. Outputs that float32
  cannot hold are computed again in float64.
- The sum is in float64, from a copy of the rows in float64. The copy has one base address and
  constant strides: with several addresses LLVM makes no vectors, since it would have to compare too
  many for overlap.

Sparse rows work on transposed parameters, of shape (p, K): an entry meets K consecutive numbers.
They are copied too, so that the numbers added are those measured, also for a repeated column.
"""

from __future__ import annotations

import math

import numpy as np

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.clipping import row_scale, scaled_square, weight_of
from dpftrl_fast.kernels.jit import Unsigned, helper, wide_vectors
from dpftrl_fast.kernels.loops.csr import load_row
from dpftrl_fast.kernels.loops.dense import CHUNK
from dpftrl_fast.kernels.losses import slopes

_ROWS = 4
_PART = 512
_STRIDE = _PART + 8  # rows of a part that are 4 KiB apart would share sets of the L1 cache
_BLOCK = _ROWS * _STRIDE
_PIECE = 1024  # products of float32 that are added in float32
_SMALLEST, _LARGEST = 2.0**-60, 2.0**60  # of the largest parameter, for products in float32
# More than all squares of slopes or entries that underflow, and negligible beside one that matters.
_LOST = 2.0**-1000


@helper
def scale_values(values: Array, size: int, row_bound: float) -> float:
    """Scale a loaded row into its bound; return its squared norm, NaN where it is not finite."""
    square = 0.0
    for e in range(size):
        square += values[e] * values[e]
    if not math.isfinite(square):
        return math.nan
    s = row_scale(square, row_bound)
    if s != 1.0:
        for e in range(size):
            values[e] *= s
    return scaled_square(square, row_bound)


@helper
def weigh(weights: Array, i: int, z: Array, square: float) -> float:
    """Multiply the slopes of row i by its weight; return their sum of squares, `square` before.

    It is that of the products: the squares of slopes may have vanished, and weights can be large.
    NaN stays: a bad row has no slopes.
    """
    weight = weight_of(weights, i)
    if weight == 1.0 or math.isnan(square):
        return square
    square = 0.0
    for k in range(z.size):
        z[k] *= weight
        square += z[k] * z[k]
    return square


@helper
def csr_outputs(
    columns: Array, values: Array, size: int, theta: Array, constant: float, z: Array
) -> None:
    """Set z to the outputs of a loaded row, of transposed parameters `theta`."""
    outputs = z.size
    for k in range(outputs):
        z[k] = 0.0
    for e in range(size):
        v = values[e]
        c = Unsigned(columns[e])
        for k in range(outputs):
            z[k] += v * theta[c, k]
    if constant != 0.0:
        last = theta.shape[0] - 1
        for k in range(outputs):
            z[k] += constant * theta[last, k]


@helper
def _copy_row(X: Array, i: int, size: int, rows: Array, at: int) -> float:
    """Copy row i to `rows`, as row `at` of each part of `size` columns; return its squared norm.

    A row whose squared norm is not finite becomes zeros.
    """
    wide_vectors()
    p = X.shape[1]
    square = 0.0
    place = Unsigned(at * _STRIDE)
    for first in range(0, p, size):
        for j in range(Unsigned(min(size, p - first))):
            v = np.float64(X[i, Unsigned(first) + j])
            rows[place + j] = v
            square += v * v
        place += Unsigned(_BLOCK)
    if not math.isfinite(square):
        for start in range(at * _STRIDE, rows.size, _BLOCK):
            rows[start : start + size] = 0.0
    return square


@helper
def _add_outputs(X: Array, a: int, b: int, c: int, d: int, theta: Array, k: int, z: Array) -> None:
    """Add the outputs k and k + 1 of rows a, b, c, d, with theta of their dtype, to z."""
    wide_vectors()
    for first in range(0, X.shape[1], _PIECE):
        s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = theta.dtype.type(0)
        for j in range(Unsigned(first), Unsigned(min(first + _PIECE, X.shape[1]))):
            s = theta[k, j]
            t = theta[k + 1, j]
            xa = X[a, j]
            xb = X[b, j]
            xc = X[c, j]
            xd = X[d, j]
            s0 += s * xa
            s1 += s * xb
            s2 += s * xc
            s3 += s * xd
            t0 += t * xa
            t1 += t * xb
            t2 += t * xc
            t3 += t * xd
        z[0, k] += s0
        z[1, k] += s1
        z[2, k] += s2
        z[3, k] += s3
        z[0, k + 1] += t0
        z[1, k + 1] += t1
        z[2, k + 1] += t2
        z[3, k + 1] += t3


@helper
def _add_rows(
    rows: Array, place: int, f: Array, k: int, first: int, count: int, total: Array
) -> None:
    """Add the part of the four rows at `place`, times factors, to total[k] and total[k + 1]."""
    wide_vectors()
    f0 = f[0, k]
    f1 = f[1, k]
    f2 = f[2, k]
    f3 = f[3, k]
    g0 = f[0, k + 1]
    g1 = f[1, k + 1]
    g2 = f[2, k + 1]
    g3 = f[3, k + 1]
    for j in range(Unsigned(count)):
        x0 = rows[Unsigned(place) + j]
        x1 = rows[Unsigned(place + _STRIDE) + j]
        x2 = rows[Unsigned(place + 2 * _STRIDE) + j]
        x3 = rows[Unsigned(place + 3 * _STRIDE) + j]
        total[k, Unsigned(first) + j] += (f0 * x0 + f1 * x1) + (f2 * x2 + f3 * x3)
        total[k + 1, Unsigned(first) + j] += (g0 * x0 + g1 * x1) + (g2 * x2 + g3 * x3)


@helper
def _outputs(X: Array, i: int, theta: Array, z: Array) -> None:
    """Set z to the outputs of row i in float64, without the constant."""
    for k in range(z.size):
        dot = 0.0
        for j in range(X.shape[1]):
            dot += theta[k, j] * np.float64(X[i, j])
        z[k] = dot


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
    """Set out to the sum over rows of clip(slopes x^T), of shape (outputs, columns).

    seen[0] becomes 1 if the squared norm of a row is not finite.
    """
    wide_vectors()
    n, p = X.shape
    outputs = theta.shape[0]
    even = outputs + outputs % 2  # an odd number of outputs gets one more, of zeros
    parts = max(1, -(-p // _PART))
    size = max(1, -(-p // (8 * parts))) * 8  # not 0 for rows without columns
    # Parameters in the dtype of the rows, and whether their products are accurate.
    own = np.zeros((even, p), X.dtype)
    largest = 0.0
    for k in range(outputs):
        for j in range(p):
            own[k, j] = theta[k, j]
            largest = max(largest, abs(theta[k, j]))
    usable = largest == 0.0 or _SMALLEST <= largest <= _LARGEST
    rows = np.zeros(parts * _BLOCK)
    z = np.zeros((_ROWS, even))
    row_z = np.empty(outputs)
    squares = np.empty(_ROWS)
    total = np.empty((even, p))
    constants = np.empty(outputs)  # the sum's constant column
    out[:] = 0.0
    for start in range(0, n, CHUNK):
        stop = min(start + CHUNK, n)
        total[:] = 0.0
        constants[:] = 0.0
        for i in range(start, stop, _ROWS):
            count = min(_ROWS, stop - i)
            for r in range(count):
                squares[r] = _copy_row(X, i + r, size, rows, r)
            z[:] = 0.0
            b = min(i + 1, stop - 1)  # past the last row it stands in for others
            c = min(i + 2, stop - 1)
            d = min(i + 3, stop - 1)
            for k in range(0, even, 2):
                _add_outputs(X, i, b, c, d, own, k, z)
            for r in range(count):
                s = row_scale(squares[r], row_bound)
                in_range = usable
                for k in range(outputs):
                    row_z[k] = z[r, k]
                    in_range = in_range and math.isfinite(row_z[k])
                if not in_range:
                    _outputs(X, i + r, theta, row_z)
                for k in range(outputs):
                    row_z[k] *= s
                    if constant != 0.0:
                        row_z[k] += constant * theta[k, p]
                square = slopes(loss, loss_param, row_z, np.float64(y[i + r]))
                square = weigh(weights, i + r, row_z, square) + _LOST
                row_square = scaled_square(squares[r], row_bound) + constant * constant
                norm = math.sqrt(square) * math.sqrt(row_square + _LOST)
                # A row beyond the range counts as zero, also where a bound would scale it.
                counts = math.isfinite(norm) and math.isfinite(squares[r])
                if not math.isfinite(squares[r]):
                    seen[0] = 1
                f = min(1.0, limit / norm) if counts else 0.0
                for k in range(outputs):
                    z[r, k] = f * s * row_z[k] if f > 0.0 else 0.0
                    if constant != 0.0 and f > 0.0:
                        constants[k] += f * constant * row_z[k]
            for r in range(count, _ROWS):
                z[r] = 0.0
            for part in range(parts):
                first = part * size
                for k in range(0, even, 2):
                    _add_rows(rows, part * _BLOCK, z, k, first, min(size, p - first), total)
        for k in range(outputs):
            for j in range(p):
                out[k, j] += total[k, j]
            if constant != 0.0:
                out[k, p] += constants[k]


def clipped_sum_csr(
    data: Array,
    indices: Array,
    indptr: Array,
    y: Array,
    weights: Array,
    theta: Array,
    limit: float,
    loss: int,
    loss_param: float,
    row_bound: float,
    constant: float,
    out: Array,
) -> None:
    """Set out to the sum over compressed sparse rows of clip(slopes x^T)."""
    outputs, width = theta.shape
    p = width - 1 if constant != 0.0 else width
    n = indptr.size - 1
    transposed = theta.T.copy()
    z = np.empty(outputs)
    merged = np.zeros(p)
    columns = np.empty(p, np.int64)
    values = np.empty(p)
    total = np.empty((width, outputs))
    out[:] = 0.0
    for start in range(0, n, CHUNK):
        total[:] = 0.0
        for i in range(start, min(start + CHUNK, n)):
            begin = int(indptr[i])
            end = int(indptr[i + 1])
            if not 0 <= begin <= end <= data.size:  # not a row
                continue
            size = load_row(data, indices, begin, end, merged, columns, values)
            if size < 0:
                continue
            row_square = scale_values(values, size, row_bound) + constant * constant
            csr_outputs(columns, values, size, transposed, constant, z)
            square = slopes(loss, loss_param, z, np.float64(y[i]))
            square = weigh(weights, i, z, square) + _LOST
            norm = math.sqrt(square) * math.sqrt(row_square + _LOST)
            if not math.isfinite(norm):
                continue
            f = min(1.0, limit / norm)
            for e in range(size):
                v = f * values[e]
                c = Unsigned(columns[e])
                for k in range(outputs):
                    total[c, k] += v * z[k]
            if constant != 0.0:
                for k in range(outputs):
                    total[p, k] += f * constant * z[k]
        for k in range(outputs):
            for j in range(width):
                out[k, j] += total[j, k]
