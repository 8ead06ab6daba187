# SPDX-License-Identifier: Apache-2.0
"""A released plan whose floor refuses states the exact bound, which holds for it too."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import MinSeparation, compose
from dpftrl_fast.accounting.curve.rounding import text_up
from dpftrl_fast.run import RunAccount

SEPARATED = MinSeparation(5000, 12, 200)


def test_a_released_plan_states_the_exact_bound_where_its_own_floor_refuses() -> None:
    exact, released = (
        PrivacyPlan(1.0, 10.0, SEPARATED, bound=bound) for bound in ("exact", "released")
    )
    own = replace(released.guarantee, otherwise=None)
    with pytest.raises(ValueError, match="delta must be above the floor"):
        own.epsilon(1e-6, neighbours="replace-one")
    stated = released.epsilon(1e-6, neighbours="replace-one")
    assert stated == exact.epsilon(1e-6, neighbours="replace-one")
    assert round(stated, 2) == 29.50
    assert released.epsilon(1e-6) == own.epsilon(1e-6) < exact.epsilon(1e-6)
    assert f"epsilon {text_up(stated)} at delta 1e-06" in released.describe(1e-6)
    assert released.delta(stated, neighbours="replace-one") <= 1e-6 * (1 + 1e-9)
    assert compose([released] * 2).epsilon(1e-6, neighbours="replace-one") == compose(
        [exact] * 2
    ).epsilon(1e-6, neighbours="replace-one")
    account = RunAccount(released)
    assert account.epsilon(1e-6, neighbours="replace-one") == stated
    assert pickle.loads(pickle.dumps(released)).epsilon(1e-6, neighbours="replace-one") == stated


@given(
    steps=st.integers(1, 64),
    times=st.integers(1, 8),
    sigma=st.floats(0.3, 20.0),
    delta=st.floats(-15.0, -2.0).map(lambda x: 10**x),
    kind=st.sampled_from(["zero-out", "replace-one"]),
)
def test_the_fallback_is_never_below_both_valid_statements(
    steps: int, times: int, sigma: float, delta: float, kind: Any
) -> None:
    pattern = MinSeparation(steps, times, 4)
    exact, released = (
        PrivacyPlan(1.0, sigma, pattern, bound=bound) for bound in ("exact", "released")
    )
    own = replace(released.guarantee, otherwise=None)
    valid = [one for one in (own, exact) if delta > one.guarantee.floor(neighbours=kind)]
    if not valid:
        with pytest.raises(ValueError, match="delta must be above the floor"):
            released.epsilon(delta, neighbours=kind)
        return
    stated = released.epsilon(delta, neighbours=kind)
    figures = [one.epsilon(delta, neighbours=kind) for one in valid]
    assert stated in figures and stated >= min(figures)
    if delta > 2 * own.floor(neighbours=kind):
        assert stated == own.epsilon(delta, neighbours=kind)
    deltas = [one.delta(2.0, neighbours=kind) for one in (own, exact)]
    found = released.delta(2.0, neighbours=kind)
    assert found in deltas and found >= min(deltas)


def test_another_noise_is_that_of_both_guarantees() -> None:
    plan = PrivacyPlan(1.0, 5.0, MinSeparation(64, 4, 8), bound="released")
    less = plan.guarantee.with_noise(2.5)
    assert [one.mechanisms[0].noise_multiplier for one in (less, less.other)] == [2.5, 2.5]
    assert plan.guarantee.other.mechanisms[0].noise_multiplier == 5.0
    assert less.other.mu == pytest.approx(2 * plan.guarantee.other.mu)
