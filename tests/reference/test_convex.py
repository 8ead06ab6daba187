# SPDX-License-Identifier: Apache-2.0
"""The kernels, the engines and the estimators against `reference`, without noise and with its own.

`reference` makes every number in loops from the written definitions, and the noise from its own
stream; only the normals agree to the bit, everything else to rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from gradient_oracle import kernel
from scipy.optimize import minimize

from dpftrl_fast import accounting as acc
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.ftrl import FTRL
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.reference import TreeNoise, convex, least_squares

Array = np.ndarray[Any, np.dtype[Any]]

ONE = ["squared", "huber", "epsilon_insensitive", "quantile", "linear", "logistic", "hinge"]
LOSSES = [*((loss, 1) for loss in ONE), ("multinomial", 3), ("hinge", 3)]
SEED = 11


def data(n: int, p: int, outputs: int = 1, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) / math.sqrt(p)
    y = rng.integers(outputs, size=n) if outputs > 1 else rng.standard_normal(n)
    return X, y.astype(float)


# ---- Sums ----


@pytest.mark.parametrize(("loss", "outputs"), LOSSES)
@pytest.mark.parametrize("users", [False, True])
@pytest.mark.parametrize("more", [{}, {"row_bound": 0.9, "constant": 0.5}])
def test_clipped_sums(loss: str, outputs: int, users: bool, more: dict[str, float]) -> None:
    X, y = data(41, 6, outputs)
    X[3, 2], y[7] = np.nan, np.inf
    if outputs > 1:
        y[9], y[10] = 1.5, -1.0  # no such class
    theta = np.random.default_rng(1).standard_normal((outputs, 6 + ("constant" in more)))
    starts = np.array([0, 1, 1, 12, 30, 41]) if users else None
    expected = convex.clipped_sum(
        X.tolist(), y.tolist(), theta.tolist(), 0.4, loss, loss_param=0.3,
        starts=None if starts is None else starts.tolist(), **more,
    )  # fmt: skip
    got = kernel(X, y, theta, 0.4, loss, k=0.3, starts=starts, **more)
    np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-13)
    assert np.any(got)


def test_gradients_are_derivatives() -> None:
    """Of losses written as such, by differences."""
    losses = {
        "squared": lambda z, y: (z - y) ** 2 / 2,
        "huber": lambda z, y: abs(z - y) - 0.5 if abs(z - y) > 1 else (z - y) ** 2 / 2,
        "epsilon_insensitive": lambda z, y: max(0.0, abs(z - y) - 1.0),
        "linear": lambda z, y: y * z,
        "hinge": lambda z, y: max(0.0, 1 - math.copysign(1, y) * z),
        "logistic": lambda z, y: math.log1p(math.exp(-math.copysign(1, y) * z)),
    }
    for loss, value in losses.items():
        for z in (-3.3, -0.4, 0.7, 2.6):
            for y in (-1.1, 0.9):
                slope = (value(z + 1e-6, y) - value(z - 1e-6, y)) / 2e-6
                assert convex.slopes(loss, [z], y) == pytest.approx([slope], abs=1e-8)
    (low,), (high,) = (convex.slopes("quantile", [z], 0.0, 0.3) for z in (-1.0, 1.0))
    assert (low, high) == (-0.3, 0.7)
    z = np.array([0.3, -1.0, 2.0])
    for k in range(3):
        step = 1e-6 * np.eye(3)[k]
        ends = [np.logaddexp.reduce(z + d) - (z + d)[1] for d in (step, -step)]
        slopes = convex.slopes("multinomial", z.tolist(), 1.0)
        assert slopes[k] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-8)
    with pytest.raises(ValueError, match="loss must be one of"):
        convex.slopes("cubic", [0.0], 1.0)


# ---- The update ----

UPDATES: dict[str, dict[str, float]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "l1": {"l1": 0.02},
    "ball": {"radius": 0.5},
    "all": {"momentum": 0.5, "l1": 0.01, "radius": 0.7},
}


@pytest.mark.parametrize("size", [1, 7, 8, 200])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_update(update: dict[str, Any], dtype: Any, size: int) -> None:
    rng = np.random.default_rng(size)
    theta_0 = rng.standard_normal(size) / math.sqrt(size)
    ours = FTRL(theta_0, 0.3, batch_size=4, steps=9, **update)
    theirs = convex.FTRL(theta_0.tolist(), 0.3, batch_size=4, steps=9, **update)
    for _ in range(9):
        g, noise = rng.standard_normal(size), rng.standard_normal(size).astype(dtype)
        expected = theirs.step(g.tolist(), noise.tolist())
        np.testing.assert_allclose(ours.step(g, noise), expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(ours.average, theirs.average(), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(ours.tail_average, theirs.tail_average(), rtol=1e-12, atol=1e-13)


# ---- Runs on one tree ----

PATTERNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "one tree": (acc.SinglePass(6), {}),
    "vanilla": (acc.SinglePass(6), {"variant": "vanilla"}),
    "restarts": (acc.FixedEpochs(3, 2), {"restart_every": 2}),
    "completed": (acc.FixedEpochs(3, 2), {"restart_every": 3, "complete": True}),
}


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize(
    ("loss", "outputs", "users"),
    [("squared", 1, False), ("huber", 1, True), ("multinomial", 3, True)],
)
def test_runs(loss: str, outputs: int, users: bool, update: str, pattern: str, noisy: bool) -> None:
    participation, schedule = PATTERNS[pattern]
    sigma, p, constant, clip_norm = (1.1 if noisy else 1e-14), 5, 0.5, 0.6
    rows = 30 * participation.steps // getattr(participation, "epochs", 1)
    X, y = data(rows, p, outputs)
    starts = np.array([0, 4, 5, 17, 30]) if users else None
    epoch = [Batch(X[i : i + 30], y[i : i + 30], starts) for i in range(0, rows, 30)]
    batches = epoch * (participation.steps // len(epoch))
    plan = PrivacyPlan(clip_norm, sigma, participation, Tree(**schedule))
    objective = Objective(
        loss, p, outputs=outputs, clip_norm=clip_norm, loss_param=0.4, row_bound=0.8,
        constant=constant,
    )  # fmt: skip
    options: dict[str, Any] = {"learning_rate": 0.4, "batch_size": 4 if users else 30}
    engine = GLMRun(objective, plan, noise_seed=SEED, threads=1, **options, **UPDATES[update])
    for batch in batches:
        engine.step(batch)
    tree = TreeNoise(
        objective.size, clip_norm * sigma, seed=SEED, dtype="float64",
        variant=schedule.get("variant", "honaker"),
    )  # fmt: skip
    own = None if starts is None else starts.tolist()
    state = convex.run(
        ((b.X.tolist(), b.y.tolist(), own) for b in batches),
        loss, outputs=outputs, columns=p, clip_norm=clip_norm, noise=tree if noisy else None,
        steps=6, loss_param=0.4, row_bound=0.8, constant=constant,
        restart_every=schedule.get("restart_every"), complete=schedule.get("complete", False),
        **options, **UPDATES[update],
    )  # fmt: skip
    for got, expected in [
        (engine.last, state.iterates[-1]),
        (engine.average, state.average()),
        (engine.tail, state.tail_average()),
    ]:
        np.testing.assert_allclose(got.ravel(), expected, rtol=1e-9, atol=1e-11)
    assert np.any(engine.last)


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("users", [False, True])
def test_estimators_on_one_tree(users: bool) -> None:
    X, y = data(50, 4)
    groups = np.repeat(np.arange(10), [1, 9, 5, 5, 5, 2, 8, 5, 5, 5]) if users else None
    unit = 2 if users else 10
    cuts = [0, 10, 20, 30, 37 if users else 40, 50] if not users else [0, 10, 20, 27, 40, 50]
    starts: list[list[int] | None] = [None] * 5
    if users:
        starts = [[0, 1, 10], [0, 5, 10], [0, 5, 7], [0, 8, 13], [0, 5, 10]]
    model = DPFTRLRegressor(
        noise_multiplier=0.8, epsilon=None, loss="huber", loss_param=0.7, batch_size=unit, epochs=2,
        learning_rate=0.3, clip_norm=0.5, momentum=0.5, l1=0.01, radius=1.0, x_norm_bound=0.9,
        y_bound=0.8, intercept_scaling=0.5, restart_every=5, complete=True, noise_seed=SEED,
    ).fit(X, y, groups=groups)  # fmt: skip
    clipped = np.clip(y / 0.8, -1.0, 1.0)  # the fit is of scaled targets
    batches = [
        (X[a:b].tolist(), clipped[a:b].tolist(), own)
        for a, b, own in zip(cuts[:-1], cuts[1:], starts, strict=True)
    ] * 2
    state = convex.run(
        batches, "huber", columns=4, clip_norm=0.5,
        noise=TreeNoise(5, 0.4, seed=SEED, dtype="float64"), learning_rate=0.3, batch_size=unit,
        steps=10, momentum=0.5, l1=0.01, radius=1.0 / 0.8, loss_param=0.7, row_bound=0.9,
        constant=0.5, restart_every=5, complete=True,
    )  # fmt: skip
    last, tail = 0.8 * np.array(state.iterates[-1]), 0.8 * np.array(state.tail_average())
    np.testing.assert_allclose(model.coef_last_, last[:4], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.intercept_last_, 0.5 * last[4], rtol=1e-9)
    np.testing.assert_allclose(model.coef_tail_, tail[:4], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.coef_, model.coef_tail_)


@pytest.mark.usefixtures("fine_grid")
def test_classifier_on_one_tree() -> None:
    X, y = data(60, 4, 3)
    model = DPFTRLClassifier(
        noise_multiplier=0.8, epsilon=None, batch_size=12, epochs=1, learning_rate=0.3,
        clip_norm=0.5, x_norm_bound=0.9, fit_intercept=False, noise_seed=SEED, classes=[0, 1, 2],
        mechanism="tree",
    ).fit(X, y.astype(int))  # fmt: skip
    batches = [(X[i : i + 12].tolist(), y[i : i + 12].tolist(), None) for i in range(0, 60, 12)]
    state = convex.run(
        batches, "multinomial", outputs=3, columns=4, clip_norm=0.5,
        noise=TreeNoise(12, 0.4, seed=SEED, dtype="float64"), learning_rate=0.3, batch_size=12,
        steps=5, row_bound=0.9,
    )  # fmt: skip
    expected = np.reshape(state.iterates[-1], (3, 4))
    np.testing.assert_allclose(model.coef_last_, expected, rtol=1e-9, atol=1e-12)


# ---- Least squares ----


def trees(plan: LeastSquaresPlan, p: int, dtype: str) -> dict[str, Any]:
    """The noise of both trees by the reference, and its standard deviations."""
    L2 = plan.x_norm_bound**2 + plan.constant**2
    bias = math.sqrt(L2) * plan.y_bound * plan.noise_multiplier / math.sqrt(plan.split)
    covariance = L2 * plan.noise_multiplier / math.sqrt(1 - plan.split)
    options: dict[str, Any] = {"seed": SEED, "variant": plan.variant}
    return {
        "bias_std": bias,
        "covariance_std": covariance,
        "bias_noise": TreeNoise(p, bias, dtype="float64", **options),
        "covariance_noise": TreeNoise(
            p * (p + 1) // 2, covariance, dtype=dtype, purpose=1, **options
        ),
        "variant": plan.variant,
    }


@pytest.mark.parametrize("sigma", [1e-9, 0.4])
@pytest.mark.parametrize("radius", [None, 0.1, 5.0])
@pytest.mark.parametrize(
    ("variant", "complete", "constant", "dtype", "ridge_factor"),
    [
        ("honaker", "all", 0.5, "float32", 2.0),
        ("vanilla", False, 0.0, "float64", 2.0),
        ("honaker", False, 0.0, "float32", 0.05),  # indefinite here and there
    ],
)
def test_least_squares(
    variant: Any, complete: Any, constant: float, dtype: Any, ridge_factor: float,
    radius: float | None, sigma: float,
) -> None:  # fmt: skip
    X, y = data(77, 5)
    X[40, 1] = np.nan
    plan = LeastSquaresPlan(
        1.1, 0.9, sigma, acc.SinglePass(11), complete=complete, variant=variant, constant=constant
    )
    engine = LeastSquares(
        plan, 5, radius=radius, ridge_factor=ridge_factor, solve_every=1, dtype=dtype, seed=SEED
    )
    batches = [(X[i : i + 7], y[i : i + 7]) for i in range(0, 77, 7)]
    p = 5 + (constant > 0)
    noises = trees(plan, p, dtype)
    expected = least_squares.run(
        ((X.tolist(), y.tolist()) for X, y in batches), columns=5, x_norm_bound=1.1, y_bound=0.9,
        constant=constant, radius=math.inf if radius is None else radius,
        ridge_factor=ridge_factor, steps=11, complete=complete == "all", **noises,
    )  # fmt: skip
    upper = np.triu_indices(p)
    for (rows, targets), wanted in zip(batches, expected, strict=True):
        engine.step(Batch(rows, targets))
        bias, packed = engine.released()
        # Next to the edge of a grid cell, rounding decides.
        rounding = max(np.finfo(dtype).eps, 1e-13)
        grid = 2.0**-20 * noises["bias_std"]
        np.testing.assert_allclose(bias, wanted.s, rtol=1e-13, atol=grid)
        grid = 2.0**-20 * noises["covariance_std"]
        np.testing.assert_allclose(packed, wanted.W[upper], rtol=rounding, atol=grid)
        assert engine.solves[-1].half_ridge == pytest.approx(wanted.half_ridge, rel=1e-12)
        theta = least_squares.minimise(
            symmetric(packed, p), bias, wanted.half_ridge, math.inf if radius is None else radius
        )
        # The matrix may be nearly singular: 1e-9 times what it was divided by.
        scale = np.abs(theta).max()
        np.testing.assert_allclose(engine.last[0], theta, rtol=1e-6, atol=1e-6 * scale)


def symmetric(packed: Array, p: int) -> Array:
    full = np.zeros((p, p))
    full[np.triu_indices(p)] = packed
    return full + np.triu(full, 1).T


def test_least_squares_estimator() -> None:
    X, y = data(60, 4)
    model = DPFTRLLeastSquares(
        noise_multiplier=0.5, epsilon=None, batch_size=12, x_norm_bound=0.9, y_bound=0.8,
        intercept_scaling=0.5, complete=False, solve_every=1, noise_seed=SEED,
    ).fit(X, y)  # fmt: skip
    plan = model.plan_
    expected = least_squares.run(
        ((X[i : i + 12].tolist(), (y[i : i + 12] / 0.8).tolist()) for i in range(0, 60, 12)),
        columns=4, x_norm_bound=0.9, y_bound=1.0, constant=0.5, steps=5,
        **trees(plan, 5, "float32"),
    )  # fmt: skip
    thetas = 0.8 * np.array([each.theta for each in expected])  # the fit is of scaled targets
    np.testing.assert_allclose(model.coef_, thetas[-1, :4], rtol=1e-4)
    np.testing.assert_allclose(model.coef_average_, thetas.mean(axis=0)[:4], rtol=1e-4)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shift", [0.0, -1.0, -3.0])
def test_the_references_minimum_is_one(seed: int, shift: float) -> None:
    """Over a ball, of indefinite matrices too: no start of a generic solver finds less."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((4, 4))
    W, s = A @ A.T / 4 + shift * np.eye(4), rng.standard_normal(4) * 0.3
    if seed == 0:
        s -= np.linalg.eigh(W)[1][:, 0] * (s @ np.linalg.eigh(W)[1][:, 0])  # the hard case
    theta = least_squares.minimise(W, s, 0.1, 0.9)
    assert np.linalg.norm(theta) <= 0.9 * (1 + 1e-12)

    def value(x: Array) -> float:
        return float(x @ W @ x - 2 * s @ x + 0.1 * x @ x)

    ball = {"type": "ineq", "fun": lambda x: 0.81 - x @ x}
    found = [
        minimize(value, rng.standard_normal(4) * 0.4, constraints=[ball], options={"ftol": 1e-14})
        for _ in range(6)
    ]
    assert value(theta) <= min(each.fun for each in found) + 1e-7
