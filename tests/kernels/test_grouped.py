# SPDX-License-Identifier: Apache-2.0
"""Sums that are clipped a user: against loops over users in extended precision."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from gradient_oracle import kernel, oracle

from dpftrl_fast.kernels import SparseRows, clipped_sum
from dpftrl_fast.kernels.loops.dense import CHUNK

both = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
cases = pytest.mark.parametrize(
    ("loss", "outputs"),
    [("squared", 1), ("logistic", 1), ("quantile", 1), ("multinomial", 4), ("hinge", 3)],
)


def batch(users, p, outputs, dtype=np.float32, seed=0, width=None):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, users)
    starts = np.concatenate([[0], np.cumsum(counts)])
    X = rng.standard_normal((starts[-1], p)).astype(dtype)
    X[rng.random(X.shape) < 0.4] = 0.0
    y = rng.standard_normal(starts[-1])
    if outputs > 1:
        y = rng.integers(outputs, size=starts[-1]).astype(float)
    return X, y, rng.standard_normal((outputs, width or p)), starts


@both
@cases
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_equal_a_loop_over_users(loss, outputs, dtype, sparse):
    k = 0.3 if loss == "quantile" else 1.0
    for users, p in [(1, 1), (2, 7), (5, 8), (20, 33)]:
        X, y, theta, starts = batch(users, p, outputs, dtype, seed=10 * users + p)
        for clip_norm in (0.5, 1e3):
            options = {"k": k, "starts": starts}
            expected = oracle(X, y, theta, clip_norm, loss, **options)
            got = kernel(X, y, theta, clip_norm, loss, sparse=sparse, **options)
            np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12)


@both
@cases
def test_users_of_one_row_each_are_rows(loss, outputs, sparse):
    X, y, theta, _ = batch(40, 9, outputs, np.float64)
    k = 0.3 if loss == "quantile" else 1.0
    own = np.arange(len(X) + 1)
    by_user = kernel(X, y, theta, 0.5, loss, starts=own, sparse=sparse, k=k)
    by_row = kernel(X, y, theta, 0.5, loss, sparse=sparse, k=k)
    np.testing.assert_allclose(by_user, by_row, rtol=1e-12, atol=1e-13)


@both
@cases
def test_bounds_of_rows_and_a_constant(loss, outputs, sparse):
    X, y, theta, starts = batch(30, 6, outputs, width=7, seed=3)
    options = {"starts": starts, "row_bound": 1.2, "constant": 0.5}
    options["k"] = 0.3 if loss == "quantile" else 1.0
    for clip_norm in (0.3, 1e3):
        expected = oracle(X, y, theta, clip_norm, loss, **options)
        got = kernel(X, y, theta, clip_norm, loss, sparse=sparse, **options)
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12)


@both
@cases
def test_taking_a_user_away_changes_at_most_the_clip_norm(loss, outputs, sparse):
    X, y, theta, starts = batch(60, 5, outputs, np.float64, seed=4)
    X *= 10.0 ** np.random.default_rng(5).integers(-150, 150, size=(len(X), 1))
    X[3, 1], X[7, 2], X[9] = np.nan, np.inf, 1e300
    options = {"k": 0.3 if loss == "quantile" else 1.0, "sparse": sparse}
    total = kernel(X, y, theta, 0.25, loss, starts=starts, **options)
    assert np.all(np.isfinite(total))
    for u in range(60):
        less = y.copy()
        less[starts[u] : starts[u + 1]] = np.nan
        without = kernel(X, less, theta, 0.25, loss, starts=starts, **options)
        assert np.linalg.norm(total - without) <= 0.25


@both
def test_bad_rows_count_as_zero_and_their_users_stay(sparse):
    X, y, theta, _ = batch(9, 4, 1, np.float64, seed=6)
    X, y = X[:6].copy(), y[:6].copy()
    X[1, 2], X[4, 0], y[3] = np.nan, np.inf, np.nan
    starts = np.array([0, 3, 6])
    good, bounds = np.array([0, 2, 5]), np.array([0, 2, 3])
    got = kernel(X, y, theta, 0.5, "squared", starts=starts, sparse=sparse)
    expected = oracle(X[good], y[good], theta, 0.5, "squared", starts=bounds)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)


@both
def test_users_with_impossible_bounds_count_as_zero(sparse):
    X, y, theta = np.ones((3, 1)), np.full(3, -1.0), np.zeros((1, 1))
    for starts, expected in [
        ([0, 2, 3], 3.0),
        ([0, 2, 4], 2.0),
        ([-1, 2, 3], 1.0),
        ([2, 0, 3], 3.0),
        ([5], 0.0),
    ]:
        got = kernel(X, y, theta, 99.0, "squared", starts=np.array(starts), sparse=sparse)
        assert got.item() == expected


@both
def test_any_number_of_threads_gives_the_same_bits(sparse):
    X, y, theta, starts = batch(2 * CHUNK + 7, 3, 1)
    one = kernel(X, y, theta, 0.5, "squared", starts=starts, sparse=sparse)
    for threads in (2, 5):
        more = kernel(X, y, theta, 0.5, "squared", starts=starts, sparse=sparse, threads=threads)
        np.testing.assert_array_equal(more, one)


def test_columns_twice_or_out_of_order_are_one_row():
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 9, 40)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = rng.integers(0, 5, indptr[-1])
    data = rng.standard_normal(indptr[-1])
    merged = np.zeros((40, 5))
    np.add.at(merged, (np.repeat(np.arange(40), lengths), indices), data)
    starts, y = np.array([0, 11, 25, 40]), rng.standard_normal(40)
    theta = rng.standard_normal((1, 6))
    options = {"row_bound": 1.0, "constant": 0.3}
    rows, numbers = SparseRows(data, indices, indptr, 5), {"clip_norm": 0.7, "loss": "squared"}
    got = clipped_sum(rows, y, theta, users=starts, **numbers, **options)
    expected = oracle(merged, y, theta, 0.7, "squared", starts=starts, **options)
    np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12)


GOOD = {
    "rows": np.ones((3, 2)),
    "users": np.array([0, 1, 3]),
    "y": np.zeros(3),
    "theta": np.zeros((1, 2)),
    "clip_norm": 1.0,
    "loss": "squared",
}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"users": [0, 3]}, TypeError, "users must be .* got list"),
        ({"users": np.zeros(3)}, TypeError, "users must be .* int64, got dtype float64"),
        ({"users": np.zeros(0, dtype=np.int64)}, ValueError, "at least 1 entry, got 0"),
        ({"y": np.zeros(2)}, ValueError, "y must have 3 entries .* got 2"),
        ({"theta": np.zeros((0, 2))}, ValueError, r"theta must have shape .* K >= 1, got \(0, 2\)"),
        (
            {"theta": np.zeros((1, 3))},
            ValueError,
            r"theta must .* \(K, 2\).* got \(1, 3\)",
        ),
        ({"theta": np.zeros((2, 2))}, ValueError, "one of 'multinomial', 'hinge', got 'squared'"),
        (
            {"loss": "multinomial"},
            ValueError,
            "loss must be one of 'squared', .* 'multinomial'",
        ),
        ({"clip_norm": 0.0}, ValueError, "clip_norm must be .* got 0.0"),
    ],
)
def test_a_wrong_call_is_refused(change, error, message):
    arguments = {**GOOD, **change}
    with pytest.raises(error, match=message):
        clipped_sum(**arguments)


def test_a_sparse_user_costs_its_entries():
    """10,000 users with one entry each in 200,000 columns: dense work would take minutes."""
    n, p = 10_000, 200_000
    S = scipy.sparse.csr_array((np.ones(n), (np.arange(n), np.arange(n) * 7 % p)), shape=(n, p))
    starts = np.arange(n + 1)
    got = kernel(S, -np.ones(n), np.zeros((1, p)), 9.0, "squared", starts=starts, sparse=True)
    assert got.sum() == n
