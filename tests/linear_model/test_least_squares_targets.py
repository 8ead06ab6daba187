# SPDX-License-Identifier: Apache-2.0
"""`DPFTRLLeastSquares` with several targets, a ridge penalty and users."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

pytest.importorskip("sklearn", reason="needs the extra sklearn")

from sklearn.linear_model import Ridge

from dpftrl_fast.convex.least_squares import engine
from dpftrl_fast.linear_model import DPFTRLLeastSquares
from dpftrl_fast.plan.planned_noise import PlannedNoise

Array = np.ndarray[Any, np.dtype[Any]]
B = np.array([[0.3, -0.2, 0.0], [0.1, 0.4, -0.3]])


def data(n: int = 90) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, 3)) / np.sqrt(3)
    return X, np.clip(X @ B.T + 0.1 + 0.02 * rng.normal(size=(n, 2)), -1, 1)


def make(**options: Any) -> DPFTRLLeastSquares:
    fields: dict[str, Any] = {"x_norm_bound": 1.0, "y_bound": 1.0, "batch_size": 20}
    return DPFTRLLeastSquares(**{**fields, **options})


QUIET: dict[str, Any] = {"ridge_factor": 1e-12}


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models be made of the sums themselves, rounded to float32."""

    def nothing(noise: Any, t: int, last_leaf: int, out: Array) -> None:
        out[:] = 0.0

    monkeypatch.setattr(engine, "noise_at", nothing)
    monkeypatch.setattr(PlannedNoise, "grid", 2.0**-40)


# ---- Several targets ----


