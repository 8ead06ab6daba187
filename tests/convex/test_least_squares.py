# SPDX-License-Identifier: Apache-2.0
"""The engine against a plain NumPy one with the same normals; what it releases, and what not."""

from __future__ import annotations

import copy
import math
import multiprocessing
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.optimize import minimize

from dpftrl_fast import accounting as acc
from dpftrl_fast import reference
from dpftrl_fast.convex.least_squares import engine, outlook, secret_sums
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.least_squares.sums import batch_sums
from dpftrl_fast.convex.row_batches import Batch, SparseRows, row_norms
from dpftrl_fast.kernels.packed import packed_size

Array = np.ndarray[Any, np.dtype[Any]]
MARGIN = 1 - 2.0**-20


def plan_of(steps: int = 11, **options: Any) -> LeastSquaresPlan:
    fields: dict[str, Any] = {
        "x_norm_bound": 2.0,
        "y_bound": 1.5,
        "noise_multiplier": 0.5,
        "participation": acc.SinglePass(steps),
    }
    return LeastSquaresPlan(**{**fields, **options})


def data(p: int, n: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) / np.sqrt(p)
    return X, X @ rng.standard_normal(p) + 0.1 * rng.standard_normal(n)


def batches(X: Array, y: Array, size: int) -> list[Batch]:
    return [Batch(X[i : i + size], y[i : i + size]) for i in range(0, len(y), size)]


def sparse(batch: Batch) -> Batch:
    return Batch(SparseRows.of(scipy.sparse.csr_array(batch.X)), batch.y)


def reference_sums(
    plan: LeastSquaresPlan, X: Array, y: Array, size: int, seed: int, dtype: str
) -> list[tuple[Array, Array]]:
    """W_t (whole, symmetric) and s_t after every step, from the written definitions."""
    X = X * np.minimum(1, plan.x_norm_bound * MARGIN / np.linalg.norm(X, axis=1))[:, None]
    if plan.constant:
        X = np.hstack([X, np.full((len(X), 1), plan.constant * MARGIN)])
    y = np.clip(y, -plan.y_bound, plan.y_bound)
    p, L = X.shape[1], plan.row_norm
    share_b, share_c = plan.split, 1 - plan.split
    options: dict[str, Any] = {"seed": seed, "variant": plan.variant}
    bias = reference.TreeNoise(
        p, L * plan.y_bound * plan.noise_multiplier / share_b**0.5, dtype="float64", **options
    )
    covariance = reference.TreeNoise(
        packed_size(p), L**2 * plan.noise_multiplier / share_c**0.5, dtype=dtype, purpose=1,
        **options,
    )  # fmt: skip
    upper = np.triu_indices(p)
    found = []
    for t in range(1, plan.steps + 1):
        rows = slice(0, t * size)
        last = plan.complete == "all" and t == plan.steps
        b, c = (
            noise.prefix(1 << (t - 1).bit_length()) if last else noise.step()
            for noise in (bias, covariance)
        )
        noise = np.zeros((p, p))
        noise[upper] = c
        # The projection of a matrix of independent normals with this triangle and ... off it: the
        # mean of two independent normals has half the variance.
        noise = np.diag(np.diag(noise)) + (np.triu(noise, 1) + np.triu(noise, 1).T) / np.sqrt(2)
        grid_b, grid_c = grids(plan)
        W, s = X[rows].T @ X[rows] + noise, X[rows].T @ y[rows] + b
        found.append((on_grid(W, grid_c), on_grid(s, grid_b)))
    return found


def grids(plan: LeastSquaresPlan) -> list[float]:
    """The largest powers of two that are at most sqrt(1/2)/128 of the bias's and covariance's."""
    stds = [tree.clip_norm * tree.noise_multiplier for tree in (plan.bias, plan.covariance)]
    return [2.0 ** math.floor(math.log2(std * math.sqrt(0.5) / 128)) for std in stds]


def on_grid(values: Array, grid: float) -> Array:
    return np.floor(values / grid + 0.5) * grid


def symmetric(packed: Array, p: int) -> Array:
    full = np.zeros((p, p))
    full[np.triu_indices(p)] = packed
    return full + np.triu(full, 1).T


