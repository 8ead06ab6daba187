# SPDX-License-Identifier: Apache-2.0
"""Row bounds, the constant column and threads of the sums with one output."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from gradient_oracle import kernel, oracle

from dpftrl_fast.kernels import SparseRows, clipped_sum
from dpftrl_fast.kernels.loops.dense import CHUNK

both = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])


def batch(n, p, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)).astype(dtype)
    X[rng.random((n, p)) < 0.3] = 0.0
    return X, rng.standard_normal(n), rng.standard_normal(p + 1)


@both
@pytest.mark.parametrize("loss", ["squared", "logistic", "hinge", "linear"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_bounded_row_with_a_constant_is_another_row(loss, dtype, sparse):
    for (n, p), bound, constant in product(
        [(1, 1), (2, 3), (5, 8), (9, 33)], [None, 0.5, 3.0], [0.0, 0.25, 2.0]
    ):
        X, y, theta = batch(n, p, dtype, seed=n)
        if constant == 0.0:
            theta = theta[:-1]
        options = {"row_bound": bound, "constant": constant}
        for clip_norm in (0.4, 1e3):
            expected = oracle(X, y, theta, clip_norm, loss, **options)
            got = kernel(X, y, theta, clip_norm, loss, sparse=sparse, **options)
            np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12)


@both
def test_an_empty_row_has_its_constant(sparse):
    X, y = np.zeros((2, 3)), np.array([-1.0, -2.0])
    got = kernel(X, y, np.zeros(4), 99.0, "squared", sparse=sparse, constant=0.5)
    assert got.tolist() == [[0.0, 0.0, 0.0, 1.5]]


@both
@pytest.mark.parametrize("scale", [1e-320, 1e-300, 1e-160, 1e160, 1e300])
def test_extreme_rows_are_scaled_and_clipped_too(scale, sparse):
    x = np.array([3.0, -4.0, 0.0])
    X = (x * scale)[np.newaxis]
    theta = np.zeros(4)
    bounded = kernel(
        X, np.array([-1.0]), theta, 99.0, "squared", sparse=sparse, row_bound=1.0, constant=1.0
    )[0]
    direction = X[0] / np.sqrt(np.sum((X[0] / scale) ** 2)) / scale
    expected = direction if scale > 1 else X[0]
    np.testing.assert_allclose(bounded[:3], expected, rtol=1e-9)
    assert bounded[3] == 1.0
    clipped = kernel(X, np.array([-1e30]), theta, 2.0, "squared", sparse=sparse, constant=1.0)[0]
    assert sum(Fraction(v) ** 2 for v in clipped) <= 4
    assert np.linalg.norm(clipped) == pytest.approx(2.0, rel=1e-5)
    if scale > 1:  # the constant is nothing beside the row
        np.testing.assert_allclose(clipped[:3], 2.0 * direction, rtol=1e-5)
    else:
        assert clipped[3] == pytest.approx(2.0, rel=1e-5)


@both
def test_a_contribution_has_at_most_the_clip_norm(sparse):
    X, y, theta = batch(300, 5, seed=3)
    rng = np.random.default_rng(4)
    X *= 10.0 ** rng.integers(-320, 300, size=(300, 1))
    y *= 10.0 ** rng.integers(-300, 300, size=300)
    for bound in (None, 1e-3, 1e90):
        for i in range(300):
            options = {"row_bound": bound, "constant": 0.7, "sparse": sparse}
            one = kernel(X[i : i + 1], y[i : i + 1], theta, 0.3, "squared", **options)[0]
            assert sum(Fraction(v) ** 2 for v in one) <= Fraction(0.3) ** 2


@both
def test_bad_rows_leave_the_constant_alone(sparse):
    X, y, theta = batch(6, 4, seed=5)
    X[1, 0], X[2, 3], y[4] = np.nan, np.inf, np.nan
    good = np.array([0, 3, 5])
    options = {"row_bound": 1.0, "constant": 0.5}
    got = kernel(X, y, theta, 0.4, "squared", sparse=sparse, **options)
    expected = oracle(X[good], y[good], theta, 0.4, "squared", **options)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["row", "outputs", "user"])
@pytest.mark.parametrize("n", [4, 3 * CHUNK + 2])
def test_a_dense_row_that_is_not_finite_is_told_of(n, kind, dtype):
    options = {"clip_norm": 1.0, "loss": "squared"}
    theta = np.zeros(3)
    if kind == "outputs":
        theta, options["loss"] = np.zeros((3, 3)), "multinomial"
    if kind == "user":
        options["users"] = np.arange(n + 1)
    X, y = np.zeros((n, 3), dtype), np.zeros(n)
    X[::2] = np.finfo(np.float32).max
    X[1::2, 1] = np.finfo(dtype).smallest_subnormal
    y[0] = np.nan  # a bad target is no bad row
    for place, value, threads in product((0, 1, n - 1), (0.0, np.nan, np.inf, -np.inf), (1, 3)):
        rows, seen = X.copy(), np.zeros(1, np.int64)
        rows[place, 2] = value
        total = clipped_sum(rows, y, theta, seen=seen, threads=threads, **options)
        assert seen.tolist() == [int(not np.isfinite(value))]
        np.testing.assert_array_equal(total, clipped_sum(rows, y, theta, **options))
    for wrong in (np.zeros(2, np.int64), np.zeros(1), [0]):
        with pytest.raises((TypeError, ValueError), match="seen must"):
            clipped_sum(X, y, theta, seen=wrong, **options)


def test_sparse_rows_with_a_column_twice():
    rng = np.random.default_rng(9)
    lengths = rng.integers(0, 12, 40)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices, data = rng.integers(0, 6, indptr[-1]), rng.standard_normal(indptr[-1])
    merged = np.zeros((40, 6))
    np.add.at(merged, (np.repeat(np.arange(40), lengths), indices), data)
    y, theta = rng.standard_normal(40), rng.standard_normal(7)
    rows = SparseRows(data, indices, indptr, 6)
    for bound in (0.8, 1e3):
        options = {"row_bound": bound, "constant": 0.25}
        for clip_norm in (0.2, 1e3):
            got = clipped_sum(rows, y, theta, clip_norm=clip_norm, loss="squared", **options)
            expected = oracle(merged, y, theta, clip_norm, "squared", **options)[0]
            np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12)


@both
@pytest.mark.parametrize("n", [CHUNK - 1, CHUNK + 1, 4 * CHUNK + 3])
def test_any_number_of_threads_gives_the_same_bits(n, sparse):
    X, y, theta = batch(n, 5, np.float32)
    options = {"row_bound": 1.0, "constant": 0.5, "sparse": sparse}
    one = kernel(X, y, theta, 0.5, "squared", **options)
    for threads in (2, 3, 9):
        more = kernel(X, y, theta, 0.5, "squared", threads=threads, **options)
        np.testing.assert_array_equal(more, one)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"row_bound": -1.0}, ValueError, r"row_bound must be a finite number in \[.* got -1.0"),
        ({"row_bound": "1"}, TypeError, "row_bound must be a finite number .* got str"),
        ({"constant": np.inf}, ValueError, "constant must be a finite number, got inf"),
        ({"constant": -1.0}, ValueError, r"constant must be 0 or a number in \[.* got -1.0"),
        (
            {"constant": 1.0},
            ValueError,
            r"theta must .* \(3,\) .* the constant, got \(2,\)",
        ),
        ({"threads": True}, TypeError, "threads must be an integer >= 1, got bool"),
        ({"threads": 0}, ValueError, "threads must be an integer >= 1, got 0"),
    ],
)
def test_a_wrong_call_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        clipped_sum(
            np.ones((1, 2)), np.ones(1), np.zeros(2), clip_norm=1.0, loss="squared", **options
        )
