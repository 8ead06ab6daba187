# SPDX-License-Identifier: Apache-2.0
"""Squared sensitivity of every id of a known order under a Toeplitz mechanism.

The uses of an id in one block shift the noise by the sum of their columns. Its squared norm is
added over the blocks. With c >= 0 all contributions of one sign are the worst; else the absolute
inner products of the columns are added.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.participation import FixedOrder
from dpftrl_fast.accounting.sensitivity.strided import UNIT, rounded_up, squared_norm
from dpftrl_fast.accounting.sensitivity.toeplitz_column import StrategyColumn, strategy_column
from dpftrl_fast.mechanisms.toeplitz.layout import ToeplitzLayout

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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
    values = _stretches(strategy_column(layout.mechanism, layout.longest), lengths, starts, uses)
    known, first = np.unique(ids, return_index=True)
    most = int(np.diff(np.append(first, ids.size)).max())
    return known, np.array(np.add.reduceat(values, first) * (1.0 + (most + 3) * UNIT))


def _stretches(column: StrategyColumn, lengths: Ints, starts: Ints, uses: Ints) -> Floats:
    memo: dict[tuple[int, bytes], float] = {}
    found = np.empty(lengths.size)
    signed = bool(np.any(column.computed < 0.0))
    for i, length in enumerate(lengths.tolist()):
        at = uses[starts[i] : starts[i + 1]]
        key = (length, at.tobytes())
        if key not in memo:
            memo[key] = _stretch(column, length, at.tolist(), signed)
        found[i] = memo[key]
    return found


def _stretch(column: StrategyColumn, length: int, at: list[int], signed: bool) -> float:
    def columns(x: Floats) -> Floats:
        table = np.zeros((len(at), length))
        for row, use in zip(table, at, strict=True):
            part = x[: length - use]
            row[use : use + part.size] = part
        return table

    upper = columns(column.upper)
    found = rounded_up(squared_norm(upper.sum(axis=0)), 2 * len(at) + 1034)
    if not signed or len(at) == 1:
        return found
    nearest = columns(column.computed)
    absolute = np.abs(nearest)
    top = upper @ upper.T
    products = np.abs(nearest @ nearest.T) + (top - absolute @ absolute.T)
    products += 4.0 * (length + 8) * UNIT * top
    return min(found, rounded_up(float(products.sum()), 4 * products.size))
