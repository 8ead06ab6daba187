# SPDX-License-Identifier: Apache-2.0
"""The noise of plans with Toeplitz mechanisms: blocks, horizon, states, dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mechanism_cases import MECHANISMS, TOEPLITZ

from dpftrl_fast import PrivacyPlan, ToeplitzNoise
from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.planner.choice import TreeSearch
from dpftrl_fast.accounting.planner.mechanisms import best_mechanism
from dpftrl_fast.accounting.sensitivity.squared import rule_of
from dpftrl_fast.mechanisms import BandedInverse, Mechanism
from dpftrl_fast.plan.planned_noise import PlannedToeplitz

STEPS = 10


def plan_of(mechanism: Mechanism, steps: int = STEPS) -> PrivacyPlan:
    return PrivacyPlan(0.5, 3.0, acc.SinglePass(steps), mechanism)


@pytest.mark.parametrize("name", TOEPLITZ)
def test_the_noise_is_that_of_the_mechanism_in_its_blocks(name: str) -> None:
    mechanism: Any = TOEPLITZ[name]
    plan = plan_of(mechanism)
    noise = plan.noise(50, seed=3, offset=7)
    assert isinstance(noise, PlannedToeplitz) and noise.steps == STEPS
    bare = ToeplitzNoise(50, 1.5, mechanism, seed=3, offset=7)
    every = mechanism.restart_every or STEPS
    for step in range(1, STEPS + 1):
        if step > 1 and (step - 1) % every == 0:
            bare.restart()
        assert (noise.step() == bare.step()).all()
        assert (noise.steps_taken, noise.t) == (step, (step - 1) % every + 1)
        assert (noise.current() == bare.current()).all()
    with pytest.raises(ValueError, match="all 10 declared steps are taken"):
        noise.residual()


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_saved_run_goes_on(name: str, dtype: Any) -> None:
    plan = plan_of(MECHANISMS[name])
    whole = plan.noise(30, seed=5, dtype=dtype)
    expected = [whole.residual() for _ in range(STEPS)]
    for stop in range(STEPS):
        first = plan.noise(30, seed=5, dtype=dtype)
        for _ in range(stop):
            first.residual()
        second = plan.noise(30, seed=6, dtype=dtype, memory="regenerate")
        second.load_state_dict(first.state_dict())
        assert [(second.residual() == x).all() for x in expected[stop:]] == [True] * (STEPS - stop)


@pytest.mark.parametrize("name", MECHANISMS)
def test_steps_are_the_sum_of_residuals(name: str) -> None:
    steps = plan_of(MECHANISMS[name]).noise(1000, seed=1, dtype="float64")
    residuals = plan_of(MECHANISMS[name]).noise(1000, seed=1, dtype="float64")
    total = np.zeros(1000)
    for _ in range(STEPS):
        total += residuals.residual()
        np.testing.assert_allclose(steps.step(), total, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", TOEPLITZ)
def test_the_noise_at_the_end_of_a_block_is_carried(name: str) -> None:
    mechanism: Any = TOEPLITZ[name]
    noise = plan_of(mechanism).noise(20, seed=2)
    every = mechanism.restart_every or STEPS
    for _ in range(every):
        last = noise.step()
    assert (noise.carried() == last).all() and (noise.prefix(every) == last).all()
    with pytest.raises(ValueError, match=rf"t must be at most {every}, where the plan ends this"):
        noise.prefix(every + 1)
    with pytest.raises(ValueError, match=rf"t must be at most {every}, where the plan ends this"):
        noise.advance_to(every + 1)
    with pytest.raises(ValueError, match=r"this block restarts (never|by itself, 2 times)"):
        noise.restart()


def test_states_of_another_mechanism_or_plan_are_refused() -> None:
    states = {name: plan_of(MECHANISMS[name]).noise(5, seed=1).state_dict() for name in MECHANISMS}
    for name in TOEPLITZ:
        noise = plan_of(TOEPLITZ[name]).noise(5, seed=1)
        for other, state in states.items():
            if states[name].get("mechanism") != state.get("mechanism"):
                with pytest.raises(ValueError, match=r"state (has|lacks)"):
                    noise.load_state_dict(state)
            assert (noise.t, other) == (0, other)
    blocks = plan_of(TOEPLITZ["two taps, in blocks"]).noise(5, seed=1)
    for _ in range(6):
        blocks.step()
    one = plan_of(TOEPLITZ["two taps"]).noise(5, seed=1)
    with pytest.raises(
        ValueError, match="state must be of a run of 10 steps in the plan's 1 block"
    ):
        one.load_state_dict(blocks.state_dict())


def test_coefficients_must_be_numbers_of_the_noise() -> None:
    mechanism = BandedInverse((1.0, -0.9))
    plan = plan_of(mechanism)
    assert plan.noise(5, dtype="float64").mechanism == mechanism  # type: ignore[attr-defined]
    with pytest.raises(
        ValueError, match=r"must be float32 numbers for float32 noise: .*rounded\('float32'\)"
    ):
        plan.noise(5)
    rounded = plan_of(mechanism.rounded("float32"))
    assert rounded.noise(5).step().dtype == np.float32
    assert rounded.sensitivity_squared != plan.sensitivity_squared


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_plan_states_its_epsilon_and_is_read_back(name: str) -> None:
    plan = PrivacyPlan.calibrate(
        epsilon=2.0, delta=1e-6, clip_norm=1.0, participation=acc.FixedEpochs(5, 4),
        mechanism=MECHANISMS[name],
    )  # fmt: skip
    assert plan.epsilon(1e-6) <= 2.0 < plan.epsilon(1e-6) * (1 + 1e-9)
    assert PrivacyPlan.from_dict(plan.to_dict()) == plan
    assert plan.layout.describe() in plan.describe(1e-6)
    guard = plan.guard()
    guard.admit([3])


@pytest.mark.parametrize("name", TOEPLITZ)
def test_a_plan_file_of_each_mechanism(name: str, tmp_path: Path) -> None:
    plan = plan_of(TOEPLITZ[name])
    plan.save(tmp_path / "plan.json")
    assert PrivacyPlan.load(tmp_path / "plan.json") == plan
    written = plan.to_dict()
    assert written["version"] == 3 and "restart_every" not in written
    other = {**written, "mechanism": {**written["mechanism"], "version": 2}}
    with pytest.raises(ValueError, match="must be of version 1, got 2"):
        PrivacyPlan.from_dict(other)
    for version in (1, 4, "3"):
        with pytest.raises(ValueError, match="version must be 2 or 3, got"):
            PrivacyPlan.from_dict({**written, "version": version})
    with pytest.raises(ValueError, match="a plan must have the keys"):
        PrivacyPlan.from_dict({**written, "version": 2})


@pytest.mark.parametrize("name", TOEPLITZ)
def test_a_plan_names_its_rule_of_sensitivity(name: str) -> None:
    plan = PrivacyPlan(1.0, 3.0, acc.FixedEpochs(5, 4), TOEPLITZ[name])
    text = plan.describe(1e-6)
    assert f"({rule_of(plan.layout, plan.participation, 'exact')}), mu" in text
    zeta = float(text.split("zeta ")[1].split(" ")[0])
    assert plan.sensitivity_squared <= zeta <= plan.sensitivity_squared * 1.001


@pytest.mark.parametrize("choice", ["auto", "tree"])
def test_a_calibrated_plan_has_the_chosen_mechanism(choice: Any) -> None:
    pattern, workload = acc.FixedEpochs(20, 5), acc.Workload(0.9)
    plan = PrivacyPlan.calibrate(
        epsilon=2.0, delta=1e-6, clip_norm=1.0, participation=pattern, mechanism=choice,
        workload=workload, max_vectors=1,
    )  # fmt: skip
    assert plan.epsilon(1e-6) <= 2.0 < plan.epsilon(1e-6) * (1 + 1e-9)
    if choice == "tree":
        best: Mechanism = TreeSearch().best(pattern, 2.0, 1e-6, momentum=0.9, bound="exact")
    else:
        best = best_mechanism(2.0, 1e-6, pattern, workload=workload, max_vectors=1)
    assert plan.mechanism == best
    with pytest.raises(ValueError, match="mechanism must be 'auto', 'tree' or a mechanism"):
        PrivacyPlan.calibrate(
            epsilon=2.0, delta=1e-6, clip_norm=1.0, participation=pattern, mechanism="best",  # type: ignore[arg-type]
        )  # fmt: skip
