# SPDX-License-Identifier: Apache-2.0
"""Runs of FTRL and of least squares with each kind of mechanism, against plain NumPy."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gradient_oracle import oracle
from mechanism_cases import MECHANISMS, TOEPLITZ

from dpftrl_fast import accounting as acc
from dpftrl_fast import reference
from dpftrl_fast.accounting.planner.choice import TreeSearch
from dpftrl_fast.cli.output import guarantee_facts
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.rates import learning_rate
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.least_squares.choice import chosen_noise
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.least_squares.settings import LeastSquaresSettings
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.convex.settings import RunSettings
from dpftrl_fast.ftrl import theory_learning_rate
from dpftrl_fast.kernels.packed import packed_size
from dpftrl_fast.mechanisms import BandedInverse, BufferedToeplitz, Tree
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.reference.toeplitz import ToeplitzNoise, strategy_matrix

SEED, MARGIN = 5, 1 - 2.0**-20
ONE_BLOCK = {name: m for name, m in TOEPLITZ.items() if m.restart_every is None}
every = pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
toeplitz = pytest.mark.parametrize("mechanism", TOEPLITZ.values(), ids=TOEPLITZ)
one_block = pytest.mark.parametrize("mechanism", ONE_BLOCK.values(), ids=ONE_BLOCK)


def data(n: int, p: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p)) / np.sqrt(p)
    return X, X @ rng.standard_normal(p) + 0.1 * rng.standard_normal(n)


def reference_noise(mechanism: Any, size: int, std: float, **options: Any) -> Any:
    if isinstance(mechanism, Tree):
        return reference.TreeNoise(size, std, variant=mechanism.variant, seed=SEED, **options)
    kind, first, second = mechanism.engine
    return ToeplitzNoise(size, std, kind, first, second, seed=SEED, **options)


def on_grid(values: Any, mechanism: Any, std: float) -> Any:
    """Round to the largest power of two that is at most 1/128 of the least standard deviation."""
    least = math.sqrt(0.5)
    if not isinstance(mechanism, Tree):
        kind, first, _ = mechanism.engine
        least = 1 / first[0] if kind == "bands" else 1.0
    grid = 2.0 ** math.floor(math.log2(std * least / 128))
    return np.floor(values / grid + 0.5) * grid


def strategy(mechanism: Any, steps: int) -> Any:
    """C of a Toeplitz mechanism, block by block."""
    kind, first, second = mechanism.engine
    every, C = mechanism.restart_every or steps, np.zeros((steps, steps))
    for begin in range(0, steps, every):
        n = min(every, steps - begin)
        C[begin : begin + n, begin : begin + n] = strategy_matrix(kind, first, second, steps=n)
    return C


# ---- FTRL ----


@every
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_runs_of_ftrl_are_those_of_the_definitions(mechanism: Any, momentum: float) -> None:
    objective = Objective("squared", 4, clip_norm=0.6, constant=0.5)
    plan = PrivacyPlan(0.6, 0.8, acc.FixedEpochs(5, 2), mechanism, bound="released")
    X, y = data(20, 4)
    batches = [Batch(X[i : i + 4], y[i : i + 4]) for i in [0, 4, 8, 12, 16] * 2]
    noise = reference_noise(mechanism, 5, 0.6 * 0.8, dtype="float64")
    total, v, path, t = np.zeros((1, 5)), np.zeros((1, 5)), [np.zeros((1, 5))], 0
    for block in range(plan.layout.count):
        run = plan.layout.run_of(block)
        if block:
            earlier: Any = plan.layout.run_of(block - 1)
            noise.restart(*([earlier.completed] if isinstance(mechanism, Tree) else []))
        for _ in range(run.steps):
            total = total + oracle(
                batches[t].X, batches[t].y, path[-1], 0.6, "squared", constant=0.5
            )
            noisy = on_grid(total + noise.step().reshape(1, 5), mechanism, 0.6 * 0.8)
            v = momentum * v + noisy / 4
            path.append(-0.7 * v)
            t += 1
    found = GLMRun(
        objective, plan, learning_rate=0.7, batch_size=4, noise_seed=SEED, momentum=momentum
    )
    for batch in batches:
        found.step(batch)
    assert t == found.steps_taken == 10
    np.testing.assert_allclose(found.last, path[-1], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.average, np.mean(path[:-1], axis=0), rtol=1e-9, atol=1e-11)
    with pytest.raises(ValueError, match="all 10 declared steps"):
        found.step(batches[0])


@toeplitz
def test_the_rates_take_the_noise_of_the_mechanism(mechanism: Any) -> None:
    plan = PrivacyPlan(0.3, 14.0, acc.SinglePass(50), mechanism)
    C = strategy(mechanism, 50)
    std = np.sqrt(np.sum(np.linalg.solve(C.T, np.tri(50).T) ** 2, axis=0))  # rows of A C^-1
    scale = 0.3 * 14.0 * math.sqrt(11) / 256
    options: dict[str, Any] = {"batch_size": 256, "radius": 2.0}
    hinge = Objective("hinge", 11, clip_norm=0.3)
    expected = theory_learning_rate(50, 2.0, 0.3, scale * float(np.mean(std)))
    assert learning_rate("theory", hinge, plan, **options) == pytest.approx(expected, rel=1e-6)
    quiet = Objective("squared", 11, clip_norm=0.3, row_bound=1e-3)
    # The ball of radius 2 holds predictions of up to 2 row bounds: the noise may be as large.
    expected = 2.0 / (0.3 * 14.0 / 256 * math.sqrt(float(np.mean(std[25:] ** 2))))
    assert learning_rate("auto", quiet, plan, **options) == pytest.approx(expected, rel=1e-6)


def test_auto_has_less_noise_than_the_best_tree_and_knows_the_momentum() -> None:
    for options in ({}, {"momentum": 0.9, "epochs": 3}):
        chosen, tree = (
            RunSettings(batch_size=10, mechanism=mechanism, **options).plan(1000)
            for mechanism in ("auto", "tree")
        )
        assert isinstance(tree.mechanism, Tree) and not isinstance(chosen.mechanism, Tree)
        assert chosen.epsilon(1e-6) <= 1.0
        momentum = options.get("momentum", 0.0)
        errors = [
            plan.noise_multiplier
            * acc.mechanism_error(plan.mechanism, plan.steps, acc.Workload(momentum)).rms
            for plan in (chosen, tree)
        ]
        assert errors[0] < 0.9 * errors[1]


def test_options_of_a_tree_ask_for_one() -> None:
    for options in ({"restart_every": 4}, {"complete": False}, {"variant": "vanilla"}):
        assert isinstance(RunSettings(batch_size=10, **options).plan(200).mechanism, Tree)
        settings = RunSettings(batch_size=10, mechanism=BandedInverse((1.0, -0.5)), **options)
        with pytest.raises(ValueError, match="must come with mechanism='tree', got BandedInverse"):
            settings.plan(200)
    for wrong in ("trees", 3, None):
        with pytest.raises((TypeError, ValueError), match="mechanism"):
            RunSettings(mechanism=wrong)  # type: ignore[arg-type]


# ---- Least squares ----


def plan_of(**options: Any) -> LeastSquaresPlan:
    fields: dict[str, Any] = {
        "x_norm_bound": 2.0,
        "y_bound": 1.5,
        "noise_multiplier": 0.5,
        "participation": acc.SinglePass(11),
        "split": 0.3,
    }
    return LeastSquaresPlan(**{**fields, **options})


@one_block
@pytest.mark.parametrize("solve_every", [1, 3, None])
@pytest.mark.parametrize("memory", ["stored", "regenerate"])
def test_runs_of_least_squares_are_those_of_the_definitions(
    mechanism: Any, solve_every: int | None, memory: Any
) -> None:
    plan = plan_of(mechanism=mechanism)
    p, sigma = 4, plan.noise_multiplier
    X, y = data(44, p)
    X *= np.minimum(1, 2.0 * MARGIN / np.linalg.norm(X, axis=1))[:, None]
    y = np.clip(y, -1.5, 1.5)
    bias = reference_noise(mechanism, p, 3.0 * sigma / 0.3**0.5, dtype="float64")
    covariance = reference_noise(
        mechanism, packed_size(p), 4.0 * sigma / 0.7**0.5, dtype="float32", purpose=4
    )
    L, prefix = strategy(mechanism, 11), np.tri(11)
    factors = np.sum(np.linalg.solve(L.T, prefix.T) ** 2, axis=0)
    np.testing.assert_allclose(plan.variance_factors, factors, rtol=1e-9)
    model = LeastSquares(plan, p, seed=SEED, solve_every=solve_every, memory=memory)
    for t in range(1, 12):
        model.step(Batch(X[4 * t - 4 : 4 * t], y[4 * t - 4 : 4 * t]))
        b, c = bias.step(), covariance.step()
        if not (t == 11 or (solve_every is not None and t % solve_every == 0)):
            continue
        noise = np.zeros((p, p))
        noise[np.triu_indices(p)] = c
        noise = np.diag(np.diag(noise)) + (np.triu(noise, 1) + np.triu(noise, 1).T) / np.sqrt(2)
        W = on_grid(X[: 4 * t].T @ X[: 4 * t] + noise, mechanism, 4.0 * sigma / 0.7**0.5)
        s = on_grid(X[: 4 * t].T @ y[: 4 * t] + b, mechanism, 3.0 * sigma / 0.3**0.5)
        half_ridge = 2 * 4.0 * sigma / 0.7**0.5 * math.sqrt(factors[t - 1] * p)
        theta = model.last[0]
        assert model.solves[-1].step == t
        assert model.solves[-1].half_ridge == pytest.approx(half_ridge, rel=1e-9)
        expected = np.linalg.solve(W + half_ridge * np.eye(p), s)
        np.testing.assert_allclose(theta, expected, rtol=1e-4, atol=1e-5)


@one_block
def test_noise_of_least_squares_has_the_variance_that_the_ridge_takes(mechanism: Any) -> None:
    plan = plan_of(mechanism=mechanism)
    _, noise = plan.noise(400, seed=2)
    for factor in plan.variance_factors:
        found = float(np.mean((noise.step().astype(np.float64) / noise.std) ** 2))
        assert found == pytest.approx(factor, rel=0.025)  # 5 standard deviations
        assert found != pytest.approx(factor * 1.06, rel=0.025)


@one_block
def test_the_epsilon_of_least_squares_is_that_of_its_mechanism(mechanism: Any) -> None:
    plan = LeastSquaresPlan.calibrate(
        epsilon=1.0, delta=1e-6, x_norm_bound=1.0, y_bound=1.0,
        participation=acc.SinglePass(30), mechanism=mechanism,
    )  # fmt: skip
    zeta = float(np.sum(strategy(mechanism, 30)[:, 0] ** 2))
    assert plan.sensitivity_squared == pytest.approx(zeta, rel=1e-9)
    assert plan.sensitivity_squared >= zeta * (1 - 1e-15)
    assert 0.9999 < acc.epsilon(plan.noise_multiplier, zeta, 1e-6) <= plan.epsilon(1e-6) <= 1.0
    less = replace(plan, noise_multiplier=math.nextafter(plan.noise_multiplier, 0))
    assert less.delta(1.0) > 1e-6
    assert LeastSquaresPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert plan.to_dict()["version"] == 2 and plan.mechanism.words in plan.describe(1e-6)
    assert plan.mechanism.words in guarantee_facts(plan, 1e-6)["mechanism"]


def test_coefficients_are_accounted_as_rounded() -> None:
    plan = plan_of(mechanism=BufferedToeplitz((0.9,), (0.1,)))
    assert plan.mechanism == BufferedToeplitz((0.9,), (0.1,)).rounded("float32")
    assert plan.mechanism != BufferedToeplitz((0.9,), (0.1,))


@pytest.mark.parametrize("complete", [False, "all"])
@pytest.mark.parametrize("variant", ["honaker", "vanilla"])
def test_a_tree_as_a_value_is_the_tree_of_the_fields(complete: Any, variant: Any) -> None:
    plan = plan_of(mechanism=Tree(variant, complete=complete))
    assert plan == plan_of(complete=complete, variant=variant)
    assert plan.mechanism == "tree" and plan.to_dict()["version"] == 1
    assert replace(plan) == plan


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mechanism": "auto"}, ValueError, "mechanism must be 'tree' or a mechanism, got 'auto'"),
        ({"mechanism": 3}, TypeError, "mechanism must be 'tree', a Tree or a Toeplitz"),
        ({"mechanism": Tree(restart_every=4)}, ValueError, "must be one tree for least squares"),
        ({"mechanism": Tree(tree_lengths=[11])}, ValueError, "must be one tree for least squares"),
        ({"mechanism": Tree(), "complete": "all"}, ValueError, "put it into the Tree"),
        ({"mechanism": TOEPLITZ["two taps, in blocks"]}, ValueError, "must be in one block"),
        ({"mechanism": TOEPLITZ["two taps"], "complete": "all"}, ValueError, "complete='all' must"),
        ({"mechanism": TOEPLITZ["bands"], "variant": "vanilla"}, ValueError, "variant='vanilla' m"),
    ],
)  # fmt: skip
def test_mechanisms_that_least_squares_refuses(
    options: dict[str, Any], error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        plan_of(**options)


# ---- The choice of least squares ----


def chosen(participation: Any, **options: Any) -> Any:
    return chosen_noise("auto", participation, epsilon=1.0, delta=1e-6, **options)


def noise_of(participation: Any, mechanism: Any, models: str) -> float:
    """The noise of the released models at epsilon 1, by the plan's own numbers."""
    plan = LeastSquaresPlan.calibrate(
        epsilon=1.0, delta=1e-6, x_norm_bound=1.0, y_bound=1.0, participation=participation,
        mechanism=mechanism,
    )  # fmt: skip
    factors = plan.variance_factors
    return plan.noise_multiplier * math.sqrt(factors[-1] if models == "last" else factors.mean())


