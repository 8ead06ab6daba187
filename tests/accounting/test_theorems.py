# SPDX-License-Identifier: Apache-2.0
"""The closed-form noise multipliers: upper bounds where they say so, refused where they are not."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.sensitivity.theorems import (
    closed_form_noise_multiplier,
    least_squares_noise_multiplier,
    restarts_noise_multiplier,
    single_pass_noise_multiplier,
)

FAST = settings(max_examples=200, deadline=None, derandomize=True)
DELTAS = st.one_of(
    st.floats(-300, -0.05).map(lambda x: 10.0**x), st.floats(0.5, 1, exclude_max=True)
)
SHARES = st.one_of(st.just(1.0), st.floats(-9, 0).map(lambda x: 10.0**x))


@FAST
@given(DELTAS, SHARES, st.integers(1, 2**40))
def test_factor_4_is_an_upper_bound_up_to_its_limit(delta, share, zeta):
    epsilon = math.nextafter(-2 * math.log(delta), 0) * share * (1 - 1e-15)
    closed = closed_form_noise_multiplier(epsilon, delta, zeta)
    assert closed >= acc.noise_multiplier(epsilon, delta, zeta)
    assert acc.epsilon(closed, zeta, delta) <= epsilon
    assert acc.epsilon(closed, zeta, delta, "rdp", conversion="mironov") <= epsilon * (1 + 1e-12)


@FAST
@given(DELTAS, SHARES)
def test_factor_2_is_an_upper_bound_or_refused(delta, share):
    epsilon = math.nextafter(-2 * math.log(delta), 0) * share * (1 - 1e-15)
    exact = acc.noise_multiplier(epsilon, delta, 1)
    plain = math.sqrt(-2 * math.log(delta)) / epsilon
    if plain < exact * (1 - 1e-12):
        with pytest.raises(ValueError, match="factor 2 must give enough noise for epsilon"):
            closed_form_noise_multiplier(epsilon, delta, 1, factor=2)
    elif plain > exact * (1 + 1e-12):
        closed = closed_form_noise_multiplier(epsilon, delta, 1, factor=2)
        assert closed == pytest.approx(plain, rel=1e-13)
        assert closed >= exact


@pytest.mark.parametrize(
    ("delta", "limit"), [(1e-3, 6.98), (1e-5, 7.97), (1e-6, 8.34), (1e-10, 9.42)]
)
def test_where_factor_2_ends(delta, limit):
    closed_form_noise_multiplier(limit - 0.01, delta, 11, factor=2)
    with pytest.raises(ValueError, match=r"expected at least .*, got"):
        closed_form_noise_multiplier(limit + 0.02, delta, 11, factor=2)


def test_the_sensitivities():
    def form(zeta):
        return pytest.approx(2 * math.sqrt(zeta * math.log(1e6)), rel=1e-14)

    for steps in (1, 2, 3, 4, 7, 8, 1600, 2**40):
        levels = math.ceil(math.log2(steps + 1))
        assert single_pass_noise_multiplier(1.0, 1e-6, steps) == form(levels)
        assert least_squares_noise_multiplier(1.0, 1e-6, steps) == form(2 * levels)
        assert levels == acc.sensitivity_squared(acc.SinglePass(steps))
    assert restarts_noise_multiplier(1.0, 1e-6, 100, 100) == form(700)
    assert restarts_noise_multiplier(1.0, 1e-6, 100, 1) == single_pass_noise_multiplier(
        1.0, 1e-6, 100
    )


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"epsilon": 0.0}, ValueError, "epsilon must be a finite number > 0, got 0.0"),
        ({"epsilon": math.nan}, ValueError, "epsilon must be a finite number > 0, got nan"),
        ({"epsilon": 27.7}, ValueError, r"epsilon must be at most 2 ln\(1/delta\) = 27.631, got"),
        ({"delta": 1.0}, ValueError, "delta must be a finite number > 0 and < 1, got 1.0"),
        ({"steps": 0}, ValueError, "steps must be an integer in .*, got 0"),
        ({"steps": 2.0}, TypeError, "steps must be an integer in .*, got float"),
        ({"steps": 2**40 + 1}, ValueError, "steps must be an integer in .*, got 1099511627777"),
        ({"factor": 3}, ValueError, "factor must be one of 4, 2, got 3"),
        ({"factor": True}, ValueError, "factor must be one of 4, 2, got True"),
    ],
)
def test_bad_arguments(wrong, error, message):
    for function in (single_pass_noise_multiplier, least_squares_noise_multiplier):
        with pytest.raises(error, match=message):
            function(**{"epsilon": 1.0, "delta": 1e-6, "steps": 10, **wrong})


def test_bad_epochs():
    with pytest.raises(ValueError, match=r"epochs must be an integer in .*, got 0"):
        restarts_noise_multiplier(1.0, 1e-6, 100, 0)
    with pytest.raises(ValueError, match=r"steps_per_epoch must be an integer in .*, got 0"):
        restarts_noise_multiplier(1.0, 1e-6, 0, 100)
