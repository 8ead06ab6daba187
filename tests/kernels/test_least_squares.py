# SPDX-License-Identifier: Apache-2.0
"""Packed sums against rational and extended-precision arithmetic; the bound on one row's trace."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast.kernels import SparseRows
from dpftrl_fast.kernels import least_squares as kernels
from dpftrl_fast.kernels.least_squares import RankUpdate
from dpftrl_fast.kernels.packed import (
    add_noise,
    add_packed,
    packed_product,
    packed_size,
    unpack,
)

Array = np.ndarray[Any, np.dtype[Any]]
MARGIN = 1 - 2.0**-20


def rows_of(X: Array, y: Array, bound: float, y_bound: float, constant: float) -> Any:
    """Scaled rows and clipped targets, one by one in extended precision."""
    for x, target in zip(np.asarray(X, np.longdouble), np.asarray(y, np.longdouble), strict=True):
        if not (np.all(np.isfinite(x)) and np.isfinite(target)):
            continue
        largest = np.abs(x).max(initial=0)
        unit = x / largest if largest > 0 else x
        norm = largest * np.sqrt(np.sum(unit * unit))
        if norm > bound * MARGIN:
            x = unit / np.sqrt(np.sum(unit * unit)) * np.longdouble(bound) * MARGIN
        tail = [np.longdouble(constant) * MARGIN] if constant else []
        yield np.concatenate([x, tail]), min(max(target, -y_bound), y_bound)


def oracle(
    X: Array, y: Array, bound: float, y_bound: float, constant: float = 0.0
) -> tuple[Array, Array]:
    p = X.shape[1] + (constant > 0)
    gram, bias = np.zeros((p, p), np.longdouble), np.zeros(p, np.longdouble)
    for x, target in rows_of(X, y, bound, y_bound, constant):
        gram += np.outer(x, x)
        bias += target * x
    return gram[np.triu_indices(p)].astype(float), bias.astype(float)


def run(
    X: Array,
    y: Array,
    bound: float,
    y_bound: float,
    *,
    constant: float = 0.0,
    sparse: bool = False,
    index: Any = np.int32,
) -> tuple[Array, Array, Array]:
    p = X.shape[1] + (constant > 0)
    update = RankUpdate(p, x_norm_bound=bound, y_bound=y_bound, constant=constant)
    total, low = np.zeros(packed_size(p)), np.zeros(packed_size(p))
    bias = np.full(p, np.nan)
    if sparse:
        S = scipy.sparse.csr_array(X)
        rows = SparseRows(S.data, S.indices.astype(index), S.indptr.astype(index), X.shape[1])
        update.add(rows, y, total, low, bias)
    else:
        update.add(X, y, total, low, bias)
    return total, low, bias


# ---- Values ----


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("constant", [0.0, 0.5])
@pytest.mark.parametrize("p", [1, 2, 7, 8, 33, 130])
@pytest.mark.parametrize("rows", ["float32", "float64"])
def test_sums_are_those_of_outer_products(p: int, rows: str, constant: float, sparse: bool) -> None:
    rng = np.random.default_rng(p)
    X = rng.standard_normal((19, p)).astype(rows)
    X[rng.random((19, p)) < 0.5] = 0
    X[3] = 0
    y = rng.standard_normal(19)
    if p % 2 and (rows == "float32" or not sparse):
        y = y.astype("float32")
    bound = float(np.median(np.linalg.norm(X, axis=1))) + 0.1  # some rows are scaled
    total, low, bias = run(X, y, bound, 0.8, constant=constant, sparse=sparse)
    expected, expected_bias = oracle(X, y, bound, 0.8, constant)
    np.testing.assert_allclose(total + low, expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(bias, expected_bias, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("block", [1, 2, 5, 16])
@pytest.mark.parametrize("p", [1, 4, 5, 11, 32])
def test_every_cut_into_blocks(p: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_BLOCK", block)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((9, p)), rng.standard_normal(9)
    total, _, bias = run(X, y, 2.0, 1.0, constant=0.25)
    expected, expected_bias = oracle(X, y, 2.0, 1.0, 0.25)
    np.testing.assert_allclose(total, expected, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(bias, expected_bias, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("sparse", [False, True])
def test_more_rows_than_one_product_takes(sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MOST_ROWS", 8)
    rng = np.random.default_rng(0)
    for n in (0, 1, 7, 8, 9, 30):
        X, y = rng.standard_normal((n, 5)), rng.standard_normal(n)
        total, _, bias = run(X, y, 2.0, 1.0, sparse=sparse)
        expected, expected_bias = oracle(X, y, 2.0, 1.0)
        np.testing.assert_allclose(total, expected, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(bias, expected_bias, rtol=1e-13, atol=1e-13)


def test_batches_add_up_and_scratch_is_clean_between_them() -> None:
    rng = np.random.default_rng(0)
    p, X, y = 6, rng.standard_normal((40, 6)), rng.standard_normal(40)
    for sparse in (False, True):
        update = RankUpdate(p, x_norm_bound=2.0, y_bound=1.0)
        total, low, bias = np.zeros(21), np.zeros(21), np.empty(p)
        for start, stop in ((0, 30), (30, 31), (31, 40)):
            if sparse:
                S = scipy.sparse.csr_array(X[start:stop])
                update.add(SparseRows.of(S), y[start:stop], total, low, bias)
            else:
                update.add(X[start:stop], y[start:stop], total, low, bias)
        np.testing.assert_allclose(total + low, oracle(X, y, 2.0, 1.0)[0], rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(bias, oracle(X[31:], y[31:], 2.0, 1.0)[1], atol=1e-13)


@pytest.mark.parametrize("after", ["add", "move"])
def test_an_interrupted_batch_leaves_its_scratch_behind(
    after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that stayed in the scratch would be in the sums of the next batch."""
    rng = np.random.default_rng(1)
    p, X, y = 6, rng.standard_normal((20, 6)), rng.standard_normal(20)
    rows = SparseRows.of(scipy.sparse.csr_array(X))
    update = RankUpdate(p, x_norm_bound=2.0, y_bound=1.0)
    total, low, bias = np.zeros(21), np.zeros(21), np.empty(p)
    update.add(rows, y, total, low, bias)  # there is a scratch to keep
    name = {"add": "_move_csr", "move": "_add_csr"}[after]

    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kernels, name, lambda *kinds: interrupted)
        with pytest.raises(KeyboardInterrupt):
            update.add(rows, y, np.zeros(21), np.zeros(21), bias)
    total, low = np.zeros(21), np.zeros(21)
    update.add(rows, y, total, low, bias)
    expected, expected_bias = oracle(X, y, 2.0, 1.0)
    np.testing.assert_allclose(total + low, expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(bias, expected_bias, rtol=1e-13, atol=1e-13)


def test_sparse_rows_of_every_kind() -> None:
    """Columns out of order and twice, empty rows, int64 indices, rows that cannot be."""
    data = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0, 9.0], np.float32)
    indices = np.array([2, 0, 1, 1, 0, 2, 7, -1], np.int64)
    indptr = np.array([0, 2, 4, 4, 6, 7, 8], np.int64)
    y = np.ones(6)
    dense = np.array([[2, 0, 1], [0, 7, 0], [0, 0, 0], [5, 0, 6]], float)
    update = RankUpdate(3, x_norm_bound=6.5, y_bound=1.0)
    total, low, bias = np.zeros(6), np.zeros(6), np.empty(3)
    rows = SparseRows(data, indices, indptr, 3)
    update.add(rows, y, total, low, bias)
    expected, expected_bias = oracle(dense, y[:4], 6.5, 1.0)
    np.testing.assert_allclose(total, expected, rtol=1e-14)
    np.testing.assert_allclose(bias, expected_bias, rtol=1e-14)
    # Rows whose bounds lie outside of the data count as zero, too.
    before = total.copy()
    for wrong in ([0, 9], [-1, 2], [4, 2]):
        bad = SparseRows(data, indices, np.array(wrong, np.int64), 3)
        update.add(bad, y[:1], total, low, bias)
        assert np.array_equal(total, before)
        assert bias.tolist() == [0.0] * 3
    with_constant = RankUpdate(4, x_norm_bound=6.5, y_bound=1.0, constant=2.0)
    total, low, bias = np.zeros(10), np.zeros(10), np.empty(4)
    with_constant.add(rows, y, total, low, bias)
    expected, expected_bias = oracle(dense, y[:4], 6.5, 1.0, 2.0)
    np.testing.assert_allclose(total, expected, rtol=1e-14)
    np.testing.assert_allclose(bias, expected_bias, rtol=1e-14)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_a_row_that_is_not_finite_counts_as_zero(sparse: bool, constant: float) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((6, 3)), rng.standard_normal(6)
    bad, bad_y = X.copy(), y.copy()
    bad[1, 2], bad[3, 0], bad_y[4], bad_y[5] = np.nan, np.inf, np.nan, -np.inf
    got = run(bad, bad_y, 2.0, 1.0, constant=constant, sparse=sparse)
    keep = [0, 2]
    expected, expected_bias = oracle(X[keep], y[keep], 2.0, 1.0, constant)
    np.testing.assert_allclose(got[0], expected, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(got[2], expected_bias, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("sparse", [False, True])
def test_squares_that_overflow_or_vanish(sparse: bool) -> None:
    X = np.array([[1e200, -2e200, 0], [1e-200, 1e-180, 0], [1.7e308, 1.7e308, 1.7e308], [0, 0, 1]])
    y = np.array([1e300, 1.0, -1e300, 0.5])
    total, low, bias = run(X, y, 3.0, 2.0, sparse=sparse)
    expected, expected_bias = oracle(X, y, 3.0, 2.0)
    np.testing.assert_allclose(total + low, expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(bias, expected_bias, rtol=1e-13, atol=1e-15)


# ---- What one row can do ----


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 6),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e3, 1e200]),
    st.sampled_from([0.0, 0.7]),
    st.booleans(),
)
def test_a_row_replaced_by_zero_moves_the_sums_by_no_more_than_declared(
    seed: int, p: int, size: float, constant: float, sparse: bool
) -> None:
    """In rational arithmetic, over two batches; the packed off-diagonal entries count twice."""
    rng = np.random.default_rng(seed)
    bound, y_bound = 1.25, 0.75
    X = rng.standard_normal((8, p)) * size
    y = rng.standard_normal(8) * 10
    other = X.copy()
    other[5] = np.nan  # zero, constant column included
    columns = p + (constant > 0)

    def exact(rows: Array) -> tuple[list[Fraction], list[Fraction]]:
        update = RankUpdate(columns, x_norm_bound=bound, y_bound=y_bound, constant=constant)
        total, low = np.zeros(packed_size(columns)), np.zeros(packed_size(columns))
        bias, sums = np.empty(columns), [Fraction(0)] * columns
        for part in (slice(0, 4), slice(4, 8)):
            if sparse:
                S = scipy.sparse.csr_array(rows[part])
                update.add(SparseRows.of(S), y[part], total, low, bias)
            else:
                update.add(rows[part], y[part], total, low, bias)
            sums = [a + Fraction(b) for a, b in zip(sums, bias.tolist(), strict=True)]
        gram = [
            Fraction(a) + Fraction(b) for a, b in zip(total.tolist(), low.tolist(), strict=True)
        ]
        return gram, sums

    (gram, bias), (other_gram, other_bias) = exact(X), exact(other)
    square = Fraction(bound) ** 2 + Fraction(constant) ** 2
    i, j = np.triu_indices(columns)
    moved = sum(
        (a - b) ** 2 * (1 if diagonal else 2)
        for a, b, diagonal in zip(gram, other_gram, (i == j).tolist(), strict=True)
    )
    assert moved <= square**2
    assert (
        sum((a - b) ** 2 for a, b in zip(bias, other_bias, strict=True))
        <= square * Fraction(y_bound) ** 2
    )
    if size >= 1e3:  # the bound is not idle: the row is near it
        assert moved >= square**2 * Fraction(99, 100)