@pytest.mark.parametrize("models", ["last", "all"])
@pytest.mark.parametrize(
    "participation", [acc.SinglePass(100), acc.FixedEpochs(16, 3)], ids=["pass", "epochs"]
)
def test_the_choice_has_the_least_noise_in_the_released_models(
    participation: Any, models: Any
) -> None:
    found = chosen(participation, models=models)
    least = noise_of(participation, found, models)
    for other in ("tree", *ONE_BLOCK.values()):
        assert least <= noise_of(participation, other, models) * 1.003
    if isinstance(participation, acc.SinglePass):
        assert (found == "tree") == (models == "last")


def test_the_last_model_of_one_pass_has_less_noise_from_a_completed_tree() -> None:
    # The square root, whose noise at the last step is 1 + log(T)/pi, is as good as optimised ones.
    for steps in (2, 7, 33, 1025, 10**5 + 1):
        plan = plan_of(participation=acc.SinglePass(steps), complete="all")
        roots = np.cumprod(np.append(1.0, 1.0 - 0.5 / np.arange(1.0, steps)))
        tree = math.sqrt(plan.sensitivity_squared * plan.variance_factors[-1])
        assert tree < float(np.sum(roots**2))
        assert chosen(plan.participation) == "tree"


def test_settings_tell_which_models_leave() -> None:
    bounds = {"x_norm_bound": 1.0, "y_bound": 1.0}

    def kind(regret: bool = False, **options: Any) -> Any:
        return LeastSquaresSettings(batch_size=10, **options).plan(
            400, regret=regret, **bounds
        ).mechanism  # fmt: skip

    assert kind() == kind(solve_every=40) == kind(epsilon=None, noise_multiplier=9.0) == "tree"
    for found in (kind(solve_every=1), kind(solve_every=39), kind(regret=True)):
        assert isinstance(found, BufferedToeplitz)
    for options in ({"complete": False}, {"complete": "all"}, {"variant": "vanilla"}):
        assert kind(solve_every=1, **options) == "tree"
    assert kind(mechanism="tree", solve_every=1) == "tree"
    with pytest.raises(TypeError, match="got a TreeSearch"):
        kind(mechanism=TreeSearch())
