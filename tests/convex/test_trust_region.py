# SPDX-License-Identifier: Apache-2.0
"""Quadratics over balls: the conditions of optimality, and solvers that know nothing of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from dpftrl_fast.convex.least_squares.trust_region import (
    conjugate_gradients,
    definite_solution,
    minimise_on_ball,
    projected_solution,
)

Array = np.ndarray[Any, np.dtype[Any]]


def symmetric(values: Any, seed: int) -> Array:
    """A matrix of these eigenvalues."""
    p = len(values)
    Q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((p, p)))
    A = Q @ np.diag(values) @ Q.T
    return (A + A.T) / 2


def check_optimal(A: Array, b: Array, radius: float, *, tolerance: float = 1e-8) -> str:
    """Gay's conditions, which are necessary and sufficient for a global minimum."""
    theta, m, case = minimise_on_ball(A, b, radius)
    p = b.size
    scale = np.abs(A).max() * radius + np.abs(b).max() + 1e-300
    assert np.linalg.norm(theta) <= radius * (1 + 1e-12)
    assert m >= 0
    assert np.abs(A @ theta + m * theta - b).max() <= tolerance * scale
    assert np.linalg.eigvalsh(A + m * np.eye(p))[0] >= -1e-9 * np.abs(A).max()
    assert m * abs(np.linalg.norm(theta) - radius) <= tolerance * scale
    assert (case == "interior") == (m == 0)
    return case


def objective(A: Array, b: Array) -> Any:
    return lambda x: x @ A @ x - 2 * b @ x


# ---- The ball ----


def test_the_three_cases_by_hand() -> None:
    A, b = np.diag([1.0, 4.0]), np.array([1.0, 0.0])
    inside = minimise_on_ball(A, b, 2.0)
    assert inside.case == "interior"
    np.testing.assert_allclose(inside.theta, [1.0, 0.0], atol=1e-15)
    edge = minimise_on_ball(A, b, 0.5)  # 1/(1 + m) = 0.5
    assert edge.case == "boundary"
    np.testing.assert_allclose(edge.theta, [0.5, 0.0], atol=1e-9)
    assert edge.multiplier == pytest.approx(1.0, rel=1e-8)
    hard = minimise_on_ball(np.diag([1.0, -3.0]), np.array([2.0, 0.0]), 1.0)
    assert hard.case == "hard"
    assert hard.multiplier == pytest.approx(3.0, rel=1e-14)
    np.testing.assert_allclose(hard.theta, [0.5, np.sqrt(0.75)], atol=1e-14)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("radius", [1e-3, 0.3, 1.0, 30.0, 1e4])
def test_random_matrices_of_both_kinds(seed: int, radius: float) -> None:
    rng = np.random.default_rng(seed)
    p = int(rng.integers(1, 30))
    values = rng.standard_normal(p)
    b = rng.standard_normal(p)
    check_optimal(symmetric(values, seed), b, radius)
    check_optimal(symmetric(np.abs(values) + 1e-3, seed), b, radius)


@pytest.mark.parametrize("leak", [0.0, 1e-300, 1e-18, 1e-14, 1e-8, 1e-3])
@pytest.mark.parametrize("copies", [1, 3])
def test_the_hard_case_and_close_to_it(leak: float, copies: int) -> None:
    """b has (nearly) no part along the eigenvectors of the smallest eigenvalue."""
    p, smallest = 12, -2.0
    values = np.concatenate([np.full(copies, smallest), np.linspace(-1.0, 3.0, p - copies)])
    Q, _ = np.linalg.qr(np.random.default_rng(5).standard_normal((p, p)))
    A = Q @ np.diag(values) @ Q.T
    A = (A + A.T) / 2
    parts = np.concatenate([np.full(copies, leak), np.full(p - copies, 0.5)])
    b = Q @ parts
    reach = np.linalg.norm(parts[copies:] / (values[copies:] - smallest))
    for radius, expected in (
        (1.5 * reach, {"hard"} if leak < 1e-17 else {"hard", "boundary"}),
        (0.5 * reach, {"boundary"}),
    ):
        assert check_optimal(A, b, radius) in expected