def test_rounding_errors_are_kept_beside_the_sum() -> None:
    rng = np.random.default_rng(0)
    parts = [np.ldexp(rng.standard_normal(64), rng.integers(-40, 40, 64)) for _ in range(50)]
    total, low = np.zeros(64), np.zeros(64)
    for part in parts:
        add_packed(part, total, low)
    for k in range(64):
        exact = sum(Fraction(float(part[k])) for part in parts)
        kept = Fraction(float(total[k])) + Fraction(float(low[k]))
        plain = Fraction(float(total[k]))
        largest = max(abs(float(part[k])) for part in parts)
        assert abs(kept - exact) <= largest * Fraction(2) ** -98
        if k == 0:
            assert kept != plain


def test_each_batch_is_one_addition_with_its_error_beside_it() -> None:
    """Plain additions would lose these; so would a compiler that may reorder them."""
    for sparse in (False, True):
        update = RankUpdate(2, x_norm_bound=4.0, y_bound=1.0)
        total, low, bias = np.full(3, 2.0**53), np.zeros(3), np.empty(2)
        for _ in range(5):
            X = np.array([[1.0, 1.0]])
            if sparse:
                S = scipy.sparse.csr_array(X)
                update.add(SparseRows.of(S), np.ones(1), total, low, bias)
            else:
                update.add(X, np.ones(1), total, low, bias)
        exact = [
            Fraction(a) + Fraction(b) for a, b in zip(total.tolist(), low.tolist(), strict=True)
        ]
        assert exact == [2**53 + 5] * 3


