# SPDX-License-Identifier: Apache-2.0
"""What one row, or one user, can change in what leaves a private estimator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from estimator_cases import Array, make, recorded_noises, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast import reference
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.ftrl import FTRL
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.plan.planned_noise import PlannedNoise

LINEAR = (DPFTRLRegressor, DPFTRLClassifier)
linear = pytest.mark.parametrize("cls", LINEAR)


@pytest.fixture
def noises() -> Iterator[list[PlannedNoise]]:
    with recorded_noises() as made:
        yield made


# ---- Neighbours: one record's contributions replaced by zero, the noise the same ----


def frobenius(packed: Array, p: int) -> float:
    """Return the norm of the symmetric matrix with this upper triangle."""
    matrix = np.zeros((p, p))
    matrix[np.triu_indices(p)] = packed
    return float(np.linalg.norm(matrix + np.triu(matrix, 1).T))


def raw_sums(engine: Any) -> tuple[Array, Array]:
    """Return the sums that noise is added to, the bias and the packed triangle."""
    return engine._bias + engine._bias_low, engine._total + engine._low


EXTREMES = [
    np.full(3, 1e300),
    np.full(3, 5e-324),
    np.array([1e200, 1e-200, 0.0]),
    np.array([np.finfo(np.float64).max, -np.finfo(np.float64).max, 1.0]),
    np.array([1.0 + 2.0**-52, 0.0, 0.0]),
    np.zeros(3),
]


@pytest.mark.parametrize("constant", [0.0, 0.5])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
def test_least_squares_sums_of_neighbours(
    sparse: bool, constant: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows(DPFTRLLeastSquares, n=24, seed=1)
    X[: len(EXTREMES)] = EXTREMES
    y[::3] *= 1e6
    parameters: dict[str, Any] = {
        "x_norm_bound": 0.7,
        "y_bound": 0.4,
        "batch_size": 4,
        "horizon": 24,
        "noise_seed": 11,
        "epsilon": None,
        "noise_multiplier": 1.0,
        "fit_intercept": constant > 0,
    }
    if constant:
        parameters["intercept_scaling"] = constant
    norm = float(np.hypot(0.7, constant))

    def sums(X: Array, y: Array) -> list[tuple[Array, Array]]:
        model, path = make(DPFTRLLeastSquares, **parameters), []
        engine: Any = None
        for start in range(0, 24, 4):
            part = X[start : start + 4]
            model.partial_fit(
                scipy.sparse.csr_array(part) if sparse else part, y[start : start + 4]
            )
            engine = engine if model._stream is None else model._stream.run
            path.append(raw_sums(engine))
        return path

    plain, p = sums(X, y), 3 + (constant > 0)
    largest = [0.0, 0.0]
    for row in range(24):
        without = X.copy()
        without[row] = np.nan  # keeps its slot and counts as zero, the constant column too
        for step, (one, other) in enumerate(zip(plain, sums(without, y), strict=True)):
            bias = float(np.linalg.norm(one[0] - other[0]))
            covariance = frobenius(one[1] - other[1], p)
            if step < row // 4:
                assert bias == covariance == 0.0
            assert bias <= norm  # targets are scaled to [-1, 1]
            assert covariance <= norm**2
            largest = [max(largest[0], bias), max(largest[1], covariance)]
    assert largest[0] > 0.99 * norm  # the bounds are reached
    assert largest[1] > 0.99 * norm**2


def released_map(trees: Any, variant: str) -> Array:
    """Return the matrix that makes the noise of all steps of standard normal nodes.

    Written from the recurrences: r(leaf) = z, r(parent) = z + (r(left) + r(right))/2, and a prefix
    is the sum over the set bits of its length of r (for vanilla: of z), each with its weight; what
    a tree ends with is carried.
    """
    names: dict[tuple[int, int, int], int] = {}
    carry: dict[int, float] = {}
    steps: list[dict[int, float]] = []

    def subtree(tree: int, level: int, index: int) -> dict[int, float]:
        here = {names.setdefault((tree, level, index), len(names)): 1.0}
        if level and variant == "honaker":
            for child in (2 * index, 2 * index + 1):
                for node, weight in subtree(tree, level - 1, child).items():
                    here[node] = here.get(node, 0.0) + weight / 2
        return here

    def prefix(tree: int, t: int) -> dict[int, float]:
        total = dict(carry)
        for level in range(t.bit_length()):
            if t >> level & 1:
                weight = 1.0 if variant == "vanilla" else 1.0 / (2.0 - 2.0**-level)
                for node, part in subtree(tree, level, (t >> level) - 1).items():
                    total[node] = total.get(node, 0.0) + part * weight
        return total

    for tree in range(trees.count):
        run = trees.run_of(tree)
        steps += [prefix(tree, t) for t in range(1, run.steps + 1)]
        carry = prefix(tree, run.end)
    matrix = np.zeros((len(steps), len(names)))
    for row, nodes in zip(matrix, steps, strict=True):
        row[list(nodes)] = list(nodes.values())
    return matrix


def spent(differences: Array, model: Any) -> float:
    """Return mu^2 sigma^2 between two runs whose batch sums differ by these rows.

    The runs give out the prefix sums with noise, so that mu^2 is the squared length of the
    difference of all prefix sums in units of the noise's covariance.
    """
    noise = released_map(model.plan_.layout, model.variant) * model.plan_.clip_norm
    change = np.cumsum(differences, axis=0)
    return float(np.sum(change * np.linalg.solve(noise @ noise.T, change)))


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Array, Array]]]:
    """Return the batch sums and noise that FTRL is given, which then stays where it began.

    Gradients depend on the models, which are public. With the models held, two runs differ by what
    their rows differ by.
    """
    seen: list[tuple[Array, Array]] = []
    step = FTRL.step

    def record(self: Any, gradient_sum: Array, noise: Array) -> Array:
        seen.append((gradient_sum.copy(), np.array(noise)))
        return step(self, np.zeros_like(gradient_sum), np.zeros_like(noise))

    monkeypatch.setattr(FTRL, "step", record)
    # A row of NaN counts as zero; here that is let through, as in a stream.
    monkeypatch.setattr(
        "dpftrl_fast.linear_model.sources.memory.refuse_bad_rows", lambda rows: None
    )
    yield seen


LOSSES = [
    (DPFTRLRegressor, "squared"),
    (DPFTRLRegressor, "huber"),
    (DPFTRLRegressor, "epsilon_insensitive"),
    (DPFTRLRegressor, "quantile"),
    (DPFTRLRegressor, "linear"),
    (DPFTRLClassifier, "logistic"),
    (DPFTRLClassifier, "hinge"),
]
SCHEDULES: list[dict[str, Any]] = [
    {"mechanism": "tree"},
    {"mechanism": "tree", "epochs": 3},
    {"epochs": 3, "restart_every": 3, "complete": True},
    {"epochs": 2, "restart_every": 4, "complete": False, "variant": "vanilla"},
    {"epochs": 3, "restart_every": 6, "shuffle": True, "random_state": 1},
]


def row_cases() -> Iterator[Any]:
    for (cls, loss), kind in itertools.product(LOSSES, ["dense", "csr", "three classes"]):
        if not (cls is DPFTRLRegressor and kind == "three classes"):
            yield pytest.param(cls, loss, SCHEDULES[0], kind, id=f"{loss}-{kind}-one epoch")
    for number, schedule in enumerate(SCHEDULES):
        yield pytest.param(DPFTRLRegressor, "squared", schedule, "dense", id=f"squared-{number}")
        kind = "three classes"
        yield pytest.param(DPFTRLClassifier, "logistic", schedule, kind, id=f"logistic-{number}")


@pytest.mark.parametrize(("cls", "loss", "schedule", "kind"), [*row_cases()])
def test_what_one_row_changes_is_what_the_plan_says(
    cls: Any, loss: str, schedule: dict[str, Any], kind: str, sums: list[tuple[Array, Array]]
) -> None:
    X, y = rows(cls, n=30, seed=2)
    X[:6] = EXTREMES
    if kind == "three classes":
        y[::3] = 2
    if loss == "linear":
        y[::2] *= 1e9
    clip = 0.05
    model = make(cls, loss=loss, clip_norm=clip, batch_size=5, noise_seed=3, **schedule)

    def run(X: Array) -> Array:
        sums.clear()
        model.fit(scipy.sparse.csr_array(X) if kind == "csr" else X, y)
        return np.array([one for one, _ in sums])

    plain, largest = run(X), 0.0
    assert len(plain) == model.n_steps_ == 6 * schedule.get("epochs", 1)
    for row in range(30):
        difference = plain - run(np.where(np.arange(30)[:, None] == row, np.nan, X))
        lengths = np.linalg.norm(difference, axis=1)
        assert np.all(lengths <= clip)
        assert np.count_nonzero(lengths) <= schedule.get("epochs", 1)
        largest = max(largest, spent(difference, model))
    assert largest <= model.sensitivity_squared_
    # The bound is reached, unless the accountant has to suppose more than can happen: that rows
    # move to the worst batches at restarts, that the end of a completed tree is seen by itself.
    if not (schedule.get("shuffle") or schedule.get("complete")):
        assert largest > 0.99 * model.sensitivity_squared_


@linear
@pytest.mark.parametrize("schedule", SCHEDULES, ids=range(len(SCHEDULES)))
def test_the_noise_is_the_plans(
    cls: Any, schedule: dict[str, Any], sums: list[tuple[Array, Array]]
) -> None:
    X, y = rows(cls, n=30)
    model = make(cls, clip_norm=0.3, batch_size=5, noise_seed=b"four", **schedule).fit(X, y)
    assert model.reproducible_
    std = 0.3 * model.noise_multiplier_
    tree = reference.TreeNoise(
        4, std, seed=b"four", variant=model.variant, dtype="float64", rounds=12
    )
    taken = 0
    for number in range(model.plan_.layout.count):
        run = model.plan_.layout.run_of(number)
        if number:
            tree.restart(complete=model.plan_.layout.run_of(number - 1).completed)
        for _ in range(run.steps):
            np.testing.assert_allclose(sums[taken][1], tree.step(), rtol=1e-12, atol=1e-12)
            taken += 1
    assert taken == model.n_steps_ == len(sums)
    mu_squared = model.sensitivity_squared_ / model.noise_multiplier_**2
    assert mu_squared <= model.plan_.mu**2 * (1 + 1e-12)
    assert model.epsilon_ == model.plan_.epsilon(model.delta_) <= 1.0


@pytest.mark.parametrize("kind", ["regression", "two classes", "three classes"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
def test_what_one_user_changes_is_what_the_plan_says(
    kind: str, sparse: bool, sums: list[tuple[Array, Array]]
) -> None:
    cls = DPFTRLRegressor if kind == "regression" else DPFTRLClassifier
    X, y = rows(cls, n=60, seed=4)
    X[:6] = EXTREMES
    if kind == "three classes":
        y[::3] = 2
    users = np.random.default_rng(5).integers(0, 12, 60)
    model = make(cls, clip_norm=0.05, batch_size=5, noise_seed=3, epochs=2, mechanism="tree")

    def run(X: Array) -> Array:
        sums.clear()
        model.fit(scipy.sparse.csr_array(X) if sparse else X, y, groups=users)
        return np.array([one for one, _ in sums])

    plain, largest = run(X), 0.0
    assert len(plain) == 6
    for user in range(12):
        difference = plain - run(np.where((users == user)[:, None], np.nan, X))
        lengths = np.linalg.norm(difference, axis=1)
        assert np.all(lengths <= 0.05)
        assert np.count_nonzero(lengths) <= 2
        largest = max(largest, spent(difference, model))
    assert 0.9 * model.sensitivity_squared_ < largest <= model.sensitivity_squared_


# ---- The two trees of least squares ----


@pytest.mark.parametrize("intercept", [0.0, 0.8])
@pytest.mark.parametrize("split", [None, 0.2, 0.7])
def test_least_squares_spends_what_it_says(
    split: float | None, intercept: float, noises: list[PlannedNoise]
) -> None:
    X, y = rows(DPFTRLLeastSquares)
    options: dict[str, Any] = {} if split is None else {"split": split}
    if intercept:
        options["intercept_scaling"] = intercept
    model = make(
        DPFTRLLeastSquares,
        x_norm_bound=1.5,
        y_bound=0.5,
        fit_intercept=intercept > 0,
        **options,
    ).fit(X, y)
    bias, covariance = sorted(noises, key=lambda noise: noise.size)
    assert (bias.size, covariance.size) == ((4, 10) if intercept else (3, 6))
    norm = float(np.hypot(1.5, intercept))  # of a row, with its constant
    sigma_b, sigma_c = bias.std / norm, covariance.std / norm**2
    mu_squared = model.sensitivity_squared_ * (sigma_b**-2 + sigma_c**-2)
    assert mu_squared <= model.plan_.mu**2 * (1 + 1e-6)
    plan = LeastSquaresPlan.from_dict(model.plan_.to_dict())
    assert plan == model.plan_ and plan.participation == SinglePass(6)
    assert model.epsilon_ == plan.epsilon(1e-6) <= 1.0
    assert model.noise_multiplier_ == pytest.approx((sigma_b**-2 + sigma_c**-2) ** -0.5)
    streams = [noise.prefix(1)[:3] / noise.std for noise in noises]
    assert np.all(streams[0] != streams[1])


@pytest.mark.usefixtures("fine_grid")
@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(st.floats(width=64), min_size=3, max_size=3),
    target=st.floats(width=64),
    intercept=st.booleans(),
)
def test_any_row_moves_the_sums_by_at_most_the_bounds(
    values: list[float], target: float, intercept: bool
) -> None:
    X, y = rows(DPFTRLLeastSquares, n=4)
    raw, released = [], []
    for row, label in ((values, target), ([np.nan] * 3, 0.0)):
        X[2], y[2] = row, label
        model = make(
            DPFTRLLeastSquares,
            batch_size=4,
            horizon=8,
            noise_seed=0,
            fit_intercept=intercept,
            x_norm_bound=2.0,
            y_bound=3.0,
        ).partial_fit(X, y)
        raw.append(raw_sums(model._stream.run))
        released.append(model._stream.run.released())
    norm = np.hypot(2.0, float(intercept))
    # What is released is rounded after the noise: that is no matter of sensitivity.
    for (one, other), slack in ((raw, 0.0), (released, 1e-3)):
        assert np.linalg.norm(one[0] - other[0]) <= 3.0 * norm + slack
        change = np.asarray(one[1], np.float64) - other[1]
        assert frobenius(change, 3 + intercept) <= norm**2 + slack
