# SPDX-License-Identifier: Apache-2.0
"""What one client can change, what noise goes on it, and what is stated for it."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest
from mechanism_cases import TOEPLITZ
from numpy.typing import NDArray

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    SinglePass,
    noise_std,
    sensitivity_squared,
)
from dpftrl_fast.federated import PrivateRounds, ServerDPFTRL
from dpftrl_fast.mechanisms import Tree

SIZE = 40
MODEL = {"w": np.zeros((5, 7), np.float32), "b": np.zeros(5)}
KEY = bytes(range(32))
PLANS = {
    "single pass": PrivacyPlan(0.7, 2.0, SinglePass(11)),
    "one order": PrivacyPlan(
        0.7, 2.0, FixedEpochs(3, 4, False), mechanism=Tree(restart_every=6, complete=True)
    ),
    "reshuffled": PrivacyPlan(0.7, 2.0, FixedEpochs(3, 4), mechanism=Tree(restart_every=3)),
    "rests": PrivacyPlan(
        0.7, 2.0, MinSeparation(12, 5, 2), mechanism=Tree(variant="vanilla", restart_every=8)
    ),
}


def update_of(client: str, number: int, theta: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """A client's update, of any norm, which depends on the released model."""
    seed = hashlib.sha256(f"{client} {number}".encode() + theta.tobytes()).digest()
    generator = np.random.default_rng(list(seed))
    vector = generator.normal(size=SIZE) * 10.0 ** generator.integers(-3, 5)
    return {"w": vector[:35].reshape(5, 7).astype(np.float32), "b": vector[35:]}


def cohort(plan: PrivacyPlan, number: int) -> list[str]:
    pattern = plan.participation
    if isinstance(pattern, FixedEpochs):
        return [f"{(number - 1) % pattern.steps_per_epoch}-{i}" for i in range(6)]
    if isinstance(pattern, SinglePass):
        return [f"{number}-{i}" for i in range(6)]
    return [f"{i}" for i in range(6)]


def play(
    plan: PrivacyPlan, without: str | None = None, models: list[NDArray[np.float64]] | None = None
) -> tuple[list[Any], list[NDArray[np.float64]], list[tuple[str, ...]], float]:
    """Integers of each round, what left, cohorts and unit; models are those that clients were sent.

    A client that is left out is in the cohorts, and its updates are lost.
    """
    rounds = PrivateRounds(MODEL, plan=plan, report_goal=6, key=KEY, threads=1)
    sums, left, cohorts = [], [np.zeros(SIZE)], []
    for number in range(1, plan.steps + 1):
        now = rounds.begin_round(cohort(plan, number))
        sent = (left if models is None else models)[-1 if models is None else number - 1]
        for client in now.cohort:
            if client != without:
                assert now.add(client, update_of(client, number, sent)) is None
        sums.append(rounds._sums.sums.total.copy())
        cohorts.append(now.cohort)
        left.append(rounds.end_round())
    return sums, left, cohorts, rounds._sums.sums.unit


@pytest.mark.parametrize("kind", list(PLANS))
def test_a_client_changes_each_node_by_its_uses_of_it_and_all_by_zeta(kind: str) -> None:
    plan = PLANS[kind]
    sums, left, cohorts, unit = play(plan)
    client = cohorts[0][0]
    fewer, other, same, _ = play(plan, client, left)
    assert same == cohorts  # who takes part depends on nobody's updates
    differences = [a.astype(object) - b for a, b in zip(sums, fewer, strict=True)]
    uses = [client in names for names in cohorts]
    limit = int(plan.clip_norm / unit)  # in exact integers
    shifts = 0
    before = 0
    for run in plan.layout.runs:
        for _ in range(run.count):
            for level in range(run.end.bit_length()):
                for k in range(run.end >> level):
                    leaves = range(before + (k << level), before + min((k + 1) << level, run.steps))
                    node = sum((differences[t] for t in leaves), start=np.zeros(SIZE, object))
                    square = sum(int(x) ** 2 for x in node)
                    assert square <= (limit * sum(uses[t] for t in leaves)) ** 2
                    shifts += square
            before += run.steps
    assert 0 < shifts <= plan.sensitivity_squared * limit**2
    # The same noise: what left differs by the difference of the sums, on the grid that both are on.
    total = np.zeros(SIZE)
    grid = plan.noise_spec.grid("float32")
    for t, difference in enumerate(differences, 1):
        total += difference.astype(float) * unit
        moved = (left[t] - other[t]) * 6
        np.testing.assert_allclose(moved, total, rtol=0, atol=1.01 * max(grid, unit))


@pytest.mark.parametrize("kind", list(PLANS))
def test_epsilon_is_that_of_the_participation_that_was_recorded(kind: str) -> None:
    plan = PLANS[kind]
    rounds = PrivateRounds(MODEL, plan=plan, report_goal=6, key=KEY)
    names: dict[str, int] = {}
    steps = []
    for number in range(1, plan.steps + 1):
        now = rounds.begin_round(cohort(plan, number))
        steps.append([names.setdefault(client, len(names)) for client in now.cohort])
        rounds.end_round()
    recorded = FixedOrder.from_steps(steps)
    zeta = sensitivity_squared(recorded, plan.mechanism, bound=plan.bound)
    assert zeta <= plan.sensitivity_squared
    assert (zeta == plan.sensitivity_squared) == (kind != "rests") or zeta > 0
    listed = PrivacyPlan(0.7, 2.0, recorded, mechanism=plan.mechanism)
    assert listed.epsilon(1e-6) <= rounds.epsilon(1e-6) == plan.epsilon(1e-6)
    if zeta == plan.sensitivity_squared:
        assert listed.epsilon(1e-6) == pytest.approx(plan.epsilon(1e-6), rel=1e-9)


