# SPDX-License-Identifier: Apache-2.0
"""Standard errors, intervals and column statistics from noisy moments."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.stats

pytest.importorskip("sklearn", reason="needs the extra sklearn")

from coverage_of_intervals import coverage

from dpftrl_fast import accounting as acc
from dpftrl_fast import mechanisms as mech
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.inference import estimates
from dpftrl_fast.convex.least_squares.moments import Moments, column_statistics, moments_of
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.linear_model import DPFTRLLeastSquares

Array = np.ndarray[Any, np.dtype[Any]]
THETA = np.array([[0.6, -0.3, 0.2], [0.0, 0.4, -0.5]])
ROWS, TAU, BIAS_STD, SQUARES_STD, SIGMA = 2_000, 20.0, 12.0, 40.0, 0.2


def rows(n: int = ROWS, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.uniform(-1, 1, (n, 2)), np.ones(n)])


def drawn(
    X: Array,
    rng: Any,
    *,
    tau: float = TAU,
    bias: float = BIAS_STD,
    squares: float = SQUARES_STD,
    sigma: float = SIGMA,
) -> Moments:
    """Return noisy moments of new targets on the rows X, their noise written out as a matrix."""
    p = X.shape[1]
    y = X @ THETA.T + sigma * rng.normal(size=(len(X), 2))
    square = tau * rng.normal(size=(p, p))
    noise = (square + square.T) / 2  # the projection of independent entries
    return Moments(
        step=1,
        covariance=(X.T @ X + noise)[np.triu_indices(p)],
        products=y.T @ X + bias * rng.normal(size=(2, p)),
        squares=np.sum(y**2, axis=0) + squares * rng.normal(size=2),
        covariance_std=tau,
        products_std=bias,
        squares_std=squares,
        constant=1.0,
    )


@pytest.mark.parametrize(("tau", "bias"), [(TAU, 1.0), (1.0, BIAS_STD), (0.01, 0.01), (60.0, 30.0)])
def test_errors_have_the_stated_size_whichever_noise_dominates(tau: float, bias: float) -> None:
    X, rng = rows(), np.random.default_rng(1)
    found = [estimates(drawn(X, rng, tau=tau, bias=bias), ROWS) for _ in range(1500)]
    errors = np.array([one.theta - THETA for one in found])
    stated = np.array([one.stderr for one in found])
    variances = np.array([one.residual_variance for one in found])
    ratio = np.sqrt(np.mean(stated**2, axis=0)) / errors.std(axis=0)
    assert np.all((ratio > 0.93) & (ratio < 1.08)), ratio
    assert not np.any((1.1 * ratio > 0.93) & (1.1 * ratio < 1.0))  # 10 % more would be seen
    assert np.all(np.abs(errors.mean(axis=0)) < 4 * errors.std(axis=0) / np.sqrt(1500))
    spread = variances.std(axis=0) / np.sqrt(1500)
    assert np.all(np.abs(variances.mean(axis=0) - SIGMA**2) < 4 * spread + 1e-3)


def test_the_noise_is_not_counted_as_errors() -> None:
    X, rng = rows(60), np.random.default_rng(4)
    found = []
    for _ in range(2000):
        moments = drawn(X, rng, tau=1.0, bias=8.0, squares=1.0, sigma=1.2)
        found.append(estimates(moments, 60).residual_variance)
    # Without the correction it would be lower by about 64 tr(W^-1)/57 = 0.13.
    assert np.min(found) > 0  # none was cut
    assert np.all(np.abs(np.mean(found, axis=0) - 1.44) < 0.06)


def test_errors_are_stated_from_twice_the_norm_of_the_noise_on() -> None:
    for value, reliable in ((41.0, True), (39.0, False), (1.0, False), (-5.0, False)):
        covariance = np.array([value, 0.0, 1000.0])
        moments = Moments(1, covariance, np.ones((1, 2)), np.ones(1), 10.0, 1.0, 1.0, 0.0)
        found = estimates(moments, 100)  # the norm is about sqrt(2 p) tau = 20
        assert found.reliable == reliable == bool(np.isfinite(found.stderr).all())


def test_without_the_correction_the_noise_of_the_matrix_biases() -> None:
    X, rng = rows(300), np.random.default_rng(2)
    plain, corrected = [], []
    for _ in range(4000):
        moments = drawn(X, rng, tau=8.0, bias=1.0)
        corrected.append(estimates(moments, 300).theta - THETA)
        plain.append(np.linalg.solve(moments.matrix, moments.products.T).T - THETA)
    bias = np.abs(np.mean(plain, axis=0)) / (np.std(plain, axis=0) / np.sqrt(4000))
    left = np.abs(np.mean(corrected, axis=0)) / (np.std(corrected, axis=0) / np.sqrt(4000))
    assert bias.max() > 6 and left.max() < 4


def test_without_noise_they_are_those_of_ordinary_least_squares() -> None:
    X = rows()
    rng = np.random.default_rng(3)
    y = X @ THETA.T + SIGMA * rng.normal(size=(ROWS, 2))
    moments = Moments(
        1, (X.T @ X)[np.triu_indices(3)], y.T @ X, np.sum(y**2, axis=0), 1e-9, 1e-9, 1e-9, 1.0
    )
    found = estimates(moments, ROWS)
    theta = np.linalg.lstsq(X, y, rcond=None)[0].T
    variance = np.sum((y - X @ theta.T) ** 2, axis=0) / (ROWS - 3)
    np.testing.assert_allclose(found.theta, theta, rtol=1e-9)
    np.testing.assert_allclose(found.residual_variance, variance, rtol=1e-9)
    expected = np.sqrt(variance[:, np.newaxis] * np.diag(np.linalg.inv(X.T @ X)))
    np.testing.assert_allclose(found.stderr, expected, rtol=1e-9)


def test_moments_are_those_of_the_run() -> None:
    X = rows(40)[:, :2].copy()
    y = rows(40) @ THETA.T * 3
    plan = LeastSquaresPlan(
        2.0, 1.5, 1.0, acc.SinglePass(5), constant=0.5, targets=2, squares=0.25, complete="all"
    )
    run = LeastSquares(plan, 2, seed=0, dtype="float64")
    assert run.moments() is None
    for i in range(0, 40, 8):
        run.step(Batch(X[i : i + 8], y[i : i + 8]))
    assert run.last.shape == (2, 3)
    moments = run.moments()
    assert moments is not None and moments.step == 5
    augmented = np.column_stack([X, np.full(40, 0.5 * (1 - 2.0**-20))])
    squares = np.sum(np.clip(y, -1.5, 1.5) ** 2, axis=0)
    noises = {
        "covariance": (moments.matrix - augmented.T @ augmented, moments.covariance_std),
        "products": (moments.products - np.clip(y, -1.5, 1.5).T @ augmented, moments.products_std),
        "squares": (moments.squares - squares, moments.squares_std),
    }  # fmt: skip
    for name, (noise, std) in noises.items():
        assert 0 < np.abs(noise).max() < 4.5 * std, name
    L, v = np.hypot(2.0, 0.5), plan.variance_factors[-1]
    assert moments.covariance_std == pytest.approx(
        L**2 * plan.covariance.noise_multiplier * np.sqrt(v)
    )
    bias_std = L * 1.5 * np.sqrt(2 * (1 + 0.25**2)) * plan.bias.noise_multiplier * np.sqrt(v)
    assert moments.products_std == pytest.approx(bias_std)
    assert moments.squares_std == pytest.approx(bias_std / (0.25 * L / 1.5), rel=1e-5)
    np.testing.assert_array_equal(moments.diagonal, np.diag(moments.matrix))
    np.testing.assert_array_equal(moments.last_column, moments.matrix[:, -1])


@pytest.mark.parametrize("step", [3, 5])
@pytest.mark.parametrize(
    "options",
    [{"complete": "all"}, {"complete": False}, {"mechanism": mech.BandedInverse.square_root(3)}],
    ids=["completed", "tree", "Toeplitz"],
)
def test_the_noise_of_moments_has_the_stated_size(options: dict[str, Any], step: int) -> None:
    plan = LeastSquaresPlan(2.0, 1.5, 3.0, acc.SinglePass(5), squares=0.25, **options)
    found: dict[str, list[Any]] = {"own": [], "off": [], "products": [], "squares": []}
    for seed in range(500):
        run = LeastSquares(plan, 2, seed=seed)
        for _ in range(step):
            run.step(Batch(np.zeros((0, 2)), np.zeros(0)))
        assert run.last.shape == (1, 2)
        moments = run.moments()
        assert moments is not None and moments.squares is not None
        found["own"].append(moments.diagonal / moments.covariance_std)
        found["off"].append(moments.matrix[0, 1] / moments.covariance_std * np.sqrt(2))
        found["products"].append(moments.products / moments.products_std)
        found["squares"].append(moments.squares / moments.squares_std)
    for name, values in found.items():
        noise = np.ravel(values)
        tolerance = 4.5 / np.sqrt(2 * noise.size)
        assert np.std(noise) == pytest.approx(1.0, abs=tolerance), name


# ---- The estimator ----


def data(n: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    return X, X @ [0.5, -0.2, 0.0] + 0.1 + 0.1 * rng.normal(size=n)


def model_of(**options: Any) -> DPFTRLLeastSquares:
    fields: dict[str, Any] = {"x_norm_bound": 3**0.5, "y_bound": 1.3, "intervals": True}
    return DPFTRLLeastSquares(**{**fields, **options})


def test_intervals_of_a_model() -> None:
    X, y = data(20_000)
    model = model_of(noise_seed=0, alpha=300.0).fit(X, y)
    coef, intercept = model.conf_int()
    assert coef.shape == (3, 2) and intercept.shape == (2,)
    found = model.inference_
    assert found.reliable and found.rows == 20_000
    width = scipy.stats.norm.ppf(0.975) * found.coef_stderr
    np.testing.assert_allclose(coef, np.stack([found.coef - width, found.coef + width], axis=-1))
    assert np.mean(intercept) == pytest.approx(found.intercept)
    assert np.linalg.norm(found.coef) > 1.01 * np.linalg.norm(model.coef_)  # there is no ridge
    assert np.all(np.diff(model.conf_int(0.99).coef) > 1.3 * np.diff(coef))
    assert found.residual_std == pytest.approx(0.1, abs=0.05)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.conf_int().coef, coef)
    for level in (0.0, 1.0, np.nan, "0.9"):
        with pytest.raises((TypeError, ValueError), match="level must be"):
            model.conf_int(level)
    plain = model_of(noise_seed=0, intervals=False).fit(X, y)
    assert not hasattr(plain, "inference_") and plain.plan_.squares == 0
    with pytest.raises(ValueError, match="conf_int needs a model fitted with intervals=True"):
        plain.conf_int()
    # The price: 3 % more noise in the bias.
    assert model.plan_.bias.clip_norm == pytest.approx(
        plain.plan_.bias.clip_norm * 1.0308, rel=1e-4
    )


def test_intervals_of_several_targets_follow_their_scales() -> None:
    X, y = data(5_000)
    both = np.column_stack([y, 100 * y])
    model = model_of(noise_seed=0, y_bound=[1.3, 130.0]).fit(X, both)
    coef, intercept = model.conf_int()
    assert coef.shape == (2, 3, 2) and intercept.shape == (2, 2)
    assert model.inference_.residual_std.shape == (2,)
    np.testing.assert_allclose(model.inference_.coef.shape, (2, 3))
    ratio = np.diff(coef)[1] / np.diff(coef)[0]
    assert np.all((ratio > 80) & (ratio < 125))
    rescaled = model_of(noise_seed=0, y_bound=[128 * 1.3, 130.0]).fit(X, both * [128.0, 1.0])
    np.testing.assert_allclose(rescaled.conf_int().coef[0], 128 * coef[0], rtol=1e-9)


def test_noise_that_is_too_large_is_said() -> None:
    X, y = data(200)
    model = model_of(noise_seed=0, batch_size=20).fit(X, y)
    assert not model.inference_.reliable
    with pytest.warns(UserWarning, match="too large for standard errors"):
        coef, intercept = model.conf_int()
    assert np.all(coef == [-np.inf, np.inf]) and np.all(intercept == [-np.inf, np.inf])
    with pytest.warns(UserWarning, match="too large"):
        assert np.all(model.inference_.coef_stderr == np.inf)
    with pytest.warns(UserWarning, match="too large"):
        assert np.all(np.isnan(model.inference_.coef))


def test_messages_of_neighbours_are_the_same() -> None:
    X, y = data(3_000)
    other = X.copy()
    other[7] = 1e300
    seen = []
    for given in (X, other):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = model_of(noise_seed=4).fit(given, y)
            model.conf_int()
        names = sorted(name for name in vars(model) if name.endswith("_"))
        seen.append((names, [str(one.message) for one in caught], model.inference_.rows))
    assert seen[0] == seen[1]


def test_users_have_no_intervals() -> None:
    X, y = data(500)
    with pytest.raises(ValueError, match=r"sums of squares \(intervals\) must be those of single"):
        model_of(batch_size=50).fit(X, y, groups=np.arange(500) // 2)


@pytest.mark.parametrize(("low", "over"), [(0.0, 1.0), (0.5, 1.6)])
def test_weights_are_inverse_variances(low: float, over: float) -> None:
    rng = np.random.default_rng(5)
    n = 100_000
    X = rng.uniform(-1, 1, (n, 3))
    weights = rng.choice([low, 2.0], n)
    y = X @ [0.5, -0.2, 0.0] + 0.3 / np.sqrt(np.maximum(weights, 0.5)) * rng.normal(size=n)
    model = model_of(epsilon=30.0, y_bound=2.8, sample_weight_bound=2.0).fit(
        X, y, sample_weight=weights
    )
    W = (X * weights[:, np.newaxis]).T @ X
    expected = 0.3 * np.sqrt(np.diag(np.linalg.inv(W)))
    moments = model.inference_.moments
    noise = moments.products_std**2 + moments.covariance_std**2 / 2 * (0.29 + 0.01)
    noise *= np.diag(np.linalg.matrix_power(np.linalg.inv(moments.matrix), 2))[:3]
    assert np.all(noise < expected**2)
    sampled = np.sqrt(model.inference_.coef_stderr**2 - noise)
    # Exact for weights 0 and the bound; else larger by the root of n over the sum of w/bound.
    np.testing.assert_allclose(sampled, np.sqrt(over) * expected, rtol=0.04)
    assert model.inference_.residual_std == pytest.approx(0.3 * np.sqrt(over), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "p", "epsilon", "noise"),
    [(3_000, 5, 1.0, 0.1), (20_000, 5, 1.0, 0.3), (20_000, 10, 3.0, 0.1)],
)
def test_coverage(n: int, p: int, epsilon: float, noise: float) -> None:
    found = coverage(n, p, epsilon, 400, noise=noise)
    assert found.infinite == 0
    assert found.shares.min() > 0.91 and found.shares.max() < 0.985
    assert 0.935 < found.shares.mean() < 0.965
    lower = coverage(n, p, epsilon, 400, noise=noise, level=0.9)  # the negative control
    assert lower.shares.mean() < 0.925


# ---- Columns ----


@pytest.mark.parametrize("public", [True, False])
def test_column_statistics_have_the_stated_errors(public: bool) -> None:
    rng = np.random.default_rng(6)
    X = np.column_stack(
        [rng.uniform(-1, 1, 800) + 0.5, 0.2 * rng.normal(size=800), np.full(800, 0.5)]
    )
    errors: dict[str, list[Array]] = {"means": [], "variances": []}
    for _ in range(1500):
        square = 9.0 * rng.normal(size=(3, 3))
        covariance = (X.T @ X + (square + square.T) / 2)[np.triu_indices(3)]
        moments = Moments(1, covariance, np.zeros((1, 3)), None, 9.0, 1.0, np.inf, 0.5)
        found = column_statistics(moments, 800 if public else None)
        errors["means"].append((found.means - X[:, :2].mean(axis=0)) / found.means_stderr)
        errors["variances"].append(
            (found.variances - X[:, :2].var(axis=0)) / found.variances_stderr
        )
    for name, values in errors.items():
        assert np.all(np.abs(np.mean(values, axis=0)) < 0.12), name
        np.testing.assert_allclose(np.std(values, axis=0), 1.0, atol=0.08, err_msg=name)


def test_columns_of_a_model() -> None:
    X, y = data(20_000)
    X[:, 1] += 0.3
    X /= 1.3
    model = model_of(noise_seed=0, intervals=False).fit(X, y)
    for name in ("means", "variances"):
        value = X.mean(axis=0) if name == "means" else X.var(axis=0)
        error = np.abs(getattr(model, f"column_{name}_") - value)
        assert np.all(error < 4 * getattr(model, f"column_{name}_stderr_"))
        assert np.all(getattr(model, f"column_{name}_stderr_") < 0.02)
    assert not hasattr(model_of(fit_intercept=False).fit(X, y), "column_means_")
    weights = np.where(X[:, 0] > 0, 1.0, 0.0)
    weighted = model_of(noise_seed=0, epsilon=20.0).fit(X, y, sample_weight=weights)
    assert weighted.column_means_[0] == pytest.approx(X[X[:, 0] > 0, 0].mean(), abs=0.01)
    stream = model_of(noise_seed=0, batch_size=2_000, horizon=20_000, solve_every=4)
    stream.partial_fit(X[:2_000], y[:2_000])
    assert not hasattr(stream, "column_means_")
    for i in range(2_000, 20_000, 2_000):
        stream.partial_fit(X[i : i + 2_000], y[i : i + 2_000])
    np.testing.assert_allclose(stream.column_means_, X.mean(axis=0), atol=0.05)
    assert stream.inference_.n_rows == 20_000 and stream.inference_.rows is None


def test_the_noisy_number_of_rows_is_never_near_zero() -> None:
    for count in (-50.0, 0.0, 1e-9):
        covariance = np.array([5.0, -1.0, count])
        moments = Moments(1, covariance, np.zeros((1, 2)), None, 10.0, 1.0, np.inf, 1.0)
        found = column_statistics(moments, None)
        assert all(np.isfinite(part).all() for part in found)
        assert found.means_stderr[0] >= 0.7 and found.variances[0] >= 0
    with pytest.raises(ValueError, match="moments must have a constant column"):
        column_statistics(without_constant(), 3)


def without_constant() -> Moments:
    plan = LeastSquaresPlan(1.0, 1.0, 13.0, acc.SinglePass(4))
    found = moments_of(plan, 4, np.ones(2), np.ones(3), 0.0)
    assert found.squares is None
    with pytest.raises(ValueError, match="moments must have sums of squares"):
        estimates(found, 4)
    return found
