# SPDX-License-Identifier: Apache-2.0
"""The engine against a loop in plain NumPy that makes the same noise by `reference`."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from gradient_oracle import oracle

from dpftrl_fast import reference
from dpftrl_fast.accounting import FixedEpochs, SinglePass, noise_std
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.rates import learning_rate, stable_rate
from dpftrl_fast.convex.glm.sums import Objective, clipped_sum, outputs_of
from dpftrl_fast.convex.row_batches import Batch, SparseRows, row_norms, take_users
from dpftrl_fast.ftrl import theory_learning_rate
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

SEED = 5


def data(n, p, outputs, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    X[rng.random((n, p)) < 0.3] = 0.0
    y = rng.integers(outputs, size=n).astype(float) if outputs > 1 else rng.standard_normal(n)
    return X, y


def by_hand(objective, plan, batches, *, rate, size, momentum=0.0, l1=0.0, radius=None):
    """Return the last iterate, the mean and the mean of the last half, from the definitions."""
    shape = objective.shape
    tree = reference.TreeNoise(
        objective.size, plan.clip_norm * plan.noise_multiplier, seed=SEED,
        variant=plan.mechanism.variant, dtype="float64",
    )  # fmt: skip
    # The largest power of two that is at most 1/128 of the least standard deviation.
    grid = 2.0 ** np.floor(np.log2(plan.clip_norm * plan.noise_multiplier * np.sqrt(0.5) / 128))
    theta, v, c = np.zeros(shape), np.zeros(shape), 0.0
    total = np.zeros(shape)
    path, number, taken = [], 0, 0
    for t, batch in enumerate(batches, start=1):
        run = plan.layout.run_of(number)
        if taken == run.steps:
            tree.restart(complete=run.completed)
            number, taken = number + 1, 0
        taken += 1
        path.append(theta)
        total = total + oracle(
            batch.X, batch.y, theta, plan.clip_norm, objective.loss, k=objective.loss_param,
            starts=batch.starts, row_bound=objective.row_bound, constant=objective.constant,
        )  # fmt: skip
        noisy = np.floor((total + tree.step().reshape(shape)) / grid + 0.5) * grid
        v = momentum * v + noisy / size
        c = momentum * c + t * l1
        q = -rate * v
        penalised = q[:, : objective.n_features]
        penalised[:] = np.sign(penalised) * np.maximum(np.abs(penalised) - rate * c, 0.0)
        norm = np.sqrt(np.sum(q * q))
        theta = q if radius is None or norm <= radius else q * (radius / norm)
    half = len(path) // 2
    return theta, np.mean(path, axis=0), np.mean(path[half:], axis=0)


PLANS = {
    "one tree": (SinglePass(6), {}),
    "vanilla": (SinglePass(6), {"variant": "vanilla"}),
    "restarts": (FixedEpochs(3, 2), {"restart_every": 2}),
    "completed": (FixedEpochs(3, 2), {"restart_every": 3, "complete": True}),
}
UPDATES = {
    "plain": {},
    "momentum": {"momentum": 0.8},
    "l1": {"l1": 0.05},
    "ball": {"radius": 0.3},
    "all": {"momentum": 0.5, "l1": 0.02, "radius": 0.4},
}
MODELS = [
    Objective("squared", 4),
    Objective("quantile", 4, loss_param=0.3, row_bound=0.9, constant=0.5),
    Objective("logistic", 4, constant=1.0),
    Objective("multinomial", 4, outputs=3, row_bound=1.1, constant=0.5),
]


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
@pytest.mark.parametrize("kind", ["dense", "csr", "users"])
@pytest.mark.parametrize("objective", MODELS, ids=lambda m: m.loss)
@pytest.mark.parametrize(("pattern", "fields"), PLANS.values(), ids=PLANS)
def test_runs_are_those_of_the_definitions(pattern, fields, objective, kind, update):
    objective = replace(objective, clip_norm=0.6)
    plan = PrivacyPlan(0.6, 0.8, pattern, Tree(**fields), bound="released")
    X, y = data(30, 4, objective.outputs)
    places = [slice(i % 15, i % 15 + 5) for i in range(0, 30, 5)]
    starts = np.array([0, 2, 2, 5]) if kind == "users" else None
    batches = [Batch(X[place], y[place], starts) for place in places]
    expected = by_hand(objective, plan, batches, rate=0.7, size=5, **update)
    run = GLMRun(objective, plan, learning_rate=0.7, batch_size=5, noise_seed=SEED, **update)
    for batch in batches:
        if kind == "csr":
            batch = batch._replace(X=SparseRows.of(scipy.sparse.csr_array(batch.X)))
        run.step(batch)
    for got, wanted in zip((run.last, run.average, run.tail), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-11)
    assert run.reproducible and run.steps_taken == 6


def make_run(steps=4, objective=None, **options):
    objective = objective or Objective("squared", 3)
    plan = PrivacyPlan(objective.clip_norm, 1.0, SinglePass(steps))
    return GLMRun(
        objective, plan, **{"learning_rate": 0.5, "batch_size": 4, "noise_seed": SEED, **options}
    )


BATCH = Batch(*data(4, 3, 1))


def test_a_sum_made_elsewhere_is_as_good():
    one, other = make_run(), make_run()
    for _ in range(4):
        one.step(BATCH)
        other.advance(clipped_sum(other.objective, other.theta, BATCH))
        np.testing.assert_array_equal(one.last, other.last)


def test_threads_do_not_change_results():
    batch = Batch(*data(9000, 3, 1))
    paths = []
    for threads in (1, 2, 3):
        run = make_run(threads=threads)
        run.step(batch)
        paths.append(run.last)
    assert all(np.array_equal(path, paths[0]) for path in paths)


def test_all_iterates_are_in_the_ball():
    for momentum, l1, constant in [(0.0, 0.0, 0.0), (0.9, 0.01, 0.5)]:
        objective = Objective("squared", 3, constant=constant)
        run = make_run(40, objective, radius=0.25, momentum=momentum, l1=l1, learning_rate=9.0)
        for _ in range(40):
            run.step(BATCH)
            assert np.linalg.norm(run.last) <= 0.25 * (1 + 1e-12)
            assert np.linalg.norm(run.average) <= 0.25 * (1 + 1e-12)
        assert np.linalg.norm(run.last) > 0.2


def test_the_constant_is_not_penalised():
    run = make_run(1, Objective("squared", 3, constant=1.0), l1=1e3)
    run.step(Batch(BATCH.X, np.full(4, 50.0)))
    assert not run.last[0, :3].any() and run.last[0, 3] != 0.0


def test_no_step_beyond_the_declared_ones():
    run = make_run(2)
    run.step(BATCH)
    run.step(BATCH)
    last = run.last
    with pytest.raises(ValueError, match="all 2 declared steps are taken"):
        run.step(BATCH)
    np.testing.assert_array_equal(run.last, last)


def test_the_guard_looks_at_who_takes_part():
    run = make_run()
    run.step(BATCH._replace(ids=np.array([3, 7])))
    with pytest.raises(ValueError, match="those who take part in step 2 must be such as"):
        run.step(BATCH._replace(ids=np.array([8, 7])))
    with pytest.raises(ValueError, match="for all steps of a run or for none"):
        run.step(BATCH)
    assert run.steps_taken == 1
    run.step(BATCH._replace(ids=np.array([8, 9])))
    other = make_run()
    other.step(BATCH)
    with pytest.raises(ValueError, match="for all steps of a run or for none"):
        other.step(BATCH._replace(ids=np.array([8, 9])))


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (BATCH._replace(X=np.ones((4, 2))), ValueError, "X must have 3 columns, got 2"),
        (BATCH._replace(X=np.ones((4, 3), dtype=int)), TypeError, "got dtype int64"),
        (BATCH._replace(y=np.ones(3)), ValueError, "y must have 4 entries"),
    ],
)
def test_a_wrong_batch_changes_nothing(batch, error, message):
    run, plain = make_run(), make_run()
    with pytest.raises(error, match=message):
        run.step(batch)
    for _ in range(4):
        run.step(BATCH)
        plain.step(BATCH)
    np.testing.assert_array_equal(run.last, plain.last)


@pytest.mark.parametrize("total", [np.zeros(3), np.zeros((1, 3), dtype=np.float32)])
def test_a_wrong_sum_is_refused(total):
    with pytest.raises(ValueError, match=r"gradient_sum must be float64 of shape \(1, 3\)"):
        make_run().advance(total)


def test_an_interrupted_step_ends_the_run(monkeypatch):
    run = make_run()
    run.step(BATCH)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run._ftrl, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.step(BATCH)
    with pytest.raises(RuntimeError, match="interrupted"):
        run.step(BATCH)


def test_the_clip_norm_is_the_plans():
    plan = PrivacyPlan(0.5, 1.0, SinglePass(1))
    with pytest.raises(ValueError, match=r"clip_norm must be the plan's 0\.5, got 1\.0"):
        GLMRun(Objective("squared", 3), plan, learning_rate=1.0, batch_size=1)


def test_a_run_is_not_pickled_and_shows_no_secret():
    run = make_run()
    for call in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="secret"):
            call(run)
    assert repr(run) == "GLMRun(loss='squared', shape=(1, 3), t=0, steps=4)"
    assert not make_run(noise_seed=None).reproducible


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": "cubic"}, "loss must be one of"),
        ({"loss": "multinomial"}, "got 'multinomial'"),
        ({"outputs": 3}, "one of 'multinomial', 'hinge', got 'squared'"),
        ({"clip_norm": 0.0}, "clip_norm must be"),
        ({"row_bound": -1.0}, "row_bound must be"),
        ({"constant": np.nan}, "constant must be"),
        ({"loss": "quantile"}, "loss_param must be a finite number > 0 and < 1, got 1.0"),
    ],
)
def test_a_wrong_objective_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Objective(**{"loss": "squared", "n_features": 3, **fields})


# ---- Learning rates ----


PLAN = PrivacyPlan(0.3, 14.0, SinglePass(100))


def rate(rule, loss="squared", p=10, row_bound=2.0, constant=1.0, **options):
    objective = Objective(loss, p, clip_norm=0.3, row_bound=row_bound, constant=constant)
    return learning_rate(rule, objective, PLAN, **{"batch_size": 256, **options})


def test_a_number_is_the_rate():
    assert rate(0.25) == 0.25


def noise_of_predictions(objective, batch_size=256):
    """Return the noise of the largest row's prediction at rate 1, in the last half of the steps."""
    std = noise_std(100).prefix[50:]
    reach = np.hypot(objective.row_bound, objective.constant)
    return 0.3 * 14.0 / batch_size * np.sqrt(np.mean(std**2)) * reach


