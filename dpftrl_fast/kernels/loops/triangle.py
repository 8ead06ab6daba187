# SPDX-License-Identifier: Apache-2.0
"""Loops over packed triangles, and over the rows whose outer products are added to them.

A symmetric p x p matrix is kept as its upper triangle, row after row: entry (i, j), i <= j, is at
i p - i (i + 1) / 2 + j. A row of the triangle is contiguous, so that every loop here runs over
consecutive entries; LAPACK calls it the packed lower triangle, column by column.

Sums are kept with their rounding errors beside them (see `dpftrl_fast.rounding`). `two_sum` is
compiled without the permission to reorder that the other loops have.

Rows are scaled onto the norm x_norm_bound (1 - 2^-20) where theirs is larger; then the constant
column, if there is one, is appended. A row with a number that is not finite, in x or in a target,
is zero, constant column included, and keeps its slot. So is a row whose root, the square root of
its weight, is not above zero.

Sparse rows first make the product of their batch in a triangle of zeros and then move the entries
that they touch into the sum, so that a batch is one addition there, as it is for dense rows.
"""

from __future__ import annotations

import math

import numpy as np

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.clipping import LARGEST_SQUARE
from dpftrl_fast.kernels.exact import on_grid, two_sum
from dpftrl_fast.kernels.jit import Unsigned, helper
from dpftrl_fast.kernels.loops.csr import is_canonical, is_in_range

# Not below 2^-1/2: the noise off the diagonal is at least what is accounted for.
OFF_DIAGONAL = 0.7071067811865476


@helper
def _row_start(i: int, p: int) -> int:
    """Return the place of a virtual entry (i, 0): entry (i, j) is j further."""
    return i * p - i * (i + 1) // 2


# ---- Dense rows ----


@helper
def _scale(X: Array, i: int, limit: float) -> tuple[float, int]:
    """Return f and e: row i times 2^-e f has a norm of at most `limit`; f = 0 for a bad row."""
    p = X.shape[1]
    square = 0.0
    for j in range(p):
        v = np.float64(X[i, j])
        square += v * v
    if square <= LARGEST_SQUARE:
        return (limit / math.sqrt(square) if square > limit * limit else 1.0), 0
    largest = 0.0
    for j in range(p):
        size = abs(np.float64(X[i, j]))
        if not size <= LARGEST_SQUARE:
            return 0.0, 0
        largest = max(largest, size)
    exponent = math.frexp(largest)[1]
    square = 0.0
    for j in range(p):
        scaled = math.ldexp(np.float64(X[i, j]), -exponent)
        square += scaled * scaled
    return limit / math.sqrt(square), exponent


@helper
def _is_valid(y: Array, i: int) -> bool:
    """Return whether all targets of row i are finite."""
    for k in range(y.shape[1]):  # noqa: SIM110 - compiled as it is
        if not math.isfinite(y[i, k]):
            return False
    return True


def scale_rows(
    X: Array,
    y: Array,
    roots: Array,
    limit: float,
    y_bound: float,
    constant: float,
    square: float,
    whole: bool,
    p: int,
    width: int,
    panels: Array,
    bias: Array,
) -> None:
    """Write the scaled rows to `panels`, and add their products with clipped targets to `bias`.

    A panel holds `width` columns (the last one: the rest) of all rows, row after row; panel follows
    panel. Row i, its constant and its targets are multiplied by roots[i] after clipping, and with
    `whole` its constant and targets by the factor of its scaling too.
    """
    n = X.shape[0]
    filled = X.shape[1]
    for i in range(n):
        factor = 0.0
        exponent = 0
        root = roots[i]
        if root > 0.0 and _is_valid(y, i):
            factor, exponent = _scale(X, i, limit)
        own = root * math.ldexp(factor, -exponent) if whole else root
        for start in range(0, p, width):
            count = min(width, p - start)
            given = min(count, filled - start)
            at = Unsigned(n * start + i * count)
            if factor == 0.0:
                for j in range(Unsigned(count)):
                    panels[at + j] = 0.0
                continue
            if exponent == 0:
                for j in range(Unsigned(given)):
                    panels[at + j] = (factor * root) * X[i, Unsigned(start) + j]
            else:
                for j in range(Unsigned(given)):
                    v = math.ldexp(np.float64(X[i, Unsigned(start) + j]), -exponent)
                    panels[at + j] = (factor * root) * v
            if given < count:
                panels[at + Unsigned(given)] = constant * own
            for k in range(y.shape[1]):
                target = min(max(np.float64(y[i, k]), -y_bound), y_bound) * own
                for j in range(Unsigned(count)):
                    bias[k, Unsigned(start) + j] += target * panels[at + j]
        if square > 0.0 and factor > 0.0:
            _add_squares(y, i, y_bound, own, square, p, bias)


