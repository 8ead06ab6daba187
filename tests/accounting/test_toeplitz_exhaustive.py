# SPDX-License-Identifier: Apache-2.0
"""Every pattern, every sign, every block length of runs of up to 12 steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from toeplitz_oracle import ALL, POSITIVE, block_lengths, largest, strategy

from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.sensitivity.squared import rule_of
from dpftrl_fast.mechanisms import BandedInverse

MOST = 12


@cache
def contributions(steps: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """All vectors of -1, 0 and 1, one of each pair of opposite ones, and (uses, smallest gap)."""
    vectors = np.array(list(product((0, 1, -1), repeat=steps)), np.int8)
    leading = np.take_along_axis(vectors, (vectors != 0).argmax(axis=1)[:, None], axis=1)[:, 0]
    vectors = vectors[leading == 1]
    facts = np.empty((len(vectors), 2), np.int64)
    places = vectors != 0
    facts[:, 0] = places.sum(axis=1)
    gap, last = np.full(len(vectors), steps), np.full(len(vectors), -steps)
    for step in range(steps):
        used = places[:, step]
        gap[used] = np.minimum(gap[used], step - last[used])
        last[used] = step
    facts[:, 1] = np.minimum(gap, steps)
    return vectors.astype(np.float64), facts


def attained(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest squared norm with at most k uses, at least b apart, by (k, b)."""
    steps = len(gram)
    vectors, facts = contributions(steps)
    norms = ((vectors @ gram) * vectors).sum(axis=1)
    best = np.zeros((steps + 1, steps + 1))
    np.maximum.at(best, (facts[:, 0], facts[:, 1]), norms)
    best = np.maximum.accumulate(best, axis=0)
    return np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]


def of_each_set(gram: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By the bits of a set of uses: the largest squared norm, and the sum of absolute products."""
    steps = len(gram)
    vectors, _ = contributions(steps)
    bits = (vectors != 0) @ 2.0 ** np.arange(steps)
    best = np.zeros(2**steps)
    np.maximum.at(best, bits.astype(np.int64), ((vectors @ gram) * vectors).sum(axis=1))
    sets = ((np.arange(2**steps)[:, None] >> np.arange(steps)) & 1).astype(np.float64)
    return best, ((sets @ np.abs(gram)) * sets).sum(axis=1)


def runs(name: str) -> Iterator[tuple[Any, int, NDArray[np.float64]]]:
    """The mechanism with every block length, the steps, and its inner products of columns."""
    mechanism = ALL[name]
    for steps in range(mechanism.bands, MOST + 1):
        for every in (None, *range(1, steps)):
            c = strategy(mechanism, block_lengths(steps, every))
            yield replace(mechanism, restart_every=every), steps, c.T @ c


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_separation_and_number_of_uses(name: str) -> None:
    for mechanism, steps, gram in runs(name):
        best = attained(gram)
        for uses, separation in product(range(1, steps + 1), repeat=2):
            pattern = acc.MinSeparation(steps, uses, separation)
            zeta = acc.sensitivity_squared(pattern, mechanism)
            assert zeta >= best[uses, separation] * (1 - 1e-13), (mechanism, pattern)
            if rule_of(mechanism.layout(steps), pattern, "exact").endswith(", exact"):
                assert zeta <= best[uses, separation] * (1 + 1e-12), (mechanism, pattern)
        zeta = acc.sensitivity_squared(acc.SinglePass(steps), mechanism)
        assert best[1, 1] * (1 - 1e-13) <= zeta <= best[1, 1] * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_length_and_number_of_epochs(name: str) -> None:
    for mechanism, steps, _ in runs(name):
        for length in (m for m in range(1, steps + 1) if steps % m == 0):
            for reshuffle in (True, False):
                pattern = acc.FixedEpochs(length, steps // length, reshuffle)
                zeta = acc.sensitivity_squared(pattern, mechanism)
                least, most = largest(mechanism, pattern, mechanism.restart_every)
                assert zeta >= least * (1 - 1e-13), (mechanism, pattern)
                if rule_of(mechanism.layout(steps), pattern, "exact").endswith(", exact"):
                    assert zeta <= least * (1 + 1e-12), (mechanism, pattern)
                elif mechanism.restart_every is None:
                    assert zeta <= most * (1 + 1e-12), (mechanism, pattern)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_set_of_uses_of_an_order(name: str) -> None:
    for mechanism, steps, gram in runs(name):
        sets = np.arange(1, 2**steps)
        order = acc.FixedOrder.from_steps([sets[(sets >> t) & 1 == 1] for t in range(steps)])
        ids, zetas = acc.sensitivity_squared_by_id(order, mechanism)
        assert np.array_equal(ids, sets)
        least, most = of_each_set(gram)
        assert np.all(zetas >= least[1:] * (1 - 1e-13))
        bound = least if name in POSITIVE else most
        assert np.all(zetas <= bound[1:] * (1 + 1e-11))


def test_taps_optimised_for_the_wrong_formula_are_bounded() -> None:
    """64 taps of any sign, chosen for what the first-place formula says, cheat it."""
    steps, uses, separation = 1000, 10, 100

    def column_of(taps: NDArray[np.float64]) -> NDArray[np.float64]:
        column = np.zeros(steps)
        for t in range(steps):
            j = np.arange(1, min(len(taps), t) + 1)
            column[t] = (t == 0) - taps[j - 1] @ column[t - j]
        return column

    def shifted(x: NDArray[np.float64], by: int) -> NDArray[np.float64]:
        return np.concatenate([np.zeros(by), x[: steps - by]])

    def objective(taps: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        c = column_of(taps)
        y = sum(shifted(c, k * separation) for k in range(uses))
        d = np.concatenate([[1.0], taps, np.zeros(steps - 1 - len(taps))])
        b = np.cumsum(d)
        weights = np.arange(steps, 0, -1)
        formula, error = y @ y, weights @ (b * b)
        # By taps: dc/dd_j is c * c moved by j, with its sign changed; db/dd_j is 1 from j on.
        by_c = 2 * sum(np.concatenate([y[k * separation :], np.zeros(k * separation)])
                       for k in range(uses))  # fmt: skip
        square = np.convolve(c, c)[:steps]
        gradient = np.empty(len(taps))
        after = np.cumsum((2 * weights * b)[::-1])[::-1]
        for j in range(1, len(taps) + 1):
            gradient[j - 1] = -(by_c[j:] @ square[: steps - j]) / formula + after[j] / error
        return float(np.log(formula) + np.log(error)), gradient

    start = BandedInverse.square_root(65).inverse(65)[1:]
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 300})
    mechanism = BandedInverse([1.0, *found.x.tolist()])
    column = mechanism.strategy(steps)
    moved = np.array([shifted(column, k * separation) for k in range(uses)])
    gram = moved @ moved.T
    signs = np.array([(1.0, *rest) for rest in product((1.0, -1.0), repeat=uses - 1)])
    truth = ((signs @ gram) * signs).sum(axis=1).max()
    assert truth > 1.5 * gram.sum()
    for pattern in (acc.FixedEpochs(separation, uses), acc.MinSeparation(steps, uses, separation)):
        assert acc.sensitivity_squared(pattern, mechanism) >= truth