# ---- The noise of what leaves ----

WIDE = 40_000
CASES: dict[str, tuple[PrivacyPlan, float]] = {
    "one tree": (PrivacyPlan(0.5, 3.0, SinglePass(13)), 0.0),
    "momentum": (PrivacyPlan(0.5, 3.0, SinglePass(13), mechanism=Tree(variant="vanilla")), 0.9),
    "restarts": (PrivacyPlan(0.5, 3.0, SinglePass(13), mechanism=Tree(restart_every=5)), 0.9),
    "completed": (
        PrivacyPlan(0.5, 3.0, SinglePass(13), mechanism=Tree(restart_every=5, complete=True)),
        0.5,
    ),
    "taps": (PrivacyPlan(0.5, 3.0, SinglePass(13), TOEPLITZ["two taps"]), 0.9),
    "buffers": (PrivacyPlan(0.5, 3.0, SinglePass(13), TOEPLITZ["two buffers"]), 0.0),
    "blocks": (PrivacyPlan(0.5, 3.0, SinglePass(13), TOEPLITZ["a buffer, in blocks"]), 0.9),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", list(CASES))
def test_the_models_variance_is_that_of_the_closed_form(kind: str, dtype: Any) -> None:
    plan, momentum = CASES[kind]
    server = ServerDPFTRL(
        [np.zeros(WIDE)],
        plan=plan,
        report_goal=8,
        learning_rate=0.25,
        momentum=momentum,
        dtype=dtype,
        key=KEY,
        threads=1,
    )
    one = noise_std(
        plan.participation,
        plan.mechanism,
        momentum=momentum,
    )
    # noise_std has (1 - momentum) v_t for a node of standard deviation 1.
    want = one.smoothed / (1 - momentum) * (0.5 * 3.0) * 0.25 / 8
    spread = math.sqrt(2 / WIDE)  # of an estimated variance, relative
    for t in range(plan.steps):
        server.begin_round([])
        (theta,) = server.end_round()
        ratio = np.mean(theta**2) / want[t] ** 2
        assert abs(ratio - 1) < 5 * spread
        assert not abs(ratio / 0.97**2 - 1) < 5 * spread  # the test has the power to tell
        assert abs(theta.mean()) < 5 * want[t] / math.sqrt(WIDE)


def test_the_noise_of_two_rounds_shares_the_nodes_that_it_should() -> None:
    plan = PrivacyPlan(0.5, 3.0, SinglePass(8), mechanism=Tree(variant="vanilla"))
    server = ServerDPFTRL([np.zeros(WIDE)], plan=plan, report_goal=1, key=KEY)
    left = []
    for _ in range(8):
        server.begin_round([])
        left.append(server.end_round()[0] / 1.5)
    shared = {(1, 3): 0, (2, 3): 1, (4, 7): 1, (6, 7): 2, (7, 8): 0, (3, 5): 0}
    for (a, b), nodes in shared.items():
        assert np.mean(left[a - 1] * left[b - 1]) == pytest.approx(nodes, abs=6 * 2 / 200)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_bit_of_the_sum_lies_below_the_grid(dtype: Any) -> None:
    """A sum that is larger by less than the grid moves few values, and those by the grid."""
    plan, found = PrivacyPlan(1.0, 50.0, SinglePass(5)), []
    grid = plan.noise_spec.grid(dtype)
    assert grid == 0.25  # 50 sqrt(1/2)/128 = 0.276
    for small in (0.0, 2.0**-10):
        rounds = PrivateRounds([np.zeros(400)], plan=plan, report_goal=1, key=KEY, dtype=dtype)
        values = []
        for i in range(5):
            now = rounds.begin_round([i])
            now.add(i, [np.full(400, 0.01 + small)])
            values.append(rounds.end_round())
            assert (values[-1] % grid == 0).all()
        found.append(values)
    moved = np.abs(np.subtract(*found)) / grid
    assert set(np.unique(moved)) == {0.0, 1.0}
    # After t steps the sum is larger by t 2^-10, and so many of the values pass a boundary.
    assert np.mean(moved) == pytest.approx(3 * 2.0**-10 / grid, rel=0.5)


def test_every_value_of_noise_goes_on_one_sum_only() -> None:
    """Two runs have no noise in common, nor do the rounds of one."""
    plan = PrivacyPlan(0.5, 3.0, SinglePass(4), mechanism=Tree(restart_every=1))
    seen: list[NDArray[Any]] = []
    for _ in range(2):
        rounds = PrivateRounds([np.zeros(2000)], plan=plan, report_goal=1)
        for _ in range(4):
            rounds.begin_round([])
            seen.append(rounds.end_round("residual"))
    correlation = np.corrcoef(seen)
    assert np.abs(correlation - np.eye(8)).max() < 6 / math.sqrt(2000)
