# SPDX-License-Identifier: Apache-2.0
"""Loops over users: the gradients of a user's rows are summed, and that sum is clipped.

They take any number of outputs, one included. A row that is not finite, or whose slopes are not,
counts as zero, and so does a user whose summed gradient has a squared norm that overflows (beyond
1e154). Otherwise the sum is clipped to L (1 - 2^-20) with its norm in float64; where its squares
vanish the sum is far below every clip norm.

For sparse rows the sum of a user is kept in a dense vector beside a list of the columns in use, so
that a user costs its entries and not the number of columns.
"""

from __future__ import annotations

import math

import numpy as np

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.clipping import row_scale, scaled_square
from dpftrl_fast.kernels.jit import helper, wide_vectors
from dpftrl_fast.kernels.loops.csr import load_row
from dpftrl_fast.kernels.loops.dense import CHUNK
from dpftrl_fast.kernels.loops.multinomial import csr_outputs, scale_values, weigh
from dpftrl_fast.kernels.losses import slopes


@helper
def _read_row(X: Array, i: int, row_bound: float, constant: float, rows: Array, at: int) -> float:
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


def clipped_sum(
    X: Array,
    starts: Array,
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
    """Set out to the sum over users of clip(sum over their rows of slopes x^T).

    seen[0] becomes 1 if the squared norm of a row is not finite.
    """
    wide_vectors()
    outputs, width = theta.shape
    users = starts.size - 1
    row = np.zeros((1, width))
    z = np.empty(outputs)
    own = np.empty((outputs, width))
    total = np.empty((outputs, width))
    out[:] = 0.0
    for first in range(0, users, CHUNK):
        total[:] = 0.0
        for u in range(first, min(first + CHUNK, users)):
            begin = starts[u]
            end = starts[u + 1]
            if not 0 <= begin < end <= X.shape[0]:  # not a user, or one without rows
                continue
            own[:] = 0.0
            for i in range(begin, end):
                if not math.isfinite(_read_row(X, i, row_bound, constant, row, 0)):
                    seen[0] = 1
                    continue
                for k in range(outputs):
                    dot = 0.0
                    for j in range(width):
                        dot += theta[k, j] * row[0, j]
                    z[k] = dot
                square = slopes(loss, loss_param, z, np.float64(y[i]))
                if not math.isfinite(weigh(weights, i, z, square)):
                    continue
                for k in range(outputs):
                    s = z[k]
                    for j in range(width):
                        own[k, j] += s * row[0, j]
            square = 0.0
            for k in range(outputs):
                for j in range(width):
                    square += own[k, j] * own[k, j]
            if not math.isfinite(square):
                continue
            f = min(1.0, limit / math.sqrt(square))
            for k in range(outputs):
                for j in range(width):
                    total[k, j] += f * own[k, j]
        for k in range(outputs):
            for j in range(width):
                out[k, j] += total[k, j]


def clipped_sum_csr(
    data: Array,
    indices: Array,
    indptr: Array,
    starts: Array,
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
    """Set out to the sum over users of the clipped sums of their compressed sparse rows."""
    outputs, width = theta.shape
    p = width - 1 if constant != 0.0 else width
    n = indptr.size - 1
    users = starts.size - 1
    transposed = theta.T.copy()
    z = np.empty(outputs)
    merged = np.zeros(p)
    columns = np.empty(p, np.int64)
    values = np.empty(p)
    own = np.zeros((width, outputs))
    used = np.empty(width, dtype=np.int64)  # the columns of `own` that are not all zero
    is_used = np.zeros(width, dtype=np.bool_)
    total = np.empty((width, outputs))
    out[:] = 0.0
    for first in range(0, users, CHUNK):
        total[:] = 0.0
        for u in range(first, min(first + CHUNK, users)):
            if not 0 <= starts[u] < starts[u + 1] <= n:  # not a user, or one without rows
                continue
            count = 0
            for i in range(starts[u], starts[u + 1]):
                begin = int(indptr[i])
                end = int(indptr[i + 1])
                if not 0 <= begin <= end <= data.size:  # not a row
                    continue
                size = load_row(data, indices, begin, end, merged, columns, values)
                if size < 0 or not math.isfinite(scale_values(values, size, row_bound)):
                    continue
                csr_outputs(columns, values, size, transposed, constant, z)
                square = slopes(loss, loss_param, z, np.float64(y[i]))
                if not math.isfinite(weigh(weights, i, z, square)):
                    continue
                for e in range(size):
                    c = columns[e]
                    if not is_used[c]:
                        is_used[c] = True
                        used[count] = c
                        count += 1
                    for k in range(outputs):
                        own[c, k] += values[e] * z[k]
                if constant != 0.0:
                    if not is_used[p]:
                        is_used[p] = True
                        used[count] = p
                        count += 1
                    for k in range(outputs):
                        own[p, k] += constant * z[k]
            square = 0.0
            for i in range(count):
                for k in range(outputs):
                    square += own[used[i], k] * own[used[i], k]
            f = min(1.0, limit / math.sqrt(square)) if math.isfinite(square) else 0.0
            for i in range(count):
                c = used[i]
                is_used[c] = False
                for k in range(outputs):
                    if f > 0.0:
                        total[c, k] += f * own[c, k]
                    own[c, k] = 0.0
        for k in range(outputs):
            for j in range(width):
                out[k, j] += total[j, k]
