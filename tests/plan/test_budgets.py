# SPDX-License-Identifier: Apache-2.0
"""Everything that looks for the noise of a budget refuses an epsilon that is not above zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpftrl_fast import PrefixSum, PrivacyPlan, PrivateCounter
from dpftrl_fast import accounting as acc
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.federated import plan_rounds

Door = Callable[[float], Any]
ONE = acc.SinglePass(8)


def _estimator(name: str) -> Door:
    def fit(epsilon: float) -> Any:
        module = pytest.importorskip("dpftrl_fast.linear_model", exc_type=ImportError)
        options = {"classes": [0, 1]} if name == "DPFTRLClassifier" else {"y_bound": 1.0}
        X = np.linspace(-0.5, 0.5, 40).reshape(20, 2)
        model = getattr(module, name)(epsilon=epsilon, x_norm_bound=1.0, **options)
        return model.fit(X, np.arange(20) % 2)

    return fit


def _private_quantiles(epsilon: float) -> Any:
    module = pytest.importorskip("dpftrl_fast.preprocessing", exc_type=ImportError)
    return module.private_quantiles(np.zeros((9, 1)), (0, 1), epsilon=epsilon)


def _make_private(epsilon: float) -> Any:
    torch = pytest.importorskip("torch")
    from dpftrl_fast.torch import make_private

    network = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return make_private(
        network, optimizer, loader, epsilon=epsilon, delta=1e-6, epochs=1, clip_norm=1.0
    )


DOORS: dict[str, Door] = {
    "PrivacyPlan": lambda e: PrivacyPlan.calibrate(
        epsilon=e, delta=1e-6, clip_norm=1.0, participation=ONE
    ),
    "PrefixSum": lambda e: PrefixSum.calibrate(
        size=1, epsilon=e, delta=1e-6, clip_norm=1.0, steps=8
    ),
    "PrivateCounter": lambda e: PrivateCounter.calibrate(
        ["a"], 8, epsilon=e, delta=1e-6, start=0, period=1
    ),
    "LeastSquaresPlan": lambda e: LeastSquaresPlan.calibrate(
        epsilon=e, delta=1e-6, x_norm_bound=1.0, y_bound=1.0, participation=ONE
    ),
    "plan_mechanism": lambda e: acc.plan_mechanism(e, 1e-6, ONE),
    "plan_schedule": lambda e: acc.plan_schedule(e, 1e-6, participation=ONE),
    "largest_epochs": lambda e: acc.largest_epochs(e, 1e-6, 4.0, 8),
    "plan_rounds": lambda e: plan_rounds(1000, 8, e, 1e-6, report_goal=10),
    "private_quantiles": _private_quantiles,
    "DPFTRLRegressor": _estimator("DPFTRLRegressor"),
    "DPFTRLClassifier": _estimator("DPFTRLClassifier"),
    "DPFTRLLeastSquares": _estimator("DPFTRLLeastSquares"),
    "make_private": _make_private,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("epsilon", [0, 0.0, -0.0, -1.0, math.nan, math.inf])
def test_an_epsilon_that_is_not_above_zero_is_refused(door: str, epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be a finite number > 0, got"):
        DOORS[door](epsilon)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("door", [name for name in DOORS if name != "largest_epochs"])
def test_an_epsilon_above_zero_is_not(door: str) -> None:
    DOORS[door](8.0)


@given(st.floats(1e-3, 50.0), st.floats(1e-10, 1e-2))
def test_a_budget_above_zero_is_kept(epsilon: float, delta: float) -> None:
    plan = PrivacyPlan.calibrate(
        epsilon=epsilon, delta=delta, clip_norm=1.0, participation=ONE, mechanism="tree"
    )
    assert 0 < plan.epsilon(delta) <= epsilon
    assert f"noise multiplier {plan.noise_multiplier!r}" in plan.describe(delta)
