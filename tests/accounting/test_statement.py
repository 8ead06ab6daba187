# SPDX-License-Identifier: Apache-2.0
"""Several runs on the same data: mu^2 and floors add up, rounded to the safe side."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpftrl_fast.accounting.curve import gaussian
from dpftrl_fast.accounting.curve.conversions import gdp_mu
from dpftrl_fast.accounting.guard.ledger import Ledger
from dpftrl_fast.accounting.participation import SinglePass
from dpftrl_fast.accounting.sensitivity.delta_floor import (
    Touched,
    support_floor,
    truncated_delta,
    untruncated_delta,
)
from dpftrl_fast.accounting.statement.statement import GaussianMechanism, Guarantee, compose


def guarantee(sigma: float, zeta: float, touched: Touched) -> Guarantee:
    return Guarantee((GaussianMechanism(sigma, zeta, touched),))


RUN = guarantee(2.33, 11, Touched(11, 11, 1))

guarantees = st.builds(
    guarantee,
    st.floats(0.5, 1e3),
    st.integers(1, 10**6) | st.floats(0.1, 1e6),
    st.builds(Touched, st.integers(1, 10**4), st.integers(1, 10**4), st.just(1)),
)


@given(runs=st.lists(guarantees, min_size=2, max_size=5))
@example(runs=[guarantee(1.5, zeta, Touched(11, 11, 1)) for zeta in (186, 8652)])  # 3928 exactly
def test_mu_squared_is_the_sum_rounded_up(runs: list[Guarantee]) -> None:
    exact = sum(
        Fraction(one.sensitivity_squared) / Fraction(one.noise_multiplier) ** 2
        for run in runs
        for one in run.mechanisms
    )
    together = compose(runs)
    assert Fraction(math.nextafter(together.mu_squared, 0)) < exact <= together.mu_squared
    assert (
        Fraction(math.nextafter(together.mu, 0)) ** 2
        < Fraction(together.mu_squared)
        <= Fraction(together.mu) ** 2
    )


@given(runs=st.lists(guarantees, min_size=1, max_size=5))
def test_the_floor_is_at_least_the_sum_and_hardly_more(runs: list[Guarantee]) -> None:
    floors = sum(Fraction(run.floor()) for run in runs)
    assert min(floors, 1) <= compose(runs).floor() <= floors * Fraction(1001, 1000)


@given(run=guarantees, kind=st.sampled_from(["zero-out", "replace-one"]))
def test_one_run_is_rounded_once(run: Guarantee, kind: Any) -> None:
    (one,), scale = run.mechanisms, 2 if kind == "replace-one" else 1
    same = compose([run])
    assert same == run
    assert run.mu == gdp_mu(one.noise_multiplier, one.sensitivity_squared)
    floor = support_floor(one.noise_multiplier, one.sensitivity_squared, one.touched, scale=scale)
    assert run.floor(neighbours=kind) == floor
    assert run.delta_floor == run.floor()
    zeta = one.sensitivity_squared * scale**2
    exact = gaussian.delta(one.noise_multiplier, zeta, 2.0)
    assert run.delta(2.0, neighbours=kind) == truncated_delta(exact, one.touched, floor)
    left = untruncated_delta(1e-6, one.touched, floor)
    if left > 0:
        expected = gaussian.epsilon(one.noise_multiplier, zeta, left)
        assert run.epsilon(1e-6, neighbours=kind) == expected


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_two_halves_of_a_run_are_the_run(neighbours: Any) -> None:
    half = guarantee(2.33 * math.sqrt(2), 11, Touched(11, 11, 1))
    two = compose([half, half])
    assert two.mu == pytest.approx(RUN.mu, rel=1e-15)
    epsilon = two.epsilon(1e-6, neighbours=neighbours)
    assert epsilon == pytest.approx(RUN.epsilon(1e-6, neighbours=neighbours), rel=1e-5)
    assert two.delta(epsilon, neighbours=neighbours) <= 1e-6 * (1 + 1e-12)


def test_four_runs_are_as_one_with_half_the_noise() -> None:
    four = compose([Ledger(SinglePass(1600), 2.33)] * 4)
    assert four.mu_squared == pytest.approx(11 / (2.33 / 2) ** 2, rel=1e-15)
    assert four.epsilon(1e-6) == pytest.approx(gaussian.epsilon(2.33 / 2, 11, 1e-6), rel=1e-5)
    assert four.epsilon(1e-6) > gaussian.epsilon(2.33 / 2, 11, 1e-6)  # the floors


def test_the_nodes_of_composed_runs_add_up() -> None:
    runs = [guarantee(2.0, 11, Touched(11, 15, 2)), guarantee(3.0, 7, Touched(7, 40, 5))]
    assert compose(runs).touched == Touched(11 + 7, 15 + 40, 5)
    assert compose([*runs, *runs]).touched == Touched(2 * 18, 2 * 55, 5)


def test_the_floor_of_many_nodes_is_divided_by_the_noise_of_all() -> None:
    """Where many nodes are shifted, the share of noise inside its disc counts once for all."""
    many = guarantee(5e4, 10**8, Touched(2**27, 2**27, 1))
    two = compose([many, many])
    together = Touched(2**28, 2**28, 1)
    divided = truncated_delta(2 * many.floor(), together, 0.0)
    assert divided <= two.floor() <= divided * (1 + 1e-12)
    assert two.floor() > 3 * many.floor()  # a share of 3/4, then one of 1/2
    exact = gaussian.delta(*two.as_one(), 0.0)
    assert two.delta(0.0) == truncated_delta(exact, together, two.floor())
    assert two.delta(0.0) > truncated_delta(exact, many.touched, two.floor())


def test_the_declared_figures_are_composed_whatever_was_realised() -> None:
    ended_early, not_begun = Ledger(SinglePass(16), 1.0), Ledger(SinglePass(16), 1.0)
    ended_early.record([])
    assert compose([ended_early, not_begun]).mu_squared == 10


def test_at_or_below_the_floor_there_is_no_epsilon() -> None:
    two = compose([RUN, RUN])
    with pytest.raises(ValueError, match="delta must be above the floor of the noise stream"):
        two.epsilon(two.floor())
    assert two.epsilon(two.floor() * 1.01) > 0
    with pytest.raises(ValueError, match=r"for replace-one neighbours, got 1e-15: take a larger"):
        two.epsilon(1e-15, neighbours="replace-one")


def test_beyond_all_doubles_nothing_is_promised() -> None:
    loud = compose([guarantee(1e-200, 11, Touched(11, 11, 1))] * 2)
    assert loud.mu_squared == loud.mu == float("inf")
    assert loud.floor() == loud.delta(3.0) == 1.0


@pytest.mark.parametrize(
    ("held", "error"), [([], TypeError), ((), ValueError), ((1,), TypeError), (RUN, TypeError)]
)
def test_a_guarantee_holds_mechanisms(held: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="mechanisms must be a tuple of at least one"):
        Guarantee(held)


@pytest.mark.parametrize("wrong", [3, None, "plan", Ledger, SinglePass(3)])
def test_what_states_no_epsilon_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"fitted estimators, got {type(wrong).__name__}"):
        compose([RUN, wrong])
    with pytest.raises(ValueError, match="at least one run"):
        compose([])


@pytest.mark.parametrize("delta", [0.0, 1.0, float("nan")])
def test_a_bad_delta_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta must be"):
        RUN.epsilon(delta)


def test_bad_epsilon_and_neighbours_are_refused() -> None:
    with pytest.raises(ValueError, match="epsilon must be"):
        RUN.delta(float("nan"))
    with pytest.raises(ValueError, match="neighbours must be one of 'zero-out', 'replace-one'"):
        RUN.epsilon(1e-6, neighbours="others")  # type: ignore[arg-type]
