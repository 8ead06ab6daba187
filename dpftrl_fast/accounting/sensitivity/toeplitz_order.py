# SPDX-License-Identifier: Apache-2.0
"""Squared sensitivity of every id of a known order under a Toeplitz mechanism.

The uses of an id in one block shift the noise by the sum of their columns. Its squared norm is
added over the blocks. With c >= 0 all contributions of one sign are the worst; else the absolute
inner products of the columns are added.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import dpftrl_fast._core as _core
from dpftrl_fast.accounting.participation import FixedOrder
from dpftrl_fast.accounting.sensitivity.strided import UNIT, squared_norm
from dpftrl_fast.accounting.sensitivity.toeplitz_column import strategy_column
from dpftrl_fast.mechanisms.toeplitz.layout import ToeplitzLayout

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Doubles in the tables of buffers, and additions.
_MOST_POWERS = 2**25
_MOST_WORK = 2**37


def uses_by_block(layout: ToeplitzLayout, order: FixedOrder) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the uses of each id in each block, together.

    Returns
    -------
    ids : ndarray of int64, shape (m,)
        An id of each stretch of uses in one block, in increasing order.
    blocks : ndarray of int64, shape (m,)
        Its block.
    starts : ndarray of int64, shape (m + 1,)
        Where its uses begin, and at the end their number.
    uses : ndarray of int64
        The step in the block of each use, from 0; increasing within a stretch.
    """
    steps = order.step_of_uses()
    by_id = np.argsort(order.ids, kind="stable")
    ids, steps = order.ids[by_id], steps[by_id]
    blocks = layout.blocks_of(steps)
    new = np.flatnonzero((np.diff(ids) != 0) | (np.diff(blocks) != 0)) + 1
    starts = np.concatenate([[0], new, [ids.size]]).astype(np.int64)
    before = np.array([layout.steps_before(b) for b in range(layout.count)], np.int64)
    return ids[starts[:-1]], blocks[starts[:-1]], starts, steps - before[blocks]


def order_values(layout: ToeplitzLayout, order: FixedOrder) -> tuple[Ints, Floats]:
    """Return the ids of an order, in increasing order, and the bound of each one's zeta."""
    ids, blocks, starts, uses = uses_by_block(layout, order)
    lengths = np.array([layout.run_of(b).steps for b in range(layout.count)], np.int64)[blocks]
    values = _stretches(layout, _Stretches(lengths, starts, uses))
    known, first = np.unique(ids, return_index=True)
    most = int(np.diff(np.append(first, ids.size)).max())
    return known, np.array(np.add.reduceat(values, first) * (1.0 + (most + 3) * UNIT))


class _Stretches(NamedTuple):
    """Uses that lie in one block, in blocks of these lengths."""

    lengths: Ints
    starts: Ints
    uses: Ints


def _stretches(layout: ToeplitzLayout, given: _Stretches) -> Floats:
    """Return the bound of zeta of each stretch by itself."""
    mechanism, longest = layout.mechanism, layout.longest
    column = strategy_column(mechanism, longest)
    out = np.empty(given.lengths.size)
    counts = np.diff(given.starts)
    kind, first, second = mechanism.engine
    if kind == "buffers":
        buffers = len(first)
        if buffers * (buffers + 3) // 2 * longest <= _MOST_POWERS:
            _core.buffer_sums(np.array(first), np.array(second), *given, out)
            roundings = 6.0 * longest + 8.0 * counts + 4.0 * buffers**2 + 67.0
            return np.asarray(out * (1.0 + roundings * UNIT))
    if bool(np.all(column.computed >= 0.0)):
        done = _core.column_sums(column.upper, *given, _MOST_WORK, out)
        roundings = counts + (longest + 8.0)
    else:
        upper = squared_norm(column.upper)
        error = squared_norm(column.upper - np.abs(column.computed))
        # Of an inner product: of the coefficients, by the inequality of Cauchy, and of the sum.
        slack = 2.01 * math.sqrt(error * upper) + (longest + 8.0) * UNIT * 1.01 * upper
        done = _core.column_products(column.computed, slack, *given, _MOST_WORK, out)
        roundings = np.square(counts.astype(float)) + 8.0
    if not done:
        raise ValueError(
            "this order must need at most 2^37 operations, counting equal uses once, got one that "
            "needs more: declare its MinSeparation instead"
        )
    return np.asarray(out * (1.0 + roundings * UNIT))
