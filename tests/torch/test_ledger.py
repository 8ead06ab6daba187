# SPDX-License-Identifier: Apache-2.0
"""The ledger of a training run: what it states after recoveries, and under which bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, MinSeparation, compose
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.torch.ledger import TrainingLedger


def test_it_states_the_run_that_it_was_given() -> None:
    plan = PrivacyPlan(1.0, 10.0, FixedEpochs(2, 5), Tree(restart_every=2))
    ledger, more = TrainingLedger(plan, 1e-6), compose([plan, plan])
    assert ledger.epsilon_spent() == plan.epsilon(1e-6)
    ledger.state_by(more)
    assert ledger.epsilon_spent() == ledger.epsilon_so_far() == more.epsilon(1e-6)
    assert ledger.epsilon_spent() > plan.epsilon(1e-6)


def test_it_has_the_bound_of_the_plan() -> None:
    for bound in ("exact", "released"):
        plan = PrivacyPlan(1.0, 5.0, MinSeparation(8, 2, 3), bound=bound)
        state = plan.ledger().state_dict()
        TrainingLedger(plan, 1e-6).load_state_dict(state)
        other = "exact" if bound == "released" else "released"
        with pytest.raises(ValueError, match="declar"):
            TrainingLedger(replace(plan, bound=other), 1e-6).load_state_dict(state)
