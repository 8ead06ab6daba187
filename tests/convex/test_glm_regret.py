# SPDX-License-Identifier: Apache-2.0
"""Best parameters in hindsight against other solvers, and the regret by its definition."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, QuantileRegressor

from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.regret import RegretMeter, best_parameters, loss_sum
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.plan.privacy_plan import PrivacyPlan


def rows(n=200, p=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return X, X @ np.linspace(1, -1, p) + 0.5 + 0.3 * rng.standard_normal(n)


def test_least_squares():
    X, y = rows()
    best = best_parameters(Objective("squared", 4, constant=1.0), Batch(X, y))
    expected = np.linalg.lstsq(np.column_stack([X, np.ones(200)]), y, rcond=None)[0]
    np.testing.assert_allclose(best[0], expected, atol=1e-6)


@pytest.mark.parametrize("radius", [0.1, 0.8, 99.0])
def test_least_squares_in_a_ball(radius):
    X, y = rows()
    best = best_parameters(Objective("squared", 4), Batch(X, y), radius)
    assert np.linalg.norm(best) <= radius * (1 + 1e-9)
    other = minimize(
        lambda t: np.mean((X @ t - y) ** 2) / 2,
        np.zeros(4),
        constraints={"type": "ineq", "fun": lambda t: radius**2 - t @ t},
        method="SLSQP",
        options={"ftol": 1e-12},
    ).x
    np.testing.assert_allclose(best[0], other, atol=1e-4)


def test_classification():
    X, y = rows()
    labels = (y > 0.3).astype(float) + (y > 1.5)
    for outputs, target in ((1, np.minimum(labels, 1.0)), (3, labels)):
        loss = "logistic" if outputs == 1 else "multinomial"
        objective = Objective(loss, 4, outputs=outputs, constant=1.0)
        model = LogisticRegression(C=np.inf, tol=1e-9, max_iter=2000).fit(X, target)
        expected = np.column_stack([model.coef_, model.intercept_])
        best = best_parameters(objective, Batch(X, target))
        batch = Batch(X, target)
        got, wanted = loss_sum(objective, best, batch), loss_sum(objective, expected, batch)
        assert got <= wanted + 1e-4


def test_a_loss_with_corners():
    X, y = rows()
    objective = Objective("quantile", 4, loss_param=0.8, constant=1.0)
    model = QuantileRegressor(quantile=0.8, alpha=0.0).fit(X, y)
    expected = np.append(model.coef_, model.intercept_)[np.newaxis]
    batch = Batch(X, y)
    got = loss_sum(objective, best_parameters(objective, batch), batch)
    wanted = loss_sum(objective, expected, batch)
    assert wanted - 1e-6 <= got <= 1.02 * wanted


@pytest.mark.parametrize("passes", [1, 2])
def test_regret_is_the_mean_excess_loss_of_the_iterates(passes):
    X, y = rows(60)
    objective = Objective("squared", 4)
    plan = PrivacyPlan(1.0, 0.5, SinglePass(6 * passes))
    options = {"learning_rate": 0.2, "batch_size": 10, "noise_seed": 3}
    meter, plain = (GLMRun(objective, plan, **options) for _ in range(2))
    meter = RegretMeter(meter)
    losses = []
    for step in range(6 * passes):
        part = slice(step % 6 * 10, step % 6 * 10 + 10)
        losses += list((X[part] @ plain.last[0] - y[part]) ** 2 / 2)
        plain.step(Batch(X[part], y[part]))
        meter.step(Batch(X[part], y[part]))
    np.testing.assert_array_equal(meter.run.last, plain.last)
    best = np.linalg.lstsq(X, y, rcond=None)[0]
    expected = np.mean(losses) - np.mean((X @ best - y) ** 2 / 2)
    assert meter.regret(Batch(X, y)) == pytest.approx(expected, abs=1e-9)