@helper
def _add_squares(
    y: Array, i: int, y_bound: float, own: float, square: float, p: int, bias: Array
) -> None:
    """Add `square` times the squares of the clipped targets of row i behind the products."""
    for k in range(y.shape[1]):
        target = min(max(np.float64(y[i, k]), -y_bound), y_bound) * own
        bias[k, p] += square * (target * target)


@helper
def _add(x: float, at: Unsigned, total: Array, low: Array) -> None:
    total[at], error = two_sum(total[at], x)
    low[at] += error


def add_square(block: Array, first: int, p: int, total: Array, low: Array) -> None:
    """Add the upper triangle of a block whose rows and columns begin at `first`."""
    for a in range(block.shape[0]):
        at = Unsigned(_row_start(first + a, p) + first)
        for b in range(Unsigned(a), Unsigned(block.shape[1])):
            _add(block[a, b], at + b, total, low)


def add_rectangle(block: Array, row: int, column: int, p: int, total: Array, low: Array) -> None:
    """Add a block above the diagonal, whose first entry belongs to (row, column)."""
    for a in range(block.shape[0]):
        at = Unsigned(_row_start(row + a, p) + column)
        for b in range(Unsigned(block.shape[1])):
            _add(block[a, b], at + b, total, low)


def add_packed(packed: Array, total: Array, low: Array) -> None:
    """Add a whole triangle."""
    for k in range(packed.size):
        total[k], error = two_sum(total[k], packed[k])
        low[k] += error


# ---- Sparse rows ----


@helper
def _load(
    data: Array,
    indices: Array,
    begin: int,
    end: int,
    columns: Array,
    values: Array,
    merged: Array,
    seen: Array,
) -> int:
    """Copy a row, its columns ascending and each once; return their number, -1 for a bad row."""
    p = merged.size
    if not 0 <= begin <= end <= data.size:
        return -1
    if is_canonical(indices, begin, end, p):
        for k in range(begin, end):
            columns[k - begin] = indices[k]
            values[k - begin] = data[k]
        return end - begin
    if not is_in_range(indices, begin, end, p):
        return -1
    for k in range(begin, end):
        seen[indices[k]] = True
        merged[indices[k]] += np.float64(data[k])
    size = 0
    for c in range(p):
        if seen[c]:
            columns[size] = c
            values[size] = merged[c]
            merged[c] = 0.0
            seen[c] = False
            size += 1
    return size


@helper
def _scale_values(values: Array, size: int, limit: float) -> float:
    """Scale a sparse row onto `limit`; return the factor, -1 for a number that is not finite."""
    square = 0.0
    for k in range(size):
        square += values[k] * values[k]
    if square <= LARGEST_SQUARE:
        if square > limit * limit:
            factor = limit / math.sqrt(square)
            for k in range(size):
                values[k] *= factor
            return factor
        return 1.0
    largest = 0.0
    for k in range(size):
        magnitude = abs(values[k])
        if not magnitude <= LARGEST_SQUARE:
            return -1.0
        largest = max(largest, magnitude)
    exponent = math.frexp(largest)[1]
    square = 0.0
    for k in range(size):
        values[k] = math.ldexp(values[k], -exponent)
        square += values[k] * values[k]
    factor = limit / math.sqrt(square)
    for k in range(size):
        values[k] *= factor
    return math.ldexp(factor, -exponent)


