# SPDX-License-Identifier: Apache-2.0
"""Exact sums and the grid of released sums."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.mechanisms import BandedToeplitz, Tree
from dpftrl_fast.rounding import noisy_sum, release_grid, to_grid


@given(st.floats(1e-280, 1e300))
def test_the_grid_is_the_largest_power_of_two_below_a_128th(std: float) -> None:
    grid = release_grid(std)
    assert math.frexp(grid)[0] == 0.5
    assert 128 * Fraction(grid) <= Fraction(std) < 256 * Fraction(grid)


def test_the_grid_of_the_smallest_noise_can_divide_a_sum() -> None:
    assert release_grid(5e-324) == release_grid(1e-300) == 2.0**-960
    assert np.isfinite(noisy_sum(np.array([2.0**60]), np.zeros(1), np.zeros(1), 2.0**-960)).all()


@given(st.floats(-1e9, 1e9), st.integers(-40, 20))
def test_a_value_is_in_the_half_open_cell_of_its_multiple(x: float, exponent: int) -> None:
    grid = 2.0**exponent
    m = Fraction(to_grid(np.array([x]), grid).item())
    assert (m / Fraction(grid)).denominator == 1
    slack = abs(Fraction(x)) * Fraction(2) ** -52  # of x/grid + 1/2
    assert -Fraction(grid) / 2 - slack <= Fraction(x) - m < Fraction(grid) / 2 + slack


def test_even_and_odd_multiples_have_equally_many_float32() -> None:
    """Ties to even would give even multiples 17 of the values with 4 more bits, odd ones 15."""
    values = np.arange(-(2**12), 2**12) / 16.0
    multiples, counts = np.unique(to_grid(values.copy(), 1.0), return_counts=True)
    assert set(counts[1:-1]) == {16}
    assert multiples.size == 2**9 + 1
    assert np.unique(np.rint(values), return_counts=True)[1][1:-1].tolist() == [15, 17] * 255 + [15]


def test_low_bits_of_the_sum_decide_ties_only_through_the_noisy_sum() -> None:
    """A bit far below the last place of the total counts where it moves the exact noisy sum."""
    total, low = np.array([2.0**53]), np.array([0.75])
    assert noisy_sum(total, low, np.array([0.25]), 0.5).item() == 2.0**53
    assert noisy_sum(total, low, np.array([1.25]), 0.5).item() == 2.0**53 + 2


@pytest.mark.parametrize(
    ("mechanism", "least"), [(Tree(), math.sqrt(0.5)), (BandedToeplitz((4.0, 1.0)), 0.25)]
)
def test_the_grid_of_a_plan(mechanism: object, least: float) -> None:
    plan = PrivacyPlan(3.0, 5.0, SinglePass(9), mechanism)  # type: ignore[arg-type]
    for dtype in ("float32", "float64"):
        assert plan.noise_spec.grid(dtype) == release_grid(15.0 * least)
        noise = plan.noise(3, dtype=dtype)  # type: ignore[arg-type]
        assert noise.grid == plan.noise_spec.grid(dtype)


def test_the_grid_of_residuals_divides_sums_in_their_dtype() -> None:
    plan = PrivacyPlan(1e-30, 1.0, SinglePass(2))
    assert plan.noise(1).residual_grid == 2.0**-80 > plan.noise(1).grid
    wide = plan.noise(1, dtype="float64")
    assert wide.residual_grid == wide.grid < 2.0**-100
    assert PrivacyPlan(1.0, 1.0, SinglePass(2)).noise(1).residual_grid == 2.0**-8


@pytest.mark.parametrize("shape", [(3 * 2**14 + 5,), (2**14,), (2, 2**14 + 1), (0,)])
def test_every_number_of_a_long_array_is_rounded_in_place(shape: tuple[int, ...]) -> None:
    given_ = np.random.default_rng(0).normal(size=shape)
    found = given_.copy()
    assert to_grid(found, 0.25) is found
    assert np.array_equal(found, np.floor(given_ / 0.25 + 0.5) * 0.25)


def test_a_noisy_sum_is_the_whole_sum_on_the_grid() -> None:
    """The low part decides where the rest lies at the end of a cell."""
    total, noise = np.array([1.0, 1.0, -3.0]), np.array([0.125, 0.125, 0.3])
    low = np.array([-(2.0**-40), 2.0**-40, 0.0])
    found = noisy_sum(total, low, noise, 0.25)
    assert found.tolist() == [1.0, 1.25, -2.75]
    assert total.tolist() == [1.0, 1.0, -3.0] and noise.tolist() == [0.125, 0.125, 0.3]