def test_the_hard_case_is_where_zero_is_all_there_is_to_b() -> None:
    solution = minimise_on_ball(symmetric([-1.0, 1.0, 2.0], 0), np.zeros(3), 3.0)
    assert solution.case == "hard"
    assert np.linalg.norm(solution.theta) == pytest.approx(3.0, rel=1e-12)
    again = minimise_on_ball(symmetric([1.0, 1.0, 2.0], 0), np.zeros(3), 3.0)
    assert again.theta.tolist() == [0.0] * 3
    assert again.case == "interior"


def test_singular_semidefinite_matrices() -> None:
    A = np.diag([2.0, 0.0])
    inside = minimise_on_ball(A, np.array([2.0, 0.0]), 3.0)
    assert inside.case == "interior"
    np.testing.assert_allclose(inside.theta, [1.0, 0.0], atol=1e-14)
    check_optimal(A, np.array([1.0, 1.0]), 3.0)


@pytest.mark.parametrize("seed", range(8))
def test_a_generic_solver_finds_nothing_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = 4
    A = symmetric(rng.standard_normal(p) - 0.3 * (seed % 2), seed)
    b = rng.standard_normal(p) * (0.1 if seed % 3 == 0 else 1.0)
    radius = float(rng.uniform(0.3, 3.0))
    theta = minimise_on_ball(A, b, radius).theta
    best = min(
        minimize(
            objective(A, b),
            start * radius / 2,
            jac=lambda x: 2 * (A @ x - b),
            method="SLSQP",
            constraints={
                "type": "ineq",
                "fun": lambda x: radius**2 - x @ x,
                "jac": lambda x: -2 * x,
            },
            options={"ftol": 1e-14, "maxiter": 500},
        ).fun
        for start in rng.standard_normal((12, p))
    )
    assert objective(A, b)(theta) == pytest.approx(best, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_no_point_of_a_fine_disc_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A, b = symmetric(rng.standard_normal(2), seed), rng.standard_normal(2)
    theta = minimise_on_ball(A, b, 1.5).theta
    angle, r = np.meshgrid(np.linspace(0, 2 * np.pi, 721), np.linspace(0, 1.5, 151))
    x = np.stack([r * np.cos(angle), r * np.sin(angle)]).reshape(2, -1)
    values = np.einsum("in,ij,jn->n", x, A, x) - 2 * b @ x
    assert objective(A, b)(theta) <= values.min() + 1e-12
    assert objective(A, b)(theta) >= values.min() - 1e-3


@pytest.mark.parametrize("tiny", [5e-324, 1e-310, 1e-308, 1e-300, 1e-170, 1e-100])
@pytest.mark.parametrize("others", [[], [1.0], [-1.0, 2.0], [5e-324], [1e-320, 1e-308]])
def test_matrices_next_to_singular(tiny: float, others: list[float]) -> None:
    with np.errstate(all="raise", under="ignore"):
        for seed in range(5):
            b = np.random.default_rng(seed).standard_normal(1 + len(others))
            check_optimal(symmetric([tiny, *others], seed), b, 1.5)
            check_optimal(np.diag([tiny, *others]), b, 1.5)


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=8),
    st.integers(0, 50),
    st.floats(1e-2, 1e2),
    st.floats(1e-3, 1e3),
)
@settings(max_examples=150, deadline=None)
def test_optimality_whatever_the_eigenvalues(
    values: list[float], seed: int, radius: float, size: float
) -> None:
    b = np.random.default_rng(seed).standard_normal(len(values)) * size
    check_optimal(symmetric(values, seed), b, radius)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e12, 1e60])
def test_units_do_not_matter(scale: float) -> None:
    A, b = symmetric([-1.0, 0.5, 2.0], 3), np.array([0.3, -1.0, 2.0])
    at_one = minimise_on_ball(A, b, 1.2)
    scaled = minimise_on_ball(A * scale, b * scale, 1.2)
    np.testing.assert_allclose(scaled.theta, at_one.theta, rtol=1e-8)
    assert scaled.multiplier == pytest.approx(at_one.multiplier * scale, rel=1e-8)


