# SPDX-License-Identifier: Apache-2.0
"""The mechanism for a stream without a declared end: its price against known ends."""

import math
from pathlib import Path

import horizon_table
import numpy as np
import pytest

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast import mechanisms as mech
from dpftrl_fast.accounting.planner.choice import chosen_mechanism
from dpftrl_fast.mechanisms.toeplitz.long_run import (
    Grid,
    known_end,
    ratios,
    search,
    single_pass_buffers,
    squared_norm,
)

PAGE = Path(__file__).parents[2] / "docs" / "plan" / "horizon.md"
UNBOUNDED = mech.BufferedToeplitz.unbounded()
FOREVER = acc.SinglePass.unbounded()
ENDS = np.unique(np.geomspace(100, 10**13, 300).round().astype(np.int64))


def test_it_keeps_ten_vectors_and_is_of_float64_numbers():
    assert UNBOUNDED.vectors == 10 and UNBOUNDED.normals == 1
    assert not UNBOUNDED.is_in("float32") and UNBOUNDED.is_in("float64")
    assert mech.mechanism_from_dict(UNBOUNDED.to_dict()) == UNBOUNDED
    with pytest.raises(ValueError, match="must be 'float64' for a stream without a declared end"):
        mech.BufferedToeplitz.unbounded("float32")


def test_one_figure_covers_every_step():
    plan = PrivacyPlan(1.0, 4.0, FOREVER, UNBOUNDED)
    assert FOREVER.steps == 2**46
    assert plan.sensitivity_squared == pytest.approx(4.0922, abs=1e-4)
    assert plan.epsilon(1e-6) == pytest.approx(2.2825, abs=1e-4)
    assert plan.delta_floor < 1e-12
    assert "first step of the longest block, exact" in plan.describe(1e-6)
    fitted = PrivacyPlan.calibrate(
        epsilon=1.0, delta=1e-9, clip_norm=1.0, participation=FOREVER, mechanism=UNBOUNDED
    )
    assert 0.999 < fitted.epsilon(1e-9) <= 1.0
    assert PrivacyPlan.from_dict(plan.to_dict()) == plan


@pytest.mark.parametrize("end", [10**3, 10**4, 10**5])
def test_at_most_one_and_a_third_of_the_planner_s_choice_for_a_known_end(end):
    pattern = acc.SinglePass(end)
    known = chosen_mechanism("auto", pattern, 1.0, 1e-6)
    zeta = acc.sensitivity_squared(pattern, known), acc.sensitivity_squared(FOREVER, UNBOUNDED)
    errors = acc.mechanism_error(known, end), acc.mechanism_error(UNBOUNDED, end)
    price = math.sqrt(zeta[1] / zeta[0])
    assert 1.2 < price * errors[1].rms / errors[0].rms < 1.3
    assert 1.2 < price * errors[1].last / errors[0].last < 1.3


def test_the_largest_price_up_to_ten_to_the_13():
    last, rms = ratios(UNBOUNDED, ENDS)
    assert 1.3 < max(last.max(), rms.max()) < 1.33
    at_the_end = ratios(UNBOUNDED, np.array([2**40, 2**46]))
    assert max(each[0] for each in at_the_end) < 1.31
    assert max(each[1] for each in at_the_end) < 1.46


@pytest.mark.slow
def test_the_search_finds_nothing_better_and_nothing_worse():
    found = max(each.max() for each in ratios(search(10), ENDS))
    kept = max(each.max() for each in ratios(UNBOUNDED, ENDS))
    assert found == pytest.approx(kept, rel=2e-3)


def test_a_short_search_comes_close():
    last, rms = ratios(search(4, powers=(30,)), ENDS)
    assert max(last.max(), rms.max()) < 1.9


def test_ratios_against_every_step():
    """The grid and the asymptotic sums against sums over all steps."""
    end = 20_000
    error = acc.mechanism_error(UNBOUNDED, end)
    j = np.arange(1, end)
    squares = np.cumsum(np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))]) ** 2)
    root = squares[-1], math.sqrt(squares[-1] * squares.mean())
    known = known_end(np.array([float(end)]))
    assert [each[0] for each in known] == pytest.approx(root, rel=1e-4)
    zeta = acc.sensitivity_squared(FOREVER, UNBOUNDED)
    last, rms = ratios(UNBOUNDED, np.array([end]))
    assert last[0] == pytest.approx(math.sqrt(zeta) * error.last / root[0], rel=1e-3)
    assert rms[0] == pytest.approx(math.sqrt(zeta) * error.rms / root[1], rel=1e-3)


