# SPDX-License-Identifier: Apache-2.0
"""Whatever rows hold, one of them (or one user) moves a sum by at most L: in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from dpftrl_fast.kernels import SparseRows, clipped_sum
from dpftrl_fast.kernels.least_squares import RankUpdate
from dpftrl_fast.kernels.packed import packed_size

SMALL = np.array([0.0, 5e-324, 1e-310, 1e-162, 1e-155, 1e-100, 1e-50, 1e-40, 1e-3, 1.0])
LARGE = np.array([1e10, 1e17, 3.4e38, 1e50, 1e100, 1e150, 1.3e154, 1e155, 1e200, 1e300, 1.7e308])
NUMBERS = np.concatenate([SMALL, -SMALL, LARGE, -LARGE, [np.inf, -np.inf, np.nan]])
SCALES = np.array([1e-300, 1e-160, 1e-155, 1e-30, 1e30, 1e150, 1e153, 1e154, 1e300])
ONE = ["squared", "logistic", "huber", "hinge", "epsilon_insensitive", "quantile", "linear"]


def wild(rng: np.random.Generator, shape: Any) -> np.ndarray[Any, Any]:
    """Ordinary numbers, extreme ones, or both."""
    kind, plain = rng.integers(4), rng.standard_normal(shape)
    if kind == 0:
        return plain
    if kind == 1:
        return plain * rng.choice(SCALES)
    drawn = rng.choice(NUMBERS, size=shape)
    return drawn if kind == 2 else np.where(rng.random(shape) < 0.5, plain, drawn)


def sparse_rows(rng: np.random.Generator, n: int, p: int, dtype: Any) -> SparseRows:
    """Rows with columns twice, which may cancel, and now and then one that is not there."""
    lengths = rng.integers(0, 2 * p + 1, n)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    wide = int(rng.random() < 0.1)
    indices = rng.integers(-wide, p + wide, indptr[-1])
    data = wild(rng, indptr[-1])
    for i in np.flatnonzero(lengths >= 3)[::2]:
        first = indptr[i]
        indices[first + 2], data[first + 2] = indices[first], -data[first]
    return SparseRows(data.astype(dtype), indices, indptr, p)


def square_of_change(one: Any, other: Any, weights: Any = None) -> Fraction:
    assert np.all(np.isfinite(one)) and np.all(np.isfinite(other))
    changes = [
        Fraction(float(a)) - Fraction(float(b))
        for a, b in zip(np.ravel(one), np.ravel(other), strict=True)
    ]
    weights = [1] * len(changes) if weights is None else weights
    return sum((w * d * d for w, d in zip(weights, changes, strict=True)), Fraction(0))


@pytest.mark.parametrize("seed", range(2))
@np.errstate(all="ignore")
def test_gradient_sums(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(200):
        p, n, outputs = int(rng.integers(1, 6)), int(rng.integers(1, 9)), int(rng.integers(1, 4))
        dtype = rng.choice([np.float32, np.float64])
        X, y = wild(rng, (n, p)).astype(dtype), wild(rng, n)
        csr = sparse_rows(rng, n, p, dtype)
        loss: Any = rng.choice(ONE)
        if outputs > 1:
            y, loss = (
                rng.integers(0, outputs, n).astype(float),
                rng.choice(["multinomial", "hinge"]),
            )
        clip_norm = float(rng.choice([1e-100, 1e-50, 1e-3, 1.0, 7.0, 1e50, 1e100]))
        constant = float(rng.choice([0.0, 1e-100, 1.0, 1e100]))
        theta = wild(rng, (outputs, p + (constant != 0.0)))
        bound = rng.choice([None, 1e-100, 1e-3, 1.0, 1e100])
        options: Any = {"row_bound": bound, "constant": constant, "loss_param": 0.5}
        options |= {"clip_norm": clip_norm, "loss": loss}
        cuts = rng.integers(0, n + 1, 2).tolist()
        starts = np.array(sorted([0, *cuts, n]))
        row, user = int(rng.integers(n)), int(rng.integers(3))
        without_row, without_user = y.copy(), y.copy()
        without_row[row] = np.nan  # its gradient is zero
        without_user[starts[user] : starts[user + 1]] = np.nan

        for rows, (users, without) in product(
            (X, csr), ((None, without_row), (starts, without_user))
        ):
            sums = [clipped_sum(rows, t, theta, users=users, **options) for t in (y, without)]
            assert square_of_change(*sums) <= Fraction(clip_norm) ** 2, (rows, users, options)


@pytest.mark.parametrize("seed", range(2))
@np.errstate(all="ignore")
def test_sums_of_outer_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(75):
        p, n = int(rng.integers(1, 6)), int(rng.integers(1, 9))
        dtype = rng.choice([np.float32, np.float64])
        X, y, csr = wild(rng, (n, p)).astype(dtype), wild(rng, n), sparse_rows(rng, n, p, dtype)
        bound, y_bound = (float(v) for v in rng.choice([1e-50, 1e-3, 1.0, 1e50], 2))
        constant = float(rng.choice([0.0, 1e-50, 1.0, 1e50]))
        q = p + (constant > 0)
        update = RankUpdate(q, x_norm_bound=bound, y_bound=y_bound, constant=constant)
        without = y.copy()
        without[rng.integers(n)] = np.nan
        i, j = np.triu_indices(q)
        square = Fraction(bound) ** 2 + Fraction(constant) ** 2
        for rows in (X, csr):
            totals, biases = [], []
            for targets in (y, without):
                total, low, bias = np.zeros(packed_size(q)), np.zeros(packed_size(q)), np.empty(q)
                update.add(rows, targets, total, low, bias)
                assert not low.any()  # one batch: nothing to lose yet
                totals.append(total)
                biases.append(bias)
            assert square_of_change(*totals, weights=2 - (i == j)) <= square**2
            assert square_of_change(*biases) <= square * Fraction(y_bound) ** 2


@pytest.mark.parametrize("loss", ["multinomial", "hinge"])
@pytest.mark.parametrize("huge", [1e17, 1e100, 1e300])
def test_entries_of_a_column_that_cancel_leave_the_other_rows_alone(loss: Any, huge: float) -> None:
    lengths = [2] * 50 + [3] + [2] * 50
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.array([0, 1] * 50 + [0, 0, 0] + [0, 1] * 50)
    data = np.array([1.0, 0.5] * 50 + [huge, 3.0, -huge] + [1.0, 0.5] * 50)
    theta, y = np.random.default_rng(0).standard_normal((3, 2)), np.ones(101)
    without = y.copy()
    without[50] = np.nan
    rows = SparseRows(data, indices, indptr, 2)
    sums = [clipped_sum(rows, t, theta, clip_norm=0.01, loss=loss) for t in (y, without)]
    assert square_of_change(*sums) <= Fraction(0.01) ** 2


@pytest.mark.parametrize("sparse", [False, True])
def test_a_row_far_beyond_its_bound_is_clipped_with_its_constant(sparse: bool) -> None:
    X, y = np.array([[1e150, 1e-155]]), np.array([1e300])
    rows = SparseRows(X[0], np.arange(2), np.array([0, 2]), 2) if sparse else X
    options: Any = {"row_bound": 1e-100, "constant": 1e-100, "loss": "squared"}
    total = clipped_sum(rows, y, np.zeros(3), clip_norm=1e-50, **options)
    assert square_of_change(total, np.zeros(3)) <= Fraction(1e-50) ** 2
    np.testing.assert_allclose(total / 1e-50, [-(0.5**0.5), 0.0, -(0.5**0.5)], rtol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_slopes_whose_squares_vanish_are_clipped(sparse: bool) -> None:
    X, theta = np.array([[1e150]]), np.array([[4e-148], [0.0]])  # slopes of 2e-174
    rows = SparseRows(X[0], np.zeros(1, int), np.array([0, 1]), 1) if sparse else X
    total = clipped_sum(rows, np.zeros(1), theta, clip_norm=1e-100, loss="multinomial")
    assert 0 < square_of_change(total, np.zeros((2, 1))) <= Fraction(1e-100) ** 2