def test_only_the_lower_triangle_is_read_and_nothing_is_changed() -> None:
    A, b = symmetric([-1.0, 0.5, 2.0], 3), np.array([0.3, -1.0, 2.0])
    for values in ([1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]):
        A = symmetric(values, 3)
        lower = np.tril(A) + np.triu(np.full((3, 3), np.nan), 1)
        kept = lower.copy()
        solution = minimise_on_ball(lower, b, 0.7)
        np.testing.assert_array_equal(lower, kept)
        np.testing.assert_allclose(solution.theta, minimise_on_ball(A, b, 0.7).theta, rtol=1e-9)


@pytest.mark.parametrize("radius", [0.0, -1.0, float("nan"), float("inf")])
def test_a_radius_is_finite_and_positive(radius: float) -> None:
    with pytest.raises(ValueError, match="radius must be a finite number > 0, got"):
        minimise_on_ball(np.eye(2), np.ones(2), radius)


# ---- All of R^p ----


def test_cholesky_or_nothing() -> None:
    A, b = symmetric([0.5, 1.0, 9.0], 1), np.array([1.0, 2.0, 3.0])
    solved = definite_solution(np.asfortranarray(A), b)
    assert solved is not None
    np.testing.assert_allclose(A @ solved, b, rtol=1e-12)
    assert definite_solution(np.asfortranarray(symmetric([-0.1, 1.0, 9.0], 1)), b) is None


def test_the_projection_is_the_nearest_semidefinite_matrix() -> None:
    values = np.array([-2.0, -0.1, 0.3, 1.5])
    A, b, ridge = symmetric(values, 4), np.array([1.0, -1.0, 0.5, 2.0]), 0.7
    nearest = symmetric(np.maximum(values, 0), 4)
    np.testing.assert_allclose(
        (nearest + ridge * np.eye(4)) @ projected_solution(A, b, ridge), b, rtol=1e-10
    )
    # No semidefinite matrix is nearer: those on the way to random ones are not.
    rng = np.random.default_rng(0)
    for _ in range(50):
        other = rng.standard_normal((4, 4))
        other = other @ other.T
        for step in (1e-3, 0.1, 1.0):
            moved = nearest + step * (other - nearest)
            assert np.linalg.norm(moved - A) >= np.linalg.norm(nearest - A) - 1e-12
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="ridge must be a finite number > 0, got"):
            projected_solution(A, b, wrong)


# ---- Conjugate gradients ----


def test_conjugate_gradients_solve_and_warm_starts_help() -> None:
    rng = np.random.default_rng(2)
    p = 60
    A = symmetric(np.geomspace(1, 300, p), 2) * np.outer(s := np.geomspace(1, 30, p), s)
    b = rng.standard_normal(p)
    exact = np.linalg.solve(A, b)
    cold = conjugate_gradients(A.dot, np.diag(A), b, np.zeros(p))
    warm = conjugate_gradients(A.dot, np.diag(A), b, exact * (1 + 1e-6))
    assert cold is not None and warm is not None
    np.testing.assert_allclose(cold[0], exact, atol=1e-6 * np.abs(exact).max())
    assert warm[1] < cold[1]
    done = conjugate_gradients(A.dot, np.diag(A), b, exact)
    assert done is not None and done[1] == 1


def test_conjugate_gradients_refuse_what_is_not_definite() -> None:
    b = np.ones(3)
    A = symmetric([-1.0, 1.0, 2.0], 0) + 0.0
    assert conjugate_gradients(A.dot, np.full(3, 1.0), b, np.zeros(3)) is None
    assert conjugate_gradients(A.dot, np.array([1.0, 0.0, 1.0]), b, np.zeros(3)) is None
    assert conjugate_gradients(A.dot, np.array([1.0, np.nan, 1.0]), b, np.zeros(3)) is None
    D = symmetric(np.geomspace(1e-6, 1e6, 40), 0)
    short = conjugate_gradients(D.dot, np.diag(D), np.ones(40), np.zeros(40), iterations=5)
    assert short is None


def test_conjugate_gradients_of_a_zero_vector() -> None:
    solved = conjugate_gradients(np.eye(2).dot, np.ones(2), np.zeros(2), np.zeros(2))
    assert solved is not None
    assert solved[0].tolist() == [0.0, 0.0]