# ---- Values ----


@pytest.mark.parametrize("variant", ["honaker", "vanilla"])
@pytest.mark.parametrize("complete", [False, "all"])
@pytest.mark.parametrize("constant", [0.0, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_and_models_are_the_references(
    variant: Any, complete: Any, constant: float, dtype: Any
) -> None:
    plan = plan_of(variant=variant, complete=complete, constant=constant, split=0.3)
    X, y = data(5, 85)
    y *= 3  # some are clipped
    model = LeastSquares(plan, 5, seed=3, solve_every=1, dtype=dtype)
    expected = reference_sums(plan, X, y, 8, 3, dtype)
    p = 5 + (constant > 0)
    factors = [float(reference.variance_factor(t, variant)) for t in range(1, 12)]
    if complete == "all":
        factors[-1] = float(reference.variance_factor(16, variant))
    thetas = []
    for t, batch in enumerate(batches(X, y, 8)):
        model.step(batch if t % 2 else sparse(batch))
        W, s = expected[t]
        bias, packed = model.released()
        assert packed.dtype == dtype
        np.testing.assert_array_equal(symmetric(packed, p), W)
        np.testing.assert_array_equal(bias, s)
        ridge = 2 * plan.row_norm**2 * plan.covariance.noise_multiplier * np.sqrt(factors[t] * p)
        assert model.solves[-1].half_ridge == pytest.approx(ridge, rel=1e-12)
        thetas.append(np.linalg.solve(W + ridge * np.eye(p), s))
        np.testing.assert_allclose(model.last[0], thetas[-1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.average[0], np.mean(thetas, axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.tail[0], np.mean(thetas[5:], axis=0), rtol=1e-4, atol=1e-6)
    assert model.steps_taken == 11
    assert model.reproducible


def test_without_noise_it_is_ridge_regression_on_clipped_rows() -> None:
    plan = plan_of(noise_multiplier=1e-12, x_norm_bound=1.0, y_bound=0.7)
    X, y = data(6, 88)
    model = LeastSquares(plan, 6, dtype="float64")
    for batch in batches(X, y, 8):
        model.step(batch)
    norm = np.linalg.norm(X, axis=1)
    X = X * np.minimum(1, 1 / norm)[:, None]
    expected = np.linalg.lstsq(X, np.clip(y, -0.7, 0.7), rcond=None)[0]
    np.testing.assert_allclose(model.last[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [dict, sparse])
def test_sums_computed_elsewhere_give_the_same_bits(rows: Any) -> None:
    plan = plan_of(constant=1.0)
    X, y = data(7, 83)
    here, there = (LeastSquares(plan, 7, seed=1, solve_every=3) for _ in range(2))
    for batch in batches(X, y, 8):
        given = batch if rows is dict else rows(batch)
        here.step(given)
        there.step_sums(*batch_sums(plan, given))
        assert np.array_equal(here.last, there.last)
    for a, b in zip(here.released(), there.released(), strict=True):
        assert np.array_equal(a, b)


def test_batches_of_more_rows_than_one_product_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpftrl_fast.kernels import least_squares as kernels

    monkeypatch.setattr(kernels, "MOST_ROWS", 10)
    monkeypatch.setattr(secret_sums, "MOST_ROWS", 10)
    plan = plan_of(steps=3)
    X, y = data(4, 75)
    here, there = (LeastSquares(plan, 4, seed=1) for _ in range(2))
    for batch in batches(X, y, 25):
        here.step(batch)
        there.step_sums(*batch_sums(plan, batch))
    assert np.array_equal(here.last, there.last)
    W, s = reference_sums(plan, X, y, 25, 1, "float32")[-1]
    np.testing.assert_allclose(symmetric(here.released()[1], 4), W, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(here.released()[0], s, rtol=1e-10, atol=grids(plan)[0] / 2)


@pytest.mark.parametrize("memory", ["stored", "regenerate", 2])
@pytest.mark.parametrize("every", [None, 1, 2, 5])
def test_models_do_not_depend_on_memory_threads_or_how_many_are_made(
    memory: Any, every: int | None
) -> None:
    plan = plan_of(steps=13, complete="all")
    X, y = data(4, 50)
    plain = LeastSquares(plan, 4, seed=5, solve_every=1, threads=1)
    other = LeastSquares(plan, 4, seed=5, solve_every=every, memory=memory, threads=2)
    for t, batch in enumerate(batches(X, y, 4), start=1):
        plain.step(batch)
        other.step(batch)
        if every is not None and (t % every == 0 or t == 13):
            assert np.array_equal(other.last, plain.last)
    assert np.array_equal(other.last, plain.last)
    steps = [13] if every is None else sorted({*range(every, 14, every), 13})
    assert [solve.step for solve in other.solves] == steps
    if every is None:
        assert np.array_equal(other.average, other.last)


def test_a_model_is_made_once_a_step() -> None:
    model = LeastSquares(plan_of(), 3)
    assert model.last.tolist() == [[0.0] * 3]
    assert model.average.tolist() == model.tail.tolist() == [[0.0] * 3]
    assert model.solves == ()
    model.step(Batch(np.eye(3), np.ones(3)))
    first = model.last
    assert np.array_equal(first, model.last)
    assert [solve.step for solve in model.solves] == [1]
    first[:] = 7.0  # a copy
    assert not np.array_equal(first, model.last)


# ---- Solvers and cases ----


def noisy_model(ridge_factor: float, **options: Any) -> tuple[LeastSquares, Array, Array, float]:
    plan = plan_of(steps=3, noise_multiplier=20.0)
    model = LeastSquares(plan, 12, seed=2, ridge_factor=ridge_factor, dtype="float64", **options)
    X, y = data(12, 30)
    for batch in batches(X, y, 10):
        model.step(batch)
    model.last  # noqa: B018 - makes the model
    bias, packed = model.released()
    return model, symmetric(packed, 12), bias, model.solves[-1].half_ridge


@pytest.mark.parametrize("solver", ["cholesky", "cg", "auto"])
def test_both_solvers_find_the_same(solver: Any) -> None:
    model, W, s, ridge = noisy_model(2.0, solver=solver)
    np.testing.assert_allclose(
        model.last[0], np.linalg.solve(W + ridge * np.eye(12), s), rtol=1e-6, atol=1e-9
    )
    assert model.solves[-1].case == "definite"
    assert (model.solves[-1].products > 0) == (solver == "cg")


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_an_indefinite_matrix_is_projected_and_reported(solver: Any) -> None:
    model, W, s, ridge = noisy_model(0.1, solver=solver)
    values, vectors = np.linalg.eigh(W)
    assert values[0] + ridge < 0
    nearest = vectors @ np.diag(np.maximum(values, 0)) @ vectors.T
    np.testing.assert_allclose(
        model.last[0], np.linalg.solve(nearest + ridge * np.eye(12), s), rtol=1e-6, atol=1e-9
    )
    assert model.solves[-1].case == "projected"


def test_an_indefinite_matrix_that_needs_no_projection() -> None:
    """W itself may be indefinite: only with the ridge it must not be."""
    model, W, _, ridge = noisy_model(2.0)
    assert np.linalg.eigvalsh(W)[0] < 0 < np.linalg.eigvalsh(W)[0] + ridge
    assert model.solves[-1].case == "definite"


@pytest.mark.parametrize("ridge_factor", [0.1, 2.0])
@pytest.mark.parametrize("radius", [0.01, 0.3, 50.0])
def test_over_a_ball_a_generic_solver_finds_nothing_better(
    ridge_factor: float, radius: float
) -> None:
    model, W, s, ridge = noisy_model(ridge_factor, radius=radius)
    theta = model.last[0]
    A = W + ridge * np.eye(12)

    def objective(x: Array) -> float:
        return float(x @ A @ x - 2 * s @ x)

    assert np.linalg.norm(theta) <= radius * (1 + 1e-12)
    scale = 1 / abs(objective(theta))
    ball = {
        "type": "ineq",
        "fun": lambda u: 1 - u @ u,
        "jac": lambda u: -2 * u,
    }
    values = []
    for start in np.random.default_rng(0).standard_normal((12, 12)):
        u = minimize(
            lambda u: objective(radius * u) * scale,
            start / 2 / np.linalg.norm(start),
            jac=lambda u: 2 * radius * scale * (radius * A @ u - s),
            method="SLSQP",
            constraints=ball,
            options={"ftol": 1e-13, "maxiter": 500},
        ).x
        values.append(objective(radius * u / max(1.0, np.linalg.norm(u))) * scale)
    assert min(values) >= -1 - 1e-9  # none is better,
    assert min(values) <= -1 + 1e-4  # and one is as good
    solve = model.solves[-1]
    assert solve.case == ("interior" if solve.multiplier == 0 else "boundary")


# ---- What is released ----


def test_noise_has_the_variances_that_are_accounted_for() -> None:
    """Diagonal (L^2 sigma_c)^2 v, half of it beside; 0.97 of the standard deviation is rejected."""
    p, plan = 400, plan_of(steps=3, noise_multiplier=1.0, complete=False)
    empty = Batch(np.zeros((0, p)), np.zeros(0))
    diagonal, beside, bias = [], [], []
    for seed in range(6):
        model = LeastSquares(plan, p, seed=seed, solver="cg")
        for _ in range(3):
            model.step(empty)
        model.last  # noqa: B018 - makes the model
        s, packed = model.released()
        W = symmetric(packed, p)
        std = 4.0 / np.sqrt(1 - plan.split) * np.sqrt(float(reference.variance_factor(3)))
        diagonal.append(np.diag(W) / std)
        beside.append(W[np.triu_indices(p, 1)] / std * np.sqrt(2))
        bias.append(s / (3.0 / np.sqrt(plan.split) * np.sqrt(float(reference.variance_factor(3)))))
        norm = np.abs(np.linalg.eigvalsh(W)).max() / (std * np.sqrt(p))
        assert 1.3 < norm < 1.5  # sqrt(2): what the ridge is measured by
    for sample, width in ((diagonal, 0.06), (beside, 0.01), (bias, 0.06)):
        z = np.concatenate(sample)
        assert abs(np.mean(z)) < 4 / np.sqrt(z.size)
        assert abs(np.var(z) - 1) < width
    assert abs(np.var(np.concatenate(beside) * 0.97) - 1) > 0.01


@pytest.mark.parametrize("variant", ["honaker", "vanilla"])
@pytest.mark.parametrize("complete", [False, "all"])
def test_what_one_record_moves_is_at_most_the_plans_mu(
    variant: Any, complete: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All noisy sums of a run and of its neighbour, with the same noise, in whitened units."""
    # Before they are rounded for the release, which cannot add to mu.
    monkeypatch.setattr("dpftrl_fast.plan.planned_noise.release_grid", lambda std: 2.0**-60)
    steps, p = 11, 3
    plan = plan_of(
        steps=steps, variant=variant, complete=complete, constant=0.5, bound="released", split=0.3
    )
    X, y = data(p, steps)
    X *= 100
    y *= 100  # the largest that rows can be
    at = [*range(1, steps), 16 if complete == "all" else steps]
    size = 1 << 4
    covariance = np.array([[float(c) for c in row] for row in reference.covariance(size, variant)])[
        np.ix_([t - 1 for t in at], [t - 1 for t in at])
    ]
    upper = np.triu_indices(p + 1)
    double = np.where(upper[0] == upper[1], 1.0, np.sqrt(2))
    largest = 0.0
    for changed in range(steps):
        other = X.copy()
        other[changed] = np.nan
        runs = [LeastSquares(plan, p, seed=1, solve_every=1, dtype="float64") for _ in range(2)]
        moved: list[Array] = []
        for t in range(steps):
            parts = []
            for model, rows in zip(runs, (X, other), strict=True):
                model.step(Batch(rows[t : t + 1], y[t : t + 1]))
                s, W = model.released()
                parts.append(np.concatenate([
                    s / (plan.bias.clip_norm * plan.bias.noise_multiplier),
                    W * double / (plan.covariance.clip_norm * plan.covariance.noise_multiplier),
                ]))  # fmt: skip
            moved.append(parts[0] - parts[1])
        D = np.array(moved)
        largest = max(largest, float(np.sum(D * np.linalg.solve(covariance, D))))
    assert largest <= plan.mu**2 * (1 + 1e-9)
    assert largest >= plan.mu**2 * 0.97  # one record does reach it, up to the clipping margin


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_that_a_users_rows_have_often_are_added_up_in_stored_order(dtype: Any) -> None:
    # Any other order of these entries may give a sum near zero: a weight far too large.
    rng, plan, users = np.random.default_rng(0), plan_of(1), 50
    large = 1e300 if dtype == np.float64 else 1e30
    entries, columns = [], []
    for _ in range(users):
        entries.append(rng.permutation(np.repeat([large, -large, 1.0], [8, 8, 24])).astype(dtype))
        columns.append(rng.integers(0, 2, 40))
    entries.append(np.full(40, 0.02, dtype))  # together far longer than one by one
    columns.append(np.zeros(40, np.int64))
    rows = 300  # of each user, all the same
    for row, place in zip(entries, columns, strict=True):
        indptr = np.arange(rows + 1) * 40
        X = SparseRows(np.tile(row, rows), np.tile(place, rows), indptr, 2)
        bias, packed = batch_sums(plan, Batch(X, np.ones(rows), np.array([0, rows])))
        assert np.linalg.norm(bias) <= plan.bias.clip_norm
        assert np.linalg.norm(symmetric(packed, 2)) <= plan.covariance.clip_norm


def test_columns_that_do_not_exist_change_no_other_rows_weight() -> None:
    plan = plan_of(1)
    data, starts = np.array([-5.0, 5.0]), np.array([0, 1, 2])
    for outside in (2, -1, 2**40):  # of the first row, which counts as zero
        for place in (0, 1):
            X = SparseRows(data, np.array([outside, place]), starts, 2)
            norms = row_norms(X)
            assert norms.tolist() == [0.0, 5.0]
            bias, _ = batch_sums(plan, Batch(X, np.ones(2), np.array([0, 2])))
            assert np.linalg.norm(bias) <= plan.bias.clip_norm


def test_values_are_never_refused_and_keep_their_slots() -> None:
    X, y = data(4, 60)
    bad, bad_y = X.copy(), y.copy()
    bad[3], bad[17, 2], bad_y[20] = np.inf, np.nan, np.nan
    good = X.copy()
    good[[3, 17, 20]] = 0.0
    for make in (Batch, lambda X, y: sparse(Batch(X, y))):
        one, two = (LeastSquares(plan_of(steps=6), 4, seed=0) for _ in range(2))
        for i in range(0, 60, 10):
            one.step(make(bad[i : i + 10], bad_y[i : i + 10]))
            two.step(make(good[i : i + 10], y[i : i + 10]))
        np.testing.assert_allclose(one.last, two.last, rtol=1e-12)
    # A whole batch of such rows is a step like any other.
    model = LeastSquares(plan_of(), 4)
    model.step(Batch(np.full((5, 4), np.nan), np.full(5, np.nan)))
    assert model.steps_taken == 1
    assert np.all(np.isfinite(model.last))


def test_the_declared_steps_are_all_there_are() -> None:
    model = LeastSquares(plan_of(steps=2), 3)
    batch = Batch(np.eye(3), np.ones(3))
    model.step(batch)
    model.step(batch)
    before = model.last
    with pytest.raises(RuntimeError, match="step must be one of the 2 declared, got one more"):
        model.step(batch)
    with pytest.raises(RuntimeError, match="step must be one of the 2 declared, got one more"):
        model.step_sums(np.zeros(3), np.zeros(6))
    assert np.array_equal(model.last, before)


def test_a_refused_step_changes_nothing() -> None:
    one, two = (LeastSquares(plan_of(), 3, seed=0) for _ in range(2))
    good = Batch(np.eye(3), np.ones(3))
    for batch in (
        Batch(np.eye(4), np.ones(4)),
        Batch(np.eye(3), np.ones(2)),
        Batch(np.eye(3, dtype=np.int64), np.ones(3)),
        good._replace(starts=np.array([0, 2])),
        good._replace(starts=np.array([1, 3])),
        good._replace(starts=np.array([0, 4, 3])),
        good._replace(weights=np.ones(2)),
        good._replace(weights=np.ones(3, dtype=np.float32)),
        good._replace(y=np.ones((3, 2))),
    ):
        with pytest.raises((TypeError, ValueError), match="must"):
            one.step(batch)
    with pytest.raises(ValueError, match=r"bias must have shape \(3,\), got \(4,\)"):
        one.step_sums(np.zeros(4), np.zeros(6))
    with pytest.raises(ValueError, match=r"total must have shape \(5,\)"):
        one.step_sums(np.zeros(3), np.zeros(5))
    assert one.steps_taken == 0
    one.step(good)
    two.step(good)
    assert np.array_equal(one.last, two.last)


@pytest.mark.parametrize("name", ["two_sum", "add_packed"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_step_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, name: str, when: str
) -> None:
    model = LeastSquares(plan_of(), 3)
    batch = Batch(np.eye(3), np.ones(3))
    model.step(batch)
    sums, call = model.summing()(batch), getattr(secret_sums, name)

    def interrupt(*given: Any) -> None:
        if when == "after":
            call(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(secret_sums, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.advance(sums)
    monkeypatch.undo()
    for use in (lambda: model.step(batch), lambda: model.advance(sums), lambda: model.last):
        with pytest.raises(RuntimeError, match="a step was interrupted"):
            use()


def test_an_interrupted_step_of_rows_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LeastSquares(plan_of(), 3)
    batch = Batch(np.eye(3), np.ones(3))

    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model._update, "add", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.step(batch)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="a step was interrupted"):
        model.step(batch)


def test_an_interrupted_model_is_made_again_from_the_same_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for steps in (1, 3, 5, 11):
        one, two = (LeastSquares(plan_of(complete="all"), 3, seed=0) for _ in range(2))
        batch = Batch(np.eye(3), np.ones(3))
        for model in (one, two):
            for _ in range(steps):
                model.step(batch)

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(engine, "add_noise", interrupt)
            with pytest.raises(KeyboardInterrupt):
                one.last  # noqa: B018
        assert np.array_equal(one.last, two.last)
        for a, b in zip(one.released(), two.released(), strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("name", ["noise_at", "add_noise", "noisy_sum"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("steps", [1, 2, 11])
def test_an_interrupted_model_leaves_no_noise_without_its_sum(
    monkeypatch: pytest.MonkeyPatch, name: str, when: str, steps: int
) -> None:
    # Noise without the sum, and later with it, would give the sum away.
    model = LeastSquares(plan_of(complete="all"), 3)
    batch, call = Batch(np.eye(3), np.ones(3)), getattr(engine, name)
    for step in range(steps):
        model.step(batch)
        if step < steps - 1:
            assert model.last.shape == (1, 3)

    def interrupt(*given: Any) -> None:
        if when == "after":
            call(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.last  # noqa: B018
    with pytest.raises(RuntimeError, match="ask for the model again"):
        model.released()
    assert model.last.shape == (1, 3)
    assert len(model.released()[1]) == 6


def test_no_digit_of_the_sums_is_lost_over_many_steps() -> None:
    plan = plan_of(steps=1000, x_norm_bound=1.0, y_bound=1e3)
    model = LeastSquares(plan, 1)
    targets = np.random.default_rng(4).uniform(0.1, 0.2, 1000)
    targets[0] = 900.0
    exact, plain = Fraction(0), 0.0
    for target in targets.tolist():
        model.step(Batch(np.array([[0.5]]), np.array([target])))
        exact, plain = exact + Fraction(target) / 2, plain + target / 2
    held = Fraction(model._bias.item()) + Fraction(model._bias_low.item())
    assert abs(held - exact) < Fraction(1, 10**22) < abs(Fraction(plain) - exact)


def _use_after_fork(model: LeastSquares, answers: Any) -> None:
    batch = Batch(np.eye(3), np.ones(3))
    for call in (lambda: model.step(batch), lambda: model.last):
        try:
            call()
            answers.put("went on")
        except RuntimeError as error:
            answers.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_copy_refuses() -> None:
    model = LeastSquares(plan_of(), 3)
    model.step(Batch(np.eye(3), np.ones(3)))
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=_use_after_fork, args=(model, answers))
    process.start()
    process.join()
    for _ in range(2):
        assert "forked" in answers.get()


def test_neither_key_nor_sums_leave() -> None:
    model = LeastSquares(plan_of(), 3)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(model)
    with pytest.raises(TypeError, match="not pickled"):
        copy.deepcopy(model)
    assert repr(model) == "LeastSquares(p=3, t=0, steps=11)"
    with pytest.raises(RuntimeError, match="released needs a model"):
        model.released()


# ---- Regret, not private ----


@pytest.mark.parametrize("radius", [None, 0.2])
def test_regret_is_that_of_the_models_at_hand(radius: float | None) -> None:
    plan = plan_of(steps=8, x_norm_bound=10.0, y_bound=10.0)
    X, y = data(4, 80)
    model = LeastSquares(plan, 4, seed=0, solve_every=1, radius=radius, regret=True)
    loss = 0.0
    for batch in batches(X, y, 10):
        loss += float(np.sum((batch.y - batch.X @ model.last[0]) ** 2))
        model.step(batch)
    if radius is None:
        best = np.linalg.lstsq(X, y, rcond=None)[0]
    else:
        best = minimize(
            lambda x: np.sum((y - X @ x) ** 2), np.zeros(4), method="SLSQP",
            constraints={"type": "ineq", "fun": lambda x: radius**2 - x @ x},
            options={"ftol": 1e-14},
        ).x  # fmt: skip
    expected = loss - float(np.sum((y - X @ best) ** 2))
    assert model.regret() == pytest.approx(expected, rel=1e-5)
    with pytest.raises(RuntimeError, match="regret=True"):
        LeastSquares(plan, 4).regret()


# ---- What is announced ----


@pytest.mark.parametrize("constant", [0.0, 1.5])
def test_the_announced_ridge_is_that_of_rows_as_long_as_they_can_be(constant: float) -> None:
    """The mean eigenvalue of n rows of norm L in p columns, beside the engine's own ridge."""
    count, p = 60, 5 + bool(constant)
    X = np.tile(2.0 * np.eye(5), (count // 5, 1))
    whole = np.hstack([X, np.full((count, 1), constant)]) if constant else X
    mean = np.linalg.eigvalsh(whole.T @ whole).mean()
    plan = plan_of(3, noise_multiplier=10.0, constant=constant)
    run = LeastSquares(plan, 5, seed=1)
    for batch in batches(X, np.ones(count), 20):
        run.step(batch)
    run.last  # noqa: B018 (its getter solves)
    ratio = run.solves[-1].half_ridge / mean
    (text,) = outlook.problems(plan, columns=p, units=count)
    assert ratio > 1.5 and f"needs a ridge of {ratio:.2g} times" in text
    most = math.floor(ratio * count)  # the ratio is that of count rows over their number
    assert [*outlook.problems(plan, columns=p, units=most)]
    assert not [*outlook.problems(plan, columns=p, units=most + 1)]


# ---- Wrong arguments ----


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"radius": 0.0}, "radius must be a finite number > 0, got 0.0"),
        ({"radius": float("nan")}, "radius must be a finite number > 0, got nan"),
        ({"ridge_factor": 0.0}, "ridge_factor must be a finite number > 0"),
        ({"ridge_factor": float("nan")}, "ridge_factor must be a finite number > 0"),
        ({"solve_every": 0}, "solve_every must be an integer >= 1, got 0"),
        ({"solver": "qr"}, "solver must be one of 'auto', 'cholesky', 'cg', got 'qr'"),
        ({"n_features": 0}, "n_features must be an integer >= 1, got 0"),
        ({"memory": 0}, "memory must be"),
        ({"threads": 0}, "threads must be"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        LeastSquares(plan_of(), **{"n_features": 3, **options})


def test_wrong_types() -> None:
    with pytest.raises(TypeError, match="plan must be a LeastSquaresPlan, got PrivacyPlan"):
        LeastSquares(plan_of().bias, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="solve_every must be an integer >= 1, got float"):
        LeastSquares(plan_of(), 3, solve_every=2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="radius must be a finite number > 0, got str"):
        LeastSquares(plan_of(), 3, radius="1")  # type: ignore[arg-type]
