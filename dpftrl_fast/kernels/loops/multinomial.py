# SPDX-License-Identifier: Apache-2.0
"""Loops over rows with several outputs: one parameter vector per class.

The gradient of a row is the outer product of its slopes s and of the row x, of norm |s| |x|. Slopes
are bounded here (|s| <= sqrt(2) for the softmax, sqrt(K) for hinges, times the weight of the row),
so that only rows whose squared norm overflows count as zero. `_LOST` covers squares that vanish: of
slopes beside a large row, and of a row beside a large weight.

Dense rows are taken four at a time and copied first, as float64, scaled into the row bound and with
their constant entry: the K passes over theta and over the sum then convert nothing, and read each
parameter once for four rows, which matters since theta and the sum do not fit into the L1 cache.

Sparse rows work on transposed parameters, of shape (p, K): an entry meets K consecutive numbers.
They are copied too, so that the numbers added are those measured, also for a repeated column.
"""

from __future__ import annotations

import math

import numpy as np

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.clipping import row_scale, scaled_square, weight_of
from dpftrl_fast.kernels.jit import helper
from dpftrl_fast.kernels.loops.csr import load_row
from dpftrl_fast.kernels.loops.dense import CHUNK
from dpftrl_fast.kernels.losses import slopes

_BLOCK = 4
# More than all squares of slopes or entries that underflow, and negligible beside one that matters.
_LOST = 2.0**-1000


@helper
def read_row(X: Array, i: int, row_bound: float, constant: float, rows: Array, at: int) -> float:
    """Copy row i with its scale and constant to rows[at]; return its squared norm.

    A row whose squared norm is not finite becomes zeros, and NaN is returned.
    """
    p = X.shape[1]
    square = 0.0
    for j in range(p):
        v = np.float64(X[i, j])
        rows[at, j] = v
        square += v * v
    if not math.isfinite(square):
        for j in range(rows.shape[1]):
            rows[at, j] = 0.0
        return math.nan
    s = row_scale(square, row_bound)
    if s != 1.0:
        for j in range(p):
            rows[at, j] *= s
    if constant != 0.0:
        rows[at, p] = constant
    return scaled_square(square, row_bound) + constant * constant


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
    """
    weight = weight_of(weights, i)
    if weight == 1.0:
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
        c = columns[e]
        for k in range(outputs):
            z[k] += v * theta[c, k]
    if constant != 0.0:
        last = theta.shape[0] - 1
        for k in range(outputs):
            z[k] += constant * theta[last, k]


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
    out: Array,
) -> None:
    """Set out to the sum over rows of clip(slopes x^T), of shape (outputs, columns)."""
    outputs, width = theta.shape
    n = X.shape[0]
    rows = np.zeros((_BLOCK, width))
    z = np.empty((_BLOCK, outputs))
    row_z = np.empty(outputs)
    squares = np.empty(_BLOCK)
    total = np.empty((outputs, width))
    out[:] = 0.0
    for start in range(0, n, CHUNK):
        stop = min(start + CHUNK, n)
        total[:] = 0.0
        for i in range(start, stop, _BLOCK):
            count = min(_BLOCK, stop - i)
            for r in range(count):
                squares[r] = read_row(X, i + r, row_bound, constant, rows, r)
            for r in range(count, _BLOCK):
                for j in range(width):
                    rows[r, j] = 0.0
            for k in range(outputs):
                d0 = d1 = d2 = d3 = 0.0
                for j in range(width):
                    t = theta[k, j]
                    d0 += t * rows[0, j]
                    d1 += t * rows[1, j]
                    d2 += t * rows[2, j]
                    d3 += t * rows[3, j]
                z[0, k] = d0
                z[1, k] = d1
                z[2, k] = d2
                z[3, k] = d3
            for r in range(_BLOCK):
                f = 0.0
                if r < count:
                    for k in range(outputs):
                        row_z[k] = z[r, k]
                    square = slopes(loss, loss_param, row_z, np.float64(y[i + r]))
                    square = weigh(weights, i + r, row_z, square) + _LOST
                    norm = math.sqrt(square) * math.sqrt(squares[r] + _LOST)
                    f = min(1.0, limit / norm) if math.isfinite(norm) else 0.0
                for k in range(outputs):
                    z[r, k] = f * row_z[k] if f > 0.0 else 0.0
            for k in range(outputs):
                f0 = z[0, k]
                f1 = z[1, k]
                f2 = z[2, k]
                f3 = z[3, k]
                for j in range(width):
                    total[k, j] += (f0 * rows[0, j] + f1 * rows[1, j]) + (
                        f2 * rows[2, j] + f3 * rows[3, j]
                    )
        for k in range(outputs):
            for j in range(width):
                out[k, j] += total[k, j]


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
                c = columns[e]
                for k in range(outputs):
                    total[c, k] += v * z[k]
            if constant != 0.0:
                for k in range(outputs):
                    total[p, k] += f * constant * z[k]
        for k in range(outputs):
            for j in range(width):
                out[k, j] += total[j, k]
