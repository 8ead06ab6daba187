# SPDX-License-Identifier: Apache-2.0
"""Several runs on the same data: mu^2 and floors add up, rounded to the safe side."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpftrl_fast.accounting.curve import gaussian
from dpftrl_fast.accounting.guard.ledger import Ledger
from dpftrl_fast.accounting.participation import SinglePass
from dpftrl_fast.accounting.sensitivity.delta_floor import Touched
from dpftrl_fast.accounting.statement.composition import Composition, compose
from dpftrl_fast.accounting.statement.guarantee import Guarantee

RUN = Guarantee(2.33, 11, Touched(11, 11, 1))

guarantees = st.builds(
    Guarantee,
    st.floats(0.5, 1e3),
    st.integers(1, 10**6) | st.floats(0.1, 1e6),
    st.builds(Touched, st.integers(1, 10**4), st.integers(1, 10**4), st.just(1)),
)


@given(runs=st.lists(guarantees, min_size=1, max_size=5).map(tuple))
def test_mu_squared_is_the_sum_rounded_up(runs: tuple[Guarantee, ...]) -> None:
    exact = sum(
        Fraction(run.sensitivity_squared) / Fraction(run.noise_multiplier) ** 2 for run in runs
    )
    together = Composition(runs)
    assert Fraction(math.nextafter(together.mu_squared, 0)) < exact <= together.mu_squared
    assert (
        Fraction(math.nextafter(together.mu, 0)) ** 2
        < Fraction(together.mu_squared)
        <= Fraction(together.mu) ** 2
    )


@given(runs=st.lists(guarantees, min_size=1, max_size=5).map(tuple))
def test_the_floor_is_at_least_the_sum_and_hardly_more(runs: tuple[Guarantee, ...]) -> None:
    floors = sum(Fraction(run.floor()) for run in runs)
    assert min(floors, 1) <= Composition(runs).floor() <= floors * Fraction(1001, 1000)


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_one_run_is_what_it_was(neighbours: Any) -> None:
    one = Composition((RUN,))
    assert one.mu == pytest.approx(RUN.mu, rel=1e-15)
    assert one.mu >= RUN.mu
    epsilon = one.epsilon(1e-6, neighbours)
    assert RUN.epsilon(1e-6, neighbours) <= epsilon
    assert epsilon == pytest.approx(RUN.epsilon(1e-6, neighbours), rel=1e-9)
    assert one.delta(2.0, neighbours) == pytest.approx(RUN.delta(2.0, neighbours), rel=1e-9)
    assert one.delta(epsilon, neighbours) <= 1e-6 * (1 + 1e-12)


def test_four_runs_are_as_one_with_half_the_noise() -> None:
    four = compose([Ledger(SinglePass(1600), 2.33)] * 4)
    assert four.mu_squared == pytest.approx(11 / (2.33 / 2) ** 2, rel=1e-15)
    assert four.epsilon(1e-6) == pytest.approx(gaussian.epsilon(2.33 / 2, 11, 1e-6), rel=1e-5)
    assert four.epsilon(1e-6) > gaussian.epsilon(2.33 / 2, 11, 1e-6)  # the floors


def test_the_declared_figures_are_composed_whatever_was_realised() -> None:
    ended_early, not_begun = Ledger(SinglePass(16), 1.0), Ledger(SinglePass(16), 1.0)
    ended_early.record([])
    assert compose([ended_early, not_begun]).mu_squared == 10


def test_at_or_below_the_floor_there_is_no_epsilon() -> None:
    two = Composition((RUN, RUN))
    with pytest.raises(ValueError, match="delta must be above the floors of the noise streams"):
        two.epsilon(two.floor())
    assert two.epsilon(two.floor() * 1.01) > 0


def test_beyond_all_doubles_nothing_is_promised() -> None:
    loud = Composition((Guarantee(1e-200, 11, Touched(11, 11, 1)),))
    assert loud.mu_squared == loud.mu == float("inf")
    assert loud.floor() == loud.delta(3.0) == 1.0


@pytest.mark.parametrize(
    ("runs", "error"), [([], TypeError), ((), ValueError), ((1,), TypeError), (RUN, TypeError)]
)
def test_a_composition_is_of_guarantees(runs: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="runs must"):
        Composition(runs)


def test_runs_are_ledgers_or_plans() -> None:
    with pytest.raises(TypeError, match="runs must be ledgers or plans, got int"):
        compose([3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="at least one run"):
        compose([])


@pytest.mark.parametrize("delta", [0.0, 1.0, float("nan")])
def test_a_bad_delta_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta must be"):
        Composition((RUN,)).epsilon(delta)


def test_bad_epsilon_and_neighbours_are_refused() -> None:
    with pytest.raises(ValueError, match="epsilon must be"):
        Composition((RUN,)).delta(float("nan"))
    with pytest.raises(ValueError, match="neighbours must be"):
        Composition((RUN,)).epsilon(1e-6, "others")  # type: ignore[arg-type]
