# SPDX-License-Identifier: Apache-2.0
"""`DPFTRLRegressor`: the flights, sparse problems, momentum, balls, users, losses."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from gradient_oracle import oracle

from dpftrl_fast import reference
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.convex.glm.outlook import LearningWarning
from dpftrl_fast.datasets import flights
from dpftrl_fast.linear_model import DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.tables import Encoder
from dpftrl_fast.tables.schema import Schema

parquet = pytest.importorskip("pyarrow.parquet")


def problem(n=20_000, p=6, seed=0, noise=0.1):
    """Rows of norm at most 1, targets within [-1, 1]."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    y = X @ np.linspace(0.8, -0.8, p) + noise * rng.standard_normal(n)
    return X, np.clip(y, -1, 1)


# ---- Figures ----


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Rows of the flights without their constant, which the estimators add; norm at most 1."""
    try:
        paths = flights(tmp_path_factory.mktemp("flights"))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    schema = Schema.load(paths["schema"])
    encoder, found = Encoder(schema), []
    for name in ("train", "test"):
        rows = encoder.encode(parquet.read_table(paths[name]))
        matrix = rows.matrix(schema.n_features).tocsr()
        assert np.ptp(matrix[:, [-1]].toarray()) == 0  # the constant column
        found.append((matrix[:, :-1].astype(np.float32), rows.target))
    return found


FLIGHTS = {
    "clip_norm": 0.3,
    "batch_size": 256,
    "epochs": 1,
    "x_norm_bound": 15**0.5 / 4,
    "intercept_scaling": 0.25,
}


@pytest.mark.parametrize(("epsilon", "wanted"), [(1.0, 0.81), (3.0, 0.814)])
def test_held_out_r2_of_the_flights(tables, epsilon, wanted):
    (X, y), (Z, z) = tables
    dense = X.toarray()
    scores = []
    for seed in range(3):
        model = DPFTRLRegressor(epsilon, 1e-6, noise_seed=seed, **FLIGHTS).fit(dense, y)
        assert model.epsilon_ <= epsilon and model.n_steps_ == 1045
        scores.append(model.score(Z, z))
    assert np.median(scores) >= wanted  # measured: 0.8150 and 0.8153
    sparse = DPFTRLRegressor(epsilon, 1e-6, noise_seed=2, **FLIGHTS).fit(X, y)
    np.testing.assert_allclose(sparse.coef_, model.coef_, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("epsilon", "momentum"), [(0.3, 0.9), (1.0, 0.5)])
def test_momentum_is_as_good_as_none_at_its_own_best_rate(tables, epsilon, momentum):
    (X, y), (Z, z) = tables

    def best(momentum):
        found = []
        for rate in (0.25, 0.5, 1.0):
            models = [
                DPFTRLRegressor(
                    epsilon, momentum=momentum, learning_rate=rate * (1 - momentum),
                    average="last", noise_seed=seed, **FLIGHTS,
                ).fit(X, y)
                for seed in range(2)
            ]  # fmt: skip
            found.append([
                np.median([m.set_params(average=average).score(Z, z) for m in models])
                for average in ("last", "tail")
            ])  # fmt: skip
        return np.max(found, axis=0)

    assert np.all(best(momentum) >= 0.99 * best(0.0))


def test_l1_finds_the_relevant_coefficients():
    """p = 5000, 20 relevant: exact zeros, and a better test error than any rate gives without."""
    rng = np.random.default_rng(0)
    p, n, held_out = 5000, 8000, 1000
    X = rng.standard_normal((n + held_out, p), dtype=np.float32) / np.float32(np.sqrt(p))
    relevant = rng.choice(p, 20, replace=False)
    truth = np.zeros(p, dtype=np.float32)
    truth[relevant] = 15.8 * rng.choice([-1, 1], 20)
    y = X @ truth + 0.1 * rng.standard_normal(n + held_out)

    def fitted(l1, rate):
        model = DPFTRLRegressor(
            8.0, l1=l1, learning_rate=rate, x_norm_bound=1.1, batch_size=200, average="last",
            epochs=1, clip_norm=1.0, fit_intercept=False, noise_seed=1,
        ).fit(X[:n], y[:n])  # fmt: skip
        return model.score(X[n:], y[n:]), model

    rates = (10.0, 30.0, 100.0, 200.0)
    without = max(fitted(0.0, rate)[0] for rate in rates)
    score, model = max((fitted(1e-3, rate) for rate in rates), key=lambda pair: pair[0])
    assert score > without + 0.3  # measured: 0.62 and 0.19
    assert set(np.flatnonzero(model.coef_)) == set(relevant)
    assert model.sparsity_ == pytest.approx(1 - 20 / p)


# ---- The mechanism ----


@pytest.mark.usefixtures("fine_grid")
def test_the_first_step_is_the_definitions():
    X, y = problem(40)
    model = DPFTRLRegressor(
        None, noise_multiplier=0.7, batch_size=40, epochs=1, clip_norm=0.2, learning_rate=0.5,
        x_norm_bound=0.8, y_bound=0.5, intercept_scaling=0.3, noise_seed=9, mechanism="tree",
    ).fit(X, y)  # fmt: skip
    noise = reference.TreeNoise(7, 0.2 * 0.7, seed=9, dtype="float64").step()
    total = oracle(
        X, np.clip(y / 0.5, -1.0, 1.0), np.zeros(7), 0.2, "squared", row_bound=0.8, constant=0.3
    )
    theta = 0.5 * (-0.5 * (total[0] + noise) / 40)  # targets were scaled by 0.5
    np.testing.assert_allclose(model.coef_last_, theta[:-1], rtol=1e-9, atol=1e-12)
    assert model.intercept_last_ == pytest.approx(0.3 * theta[-1], rel=1e-9)
    assert not model.coef_average_.any() and not model.coef_tail_.any()  # theta_1 is 0


def test_representations_of_the_same_rows_make_the_same_model():
    X, y = problem(500)
    X = np.where(np.abs(X) < 0.2, 0.0, X).astype(np.float32)
    options = {"batch_size": 64, "x_norm_bound": 0.9, "y_bound": 1.0, "noise_seed": 2}
    expected = DPFTRLRegressor(**options).fit(X, y)
    csr = scipy.sparse.csr_array(X)
    for rows in (X.astype(np.float64), np.asfortranarray(X), csr, csr.tocoo(), X.tolist()):
        model = DPFTRLRegressor(**options).fit(rows, y)
        for name in ("coef_", "coef_average_", "coef_tail_", "intercept_"):
            np.testing.assert_allclose(getattr(model, name), getattr(expected, name), rtol=1e-9)


@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_no_model_leaves_the_ball(epochs, momentum):
    X, y = problem(2000)
    for constant in (0.5, 1.0):
        model = DPFTRLRegressor(
            0.5, batch_size=100, epochs=epochs, radius=0.4, momentum=momentum, x_norm_bound=1.0,
            learning_rate=20.0, intercept_scaling=constant,
        ).fit(X, y)  # fmt: skip
        for suffix in ("", "average_", "tail_"):
            coef, last = getattr(model, f"coef_{suffix}"), getattr(model, f"intercept_{suffix}")
            assert np.hypot(np.linalg.norm(coef), last / constant) <= 0.4 + 1e-6


def test_a_ball_holds_at_every_step_of_a_stream():
    X, y = problem(1000)
    model = DPFTRLRegressor(
        0.1, batch_size=50, horizon=1000, radius=0.2, learning_rate=50.0, x_norm_bound=1.0,
    )  # fmt: skip
    for start in range(0, 1000, 50):
        model.partial_fit(X[start : start + 50], y[start : start + 50])
        assert np.hypot(np.linalg.norm(model.coef_), model.intercept_) <= 0.2 + 1e-6


def test_several_epochs_follow_the_planner_and_learn_more():
    X, y = problem(2000)
    scores = {}
    for epochs in (1, 8):
        model = DPFTRLRegressor(
            8.0, batch_size=100, epochs=epochs, x_norm_bound=1.0, y_bound=1.0, noise_seed=1,
            mechanism="tree",
        ).fit(X, y)  # fmt: skip
        scores[epochs] = model.score(X, y)
        assert model.n_steps_ == 20 * epochs and model.n_iter_ == epochs
        assert model.epsilon_ <= 8.0
    assert model.plan_.layout.count > 1 and scores[8] > scores[1]


def test_shuffled_epochs_are_a_fit_of_the_dealt_rows():
    X, y = problem(600)
    options = {"batch_size": 50, "x_norm_bound": 1.0, "noise_seed": 3, "learning_rate": 0.5}
    options |= {"epochs": 1}
    model = DPFTRLRegressor(shuffle=True, random_state=7, **options).fit(X, y)
    deal = np.random.RandomState(7).permutation(600)
    plain = DPFTRLRegressor(**options).fit(X[deal], y[deal])
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    assert model.plan_.participation == SinglePass(12)


def test_verbose_says_how_many_steps_are_done(capsys):
    X, y = problem(100)
    DPFTRLRegressor(batch_size=10, epochs=1, x_norm_bound=1.0, verbose=1).fit(X, y)
    assert capsys.readouterr().out.splitlines()[-1] == "step 10 of 10"


# ---- Losses ----


@pytest.mark.parametrize("loss", ["squared", "huber", "epsilon_insensitive", "quantile"])
def test_all_losses_learn(loss):
    X, y = problem()
    model = DPFTRLRegressor(
        20.0, loss=loss, x_norm_bound=1.0, y_bound=1.0, learning_rate=0.5, epochs=2
    ).fit(X, y)
    assert model.score(X, y) > 0.9


def test_the_quantile_loss_predicts_quantiles():
    rng = np.random.default_rng(3)
    X, y = np.ones((50_000, 1)), rng.uniform(-1, 1, 50_000)
    for quantile in (0.1, 0.9):
        model = DPFTRLRegressor(
            20.0, loss="quantile", loss_param=quantile, learning_rate=0.5, fit_intercept=False,
            batch_size=256, epochs=1, clip_norm=1.0,
        ).fit(X, y)  # fmt: skip
        assert model.predict([[1.0]])[0] == pytest.approx(2 * quantile - 1, abs=0.05)


def test_huber_withstands_wild_targets():
    X, y = problem()
    wild = np.where(np.arange(len(y)) % 10 == 0, 50.0, y)
    options = {"learning_rate": 1.0, "clip_norm": 50.0, "x_norm_bound": 1.0}
    errors = [
        np.mean(np.abs(DPFTRLRegressor(900.0, loss=loss, loss_param=0.1, **options)
                       .fit(X, wild).predict(X) - y))
        for loss in ("squared", "huber")
    ]  # fmt: skip
    assert errors[1] < 0.2 < errors[0]


def test_a_linear_loss_is_minimised_at_the_edge_of_the_ball():
    rng = np.random.default_rng(4)
    d = rng.standard_normal((20_000, 3)) * 0.1 + [0.3, -0.4, 0.0]
    model = DPFTRLRegressor(
        5.0, loss="linear", fit_intercept=False, radius=1.0, learning_rate=1.0, clip_norm=1.0
    ).fit(d, np.ones(20_000))
    np.testing.assert_allclose(model.coef_, [-0.6, 0.8, 0.0], atol=0.05)


# ---- Users ----


def test_users_that_have_a_row_each_are_rows():
    X, y = problem(500)
    options = {"batch_size": 50, "x_norm_bound": 0.9, "y_bound": 1.0, "noise_seed": 5}
    rows = DPFTRLRegressor(**options).fit(X, y)
    users = DPFTRLRegressor(**options).fit(X, y, groups=np.arange(500)[::-1])
    np.testing.assert_allclose(users.coef_, rows.coef_, rtol=1e-9, atol=1e-12)
    assert users.plan_ == rows.plan_


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("sparse", [False, True])
def test_a_batch_is_of_whole_users(sparse):
    X, y = problem(300)
    groups = np.random.default_rng(1).integers(0, 40, 300)
    model = DPFTRLRegressor(
        None, noise_multiplier=0.5, batch_size=40, epochs=1, clip_norm=0.2, learning_rate=0.5,
        x_norm_bound=1.0, intercept_scaling=0.3, noise_seed=9, mechanism="tree",
    ).fit(scipy.sparse.csr_array(X) if sparse else X, y, groups=groups)  # fmt: skip
    assert model.n_steps_ == 1
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(41))
    total = oracle(X[order], y[order], np.zeros(7), 0.2, "squared", starts=starts, constant=0.3)
    noise = reference.TreeNoise(7, 0.2 * 0.5, seed=9, dtype="float64").step()
    theta = -0.5 * (total[0] + noise) / 40
    np.testing.assert_allclose(model.coef_last_, theta[:-1], rtol=1e-9, atol=1e-12)


def test_users_are_shuffled_and_come_again_every_epoch():
    X, y = problem(600)
    groups = np.repeat(np.arange(200), 3)
    model = DPFTRLRegressor(
        5.0, batch_size=20, epochs=3, shuffle=True, random_state=1, x_norm_bound=1.0
    ).fit(X, y, groups=groups)
    assert model.n_steps_ == 30 and model.plan_.participation.steps_per_epoch == 10


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.zeros(99), r"groups must have shape \(100,\), one a row, got shape \(99,\)"),
        (np.zeros((100, 1)), r"got shape \(100, 1\)"),
        (np.full(100, np.nan), r"groups must name a user for every row, .* got NaN, .* in row 0"),
        (np.zeros(100), "batch_size must be at most the number of users, got batch_size=5 for"),
    ],
)
def test_wrong_groups_are_refused(groups, message):
    X, y = problem(100)
    model = DPFTRLRegressor(batch_size=5, x_norm_bound=1.0)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y, groups=groups)
    assert not hasattr(model, "coef_")


def test_regret_is_small_with_little_noise():
    X, y = problem(4000)
    options = {"x_norm_bound": 1.0, "batch_size": 50, "compute_regret": True, "noise_seed": 1}
    options |= {"epochs": 1, "clip_norm": 1.0}
    regrets = [DPFTRLRegressor(epsilon, **options).fit(X, y).regret_ for epsilon in (0.3, 30.0)]
    assert 0 < regrets[1] < regrets[0]


# ---- Scaled targets ----


@pytest.mark.parametrize("cls", [DPFTRLRegressor, DPFTRLLeastSquares])
@pytest.mark.parametrize("bounds", [(1000.0, 5000.0), (-3.0, -1.0), 250.0])
def test_a_fit_is_the_same_in_any_units_of_the_targets(cls, bounds):
    """Targets are moved to [-1, 1]; coefficients and predictions move back."""
    X, y = problem(400)
    low, high = bounds if isinstance(bounds, tuple) else (-bounds, bounds)
    half, middle = (high - low) / 2, (high + low) / 2
    options = {"x_norm_bound": 1.0, "noise_seed": 4, "radius": 0.3}
    one = cls(**options, y_bound=1.0).fit(X, y)
    other = cls(**{**options, "radius": 0.3 * half}, y_bound=bounds).fit(X, y * half + middle)
    for suffix in ("", "last_", "average_", "tail_"):
        coef, intercept = (getattr(one, f"{name}_{suffix}") for name in ("coef", "intercept"))
        np.testing.assert_allclose(getattr(other, f"coef_{suffix}"), coef * half, rtol=1e-6)
        wanted = intercept * half + middle
        np.testing.assert_allclose(getattr(other, f"intercept_{suffix}"), wanted, rtol=1e-6)
    np.testing.assert_allclose(other.predict(X), one.predict(X) * half + middle, rtol=1e-6)
    assert other.epsilon_ == one.epsilon_
    np.testing.assert_array_equal(one.predict(X), X @ one.coef_ + one.intercept_)


@pytest.mark.parametrize(
    "bounds", [(1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (np.nan, 1.0), (1, 2, 3)]
)
def test_wrong_bounds_of_targets_are_refused(bounds):
    X, y = problem(40)
    with pytest.raises((TypeError, ValueError), match="y_bound"):
        DPFTRLRegressor(x_norm_bound=1.0, y_bound=bounds).fit(X, y)
    with pytest.raises(TypeError, match="several targets need DPFTRLLeastSquares"):
        DPFTRLRegressor(x_norm_bound=1.0, y_bound=[1.0, 2.0]).fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"x_norm_bound": 1.0}, "y_bound is not given"),
        ({"y_bound": 1.0}, "x_norm_bound is not given"),
        ({"x_norm_bound": 1.0, "y_bound": 1.0, "batch_size": 40, "epochs": 1}, "only 1 step:"),
    ],
)
def test_a_fit_that_may_not_learn_is_announced_once(parameters, words):
    X, y = problem(40)
    with pytest.warns(LearningWarning, match=words) as seen:
        DPFTRLRegressor(epsilon=100.0, **parameters).fit(X, y)
    assert len([one for one in seen if words in str(one.message)]) == 1
    assert seen[0].filename == __file__
