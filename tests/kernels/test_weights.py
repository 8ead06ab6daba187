# SPDX-License-Identifier: Apache-2.0
"""Clipped gradient sums with weights of rows, against sums of single gradients."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from dpftrl_fast.kernels import SparseRows, clipped_sum

Array = np.ndarray[Any, np.dtype[Any]]
MARGIN = 1 - 2.0**-20
LOSSES = [("squared", 1), ("logistic", 1), ("multinomial", 3), ("hinge", 3)]


def case(outputs: int) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(61, 5)) * rng.exponential(size=(61, 1))
    X[5], X[11, 2] = 0.0, np.nan
    y = rng.integers(0, max(outputs, 2), 61).astype(float)
    theta = rng.normal(size=(outputs, 6)) if outputs > 1 else rng.normal(size=6)
    weights = rng.exponential(size=61) * rng.integers(0, 2, 61)
    weights[20:23] = np.nan, np.inf, 1e6
    return X, y, theta, weights


def gradients(X: Array, y: Array, theta: Array, **options: Any) -> Array:
    """Return the gradient of each row, not clipped."""
    rows = [
        clipped_sum(X[i : i + 1], y[i : i + 1], theta, clip_norm=1e30, **options)
        for i in range(len(X))
    ]
    return np.stack(rows)


def clipped(gradient: Array) -> Array:
    norm = float(np.linalg.norm(gradient))
    return gradient * min(1.0, 0.8 * MARGIN / norm) if norm > 0 else gradient


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize(("loss", "outputs"), LOSSES)
@pytest.mark.parametrize("users", [False, True])
def test_gradients_are_weighted_and_then_clipped(
    loss: Any, outputs: int, users: bool, sparse: bool
) -> None:
    X, y, theta, weights = case(outputs)
    options: dict[str, Any] = {"loss": loss, "constant": 0.5, "row_bound": 2.0}
    single = gradients(X, y, theta, **options)
    valid = np.where(np.isfinite(weights), weights, 0.0).reshape((-1,) + (1,) * theta.ndim)
    weighted = valid * single
    starts = np.array([0, 4, 5, 30, 31, 61])
    groups = [slice(*pair) for pair in itertools.pairwise(starts)]
    parts = [weighted[g].sum(axis=0) for g in groups] if users else list(weighted)
    expected = np.sum([clipped(part) for part in parts], axis=0)
    rows = SparseRows.of(scipy.sparse.csr_array(X)) if sparse else X
    found = clipped_sum(
        rows, y, theta, clip_norm=0.8, weights=weights, users=starts if users else None, **options
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    ones = clipped_sum(rows, y, theta, clip_norm=0.8, weights=np.ones(61), **options)
    np.testing.assert_array_equal(ones, clipped_sum(rows, y, theta, clip_norm=0.8, **options))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize(("loss", "outputs"), LOSSES)
@pytest.mark.parametrize("weight", [0.0, 1e-300, 0.3, -1.0, 1e9, 1e300, np.inf, np.nan])
def test_a_weighted_row_moves_the_sum_by_at_most_the_clip_norm(
    loss: Any, outputs: int, weight: float, sparse: bool
) -> None:
    for row in (1e-200, 1.0, 1e160, 1e300):
        X, y = np.full((1, 2), row), np.ones(1)
        rows = SparseRows.of(scipy.sparse.csr_array(X)) if sparse else X
        for users in (None, np.array([0, 1])):
            theta = np.full((outputs, 2), 0.1)
            found = clipped_sum(
                rows, y, theta, clip_norm=0.8, loss=loss, weights=np.array([weight]), users=users
            )
            assert np.linalg.norm(found) <= 0.8


def test_wrong_weights() -> None:
    X, y = np.eye(3), np.ones(3)
    for wrong in (np.ones(2), np.ones(3, dtype=np.float32), [1.0, 1.0, 1.0], np.ones((3, 1))):
        with pytest.raises((TypeError, ValueError), match="weights must"):
            clipped_sum(X, y, np.zeros(3), clip_norm=1.0, loss="squared", weights=wrong)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
def test_a_row_whose_square_overflows_has_its_weight(sparse: bool) -> None:
    X, y = np.array([[1e160, 0.0]]), np.array([1e-161])  # its gradient is (-0.1, 0)
    rows = SparseRows.of(scipy.sparse.csr_array(X)) if sparse else X
    for weight, expected in ((1.0, -0.1), (0.5, -0.05), (1e6, -0.8)):
        found = clipped_sum(
            rows, y, np.zeros(2), clip_norm=0.8, loss="squared", weights=np.array([weight])
        )
        np.testing.assert_allclose(found, [expected, 0.0], rtol=1e-5)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("users", [None, np.array([0, 1])], ids=["row", "user"])
@pytest.mark.parametrize("weight", [1.0, 1e100, 1e153, 1e300])
@pytest.mark.parametrize(
    ("row", "output"),
    [((1.0, 100.0), -400.0), ((1e-170, 0.0), 0.0)],
    ids=["slopes of e^-400", "a row of 1e-170"],
)
def test_a_weight_lifts_nothing_whose_square_vanishes_over_the_clip_norm(
    row: tuple[float, float], output: float, weight: float, users: Any, sparse: bool
) -> None:
    X = np.array([row])
    theta = np.array([[0.0, 0.0], [output, 0.0], [output, 0.0]])
    found = clipped_sum(
        SparseRows.of(scipy.sparse.csr_array(X)) if sparse else X,
        np.zeros(1),
        theta,
        clip_norm=1e-60,
        loss="multinomial",
        weights=np.array([weight]),
        users=users,
    )
    assert np.linalg.norm(found * 1e60) <= 1.0