# ---- Packed triangles ----


@pytest.mark.parametrize("p", [1, 2, 3, 8, 17, 100])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_unpacking_and_products(p: int, dtype: str) -> None:
    rng = np.random.default_rng(p)
    packed = rng.standard_normal(packed_size(p)).astype(dtype)
    S = np.zeros((p, p))
    S[np.triu_indices(p)] = packed
    full = S + np.triu(S, 1).T
    out = np.full((p, p), 7.0)
    unpack(packed, 0.5, out)
    np.testing.assert_array_equal(np.triu(out), np.triu(full + 0.5 * np.eye(p)))
    assert np.all(out[np.tril_indices(p, -1)] == 7.0)
    v = rng.standard_normal(p)
    np.testing.assert_allclose(
        packed_product(packed, 0.5, v, np.empty(p)), full @ v + 0.5 * v, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_noise_is_halved_in_variance_off_the_diagonal_and_the_sum_rounded(dtype: str) -> None:
    p = 5
    rng = np.random.default_rng(0)
    total, low = rng.standard_normal(15) * 100, rng.standard_normal(15) * 1e-14
    noise = rng.standard_normal(15).astype(dtype)
    i, j = np.triu_indices(p)
    weight = np.where(i == j, 1.0, np.sqrt(0.5))
    expected = (total + low + weight * noise).astype(dtype)
    got = noise.copy()
    add_noise(total, low, got, 2.0**-60)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, rtol=2 * np.finfo(dtype).eps)
    # The weight is not below sqrt(1/2): squared it is at least 1/2.
    unit = np.full(15, 1.0)
    add_noise(np.zeros(15), np.zeros(15), unit, 2.0**-60)
    assert all(Fraction(w) ** 2 >= Fraction(1, 2) for w in unit.tolist())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_digit_below_the_grid_is_left_where_sum_and_noise_cancel(dtype: str) -> None:
    rng = np.random.default_rng(1)
    noise = rng.standard_normal(packed_size(9)).astype(dtype) * 3
    weight = np.where(np.equal(*np.triu_indices(9)), 1.0, np.sqrt(0.5))
    total = -weight * noise + rng.uniform(-1e-5, 1e-5, noise.size)
    grid, got = 2.0**-19, noise.copy()
    add_noise(total, np.zeros(noise.size), got, grid)
    assert np.all(got / grid == np.rint(got / grid))
    assert 3 < np.unique(got).size < 12  # of 45, on 11 points
    np.testing.assert_allclose(got, total + weight * noise, rtol=0, atol=0.51 * grid)