def test_squared_norms_against_the_accountant():
    for steps in (2, 100, 2**46):
        found = squared_norm(1.0 - np.array(UNBOUNDED.decay), np.array(UNBOUNDED.scale), steps)
        assert found == pytest.approx(
            acc.sensitivity_squared(acc.SinglePass(steps), UNBOUNDED), rel=1e-12
        )


def test_means_over_a_grid():
    grid = Grid(10**6)
    assert grid.steps[0] == 1 and grid.steps[-1] == 10**6 and 140 < grid.steps.size < 170
    found = grid.means(np.log(grid.steps))
    assert found[-1] == pytest.approx(math.lgamma(10**6 + 1) / 10**6, rel=1e-3)


@pytest.mark.parametrize("rank_by", ["rms", "last"])
def test_buffers_of_a_long_run_are_as_good_as_those_of_the_optimiser(rank_by):
    pattern = acc.SinglePass(30_000)

    def score(mechanism):
        zeta = acc.sensitivity_squared(pattern, mechanism)
        return math.sqrt(zeta) * getattr(acc.mechanism_error(mechanism, pattern), rank_by)

    by_steps = mech.optimise("buffers", pattern, size=3, rank_by=rank_by)
    for dtype in ("float32", "float64"):
        by_grid = single_pass_buffers(pattern.steps, 3, rank_by=rank_by, dtype=dtype)
        assert by_grid.is_in(dtype)
        assert score(by_grid) == pytest.approx(score(by_steps), rel=5e-3)


def test_the_noise_of_a_stream_resumes():
    plan = PrivacyPlan(1.0, 4.0, FOREVER, UNBOUNDED)
    noise = plan.noise(3, seed=1, dtype="float64")
    for _ in range(20):
        noise.step()
    again = plan.noise(3, seed=1, dtype="float64")
    again.load_state_dict(noise.state_dict())
    assert (again.step() == noise.step()).all() and noise.steps == 2**46
    with pytest.raises(ValueError, match="must be float32 numbers for float32 noise"):
        plan.noise(3)


def test_the_noise_has_the_variance_that_is_stated():
    plan = PrivacyPlan(1.0, 4.0, FOREVER, UNBOUNDED)
    noise = plan.noise(20_000, seed=2, dtype="float64", threads=1)
    for step in range(1, 301):
        found = noise.step()
        if step in (1, 10, 300):
            expected = 4.0 * acc.noise_std_at([step], FOREVER, UNBOUNDED)[0]
            assert found.std() == pytest.approx(expected, rel=0.02)
            assert found.std() != pytest.approx(0.95 * expected, rel=0.02)


def test_the_tables_of_the_page():
    text = PAGE.read_text()
    for rows in (horizon_table.growing(), horizon_table.by_buffers()):
        assert horizon_table.table(rows) in text


@pytest.mark.slow
def test_the_prices_of_the_page():
    assert horizon_table.table(horizon_table.prices()) in PAGE.read_text()


def test_blocks_against_sums_over_every_step():
    """Blocks of 4, 8 and 16 steps, with square roots: the noise matrix of a whole run."""
    j = np.arange(1, 16)
    root = np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])
    variance, start = np.zeros(28), 0
    for length in (4, 8, 16):
        zeta = root[:length] @ root[:length]
        within = zeta * np.cumsum(root[:length] ** 2)
        variance[start : start + length] += within
        variance[start + length :] += within[-1]
        start += length
    found = horizon_table.in_blocks(np.arange(1.0, 29.0), first=4.0, double=True)
    assert found == pytest.approx(np.sqrt(variance), rel=1e-12)


@pytest.mark.parametrize("buffers", range(2, 11))
def test_every_number_of_buffers(buffers):
    mechanism = mech.BufferedToeplitz.unbounded(buffers=buffers)
    assert mechanism.vectors == buffers and not mechanism.is_in("float32")
    with pytest.raises(ValueError, match="buffers must be an integer in"):
        mech.BufferedToeplitz.unbounded(buffers=buffers + 9)
