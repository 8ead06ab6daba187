# SPDX-License-Identifier: Apache-2.0
"""Sums of x x^T, y x and y^2 with several targets and with weights, against plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast.kernels.least_squares import MOST_ROWS, RankUpdate
from dpftrl_fast.kernels.packed import packed_size
from dpftrl_fast.kernels.rows import SparseRows

Array = np.ndarray[Any, np.dtype[Any]]
MARGIN = 1 - 2.0**-20


def oracle(
    X: Array,
    y: Array,
    w: Array,
    bound: float,
    y_bound: float,
    constant: float,
    squares: float,
    whole: bool = False,
) -> tuple[Array, Array]:
    """Return the triangle and the bias, a row at a time."""
    p = X.shape[1] + (constant > 0)
    gram, bias = np.zeros((p, p)), np.zeros((y.shape[1], p + (squares > 0)))
    L = np.hypot(bound, constant)
    for row, targets, weight in zip(X.astype(float), y.astype(float), w, strict=True):
        if not (np.isfinite(row).all() and np.isfinite(targets).all() and np.isfinite(weight)):
            continue
        weight = min(max(weight, 0.0), 1.0)
        factor = min(1.0, bound * MARGIN / max(np.linalg.norm(row), 1e-300))
        row, own = row * factor, factor if whole else 1.0
        if constant:
            row = np.append(row, constant * MARGIN * own)
        targets = np.clip(targets, -y_bound, y_bound) * own
        gram += weight * np.outer(row, row)
        bias[:, :p] += weight * np.outer(targets, row)
        if squares:
            bias[:, p] += weight * squares * MARGIN * L / y_bound * targets**2
    return gram[np.triu_indices(p)], bias.ravel()


def sums(X: Array, y: Array, w: Array | None, sparse: bool, **options: Any) -> tuple[Array, Array]:
    p = X.shape[1] + (options.get("constant", 0.0) > 0)
    update = RankUpdate(p, targets=y.shape[1], **options)
    total, low = np.zeros(packed_size(p)), np.zeros(packed_size(p))
    bias = np.full(y.shape[1] * (p + (options.get("squares", 0.0) > 0)), np.nan)
    update.add(SparseRows.of(as_csr(X)) if sparse else X, y, total, low, bias, w)
    return total + low, bias


def as_csr(X: Array) -> Any:
    import scipy.sparse

    return scipy.sparse.csr_array(X)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("long_rows", ["scale", "weight"])
@pytest.mark.parametrize("squares", [0.0, 0.25])
@pytest.mark.parametrize("constant", [0.0, 0.5])
@pytest.mark.parametrize("p", [1, 7, 600])
def test_several_targets_and_weights(
    p: int, constant: float, squares: float, long_rows: str, sparse: bool
) -> None:
    rng = np.random.default_rng(p)
    X = rng.normal(size=(40, p)) * rng.exponential(size=(40, 1))
    y, w = 2 * rng.normal(size=(40, 3)), rng.uniform(-0.2, 1.4, 40)
    X[3, 0], y[5, 1], w[6:8] = np.nan, np.inf, (np.nan, -np.inf)
    X[9] *= 1e140
    options: dict[str, Any] = {
        "x_norm_bound": 1.5, "y_bound": 0.8, "constant": constant, "squares": squares,
        "long_rows": long_rows,
    }  # fmt: skip
    gram, bias = sums(X, y, w, sparse, **options)
    expected = oracle(X, y, w, 1.5, 0.8, constant, squares, long_rows == "weight")
    np.testing.assert_allclose(gram, expected[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(bias, expected[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
def test_each_of_several_targets_has_the_sums_it_has_alone(sparse: bool) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(MOST_ROWS + 9, 5)), rng.normal(size=(MOST_ROWS + 9, 2))
    options: dict[str, Any] = {"x_norm_bound": 2.0, "y_bound": 1.0, "constant": 1.0}
    both, bias = sums(X, y, None, sparse, **options)
    for k in range(2):
        gram, alone = sums(X, y[:, k : k + 1].copy(), None, sparse, **options)
        np.testing.assert_array_equal(gram, both)
        np.testing.assert_array_equal(alone, bias.reshape(2, 6)[k])
    ones = sums(X, y, np.ones(len(y)), sparse, **options)
    np.testing.assert_array_equal(ones[0], both)
    np.testing.assert_array_equal(ones[1], bias)


NUMBERS = st.sampled_from([0.0, 1e-300, 0.3, -1.0, 1.0, 1e8, -1e300, 1.8e308, np.nan])


@given(
    st.lists(NUMBERS, min_size=2, max_size=2),
    st.lists(NUMBERS, min_size=3, max_size=3),
    NUMBERS,
    st.sampled_from([0.0, 0.25, 3.0]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from(["scale", "weight"]),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_a_row_moves_the_sums_by_at_most_the_bounds(
    row: list[float],
    targets: list[float],
    weight: float,
    squares: float,
    constant: float,
    long_rows: str,
    sparse: bool,
) -> None:
    options: dict[str, Any] = {
        "x_norm_bound": 0.7, "y_bound": 0.4, "constant": constant, "squares": squares,
        "long_rows": long_rows,
    }  # fmt: skip
    L = np.hypot(0.7, constant)
    gram, bias = sums(np.array([row]), np.array([targets]), np.array([weight]), sparse, **options)
    p = 2 + (constant > 0)
    whole = np.zeros((p, p))
    whole[np.triu_indices(p)] = gram
    whole += np.triu(whole, 1).T
    assert np.linalg.norm(whole) <= L**2
    assert np.linalg.norm(bias) <= L * 0.4 * np.sqrt(3 * (1 + squares**2))


@pytest.mark.parametrize("squares", [0.25, 3.0])
def test_the_bound_of_the_bias_is_reached(squares: float) -> None:
    options: dict[str, Any] = {"x_norm_bound": 0.7, "y_bound": 0.4, "squares": squares}
    _, bias = sums(np.array([[9.0]]), np.array([[9.0, -9.0, 0.4]]), None, False, **options)
    largest = 0.7 * 0.4 * np.sqrt(3 * (1 + squares**2))
    assert largest * (1 - 1e-5) < np.linalg.norm(bias) <= largest


@pytest.mark.parametrize(
    ("y", "weights", "word"),
    [
        (np.ones((3, 2)), None, r"y must have shape \(3, 3\), got \(3, 2\)"),
        (np.ones(3), None, r"y must have shape \(3, 3\), got \(3, 1\)"),
        (np.ones((3, 3)), np.ones(2), "weights must have 3 entries"),
        (np.ones((3, 3)), [1.0, 1.0, 1.0], "weights must be"),
    ],
)
def test_wrong_calls(y: Array, weights: Any, word: str) -> None:
    update = RankUpdate(3, x_norm_bound=1.0, y_bound=1.0, targets=3)
    with pytest.raises((TypeError, ValueError), match=word):
        update.add(np.eye(3), y, np.zeros(6), np.zeros(6), np.zeros(9), weights)
    for name, value in (("targets", 0), ("targets", 1.0), ("squares", -1.0), ("squares", np.nan)):
        with pytest.raises((TypeError, ValueError), match=name):
            RankUpdate(3, **{"x_norm_bound": 1.0, "y_bound": 1.0, name: value})