# ---- Wrong calls ----


def sums(p: int = 3) -> tuple[Array, Array, Array]:
    return np.zeros(packed_size(p)), np.zeros(packed_size(p)), np.zeros(p)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"p": 0}, "p must be an integer >= 1, got 0"),
        ({"p": 1, "constant": 1.0}, "p must be an integer >= 2, got 1"),
        ({"x_norm_bound": float("nan")}, "x_norm_bound must be a finite number in"),
        ({"x_norm_bound": 0.0}, "x_norm_bound must be a finite number in"),
        ({"y_bound": -1.0}, "y_bound must be a finite number in"),
        ({"y_bound": float("inf")}, "y_bound must be a finite number in"),
        ({"constant": float("nan")}, "constant must be a finite number in"),
        ({"constant": -1.0}, "constant must be a finite number in"),
    ],
)
def test_public_arguments(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        RankUpdate(**{"p": 3, "x_norm_bound": 1.0, "y_bound": 1.0, **options})


@pytest.mark.parametrize("options", [{"p": 2.0}, {"p": True}, {"y_bound": "1"}])
def test_types_of_public_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="must be"):
        RankUpdate(**{"p": 3, "x_norm_bound": 1.0, "y_bound": 1.0, **options})


def test_wrong_calls_change_nothing() -> None:
    update = RankUpdate(3, x_norm_bound=1.0, y_bound=1.0)
    X, y = np.ones((2, 3)), np.ones(2)
    total, low, bias = sums()
    read_only = np.zeros(6)
    read_only.flags.writeable = False
    calls: list[tuple[Any, ...]] = [
        (np.ones((2, 4)), y, total, low, bias),
        (np.ones((2, 3), np.int64), y, total, low, bias),
        (np.asfortranarray(np.ones((2, 3))), y, total, low, bias),
        (X, np.ones(3), total, low, bias),
        (X, y, np.zeros(5), low, bias),
        (X, y, total, np.zeros(6, np.float32), bias),
        (X, y, total, total, bias),
        (X, y, read_only, low, bias),
        (X, y, total, low, np.zeros(4)),
        (X, y, total, low, total[:3]),
        (X.tolist(), y, total, low, bias),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=r"must|expected"):
            update.add(*call)
        assert not np.any(total) and not np.any(low)
    S = scipy.sparse.csr_array(X)
    for parts in (
        (S.data[:-1], S.indices, S.indptr, y),
        (S.data, S.indices, S.indptr[:-1], y),
        (S.data, S.indices.astype(np.int64), S.indptr, y),
        (S.data, S.indices, S.indptr, np.ones(2, np.int64)),
        (S.data, S.indices, S.indptr[:0], y),
    ):
        with pytest.raises((TypeError, ValueError), match="must"):
            update.add(SparseRows(*parts[:3], 3), parts[3], total, low, bias)
        assert not np.any(total) and not np.any(low)


def test_wrong_calls_of_packed_triangles() -> None:
    total, low, _ = sums()
    with pytest.raises(ValueError, match=r"p \(p \+ 1\) / 2 entries for some p >= 1, got 5"):
        add_noise(np.zeros(5), np.zeros(5), np.zeros(5), 1.0)
    with pytest.raises(ValueError, match="got 0"):
        unpack(np.zeros(0), 0.0, np.zeros((0, 0)))
    for grid in (0.0, -1.0, 3.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="grid must be a power of two, got"):
            add_noise(total, low, np.zeros(6), grid)
    with pytest.raises(ValueError, match="noise must not overlap total"):
        add_noise(total, low, total, 1.0)
    with pytest.raises(ValueError, match=r"out must have shape \(3, 3\) .* got \(2, 2\)"):
        unpack(total, 0.0, np.zeros((2, 2)))
    with pytest.raises(ValueError, match="v must have 3 entries"):
        packed_product(total, 0.0, np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match=r"total must have shape \(5,\) .* got \(6,\)"):
        add_packed(np.zeros(5), total, low)
    with pytest.raises(ValueError, match="out must not overlap v"):
        packed_product(total, 0.0, v := np.zeros(3), v)