def test_auto_is_stable_and_quiet():
    # 0.8 of 2 (1 + gamma)/(h R^2), R^2 = 5
    assert rate("auto", batch_size=10**5) == pytest.approx(1.6 / 5)
    assert rate("auto", "logistic", batch_size=10**5) == pytest.approx(4 * 1.6 / 5)
    assert rate("auto", momentum=0.9, batch_size=10**5) == pytest.approx(1.6 * 1.9 / 5)
    assert rate("auto", "hinge", batch_size=10**5) == pytest.approx(1.6 / 5)
    assert rate("auto", rows_per_unit=4.0, batch_size=10**6) == pytest.approx(0.4 / 5)
    small = Objective("squared", 10, clip_norm=0.3, row_bound=0.1, constant=0.1)
    noise = noise_of_predictions(small, 32)
    found = rate("auto", row_bound=0.1, constant=0.1, batch_size=32)
    assert found * noise == pytest.approx(0.5) and found < 1.6 / 0.02
    assert rate("auto", row_bound=0.1, constant=0.1, batch_size=32, momentum=0.9) == pytest.approx(
        found / 10
    )
    ball = rate("auto", row_bound=0.1, constant=0.1, batch_size=32, radius=1.0)
    assert ball * noise == pytest.approx(np.hypot(0.1, 0.1))  # predictions in a ball are small
    margins = rate("auto", "logistic", row_bound=0.1, constant=0.1, batch_size=32)
    assert margins * noise == pytest.approx(5.0) and margins < 6.4 / 0.02


