# SPDX-License-Identifier: Apache-2.0
"""Federated runs with the noise of every mechanism, against matrices and their own restarts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federated_run import DELTA, GOAL, KEY, START, packed, trained
from mechanism_cases import MECHANISMS, TOEPLITZ
from noise_oracle import noise_of_sums, strategy_of, toeplitz_sums

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, FixedOrder, MinSeparation, SinglePass
from dpftrl_fast.federated import AdaptiveClipping, PrivateRounds, ServerDPFTRL
from dpftrl_fast.federated.sums.running_sum import block_key
from dpftrl_fast.mechanisms import BandedInverse, Mechanism, Tree

STEPS = 10
CLIP, SIGMA = 0.5, 3.0
BLOCKS = [name for name in TOEPLITZ if "blocks" in name]
ONE_BLOCK = [name for name in TOEPLITZ if "blocks" not in name]


def plan_of(mechanism: Mechanism, participation: Any = None) -> PrivacyPlan:
    return PrivacyPlan(CLIP, SIGMA, participation or SinglePass(STEPS), mechanism)


def server(plan: PrivacyPlan, folder: Path | None = None, **options: Any) -> ServerDPFTRL:
    options = {"key": KEY, "threads": 1, "checkpoint_every": 3, **options}
    return ServerDPFTRL(START, plan=plan, report_goal=GOAL, folder=folder, **options)


def play(run: ServerDPFTRL, rounds: int, salt: str = "") -> None:
    for _ in range(rounds):
        number = run.rounds_done + 1
        now = run.begin_round([f"{salt}{number}-{i}" for i in range(5)])
        for client in now.cohort:
            now.add(client, trained(client, number, run.parameters))
        run.end_round()


# ---- The values that leave ----


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_rounds_are_the_clipped_sums_and_the_noise_of_the_matrix(name: str, dtype: Any) -> None:
    size, plan = 40, plan_of(MECHANISMS[name], MinSeparation(STEPS, 4, 3))
    rounds = PrivateRounds([np.zeros(size)], plan=plan, report_goal=8, key=KEY, dtype=dtype)
    noise = noise_of_sums(plan, size, KEY, dtype)
    total, generator = np.zeros(size), np.random.default_rng(1)
    clip = CLIP * (1 - 2.0**-20)
    # A float32 running sum of ten steps is rounded in each; released values once more.
    tolerance = 3e-5 if dtype == "float32" else 2e-8
    for number in range(STEPS):
        now = rounds.begin_round(range(3 * (number % 3), 3 * (number % 3) + 3))
        assert len(now.cohort) == 3
        for client in now.cohort:
            update = generator.normal(size=size)
            assert now.add(client, [update]) is None
            total += update * (clip / np.linalg.norm(update))
        value = rounds.end_round()
        np.testing.assert_allclose(8 * value, total + noise[number], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", MECHANISMS)
def test_released_values_lie_on_the_grid_of_the_noise(name: str) -> None:
    plan = plan_of(MECHANISMS[name])
    rounds = PrivateRounds([np.zeros(200)], plan=plan, report_goal=1, key=KEY, threads=1)
    noise = plan.noise(200, key=KEY, threads=1)
    for _ in range(STEPS):
        rounds.begin_round([])
        value, own = rounds.end_round(), noise.step()
        assert (value % noise.grid == 0).all()
        assert np.abs(value - own).max() <= noise.grid / 2
        assert 90 < own.std() / noise.grid < 5000


def test_coefficients_that_the_noise_cannot_hold_are_refused_before_a_folder_is_made(
    tmp_path: Path,
) -> None:
    plan = plan_of(BandedInverse((1.0, -0.1)))
    with pytest.raises(ValueError, match=r"make the plan with mechanism.rounded\('float32'\)"):
        server(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    server(plan, tmp_path / "run", dtype="float64").close()
    blocks = plan_of(BandedInverse((1.0, -0.1), restart_every=4))
    with pytest.raises(ValueError, match=r"make the plan with mechanism.rounded\('float32'\)"):
        server(blocks, clipping=AdaptiveClipping(5.0))


# ---- Participation ----


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_new_order_of_the_users_comes_with_a_new_block_only(name: str) -> None:
    mechanism = MECHANISMS[name]
    rounds = PrivateRounds(
        [np.zeros(2)], plan=plan_of(mechanism, FixedEpochs(4, 3)), report_goal=1, key=KEY
    )
    every = getattr(mechanism, "restart_every", None)
    for number in range(12):
        # In each epoch one place later than in the one before.
        wanted = [f"user {(number - number // 4) % 4}"]
        now = rounds.begin_round(wanted)
        assert len(now.cohort) == (1 if every == 4 or number < 4 else 0)
        rounds.abandon_round()
        held = [f"user {number % 4}"] if every is None else wanted
        assert len(rounds.begin_round(held).cohort) == 1
        rounds.end_round()


# ---- Folders ----


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_run_goes_on_from_its_folder_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # no power is lost here
    plan = plan_of(MECHANISMS[name])
    whole = server(plan, momentum=0.9)
    play(whole, STEPS)
    # Within a block, where it ends, and after its first round; a checkpoint every three rounds.
    done = 0
    for rounds, memory in ((2, "stored"), (2, "regenerate"), (1, 1), (5, "stored")):
        with server(plan, tmp_path / "run", momentum=0.9, memory=memory) as run:
            assert run.rounds_done == done
            play(run, rounds)
        done += rounds
    assert packed(run.parameters) == packed(whole.parameters)
    assert run.epsilon(DELTA) == whole.epsilon(DELTA) == plan.epsilon(DELTA)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_folder_of_another_mechanism_is_refused(name: str, tmp_path: Path) -> None:
    plan = plan_of(MECHANISMS[name])
    server(plan, tmp_path / "run").close()
    names = list(MECHANISMS)
    other = plan_of(MECHANISMS[names[names.index(name) - 1]])
    words = (
        "differ in plan; .* of another mechanism: give (mechanism=.*|the mechanism) of the saved"
    )
    with pytest.raises(ValueError, match=words):
        server(other, tmp_path / "run")
    server(plan, tmp_path / "run").close()


# ---- Fresh noise ----


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("name", TOEPLITZ)
def test_a_recovery_keeps_the_noise_before_it_and_owes_both_stretches(
    name: str, tmp_path: Path
) -> None:
    plan = plan_of(TOEPLITZ[name])
    given: dict[str, Any] = {"spare_recoveries": 1, "dtype": "float64"}

    def empty(run: ServerDPFTRL, rounds: int) -> Any:
        for _ in range(rounds):
            run.begin_round([])
            run.end_round()
        return run.parameters["b"] * GOAL

    with server(plan, tmp_path / "run", **given) as run:
        empty(run, 3)
        run.checkpoint()
        empty(run, 2)
    with server(plan, tmp_path / "run", recover=True, **given) as run:
        assert run.account.abandoned == ((1, 5),) and run.rounds_done == 3
        fresh = bytes.fromhex(run._rounds._sums.running._noise.state_dict()["key"])
        assert fresh != KEY
        found = [empty(run, 1) for _ in range(3)]
    with server(plan, tmp_path / "run", **given) as run:  # and once more, in the new stretch
        found += [empty(run, 1) for _ in range(4)]
        assert run.epsilon(DELTA) == run.account.epsilon(DELTA)
        owed = run.account.happened.mu_squared
    before = toeplitz_sums(plan, 9, KEY, [min(5, b) for b in (4, 4, 2)] if plan.layout.count > 1
                           else [10])[2, 6:]  # fmt: skip
    # Steps 4 .. 10 anew: the first block is cut where the plan would have ended it.
    lengths = [1, 4, 2] if plan.layout.count > 1 else [7]
    after = before + toeplitz_sums(plan, 9, fresh, lengths)[:, 6:]
    np.testing.assert_allclose(found, after, rtol=0, atol=1e-7)
    squares = (strategy_of(plan.mechanism, 10) ** 2).cumsum(axis=0)[:, 0]
    longest = [(4, 4), (5, 7)][plan.layout.count == 1]
    zeta = sum(squares[steps - 1] for steps in longest)
    assert owed == pytest.approx(zeta / SIGMA**2, rel=1e-6) and owed >= zeta / SIGMA**2


# ---- Clip norms that change ----


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("name", BLOCKS)
def test_each_block_has_noise_of_its_own_clip_norm_and_the_carry_stays(name: str) -> None:
    size, plan = 300, plan_of(TOEPLITZ[name])
    clipping = AdaptiveClipping(noise_multiplier=1.0, quantile=0.9, learning_rate=1.0)
    rounds = PrivateRounds(
        [np.zeros(size)], plan=plan, report_goal=1, clipping=clipping, key=KEY, dtype="float64"
    )
    left, norms = [], []
    for _ in range(STEPS):
        norms.append(rounds.clip_norm)
        rounds.begin_round([])
        left.append(rounds.end_round())
    assert norms[0] == norms[3] != norms[4] == norms[7] != norms[8] and norms[0] == CLIP
    carry = np.zeros(size)
    for block, steps in enumerate((4, 4, 2)):
        key, scale = block_key(KEY, "tree", block), norms[4 * block] / CLIP
        own = scale * toeplitz_sums(plan, size, key, [steps])
        stretch = left[4 * block : 4 * block + steps]
        np.testing.assert_allclose(stretch, carry + own, rtol=0, atol=2e-7 * scale)
        carry = carry + own[-1]


@pytest.mark.parametrize("name", BLOCKS)
def test_readings_cost_what_they_cost_with_trees(name: str) -> None:
    clipping = AdaptiveClipping(noise_multiplier=2.0)
    order = FixedOrder.from_steps([[1], [2], [1], [1], [2], [1], [1], [2], [1], [3]])
    epochs = FixedEpochs(5, 2)
    for pattern in (SinglePass(10), MinSeparation(10, 4, 2), epochs, order):
        plan = plan_of(TOEPLITZ[name], pattern)
        trees = plan_of(Tree(restart_every=4), pattern)
        assert clipping.guarantee(plan) == clipping.guarantee(trees)
        both = clipping.composition(plan).mu_squared
        readings = clipping.sensitivity_squared(plan) / 2.0**2
        assert both == pytest.approx(plan.sensitivity_squared / SIGMA**2 + readings, rel=1e-12)


@pytest.mark.parametrize("name", ONE_BLOCK)
def test_one_block_has_one_clip_norm(name: str) -> None:
    plan = plan_of(TOEPLITZ[name])
    with pytest.raises(ValueError, match=r"with restarts, .* got .*: give the mechanism a"):
        server(plan, clipping=AdaptiveClipping(5.0))
