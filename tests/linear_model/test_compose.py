# SPDX-License-Identifier: Apache-2.0
"""Everything that states an epsilon is composed with everything else."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from dpftrl_fast import PrefixSum, PrivacyPlan
from dpftrl_fast.accounting import Ledger, PrivacyStatement, SinglePass, compose
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.federated import PrivateRounds, ServerDPFTRL
from dpftrl_fast.linear_model import DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.run import RunAccount


def fitted(cls: Any, **options: Any) -> Any:
    rows = np.arange(40.0).reshape(20, 2) / 100
    return cls(noise_multiplier=3.0, epsilon=None, x_norm_bound=1.0, **options).fit(
        rows, rows[:, 0] - 0.2
    )


def test_everything_that_states_an_epsilon_is_composed() -> None:
    plan = PrivacyPlan(1.0, 3.0, SinglePass(20), bound="released")
    two = LeastSquaresPlan(1.0, 1.0, 3.0, SinglePass(20))
    model = fitted(DPFTRLRegressor, y_bound=1.0, batch_size=1)
    stated = [
        plan,
        two,
        plan.guarantee,
        compose([plan, two]),
        plan.ledger(),
        Ledger(SinglePass(20), 3.0, bound="released"),
        RunAccount(plan),
        RunAccount(plan, 1),
        PrefixSum(2, 20, 1.0, 3.0),
        PrivateRounds([np.zeros(3)], plan=plan, report_goal=2),
        ServerDPFTRL([np.zeros(3)], plan=plan, report_goal=2),
        fitted(DPFTRLLeastSquares, y_bound=1.0, batch_size=1),
        model,
    ]
    assert all(isinstance(one, PrivacyStatement) for one in stated[:-2])
    total = sum(Fraction(one.guarantee.mu_squared) for one in stated)
    together = compose(stated)
    assert total * (1 - Fraction(1, 10**14)) <= together.mu_squared <= total * (1 + 1e-14)
    assert len(together.mechanisms) == len(stated) + 5
    assert compose([model]).epsilon(1e-6) == model.plan_.epsilon(1e-6)
    assert together.epsilon(1e-6) > max(one.guarantee.epsilon(1e-6) for one in stated)


def test_an_estimator_that_is_not_fitted_is_refused() -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        compose([DPFTRLRegressor()])