def test_rows_without_a_bound_are_taken_to_be_in_a_cube():
    bounded = rate("auto", p=9, row_bound=3.0)
    assert rate("auto", p=9, row_bound=None) == pytest.approx(bounded)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
def test_the_stable_rate_is_stable_and_nearly_the_largest(loss, momentum):
    """Rows that are all the same are the worst: the loss along them has its whole curvature."""
    objective = Objective(loss, 1, row_bound=2.0, constant=1.0)
    curvature = {"logistic": 0.25}.get(loss, 1.0) * 5.0

    def distance(rate):
        theta, before = 1.0, 1.0  # heavy ball on the quadratic that bounds the loss
        for _ in range(2000):
            theta, before = theta - rate * curvature * theta + momentum * (theta - before), theta
        return abs(theta)

    stable = stable_rate(objective, momentum) * (1.0 - momentum)
    assert distance(stable) < 1e-6
    assert not distance(1.3 * stable) < 1.0


def test_theory_is_that_of_the_regret_bound():
    noise = 0.3 * 14.0 * np.sqrt(11) / 256 * np.mean(noise_std(100).prefix)
    expected = theory_learning_rate(100, 2.0, 0.3, noise)
    assert rate("theory", radius=2.0) == pytest.approx(expected)
    assert rate("theory", radius=2.0, momentum=0.5) == pytest.approx(expected / 2)
    for loss in ("hinge", "quantile", "epsilon_insensitive", "linear"):
        objective = Objective(loss, 10, clip_norm=0.3, loss_param=0.5, row_bound=2.0, constant=1.0)
        got = learning_rate("theory", objective, PLAN, batch_size=256, radius=2.0)
        assert got == pytest.approx(expected)


