# SPDX-License-Identifier: Apache-2.0
"""The order of epochs: what its fingerprint tells apart."""

from __future__ import annotations

from typing import Any

import pytest

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, SinglePass
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.plan.epoch_order import EpochOrder

PLAN = PrivacyPlan(1.0, 2.0, FixedEpochs(3, 2), Tree(restart_every=3))
GIVEN: dict[str, Any] = {
    "examples": 12, "batch_size": 4, "plan": PLAN, "seed": 7, "drop_last": False
}  # fmt: skip
OTHERS: dict[str, list[Any]] = {
    "examples": [11, 10],
    "batch_size": [5],
    "plan": [
        PrivacyPlan(1.0, 2.5, FixedEpochs(3, 2), Tree(restart_every=3)),
        PrivacyPlan(1.0, 2.0, FixedEpochs(3, 2)),
        PrivacyPlan(1.0, 2.0, FixedEpochs(3, 2, reshuffle=False), Tree(restart_every=3)),
        PrivacyPlan(1.0, 2.0, FixedEpochs(3, 3), Tree(restart_every=3)),
        PrivacyPlan(1.0, 2.0, SinglePass(3)),
    ],
    "seed": [8, None],
    "drop_last": [True],
}


def order(**change: Any) -> EpochOrder:
    return EpochOrder(**{**GIVEN, **change})


@pytest.mark.parametrize("fact", OTHERS)
def test_the_fingerprint_tells_every_fact_apart(fact: str) -> None:
    assert GIVEN.keys() == OTHERS.keys()
    found = [order(**{fact: value}).fingerprint() for value in OTHERS[fact]]
    assert len({order().fingerprint(), *found}) == 1 + len(found)
    assert order().fingerprint() == order().fingerprint()


def test_the_hash_of_a_deal_is_that_of_its_permutation() -> None:
    same, other = order(), order(seed=8)
    assert same.deal_hash(1) == same.deal_hash(3) == order().deal_hash(2)
    assert same.deal_hash(1) != same.deal_hash(4)  # dealt afresh in the second tree
    assert same.deal_hash(1) != other.deal_hash(1) != order(seed=None).deal_hash(1)
    kept = order(plan=PrivacyPlan(1.0, 2.0, FixedEpochs(3, 2)))
    assert kept.deal_hash(1) == kept.deal_hash(6)
