# SPDX-License-Identifier: Apache-2.0
"""The clip guarantee in exact arithmetic: adversarial rows, small gradients, neighbours."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpftrl_fast.kernels import SparseRows, clipped_sum

MARGIN = 1 - Fraction(1, 2**20)


def exact_square(vector):
    """||vector||^2 without rounding."""
    return sum((Fraction(float(v)) ** 2 for v in vector), Fraction(0))


def dense(X, y, theta, clip_norm, loss="squared", **options):
    out = np.full(X.shape[1], np.nan)
    return clipped_sum(X, y, theta, clip_norm=clip_norm, loss=loss, out=out, **options)


def csr(X, y, theta, clip_norm, loss="squared", **options):
    """The same call on the stored form of X, zeros included."""
    n, p = X.shape
    indices = np.tile(np.arange(p, dtype=np.int32), n)
    indptr = np.arange(n + 1, dtype=np.int32) * p
    return dense(SparseRows(X.ravel(), indices, indptr, p), y, theta, clip_norm, loss, **options)


ROWS32 = {
    "ordinary": [3.0, -4.0, 0.5, 1.0, 2.0],
    "huge": [1e30, -1e30, 1e30, 1e30, 1e30],
    "largest": [3.4028235e38] * 5,
    "tiny": [1e-30, 2e-30, -1e-30, 0.0, 1e-30],
    "subnormal": [1e-45, -1e-45, 3e-45, 1e-40, 0.0],
    "mixed": [1e-45, 1e38, 1.0, -1e-20, 1e20],
    "thirds": [1 / 3, 1 / 7, 1 / 11, 1 / 13, 1 / 17],
}
ROWS64 = ROWS32 | {
    "square overflows": [1e200, -3e200, 1e155, 1.0, 0.0],
    "largest float64": [1.7976931348623157e308] * 5,
    "square vanishes": [1e-200, -3e-200, 1e-190, 0.0, 0.0],
    "partly vanishes": [1e-162, 1e-155, -2e-163, 1e-170, 0.0],
    "smallest": [5e-324, -5e-324, 0.0, 0.0, 1e-323],
    "edge of the fast range": [2.0**-450, 0.0, 0.0, 2.0**-451, 0.0],
    "just below the fast range": [2.0**-450.5, 2.0**-452, 0.0, 0.0, 0.0],
    "extremes": [5e-324, 1e308, 1.0, 1e-308, -1e154],
}
TARGETS = [0.0, 1.0, -7.3, 1e-300, 1e30, -1e300, 1.7e308]
CLIP_NORMS = [1.0, 0.3, 1e-100, 1e100, 1e-8]


@pytest.mark.parametrize("form", [dense, csr])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_true_norm_of_a_contribution_never_exceeds_the_clip_norm(form, dtype):
    rows = ROWS32 if dtype == np.float32 else ROWS64
    clipped = 0
    for (name, row), target, clip_norm in product(rows.items(), TARGETS, CLIP_NORMS):
        X = np.array([row], dtype=dtype)
        out = form(X, np.array([target]), np.zeros(5), clip_norm)
        bound = Fraction(clip_norm) ** 2
        square = exact_square(out)
        assert square <= bound, (name, target, clip_norm)
        # The slope at theta = 0 is -target, so that the exact gradient is known.
        gradient = Fraction(target) ** 2 * exact_square(X[0])
        if gradient > bound * MARGIN**2 * (1 + Fraction(1, 10**9)):
            clipped += 1
            # Clipped to the limit, not dropped, and in the direction of -target * row.
            assert square >= bound * MARGIN**2 * (1 - Fraction(1, 10**9)), (name, target, clip_norm)
            k = int(np.argmax(np.abs(X[0])))
            assert np.sign(out[k]) == -np.sign(target) * np.sign(X[0, k])
        elif gradient < bound * MARGIN**2 * (1 - Fraction(1, 10**9)):
            np.testing.assert_array_equal(out, -target * X[0].astype(np.float64))
    assert clipped > 100


@pytest.mark.parametrize("form", [dense, csr])
@pytest.mark.parametrize("p", [1, 2, 3, 7, 8, 31, 32, 33, 1000])
def test_half_of_float32_rows_would_overshoot_but_none_does(form, p):
    rng = np.random.default_rng(p)
    overshoots = 0
    for _ in range(20):
        X = rng.standard_normal((1, p), dtype=np.float32)
        out = form(X, np.array([-1e3]), np.zeros(p), 1.0)
        assert exact_square(out) <= 1
        naive = X[0] / np.sqrt(np.sum(X[0] * X[0]))
        overshoots += exact_square(naive) > 1
    if p >= 32:  # negative control: the check sees what it is there for
        assert overshoots > 0


@pytest.mark.parametrize("form", [dense, csr])
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "hinge"])
def test_gradients_within_the_limit_are_untouched(form, loss):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((1, 40))
    theta = rng.standard_normal(40) * 0.1
    for y in (-0.5, 0.0, 1.0):
        loose = form(X, np.array([y]), theta, 1e50, loss)
        norm = float(np.sqrt(np.sum(loose**2)))
        again = form(X, np.array([y]), theta, max(norm, 1e-3) * (1 + 2.0**-19), loss)
        np.testing.assert_array_equal(again, loose)
        clip_norm = max(norm, 1e-3) * 0.99
        assert (
            exact_square(form(X, np.array([y]), theta, clip_norm, loss)) <= Fraction(clip_norm) ** 2
        )


@pytest.mark.parametrize("form", [dense, csr])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bound_holds_where_subnormal_numbers_are_flushed(form, dtype):
    rows = ROWS32 if dtype == np.float32 else ROWS64
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        results = [
            (form(np.array([row], dtype=dtype), np.array([y]), np.zeros(5), clip_norm), clip_norm)
            for row, y, clip_norm in product(rows.values(), TARGETS, CLIP_NORMS)
        ]
    finally:
        torch.set_flush_denormal(False)
    for out, clip_norm in results:
        assert exact_square(out) <= Fraction(clip_norm) ** 2


ANY32 = st.floats(width=32, allow_nan=True, allow_infinity=True)
ANY64 = st.floats(width=64, allow_nan=True, allow_infinity=True)


@st.composite
def batches(draw):
    n, p = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    elements = ANY32 if dtype == np.float32 else ANY64
    X = draw(hnp.arrays(dtype, (n, p), elements=elements))
    y = draw(hnp.arrays(np.float64, n, elements=ANY64))
    theta = draw(hnp.arrays(np.float64, p, elements=st.floats(-1e3, 1e3)))
    return X, y, theta, draw(st.integers(0, n - 1))


@pytest.mark.parametrize("form", [dense, csr])
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "hinge"])
@settings(max_examples=20, deadline=None)
@given(batch=batches(), clip_norm=st.floats(1e-6, 1e6))
def test_zeroing_one_row_changes_the_sum_by_at_most_the_clip_norm(form, loss, batch, clip_norm):
    X, y, theta, i = batch
    before = form(X, y, theta, clip_norm, loss)
    assert np.all(np.isfinite(before))
    neighbour = X.copy()
    neighbour[i] = 0.0
    after = form(neighbour, y, theta, clip_norm, loss)
    change = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(before, after, strict=True)]
    assert sum(d * d for d in change) <= Fraction(clip_norm) ** 2


def test_neighbours_in_a_batch_of_many_clipped_rows():
    # All gradients aligned, so that the roundings of the sum are as large as they get.
    n, p = 20_000, 3
    rng = np.random.default_rng(8)
    X = np.abs(rng.standard_normal((n, p))) + 0.1
    y = np.full(n, -1e6)
    before = dense(X, y, np.zeros(p), 0.7)
    for i in (0, 1, 4095, 4096, 4097, n - 1):
        neighbour = X.copy()
        neighbour[i] = 0.0
        after = dense(neighbour, y, np.zeros(p), 0.7)
        change = [
            Fraction(float(a)) - Fraction(float(b)) for a, b in zip(before, after, strict=True)
        ]
        square = sum(d * d for d in change)
        assert Fraction(0.699) ** 2 < square <= Fraction(0.7) ** 2


@pytest.mark.parametrize("form", [dense, csr])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["x", "y"])
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "hinge"])
@pytest.mark.parametrize("i", range(5))
def test_an_invalid_row_counts_as_zero_and_keeps_its_slot(form, bad, place, loss, i):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((5, 6), dtype=np.float32)
    y = rng.standard_normal(5)
    theta = rng.standard_normal(6)
    zeroed = X.copy()
    zeroed[i] = 0.0
    expected = form(zeroed, y, theta, 0.5, loss)
    if place == "x":
        X[i, 4] = bad
    else:
        y[i] = bad
    np.testing.assert_array_equal(form(X, y, theta, 0.5, loss), expected)


@pytest.mark.parametrize("form", [dense, csr])
def test_an_overflowing_prediction_or_slope_counts_as_zero(form):
    X = np.array([[1e300, 0.0], [1.0, 2.0]])
    theta = np.array([1e300, 1.0])
    y = np.array([0.0, 0.0])
    only_second = form(np.array([[0.0, 0.0], [1.0, 2.0]]), y, theta, 1.0, "logistic")
    np.testing.assert_array_equal(form(X, y, theta, 1.0, "logistic"), only_second)
    assert np.any(only_second != 0)
    # |z - y| overflows: no squared gradient, but a Huber gradient.
    X, theta, y = np.array([[1e300]]), np.array([1e8]), np.array([-1e308])
    assert form(X, y, theta, 1.0, "squared")[0] == 0.0
    assert 0.999 < form(X, y, theta, 1.0, "huber")[0] < 1.0


@pytest.mark.parametrize("form", [dense, csr])
def test_a_prediction_that_only_overflows_on_the_way_is_found(form):
    # Squares overflow, the partial sums of the prediction too; divided by 2^k they do not.
    X = np.array([[1.5e308, 1.5e308, -1.5e308]])
    out = form(X, np.array([0.0]), np.ones(3), 2.0)
    np.testing.assert_allclose(out, np.array([1, 1, -1]) * 2.0 / np.sqrt(3), rtol=1e-5)


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "hinge"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_empty_batch_gives_zeros(loss, dtype):
    X, y = np.empty((0, 4), dtype=dtype), np.empty(0)
    np.testing.assert_array_equal(dense(X, y, np.ones(4), 1.0, loss), np.zeros(4))
    np.testing.assert_array_equal(csr(X, y, np.ones(4), 1.0, loss), np.zeros(4))