# ---- Rows ----


def test_outputs_and_norms_of_rows():
    X, _ = data(20, 4, 1)
    theta = np.random.default_rng(1).standard_normal((2, 5))
    objective = Objective("multinomial", 4, outputs=2, row_bound=1.0, constant=0.5)
    norms = np.linalg.norm(X, axis=1)
    scaled = X * np.minimum(1.0, 1.0 / norms)[:, None]
    expected = np.column_stack([scaled, np.full(20, 0.5)]) @ theta.T
    sparse = SparseRows.of(scipy.sparse.csr_array(X))
    for rows in (X, sparse):
        np.testing.assert_allclose(outputs_of(objective, theta, rows), expected, rtol=1e-12)
        np.testing.assert_allclose(row_norms(rows), norms, rtol=1e-12)
    twice = SparseRows(np.array([1.0, 2.0]), np.array([0, 0]), np.array([0, 2, 2]), 3)
    assert row_norms(twice).tolist() == [3.0, 0.0]


def test_sparse_rows_are_sliced_as_matrices_are():
    matrix = scipy.sparse.random_array((9, 5), density=0.4, format="csr", rng=0)
    rows = SparseRows.of(matrix)
    for part in (slice(2, 6), slice(None), slice(8, 99), np.array([4, 0, 4])):
        taken = rows[part]
        assert taken.shape == (len(taken), 5)
        np.testing.assert_array_equal(taken.to_scipy().toarray(), matrix[part].toarray())
        np.testing.assert_array_equal(rows[1:][:3].to_scipy().toarray(), matrix[1:4].toarray())
    assert np.shares_memory(rows[2:6].data, matrix.data)


def test_users_are_taken_with_their_rows():
    bounds = np.array([0, 3, 3, 4, 8])
    for users in ([0], [1], [3, 1, 0], []):
        rows, starts = take_users(bounds, np.array(users, dtype=np.int64))
        expected = [range(bounds[u], bounds[u + 1]) for u in users]
        assert rows.tolist() == [i for part in expected for i in part]
        assert starts.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