def add_csr(
    data: Array,
    indices: Array,
    indptr: Array,
    y: Array,
    roots: Array,
    limit: float,
    y_bound: float,
    constant: float,
    square: float,
    whole: bool,
    p: int,
    batch: Array,
    bias: Array,
) -> None:
    """Add the scaled rows' outer products to `batch`, and clipped targets times row to `bias`.

    Roots, squares and `whole` are those of `scale_rows`.
    """
    filled = p if constant == 0.0 else p - 1
    columns = np.empty(p, np.int64)
    values = np.empty(p)
    merged = np.zeros(filled)
    seen = np.zeros(filled, np.bool_)
    for i in range(y.shape[0]):
        root = roots[i]
        if not (root > 0.0 and _is_valid(y, i)):
            continue
        size = _load(
            data, indices, int(indptr[i]), int(indptr[i + 1]), columns, values, merged, seen
        )
        if size < 0:
            continue
        factor = _scale_values(values, size, limit)
        if factor < 0.0:
            continue
        own = root * factor if whole else root
        for a in range(size):
            values[a] *= root
        if filled < p:
            columns[size] = filled
            values[size] = constant * own
            size += 1
        for k in range(y.shape[1]):
            target = min(max(np.float64(y[i, k]), -y_bound), y_bound) * own
            for a in range(size):
                bias[k, columns[a]] += target * values[a]
        if square > 0.0:
            _add_squares(y, i, y_bound, own, square, p, bias)
        for a in range(size):
            v = values[a]
            at = _row_start(columns[a], p)
            for b in range(a, size):
                batch[at + columns[b]] += v * values[b]


def move_csr(
    data: Array,
    indices: Array,
    indptr: Array,
    p: int,
    filled: int,
    batch: Array,
    total: Array,
    low: Array,
) -> None:
    """Move the products that `add_csr` made of these rows from `batch`, then zero, to the sum."""
    columns = np.empty(p, np.int64)
    values = np.empty(p)
    merged = np.zeros(filled)
    seen = np.zeros(filled, np.bool_)
    for i in range(indptr.size - 1):
        size = _load(
            data, indices, int(indptr[i]), int(indptr[i + 1]), columns, values, merged, seen
        )
        if size >= 0 and filled < p:
            columns[size] = filled
            size += 1
        for a in range(size):
            at = _row_start(columns[a], p)
            for b in range(a, size):
                k = at + columns[b]
                total[k], error = two_sum(total[k], batch[k])
                low[k] += error
                batch[k] = 0.0


# ---- The released triangle ----


def add_noise(total: Array, low: Array, p: int, grid: float, noise: Array) -> None:
    """Set `noise` to the sum plus the noise of a symmetric matrix, on a grid, in its dtype.

    The arithmetic is that of `dpftrl_fast.rounding.noisy_sum`.
    """
    at = Unsigned(0)
    for i in range(p):
        noisy = total[at] + (low[at] + np.float64(noise[at]))
        noise[at] = on_grid(noisy, grid, 0.5)
        at += Unsigned(1)
        end = at + Unsigned(p - 1 - i)
        for k in range(at, end):
            noisy = total[k] + (low[k] + OFF_DIAGONAL * np.float64(noise[k]))
            noise[k] = on_grid(noisy, grid, 0.5)
        at = end


def unpack(packed: Array, ridge: float, out: Array) -> None:
    """Write row i of the triangle to out[i, i:], and add `ridge` to the diagonal."""
    p = out.shape[0]
    for i in range(p):
        at = Unsigned(_row_start(i, p))
        for j in range(Unsigned(i), Unsigned(p)):
            out[i, j] = packed[at + j]
        out[i, i] += ridge


def product(packed: Array, ridge: float, v: Array, out: Array) -> None:
    """Set out to (S + ridge I) v, S being the symmetric matrix of the triangle."""
    p = v.size
    for i in range(p):
        out[i] = ridge * v[i]
    for i in range(p):
        at = Unsigned(_row_start(i, p))
        own = v[i]
        dot = np.float64(packed[at + Unsigned(i)]) * own
        for j in range(Unsigned(i + 1), Unsigned(p)):
            w = np.float64(packed[at + j])
            dot += w * v[j]
            out[j] += w * own
        out[i] += dot
