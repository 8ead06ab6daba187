# SPDX-License-Identifier: Apache-2.0
"""Rho, mu and RDP rounded up, against mpmath; the best order against its neighbours."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.curve.conversions import best_order, gdp_mu, rdp, zcdp_rho

FAST = settings(max_examples=40, deadline=None, derandomize=True)
SIGMAS = st.floats(-6, 6).map(lambda x: 10.0**x)
ZETAS = st.one_of(st.integers(1, 2**63), st.floats(1e-6, 1e9))
ORDERS = st.lists(st.floats(1, 1e6, exclude_min=True), min_size=1, max_size=4)
ANY_POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


def is_rounded_up(got, true):
    return mpmath.mpf(got) >= true > mpmath.mpf(math.nextafter(got, 0))


@FAST
@given(SIGMAS, ZETAS, ORDERS)
def test_values_are_the_true_ones_rounded_up(sigma, zeta, orders):
    with mpmath.workdps(200):
        s, z = mpmath.mpf(sigma), mpmath.mpf(zeta)
        assert is_rounded_up(zcdp_rho(sigma, zeta), z / (2 * s * s))
        assert is_rounded_up(gdp_mu(sigma, zeta), mpmath.sqrt(z) / s)
        for order, got in zip(orders, rdp(sigma, zeta, orders), strict=True):
            assert is_rounded_up(got, mpmath.mpf(order) * z / (2 * s * s))


@given(ANY_POSITIVE, ANY_POSITIVE)
def test_any_doubles_give_a_number_above_zero(sigma, zeta):
    assert zcdp_rho(sigma, zeta) > 0
    assert gdp_mu(sigma, zeta) > 0
    assert rdp(sigma, zeta, [2.0])[0] > 0


def test_exact_values_are_not_moved():
    assert zcdp_rho(2.0, 11) == 1.375
    assert gdp_mu(1.5, 9) == 2.0
    assert gdp_mu(0.25, 2**62) == 2.0**33
    assert rdp(2.0, 11, np.array([2.0, 8.0])) == [2.75, 11.0]


def test_the_ends_of_the_noise():
    assert zcdp_rho(0, 11) == gdp_mu(0, 11) == math.inf
    assert zcdp_rho(math.inf, 11) == gdp_mu(math.inf, 11) == 0.0
    assert rdp(0, 11, [2, 3]) == [math.inf, math.inf]
    assert rdp(math.inf, 11, [2, 3]) == [0.0, 0.0]


@FAST
@given(SIGMAS, ZETAS, st.floats(-300, -0.05).map(lambda x: 10.0**x))
def test_the_best_order_is_the_best(sigma, zeta, delta):
    for conversion in ("cks", "mironov"):
        order = best_order(sigma, zeta, delta, conversion=conversion)
        options = {"method": "rdp", "conversion": conversion}
        best = acc.epsilon(sigma, zeta, delta, **options)
        if order > 1 + 1e-6 and math.isfinite(best):
            at = acc.epsilon(sigma, zeta, delta, orders=[order], **options)
            assert best <= at <= best + 1e-9 * (best + 1)
        for factor in (0.9, 1.1):
            other = 1 + (order - 1) * factor
            if other > 1:
                assert acc.epsilon(sigma, zeta, delta, orders=[other], **options) >= best


def test_mironovs_order_has_a_closed_form():
    rho = zcdp_rho(2.33, 11)
    expected = 1 + math.sqrt(-math.log(1e-6) / rho)
    assert best_order(2.33, 11, 1e-6, conversion="mironov") == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("function", [zcdp_rho, gdp_mu])
def test_bad_arguments(function):
    for bad in (math.nan, -1.0):
        with pytest.raises(ValueError, match="noise_multiplier must be a number >= 0"):
            function(bad, 1)
    for bad in (math.nan, -1.0, 0, math.inf):
        with pytest.raises(ValueError, match="sensitivity_squared must be a finite number > 0"):
            function(1.0, bad)
    with pytest.raises(TypeError, match="sensitivity_squared must be a finite number > 0, got str"):
        function(1.0, "1")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: rdp(1.0, 1, []), ValueError, "orders must hold at least one number > 1, got none"),
        (lambda: rdp(1.0, 1, 2.0), TypeError, "orders must be an iterable of numbers > 1"),
        (lambda: rdp(1.0, 1, [1.0]), ValueError, "each of orders must be a finite number > 1"),
        (lambda: rdp(math.nan, 1, [2.0]), ValueError, "noise_multiplier must be"),
        (lambda: best_order(0.0, 1, 0.5), ValueError, "noise_multiplier must be a finite number"),
        (lambda: best_order(1.0, 1, 1.0), ValueError, "delta must be a finite number > 0 and < 1"),
        (
            lambda: best_order(1.0, 1, 0.5, conversion="best"),
            ValueError,
            "conversion must be one of 'cks', 'mironov'",
        ),
    ],
)
def test_bad_options(call, error, message):
    with pytest.raises(error, match=message):
        call()