@pytest.mark.parametrize("radius", [None, 0.2])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.usefixtures("no_noise")
def test_without_noise_each_target_has_the_model_it_has_alone(
    intercept: bool, radius: float | None
) -> None:
    X, y = data()
    options: dict[str, Any] = {**QUIET, "fit_intercept": intercept, "radius": radius}
    both = make(**options, y_bound=[1.0, 4.0]).fit(X, y)
    assert both.coef_.shape == (2, 3) and both.intercept_.shape == (2,)
    assert both.predict(X).shape == (90, 2)
    for k in range(2):
        alone = make(**options).fit(X, y[:, k])
        np.testing.assert_allclose(both.coef_[k], alone.coef_, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(both.intercept_[k], alone.intercept_, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(both.predict(X)[:, k], alone.predict(X), rtol=1e-3, atol=1e-6)
    cases = [(solve.target, solve.case) for solve in both.solves_]
    assert cases == [(k, "definite" if radius is None else "boundary") for k in range(2)]


def test_the_noise_of_a_target_follows_its_own_bound() -> None:
    X, y = data()
    one = make(noise_seed=3).fit(X, y)
    other = make(noise_seed=3, y_bound=[1.0, 1024.0]).fit(X, y * [1.0, 1024.0])
    np.testing.assert_array_equal(one.coef_ * [[1.0], [1024.0]], other.coef_)
    np.testing.assert_array_equal(one.intercept_ * [1.0, 1024.0], other.intercept_)
    assert one.plan_ == other.plan_ and one.plan_.targets == 2
    alone = make(noise_seed=3).fit(X, y[:, 0])
    assert one.plan_.bias.clip_norm == pytest.approx(np.sqrt(2) * alone.plan_.bias.clip_norm)
    assert one.plan_.covariance == alone.plan_.covariance
    assert one.epsilon_ == alone.epsilon_


@pytest.mark.parametrize("solver", ["cg", "cholesky"])
def test_a_stream_of_several_targets_is_a_fit(solver: str) -> None:
    X, y = data()
    options: dict[str, Any] = {"noise_seed": 3, "y_bound": [1.0, 2.0], "solver": solver}
    whole = make(**options, solve_every=1).fit(X, y)
    stream = make(**options, horizon=90)
    for i in range(0, 90, 20):
        stream.partial_fit(X[i : i + 20], y[i : i + 20])
    np.testing.assert_array_equal(stream.coef_, whole.coef_)
    np.testing.assert_array_equal(stream.coef_tail_, whole.coef_tail_)
    assert stream.solves_ == whole.solves_ and len(whole.solves_) == 10


def test_a_bad_target_keeps_its_slot() -> None:
    X, y = data()
    bad, none = y.copy(), X.copy()
    bad[13, 1], none[13] = np.nan, np.nan
    found = []
    for rows, targets in ((X, bad), (none, y)):
        model = make(noise_seed=3, y_bound=[1.0, 2.0], horizon=90)
        for i in range(0, 90, 20):
            model.partial_fit(rows[i : i + 20], targets[i : i + 20])
        found.append(np.column_stack([model.coef_, model.intercept_]))
    np.testing.assert_array_equal(found[0], found[1])
    with pytest.raises(ValueError, match="y must be finite, got NaN in row 13 of column 1"):
        make().fit(X, bad)


@pytest.mark.parametrize(
    ("options", "columns", "word"),
    [
        ({"y_bound": [1.0, 2.0, 3.0]}, 2, "y must have 3 columns, as y_bound has entries, got 2"),
        ({"y_bound": [1.0, 2.0]}, 1, "y must have 2 columns, as y_bound has entries, got 1"),
        ({"y_bound": [1.0, -2.0]}, 2, r"y_bound\[1\] must be"),
        ({"y_bound": [1.0, None]}, 2, r"y_bound\[1\] must be"),
        ({"y_bound": []}, 2, "y_bound must be a number or a list of numbers"),
        ({"compute_regret": True}, 2, "compute_regret must be False with several targets"),
    ],
)
def test_wrong_targets(options: dict[str, Any], columns: int, word: str) -> None:
    X, y = data()
    with pytest.raises((TypeError, ValueError), match=word):
        make(**options).fit(X, y if columns == 2 else y[:, 0])


def test_a_stream_declares_its_targets() -> None:
    X, y = data(20)
    with pytest.raises(ValueError, match=r"y must have 1 columns, .* got 2: y_bound is a list"):
        make(horizon=90).partial_fit(X, y)
    stream = make(horizon=90, y_bound=[1.0, 1.0]).partial_fit(X, y)
    coef = stream.coef_
    for wrong in (y[:, 0], np.column_stack([y, y])):
        with pytest.raises(ValueError, match="y must have 2 columns"):
            stream.partial_fit(X, wrong)
    assert np.array_equal(stream.coef_, coef) and stream.n_steps_ == 1
    stream.partial_fit(X, y)


def test_the_report_counts_targets_beyond_their_bounds() -> None:
    X, y = data()
    y[:3, 0], y[2:5, 1], y[7, 0] = 5.0, 50.0, np.nan
    with pytest.raises(ValueError, match="y must have 3 columns"):
        make(y_bound=[1.0, 1.0, 1.0]).clipping_report(X, y)
    report = make(y_bound=[1.0, 10.0]).clipping_report(X, y)
    assert report["targets_beyond_y_bound"] == 6 and report["invalid_rows"] == 1


# ---- Ridge ----


@pytest.mark.parametrize("solver", ["cg", "cholesky"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 30.0])
@pytest.mark.usefixtures("no_noise")
def test_alpha_is_that_of_ridge(alpha: float, solver: str) -> None:
    X, y = data()
    for target in (y, y[:, 0]):
        for intercept in (False, True):
            model = make(**QUIET, alpha=alpha, solver=solver, fit_intercept=intercept)
            model.fit(X, target)
            expected = Ridge(alpha=alpha, fit_intercept=intercept).fit(X, target)
            np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(model.intercept_, expected.intercept_, atol=1e-5)


def test_alpha_is_not_added_to_the_ridge_of_the_noise() -> None:
    X, y = data()
    plain = make(noise_seed=1).fit(X, y[:, 0])
    half_ridge = plain.solves_[0].half_ridge
    below = make(noise_seed=1, alpha=0.99 * half_ridge).fit(X, y[:, 0])
    assert np.array_equal(below.coef_, plain.coef_)
    above = make(noise_seed=1, alpha=10 * half_ridge).fit(X, y[:, 0])
    assert np.linalg.norm(above.coef_) < 0.5 * np.linalg.norm(plain.coef_)
    assert above.solves_ == plain.solves_
    with pytest.raises(ValueError, match="alpha must be a finite number >= 0"):
        make(alpha=-1.0).fit(X, y[:, 0])


# ---- Users ----


def users_of(n: int) -> Array:
    return np.random.default_rng(5).integers(0, n // 6, n)


def test_a_user_of_one_row_is_a_row() -> None:
    X, y = data()
    rows = make(noise_seed=2).fit(X, y[:, 0])
    users = make(noise_seed=2).fit(X, y[:, 0], groups=np.arange(90))
    np.testing.assert_allclose(users.coef_, rows.coef_, rtol=1e-9)
    assert users.plan_ == rows.plan_


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.usefixtures("no_noise")
def test_users_are_weighted_least_squares(sparse: bool) -> None:
    X, y = data(600)
    groups = users_of(600)
    L = np.hypot(1.0, 1.0)
    norms = np.hypot(np.linalg.norm(X, axis=1), 1.0)
    weights = np.array([min(1.0, L / norms[groups == user].sum()) for user in groups])
    assert weights.min() < 0.2
    options: dict[str, Any] = {**QUIET, "alpha": 0.1}
    model = make(**options).fit(scipy.sparse.csr_array(X) if sparse else X, y, groups=groups)
    expected = Ridge(alpha=0.1).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=1e-3)


EXTREMES = [0.0, 5e-324, 1e-160, 1.0, 1e160, 1.79e308, -1e300, np.inf, np.nan]


@pytest.mark.parametrize("constant", [None, 0.5])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
def test_the_sums_of_neighbouring_users(sparse: bool, constant: float | None) -> None:
    rng = np.random.default_rng(1)
    n = 60
    X, y = rng.normal(size=(n, 3)), 4 * rng.normal(size=(n, 2))
    groups = np.sort(rng.integers(0, 8, n))
    X[groups == 1] = rng.choice(EXTREMES, (int(np.sum(groups == 1)), 3))
    y[groups == 2] = rng.choice(EXTREMES, (int(np.sum(groups == 2)), 2))
    X[groups == 3], y[groups == 3] = 7.0, 99.0  # many equal rows: the bounds are reached
    L = np.hypot(0.7, constant or 0.0)

    def sums(X: Array, y: Array) -> tuple[Array, Array]:
        model = make(
            x_norm_bound=0.7, y_bound=[0.4, 40.0], batch_size=8, horizon=16, noise_seed=1,
            fit_intercept=constant is not None, intercept_scaling=constant or 1.0,
        )  # fmt: skip
        with np.errstate(all="ignore"):
            model.partial_fit(scipy.sparse.csr_array(X) if sparse else X, y, groups=groups)
        engine = model._stream.run
        p = engine._p
        matrix = np.zeros((p, p))
        matrix[np.triu_indices(p)] = engine._total + engine._low
        return engine._bias + engine._bias_low, matrix + np.triu(matrix, 1).T

    plain, largest = sums(X, y), [0.0, 0.0]
    for user in range(8):
        without = X.copy()
        without[groups == user] = np.nan
        moved = [np.linalg.norm(a - b) for a, b in zip(plain, sums(without, y), strict=True)]
        assert moved[0] <= L * np.sqrt(2)
        assert moved[1] <= L**2
        largest = [max(a, b) for a, b in zip(largest, moved, strict=True)]
    assert largest[0] > 0.99 * L * np.sqrt(2)
    assert largest[1] > 0.99 * L**2


def test_a_user_takes_part_once_in_a_stream() -> None:
    X, y = data()
    stream = make(horizon=6, batch_size=3, y_bound=[1.0, 1.0])
    stream.partial_fit(X[:6], y[:6], groups=[0, 0, 1, 1, 2, 2])
    coef = stream.coef_
    with pytest.raises(ValueError, match="one who took part in an earlier step"):
        stream.partial_fit(X[:3], y[:3], groups=[3, 4, 2])
    with pytest.raises(ValueError, match="ids must be given for all steps"):
        stream.partial_fit(X[:3], y[:3])
    assert np.array_equal(stream.coef_, coef) and stream.n_steps_ == 1
    stream.partial_fit(X[:3], y[:3], groups=[3, 4, 5])
    with pytest.raises(ValueError, match="compute_regret must be False with groups"):
        make(compute_regret=True).fit(X, y[:, 0], groups=np.arange(90))


@pytest.mark.usefixtures("no_noise")
def test_weights_of_users_leave_a_linear_model_unbiased() -> None:
    # Weights that followed y, or a clipped sum of y x, would draw the model towards zero.
    rng = np.random.default_rng(0)
    n = 40_000
    groups = np.repeat(np.arange(n // 8), 8)
    X = rng.uniform(-1, 1, (n, 3)) / np.sqrt(3)
    y = X @ B[0] + 0.1 + 0.2 * rng.normal(size=n)
    model = make(**{**QUIET, "batch_size": 512}).fit(X, y, groups=groups)
    np.testing.assert_allclose(model.coef_, B[0], atol=0.015)


def test_users_of_a_dataset(tmp_path: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    X, y = data()
    groups = np.sort(users_of(90))
    table = {f"x{j}": X[:, j] for j in range(3)} | {"y": y[:, 0], "user": groups}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    options: dict[str, Any] = {"noise_seed": 1, "batch_size": 4}
    there = make(**options).fit(str(tmp_path / "rows.parquet"), "y", groups="user")
    here = make(**options).fit(X, y[:, 0], groups=groups)
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-12)
    with pytest.raises(ValueError, match="y_bound must be a number unless rows are in memory"):
        make(y_bound=[1.0, 1.0]).fit(str(tmp_path / "rows.parquet"), "y")


# ---- Sample weights ----


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("bound", [1.0, 4.0])
def test_sample_weights_are_those_of_ridge(bound: float, sparse: bool) -> None:
    X, y = data()
    weights = bound * np.random.default_rng(1).uniform(0, 1.5, 90)
    weights[::7] = 0.0
    model = make(**QUIET, alpha=0.3, sample_weight_bound=bound)
    model.fit(scipy.sparse.csr_array(X) if sparse else X, y, sample_weight=weights)
    expected = Ridge(alpha=0.3).fit(X, y, np.minimum(weights, bound))
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=1e-4)


def test_weights_beyond_their_bound_are_clipped() -> None:
    X, y = data()
    weights = np.where(np.arange(90) % 2 == 0, 0.5, 2.0)
    one = make(noise_seed=1, sample_weight_bound=2.0).fit(X, y, sample_weight=weights)
    for other in (np.where(weights == 2.0, 1e300, 0.5), np.where(weights == 2.0, 3.0, 0.5)):
        more = make(noise_seed=1, sample_weight_bound=2.0).fit(X, y, sample_weight=other)
        np.testing.assert_array_equal(one.coef_, more.coef_)
    assert one.plan_ == make().fit(X, y).plan_.__class__.from_dict(one.plan_.to_dict())
    # In units of rows of weight 1 the noise is sample_weight_bound times as large.
    halved = make(noise_seed=1).fit(X, y, sample_weight=weights / 2)
    np.testing.assert_array_equal(one.coef_, halved.coef_)
    assert np.array_equal(
        make(noise_seed=1).fit(X, y, sample_weight=np.ones(90)).coef_, plain_coef(X, y)
    )


def plain_coef(X: Array, y: Array) -> Array:
    return make(noise_seed=1).fit(X, y).coef_


def test_weights_of_a_stream_are_never_refused_for_their_values() -> None:
    X, y = data(20)
    weights = np.full(20, 0.5)
    found = []
    for value in (0.0, -3.0, np.nan, np.inf, -np.inf):
        weights[4] = value
        model = make(noise_seed=1, horizon=90, y_bound=[1.0, 1.0]).partial_fit(
            X, y, sample_weight=weights
        )
        found.append(model.coef_)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    model = make(horizon=90, y_bound=[1.0, 1.0])
    for wrong in (np.ones(19), np.ones((20, 1)), [1.0] * 20, np.array(["x"] * 20)):
        with pytest.raises((TypeError, ValueError), match="sample_weight must"):
            model.partial_fit(X, y, sample_weight=wrong)
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_bad_weights_of_a_fit_are_refused_before_it(value: float) -> None:
    X, y = data()
    weights = np.ones(90)
    weights[7] = value
    model = make()
    with pytest.raises(ValueError, match=r"sample_weight must be finite and >= 0, .* in row 7"):
        model.fit(X, y, sample_weight=weights)
    with pytest.raises(ValueError, match="compute_regret must be False with weights of rows"):
        make(compute_regret=True).fit(X, y[:, 0], sample_weight=np.ones(90))
    with pytest.raises(ValueError, match="fit_intercept must be True for intervals with sample_w"):
        make(intervals=True, fit_intercept=False).fit(X, y, sample_weight=np.ones(90))
    assert not hasattr(model, "coef_")


def test_the_sums_of_neighbours_with_weights_and_squares() -> None:
    rng = np.random.default_rng(1)
    X, y = 3 * rng.normal(size=(24, 3)), 4 * rng.normal(size=(24, 2))
    weights = 3 * rng.uniform(size=24)
    for row, value in enumerate(EXTREMES):
        X[row, 1], y[row + 9, 0], weights[row + 15] = value, value, value

    def sums(X: Array) -> tuple[Array, Array]:
        model = make(
            x_norm_bound=0.7, y_bound=[0.4, 40.0], batch_size=24, horizon=48, noise_seed=1,
            intervals=True, sample_weight_bound=2.0,
        )  # fmt: skip
        model.partial_fit(X, y, sample_weight=weights)
        engine = model._stream.run
        assert engine.plan.bias.clip_norm == pytest.approx(limit)
        matrix = np.zeros((4, 4))
        matrix[np.triu_indices(4)] = engine._total + engine._low
        return engine._bias + engine._bias_low, matrix + np.triu(matrix, 1).T

    L = np.hypot(0.7, 1.0)
    limit = L * np.sqrt(2 * (1 + 0.25**2))
    plain, largest = sums(X), [0.0, 0.0]
    for row in range(24):
        without = X.copy()
        without[row] = np.nan
        moved = [np.linalg.norm(a - b) for a, b in zip(plain, sums(without), strict=True)]
        assert moved[0] <= limit and moved[1] <= L**2
        largest = [max(a, b) for a, b in zip(largest, moved, strict=True)]
    assert largest[1] > 0.99 * L**2


@pytest.mark.usefixtures("no_noise")
def test_users_with_sample_weights() -> None:
    X, y = data(600)
    groups, given = users_of(600), np.random.default_rng(2).uniform(0, 1, 600)
    norms = given * np.hypot(np.linalg.norm(X, axis=1), 1.0)
    L = np.hypot(1.0, 1.0)
    weights = given * [min(1.0, L / norms[groups == user].sum()) for user in groups]
    model = make(**QUIET).fit(X, y, sample_weight=given, groups=groups)
    expected = Ridge(alpha=1e-9).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-3, atol=1e-5)


# ---- Rows beyond their bound ----


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
def test_long_rows_with_a_weight_are_weighted_least_squares(sparse: bool) -> None:
    X, y = data(600)
    X, y = 4 * X, np.clip(2 * y, -1, 1)
    weights = np.minimum(1.0, 1.0 / np.linalg.norm(X, axis=1)) ** 2
    assert np.mean(weights < 1) > 0.5
    model = make(**QUIET, long_rows="weight", alpha=0.1)
    model.fit(scipy.sparse.csr_array(X) if sparse else X, y)
    expected = Ridge(alpha=0.1).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=1e-3)


@pytest.mark.usefixtures("no_noise")
def test_a_linear_model_keeps_its_coefficients_with_weights_alone() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_t(3, (40_000, 3))
    y = X @ B[0] + 0.1 + 0.1 * rng.normal(size=40_000)
    errors = {}
    for long_rows in ("scale", "weight"):
        model = make(**QUIET, long_rows=long_rows, y_bound=100.0, batch_size=2_000).fit(X, y)
        errors[long_rows] = np.abs(model.coef_ - B[0]).max()
    assert errors["weight"] < 0.01 < 0.1 < errors["scale"]


def test_the_choice_is_in_the_plan() -> None:
    X, y = data()
    plain, weight = (make(long_rows=choice).fit(X, y[:, 0]) for choice in ("scale", "weight"))
    assert weight.plan_.long_rows == "weight" and weight.plan_ != plain.plan_
    assert weight.plan_.from_dict(weight.plan_.to_dict()) == weight.plan_
    assert weight.epsilon_ == plain.epsilon_
    assert plain.plan_.to_dict()["version"] == 1 and weight.plan_.to_dict()["version"] == 3
    with pytest.raises(ValueError, match="long_rows must be one of"):
        make(long_rows="drop").fit(X, y)
