# SPDX-License-Identifier: Apache-2.0
"""Toeplitz mechanisms in the rest of the accountant: floors, guards, ledgers, budgets, accounts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from toeplitz_oracle import block_lengths, strategy, use_sets

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.sensitivity.delta_floor import Touched, support_floor, touched
from dpftrl_fast.accounting.sensitivity.toeplitz_shifts import shifts
from dpftrl_fast.mechanisms import BandedInverse, BandedToeplitz, BufferedToeplitz, Identity
from dpftrl_fast.run.account import RunAccount

MECHANISMS = {
    "identity": Identity(),
    "square root": BandedInverse.square_root(4),
    "prefix": BandedInverse.anticorrelated(1.0),
    "rising buffer": BufferedToeplitz([0.99], [2.0]),
    "bands": BandedToeplitz([1.0, 0.5, 0.75]),
    "signed taps": BandedInverse([1.0, 0.4, -0.5, 0.2]),
    "signed bands": BandedToeplitz([0.5, -1.0, -0.25]),
}
PATTERNS = [
    acc.SinglePass(8),
    acc.FixedEpochs(2, 4),
    acc.FixedEpochs(3, 3, reshuffle=False),
    acc.FixedEpochs(5, 2, reshuffle=False),
    acc.MinSeparation(8, 8, 1),
    acc.MinSeparation(9, 3, 2),
    acc.MinSeparation(10, 3, 3),
    acc.MinSeparation(9, 2, 20),
]


# ---- The floor of delta ----


@pytest.mark.parametrize("every", [None, 1, 3, 4])
@pytest.mark.parametrize("name", MECHANISMS)
def test_shifts_are_bounded_for_every_pattern(name: str, every: int | None) -> None:
    mechanism = replace(MECHANISMS[name], restart_every=every)
    for pattern in PATTERNS:
        lengths = block_lengths(pattern.steps, every)
        # What contributions of norm 1 shift the noise of each step by, at most: all in one line.
        size = np.abs(strategy(mechanism, lengths))
        found = shifts(mechanism.layout(pattern.steps), pattern)
        for uses in use_sets(pattern):
            if uses:
                y = size[:, uses].sum(axis=1)
                assert np.count_nonzero(y) <= found.nodes <= pattern.steps
                assert y.sum() <= found.total
                assert y.max() <= found.largest


@pytest.mark.parametrize("name", MECHANISMS)
def test_shifts_are_bounded_for_an_order(name: str) -> None:
    generator = np.random.default_rng(2)
    for _ in range(20):
        listed = [generator.integers(0, 4, size=2).tolist() for _ in range(9)]
        order, every = acc.FixedOrder.from_steps(listed), int(generator.integers(3, 10))
        mechanism = replace(MECHANISMS[name], restart_every=every)
        size = np.abs(strategy(mechanism, block_lengths(9, every)))
        found = shifts(mechanism.layout(9), order)
        for one in range(4):
            uses = [t for t, step in enumerate(listed) for i in step if i == one]
            y = size[:, uses].sum(axis=1)
            assert np.count_nonzero(y) <= found.nodes
            assert y.sum() <= found.total
            assert y.max() <= found.largest


def test_the_floor_of_long_runs_is_small() -> None:
    mechanism, pattern = BufferedToeplitz([0.98], [0.3]), acc.MinSeparation(2000, 20, 100)
    found = shifts(mechanism.layout(2000), pattern)
    assert (found.nodes, found.total, found.largest) == (2000, 320 + 1, 2)
    plan = PrivacyPlan.calibrate(
        participation=pattern, mechanism=mechanism, epsilon=8.0, delta=1e-5, clip_norm=1.0
    )
    assert plan.epsilon(1e-5) <= 8.0
    assert plan.delta_floor < 1e-9


def test_float64_noise_has_a_rarer_tail() -> None:
    pattern = acc.SinglePass(2**46)
    slow = BufferedToeplitz([1.0 - 2.0**-40], [2.0**-20])  # no float32 number is as close to 1
    assert touched(slow.layout(2**46), pattern) == Touched(1, 1, 1)
    assert shifts(slow.layout(2**46), pattern).nodes == 2**46
    rounded = slow.rounded("float32").layout(2**46)
    assert touched(rounded, pattern) == shifts(rounded, pattern)
    assert support_floor(1.0, 2.0, touched(rounded, pattern)) == 1.0  # float32 noise: no statement
    plan = PrivacyPlan(1.0, 4.0, pattern, slow)
    assert plan.delta_floor < 1e-12
    with pytest.raises(ValueError, match="must be float32 numbers for float32 noise"):
        plan.noise(1)
    assert plan.noise(1, dtype="float64").steps == 2**46
    # A decay that no float32 number above 0 is near: its noise is float64, too.
    assert touched(BufferedToeplitz([1e-60], [0.5]).layout(9), acc.SinglePass(9)).nodes == 1


@pytest.mark.parametrize("shift", [1e-3, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.9])
def test_the_rarer_tail_against_the_probabilities_themselves(shift: float) -> None:
    """Mass beyond a disc moved by a shift, for radii up to sqrt(256 ln 2), at 50 digits."""
    with mpmath.workdps(50):
        radius = mpmath.sqrt(256 * mpmath.log(2))
        lost = mpmath.exp(-((radius - shift) ** 2) / 2) - mpmath.exp(-(radius**2) / 2)
        most = (1.5 * 2.0**-64 * float(radius) * shift * 2.0**-64) + lost
        assert most <= support_floor(1.0 / shift, 1.0, Touched(1, 1, 1))


def test_a_floor_of_other_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="must have the 8 steps of the participation, got 9"):
        touched(Identity().layout(9), acc.SinglePass(8), "exact")
    with pytest.raises(ValueError, match="bound must be one of"):
        touched(Identity().layout(8), acc.SinglePass(8), "level")


# ---- Guards and ledgers ----


def test_a_guard_takes_a_new_order_in_each_block_only() -> None:
    guard = acc.Guard(acc.FixedEpochs(2, 4), BandedInverse.square_root(2, restart_every=4))
    for ids in ([1], [2], [1], [2]):
        guard.admit(ids)
    guard.admit([2])  # the first step of the second block
    guard.admit([1])
    with pytest.raises(ValueError, match="step 7 must have"):
        guard.admit([1])
    again = acc.Guard(acc.FixedEpochs(2, 4), BandedInverse.square_root(2, restart_every=4))
    again.load_state_dict(guard.state_dict())
    assert again.steps_taken == 6
    with pytest.raises(ValueError, match="state must have declaration"):
        acc.Guard(acc.FixedEpochs(2, 4), BandedInverse.square_root(2)).load_state_dict(
            guard.state_dict()
        )


def test_a_ledger_states_the_declared_figure() -> None:
    pattern, mechanism = acc.MinSeparation(20, 3, 5), BandedInverse.square_root(4)
    ledger = acc.Ledger(pattern, 4.0, mechanism=mechanism)
    ledger.record([1, 2])
    zeta = acc.sensitivity_squared(pattern, mechanism)
    assert ledger.epsilon_spent(1e-5) >= acc.epsilon(4.0, zeta, 1e-5)
    again = acc.Ledger(pattern, 4.0, mechanism=mechanism)
    again.load_state_dict(ledger.state_dict())
    with pytest.raises(ValueError, match="state must have declaration"):
        acc.Ledger(pattern, 4.0, mechanism=BandedInverse.square_root(5)).load_state_dict(
            ledger.state_dict()
        )
    with pytest.raises(TypeError, match="no realised values are registered for"):
        acc.Ledger(pattern, 4.0, mechanism=mechanism, realised=True)


def test_runs_compose() -> None:
    plans = [
        PrivacyPlan(1.0, 4.0, acc.SinglePass(100), BandedInverse.square_root(4)),
        PrivacyPlan(1.0, 4.0, acc.SinglePass(100)),
    ]
    together = acc.compose(plans)
    assert together.mu**2 == pytest.approx(sum(plan.mu**2 for plan in plans))
    pytest.importorskip("dp_accounting")
    assert acc.dp_event(4.0, plans[0].sensitivity_squared) is not None


# ---- Longest runs ----


def test_longest_runs_of_a_mechanism_of_any_length() -> None:
    mechanism = BufferedToeplitz([0.98], [0.3])
    steps = acc.largest_steps(
        8.0, 1e-5, 5.0, max_participations=10**6, min_separation=100, mechanism=mechanism
    )
    for n, within in ((steps, True), (steps + 1, False)):
        plan = PrivacyPlan(1.0, 5.0, acc.MinSeparation(n, 10**6, 100), mechanism)
        assert (plan.epsilon(1e-5) <= 8.0) is within
    epochs = acc.largest_epochs(8.0, 1e-5, 5.0, 100, mechanism=mechanism)
    assert steps // 100 <= epochs <= steps // 100 + 1
    assert acc.largest_steps(8.0, 1e-5, 1.0, mechanism=Identity()) == 2**40


def test_longest_runs_of_taps_are_refused() -> None:
    with pytest.raises(TypeError, match="mechanism must fit any number of steps"):
        acc.largest_steps(8.0, 1e-5, 5.0, mechanism=BandedInverse.square_root(4))
    wrong: Any = Identity()
    with pytest.raises(TypeError, match="mechanism must be a Tree"):
        acc.largest_trees(8.0, 1e-5, 5.0, 10, mechanism=wrong)


# ---- Recoveries ----


@pytest.mark.parametrize("every", [None, 25, 40])
@pytest.mark.parametrize(
    "pattern",
    [
        acc.SinglePass(100),
        acc.FixedEpochs(20, 5),
        acc.FixedEpochs(20, 5, reshuffle=False),
        acc.MinSeparation(100, 4, 10),
        acc.FixedOrder(np.arange(100) % 30),
    ],
)
def test_recoveries_add_a_block(pattern: Any, every: int | None) -> None:
    mechanism = BandedInverse.square_root(4, restart_every=every)
    plan = PrivacyPlan(1.0, 5.0, pattern, mechanism)
    spare = RunAccount(plan, spare_recoveries=1)
    after = spare.recovered(last=57, step=52)
    assert after.guarantee is not None
    assert plan.epsilon(1e-5) < after.epsilon(1e-5) == spare.epsilon(1e-5)
    none = RunAccount(plan)
    with pytest.raises(ValueError, match="this recovery is not covered"):
        none.recovered(last=57, step=52)
    epsilon = none.epsilon_after(57, 52, 1e-5)
    assert plan.epsilon(1e-5) < epsilon <= spare.epsilon(1e-5)
    assert none.recovered(57, 52, accept_epsilon=(epsilon, 1e-5)).epsilon(1e-5) == epsilon
