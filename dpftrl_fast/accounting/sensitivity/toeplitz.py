# SPDX-License-Identifier: Apache-2.0
"""Squared sensitivity (zeta) of Toeplitz mechanisms under each pattern of participation.

C is square and invertible, so that what is released determines all noise: "exact" and "released"
are one number, a float that is rounded up. The rules, with proofs, are in docs/plan/accounting.md:

- the first place of an epoch is the worst, whatever the signs of the coefficients c;
- uses at 0, b, 2 b, .. are the worst under a minimum separation b if c >= 0 and c_j falls from
  j = b on. For other c the same sum of a majorant is an upper bound: of |c| with, from b on, its
  reverse running maximum;
- c < 0 somewhere: contributions with signs can add up to more than those without, so that the
  coefficients enter with their absolute values, or the inner products of the columns do.

Nothing here reads a coefficient but through :func:`strategy_column`, whose `upper` is a bound of
its absolute value: a formula that holds for c >= 0 alone is never given anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
)
from dpftrl_fast.accounting.sensitivity.products import place_bound, separated_bound
from dpftrl_fast.accounting.sensitivity.splits import Kind, best_split, starts_alike
from dpftrl_fast.accounting.sensitivity.squared import (
    Bound,
    PlanBound,
    Values,
    rule_of,
    squared_by_id_of,
    squared_of,
)
from dpftrl_fast.accounting.sensitivity.strided import (
    Column,
    first_place,
    rounded_up,
)
from dpftrl_fast.accounting.sensitivity.toeplitz_column import (
    MAX_COLUMN,
    StrategyColumn,
    strategy_column,
)
from dpftrl_fast.accounting.sensitivity.toeplitz_order import order_values
from dpftrl_fast.accounting.sensitivity.toeplitz_series import has_series, series_norm
from dpftrl_fast.mechanisms.toeplitz.layout import ToeplitzLayout

# A bound this close to what a pattern attains is called exact: the rest is rounding.
_EXACT = 1.0 + 1e-7


class _Found(NamedTuple):
    """An upper bound of zeta, what some contributions attain (less rounding), and the rule."""

    upper: float
    attained: float
    rule: str

    @property
    def words(self) -> str:
        exact = self.upper <= _EXACT * self.attained
        return f"{self.rule}, {'exact' if exact else 'upper bound'}"


@squared_of.register
def _(layout: ToeplitzLayout, participation: Participation, bound: Bound) -> float:
    return _found(layout, participation, bound).upper


@squared_by_id_of.register
def _(
    layout: ToeplitzLayout, order: FixedOrder, bound: PlanBound
) -> tuple[NDArray[np.int64], Values]:
    _check(layout, order, bound)
    return order_values(layout, order)


@rule_of.register
def _(layout: ToeplitzLayout, participation: Participation, bound: Bound) -> str:
    return _found(layout, participation, bound).words


def _check(layout: ToeplitzLayout, pattern: Participation, bound: Bound) -> None:
    if bound == "level":
        raise ValueError(
            'bound must be "exact" or "released" for Toeplitz mechanisms, which have no levels, '
            'got "level"'
        )
    # Blocks that were abandoned or cut hold whole epochs and the start of one.
    missing = pattern.steps - layout.steps
    most = pattern.steps_per_epoch - 1 if isinstance(pattern, FixedEpochs) else 0
    if not 0 <= missing <= most:
        raise ValueError(
            f"layout must have the {pattern.steps} steps of the participation, got {layout.steps}"
        )


def _found(layout: ToeplitzLayout, pattern: Participation, bound: Bound) -> _Found:
    _check(layout, pattern, bound)
    if isinstance(pattern, FixedOrder):
        return _order(layout, pattern)
    if isinstance(pattern, FixedEpochs):
        return _epochs(layout, pattern)
    if isinstance(pattern, MinSeparation) and pattern.most_participations > 1:
        return _separated(layout, pattern)
    return _single(layout)


def _single(layout: ToeplitzLayout) -> _Found:
    rule = "first step of the longest block"
    if has_series(layout.mechanism):
        _, decay, scale = layout.mechanism.engine
        exact = series_norm(decay, scale, layout.longest)
        return _Found(exact, exact, rule)
    column = strategy_column(layout.mechanism, layout.longest)
    upper, attained = (first_place(x, 1, x.size) for x in column)
    return _Found(upper, attained, rule)


# ---- Uses at 0, b, 2 b, .. of a block ----


def _majorant(column: StrategyColumn, separation: int) -> Column:
    """Return a bound of |c| that falls from `separation` on: the least one."""
    found = column.upper.copy()
    if separation < found.size:
        tail = found[separation:]
        tail[:] = np.maximum.accumulate(tail[::-1])[::-1]
    return found


def _uses_at(x: Column, steps: int, uses: int, stride: int) -> float:
    """Return `first_place` of a column that may end, for good, before its block does."""
    uses = min(uses, -(-steps // stride))
    if x.size <= stride:  # the columns are orthogonal
        last = x[: steps - (uses - 1) * stride]
        whole = first_place(x, 1, x.size)
        return rounded_up((uses - 1) * whole + first_place(last, 1, last.size), 2)
    length = min(steps, (uses - 1) * stride + x.size)
    if length > MAX_COLUMN:
        raise ValueError(
            f"uses of bands that overlap must lie within 2^24 = {MAX_COLUMN} steps of a block, got "
            f"{length}: give the mechanism a smaller restart_every"
        )
    if length > x.size:
        x = np.concatenate([x, np.zeros(length - x.size)])
    return first_place(x[:length], uses, stride)


# ---- Epochs of fixed batches ----


def _epochs(layout: ToeplitzLayout, epochs: FixedEpochs) -> _Found:
    period, every = epochs.steps_per_epoch, strategy_column(layout.mechanism, layout.longest)
    total, attained, rule = 0.0, 0.0, ""
    for run in layout.runs:
        found = _first_of_block(every.first(run.steps), run.steps, period)
        total, attained = total + run.count * found.upper, attained + run.count * found.attained
        rule = found.rule
    total = rounded_up(total, 2 * len(layout.runs))
    if layout.count == 1:
        return _Found(total, attained, rule)
    if epochs.reshuffle or starts_alike(layout.runs, period):
        return _Found(total, attained, f"{rule}, summed over the blocks")
    return _Found(total, 0.0, f"{rule}, summed over the blocks at each one's worst")


def _first_of_block(column: StrategyColumn, steps: int, period: int) -> _Found:
    uses, rule = -(-steps // period), "first place of the epoch"
    upper, attained = (_uses_at(x, steps, uses, period) for x in column)
    if upper <= _EXACT * attained:
        return _Found(upper, attained, rule)
    products = place_bound(column, steps, period)
    if products < upper:
        return _Found(products, attained, f"{rule}, absolute inner products")
    return _Found(upper, attained, f"{rule}, absolute coefficients")


# ---- A minimum separation ----


def _separated(layout: ToeplitzLayout, pattern: MinSeparation) -> _Found:
    separation = pattern.min_separation
    column = strategy_column(layout.mechanism, layout.longest)
    upper, whole = _split(layout, lambda n: _majorant(column.first(n), separation), pattern)
    attained = 0.0
    if whole and starts_alike(layout.runs, separation):
        attained = _split(layout, lambda n: column.computed[:n], pattern)[0]
    rule = "minimum separation"
    if layout.count == 1 and upper > _EXACT * attained:
        products = separated_bound(column, layout.steps, pattern.most_participations, separation)
        if products < upper:
            return _Found(products, attained, f"{rule}, absolute inner products")
    if bool(np.any(_majorant(column, separation) > column.upper * _EXACT)):
        rule = f"{rule} with the decreasing majorant"
    if layout.count > 1:
        rule = f"{rule}, best split over the blocks"
    return _Found(upper, attained, rule)


def _split(
    layout: ToeplitzLayout, column: Callable[[int], Column], pattern: MinSeparation
) -> tuple[float, bool]:
    """Return the most that uses 0, b, 2 b, .. of the blocks give, and whether it is attained."""
    stride, uses = pattern.min_separation, pattern.most_participations
    if layout.count == 1:
        return _uses_at(column(layout.steps), layout.steps, uses, stride), True

    def kind(steps: int, count: int) -> Kind:
        x = column(steps)
        return count, -(-steps // stride), lambda k: _uses_at(x, steps, k, stride) if k else 0.0

    return best_split([kind(run.steps, run.count) for run in layout.runs], uses)


# ---- A known order ----


def _order(layout: ToeplitzLayout, order: FixedOrder) -> _Found:
    upper = float(order_values(layout, order)[1].max())
    column = strategy_column(layout.mechanism, layout.longest)
    if bool(np.all(column.computed >= 0.0)):
        return _Found(upper, upper, "each id of the order")
    return _Found(upper, 0.0, "each id of the order, absolute inner products")
