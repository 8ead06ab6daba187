# SPDX-License-Identifier: Apache-2.0
"""Loops over compressed sparse rows.

A row in canonical form (column indices ascending, none twice) takes two passes over its entries:
dot product and squared norm, then addition. Any other row (a column twice or out of order, entries
whose squares leave the range of float64) is first merged in a dense float64 scratch vector, so that
the clipped norm is that of the entries added: entries of one column are added up in stored order.
Clipping them separately would not bound their sum. No row is refused for its values: a row with a
column outside [0, p) or with bounds outside the data counts as zero, since the indices are private
values like any other.
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
from dpftrl_fast.kernels.jit import Unsigned, helper
from dpftrl_fast.kernels.loops.dense import CHUNK
from dpftrl_fast.kernels.losses import slope

_U = np.uint64


@helper
def is_canonical(indices: Array, begin: int, end: int, p: int) -> bool:
    """Return whether columns ascend, none twice, within [0, p)."""
    previous = -1
    for k in range(Unsigned(begin), Unsigned(end)):
        c = int(indices[k])
        if c <= previous:
            return False
        previous = c
    return previous < p


@helper
def is_in_range(indices: Array, begin: int, end: int, p: int) -> bool:
    """Return whether all columns are in [0, p)."""
    in_range = True
    for k in range(begin, end):
        in_range &= 0 <= indices[k] < p
    return in_range


@helper
def load_row(
    data: Array, indices: Array, begin: int, end: int, merged: Array, columns: Array, values: Array
) -> int:
    """Copy a row, each column once; return their number, -1 for a column outside [0, p).

    `merged` has p entries, and is zero before and after.
    """
    p = merged.size
    if is_canonical(indices, begin, end, p):
        for k in range(begin, end):
            columns[k - begin] = indices[k]
            values[k - begin] = data[k]
        return end - begin
    if not is_in_range(indices, begin, end, p):
        return -1
    for k in range(begin, end):
        merged[indices[k]] += np.float64(data[k])
    size = 0
    for k in range(begin, end):
        c = indices[k]
        if merged[c] != 0.0:  # zero if the column was taken before
            columns[size] = c
            values[size] = merged[c]
            merged[c] = 0.0
            size += 1
    return size


@helper
def _add_unusual_row(
    columns: Array,
    values: Array,
    size: int,
    y: float,
    weight: float,
    theta: Array,
    limit: float,
    loss: int,
    loss_param: float,
    row_bound: float,
    constant: float,
    total: Array,
) -> None:
    """Add the clipped gradient of a loaded row, whatever its entries are."""
    largest = 0.0
    for k in range(size):
        v = abs(values[k])
        if not v <= LARGEST_SQUARE:
            return
        largest = max(largest, v)
    if largest == 0.0 and constant == 0.0:
        return
    own = math.frexp(largest)[1]
    square = 0.0
    for k in range(size):
        v = math.ldexp(values[k], -own)
        square += v * v
    # The row with its constant is 2^exponent (factor x 2^-own, constant 2^-exponent).
    bounded = exceeds(1.0, square, own, row_bound)
    exponent = own if constant == 0.0 else max(own, math.frexp(constant)[1])
    exponent = 0 if bounded else exponent
    factor = row_bound / math.sqrt(square) if bounded else math.ldexp(1.0, own - exponent)
    last = math.ldexp(constant, -exponent)
    dot = last * theta[-1] if constant != 0.0 else 0.0
    square = square * factor * factor + last * last
    for k in range(size):
        dot += factor * math.ldexp(values[k], -own) * theta[columns[k]]
    g = weight * slope(loss, loss_param, math.ldexp(dot, exponent), y)
    if not math.isfinite(g):
        return
    clip = exceeds(g, square, exponent, limit)
    f = math.copysign(limit / math.sqrt(square), g) if clip else g
    for k in range(size):
        v = factor * math.ldexp(values[k], -own) if clip or bounded else values[k]
        total[columns[k]] += f * v
    if constant != 0.0:
        total[-1] += f * (last if clip else constant)


def clipped_sum(
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
    """Set out to the sum over rows of clip(w l'(<x, theta>, y) x), x with its constant entry."""
    n = indptr.size - 1
    has_constant = constant != 0.0
    p = theta.size - 1 if has_constant else theta.size
    constant_square = constant * constant
    constant_dot = constant * theta[p] if has_constant else 0.0
    total = np.empty(theta.size)
    merged = np.zeros(0)
    columns = np.empty(0, np.int64)
    values = np.empty(0)
    out[:] = 0.0
    for start in range(0, n, CHUNK):
        total[:] = 0.0
        for i in range(start, min(start + CHUNK, n)):
            begin = int(indptr[i])
            end = int(indptr[i + 1])
            if not 0 <= begin <= end <= data.size:  # not a row
                continue
            target = np.float64(y[i])
            weight = weight_of(weights, i)
            if is_canonical(indices, begin, end, p):
                dot = 0.0
                row_square = 0.0
                for k in range(Unsigned(begin), Unsigned(end)):
                    v = np.float64(data[k])
                    dot += v * theta[Unsigned(indices[k])]
                    row_square += v * v
                s = row_scale(row_square, row_bound)
                square = scaled_square(row_square, row_bound) + constant_square
                if row_square <= LARGEST_SQUARE and SMALLEST_SQUARE <= square <= LARGEST_SQUARE:
                    g = weight * slope(loss, loss_param, s * dot + constant_dot, target)
                    f = clip_factor(g, square, limit)
                    if f != 0.0:
                        fs = f * s
                        for k in range(Unsigned(begin), Unsigned(end)):
                            total[Unsigned(indices[k])] += fs * data[k]
                        if has_constant:
                            total[p] += f * constant
                    continue
            if merged.size == 0:
                merged = np.zeros(p)
                columns = np.empty(p, np.int64)
                values = np.empty(p)
            size = load_row(data, indices, begin, end, merged, columns, values)
            if size >= 0:
                _add_unusual_row(
                    columns,
                    values,
                    size,
                    target,
                    weight,
                    theta,
                    limit,
                    loss,
                    loss_param,
                    row_bound,
                    constant,
                    total,
                )
        for j in range(theta.size):
            out[j] += total[j]


def predictions(data: Array, indices: Array, indptr: Array, theta: Array, out: Array) -> None:
    """Set out[i] to <row i, theta>; NaN for a row whose indices or bounds are out of range."""
    p = theta.size
    for i in range(indptr.size - 1):
        begin = int(indptr[i])
        end = int(indptr[i + 1])
        dot = math.nan
        if 0 <= begin <= end <= data.size and is_in_range(indices, begin, end, p):
            dot = 0.0
            for k in range(begin, end):
                dot += np.float64(data[k]) * theta[indices[k]]
        out[i] = dot
