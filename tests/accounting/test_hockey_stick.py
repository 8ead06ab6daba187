# SPDX-License-Identifier: Apache-2.0
"""The compiled searches against decimal arithmetic, bit for bit, and against mpmath."""

import math
import random
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast import _core
from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.curve import gaussian
from dpftrl_fast.accounting.curve.gaussian_decimal import (
    decimal_delta,
    decimal_epsilon,
    decimal_noise_multiplier,
)

FAST = settings(max_examples=50, deadline=None, derandomize=True)

MUS = st.floats(-9, 3).map(lambda x: 10.0**x)
ZETAS = st.one_of(st.integers(1, 2**63), st.floats(1e-3, 1e9))
EPSILONS = st.one_of(st.just(0.0), st.floats(-6, 4).map(lambda x: 10.0**x))
DELTAS = st.one_of(
    st.floats(-300, -0.01).map(lambda x: 10.0**x),
    st.floats(-16, -0.5).map(lambda x: 1 - 10.0**x).filter(lambda x: x < 1),
)


def sigma_for(mu, zeta):
    return math.sqrt(zeta) / mu


@FAST
@given(MUS, ZETAS, DELTAS)
def test_epsilon_is_that_of_decimal_arithmetic(mu, zeta, delta):
    sigma = sigma_for(mu, zeta)
    assert acc.epsilon(sigma, zeta, delta) == decimal_epsilon(sigma, zeta, delta)


@FAST
@given(MUS, ZETAS, EPSILONS)
def test_delta_is_that_of_decimal_arithmetic(mu, zeta, eps):
    sigma = sigma_for(mu, zeta)
    assert acc.delta(sigma, zeta, eps) == decimal_delta(sigma, zeta, eps)


@FAST
@given(EPSILONS, DELTAS, ZETAS)
def test_noise_multiplier_is_that_of_decimal_arithmetic(eps, delta, zeta):
    assert acc.noise_multiplier(eps, delta, zeta) == decimal_noise_multiplier(eps, delta, zeta)


def test_the_whole_range_is_certified_and_agrees():
    # The grid's ends and a seeded filling; hardly anything may be left to decimal arithmetic.
    rng = random.Random(7)
    left_open = 0
    for i in range(120):
        zeta = rng.choice([1.0, 11.0, float(rng.randrange(1, 10**6)), 2.0**63])
        eps = rng.choice([1e-6, 1e4, 10 ** rng.uniform(-6, 4)])
        delta = rng.choice([1e-300, 1 - 2**-53, 10 ** rng.uniform(-300, 0), rng.random()])
        sigma, certified = _core.gaussian_noise_multiplier(eps, delta, zeta, 0.0)
        left_open += not certified
        if certified and i % 3 == 0:
            assert sigma == decimal_noise_multiplier(eps, delta, zeta)
        if not certified:
            sigma = acc.noise_multiplier(eps, delta, zeta)
        back, certified = _core.gaussian_epsilon(sigma, zeta, 0.0, delta)
        left_open += not certified
        if certified:
            assert back <= eps
            if i % 3 == 1:
                assert back == decimal_epsilon(sigma, zeta, delta)
        value, certified = _core.gaussian_delta(sigma, zeta, 0.0, eps)
        left_open += not certified
        if certified:
            assert value <= delta
            if i % 3 == 2:
                assert value == decimal_delta(sigma, zeta, eps)
    assert left_open <= 3


@FAST
@given(st.floats(-8, 3).map(lambda x: 10.0**x), st.floats(-3, 37))
def test_backward_error_in_delta_is_below_4_ulp(mu, a):
    eps = (a + mu / 2) * mu
    if not 1e-6 <= eps <= 1e4:
        return
    sigma = 1 / mu
    delta = acc.delta(sigma, 1, eps)
    if delta in (0.0, 1.0):
        return
    got = acc.epsilon(sigma, 1, delta)
    with mpmath.workdps(80):
        exact_mu = 1 / mpmath.mpf(sigma)
        x, y = got / exact_mu - exact_mu / 2, got / exact_mu + exact_mu / 2
        root = mpmath.sqrt(2)
        true = mpmath.erfc(x / root) / 2 - mpmath.exp(got) * mpmath.erfc(y / root) / 2
        # delta is what rounding eps to a double allows: its condition number times half an ulp.
        density = mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)
        slope = mpmath.exp(got) * mpmath.erfc(y / root) / 2
        assert density > 0
        assert 0 <= delta - true <= 4 * math.ulp(delta) + slope * math.ulp(got)
        # And eps itself is right to 1e-9 wherever delta determines it that well.
        if slope * got > 1e-6 * true:
            assert got == pytest.approx(eps, rel=1e-9)


def sensitivity_where(eps, delta, off):
    """The zeta, in two parts, at which delta(eps) of sigma = 1 is delta times 1 + off."""
    with mpmath.workdps(120):

        def error(mu):
            a, b = eps / mu - mu / 2, eps / mu + mu / 2
            root = mpmath.sqrt(2)
            value = mpmath.erfc(a / root) / 2 - mpmath.exp(eps) * mpmath.erfc(b / root) / 2
            return value / (mpmath.mpf(delta) * (1 + off)) - 1

        guess = mpmath.mpf(1) / acc.noise_multiplier(eps, delta, 1)
        mu = mpmath.findroot(error, (guess, guess * (1 + mpmath.mpf(10) ** -12)), tol=1e-220)
        high = float(mu**2)
        return high, float(mu**2 - high)


@pytest.mark.parametrize(
    ("eps", "delta"),
    [
        (0.0, 0.25),
        (0.0, 0.75),
        (0.5, 0.125),
        (3.0, 2.0**-20),
        (8.0, 1e-12),
        (2.0, 0.9),
        (0.01, 0.7),
    ],
)
def test_a_tie_is_left_undecided(eps, delta):
    """Closer than the proved error, a comparison may go either way, and no way is taken."""
    tie = sensitivity_where(eps, delta, 0)
    assert not _core.gaussian_delta(1.0, *tie, eps)[1]
    assert not _core.gaussian_epsilon(1.0, *tie, delta)[1]
    if eps > 0:
        assert not _core.gaussian_noise_multiplier(eps, delta, *tie)[1]
    # Farther from it than that, all are decided, and to the right side.
    below, above = (sensitivity_where(eps, delta, sign * mpmath.mpf(2) ** -70) for sign in (-1, 1))
    assert _core.gaussian_epsilon(1.0, *below, delta) == (eps, True)
    found, certified = _core.gaussian_epsilon(1.0, *above, delta)
    assert found > eps if eps > 0 else not certified
    assert _core.gaussian_delta(1.0, *below, eps) == (delta, True)
    assert _core.gaussian_delta(1.0, *above, eps)[0] > delta
    if eps > 0:
        assert _core.gaussian_noise_multiplier(eps, delta, *below) == (1.0, True)
        assert _core.gaussian_noise_multiplier(eps, delta, *above)[0] > 1.0


def test_an_integer_sensitivity_is_not_rounded():
    odd = 2**53 + 1
    sigmas = [acc.noise_multiplier(1.0, 1e-6, z) for z in (2**53, odd, 2**53 + 2)]
    assert sigmas[1] == decimal_noise_multiplier(1.0, 1e-6, odd)
    assert sigmas == sorted(sigmas)
    assert gaussian.sensitivity(odd) == odd
    assert gaussian.sensitivity(np.int64(odd)) == odd
    assert acc.epsilon(1e9, 2**300 + 1, 1e-6) == decimal_epsilon(1e9, 2**300 + 1, 1e-6)


def test_a_fraction_is_rounded_up():
    third = gaussian.sensitivity(Fraction(1, 3))
    assert third >= Fraction(1, 3) > math.nextafter(third, 0)


@pytest.mark.parametrize(
    ("sigma", "zeta", "delta"), [(1e-300, 1, 1e-6), (1e300, 1e-300, 1e-6), (3.0, 2**120 + 1, 1e-6)]
)
def test_what_is_out_of_range_is_left_to_decimal_arithmetic(sigma, zeta, delta):
    assert acc.epsilon(sigma, zeta, delta) == decimal_epsilon(sigma, zeta, delta)


def test_the_binding_refuses_what_the_curve_has_not():
    for bad in (math.nan, 0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match="noise_multiplier must be a finite number > 0, got"):
            _core.gaussian_epsilon(bad, 1.0, 0.0, 0.5)
        with pytest.raises(ValueError, match="sensitivity_squared must be a finite number > 0"):
            _core.gaussian_delta(1.0, bad, 0.0, 0.5)
    for bad in (math.nan, 0.0, 1.0):
        with pytest.raises(ValueError, match="delta must be a number with 0 < x < 1, got"):
            _core.gaussian_noise_multiplier(1.0, bad, 1.0, 0.0)
    for bad in (math.nan, -1.0, math.inf):
        with pytest.raises(ValueError, match="epsilon must be a finite number >= 0, got"):
            _core.gaussian_noise_multiplier(bad, 0.5, 1.0, 0.0)
    with pytest.raises(ValueError, match="in two parts"):
        _core.gaussian_epsilon(1.0, 1.0, 0.5, 0.5)


def miller_starts(x):
    """Where mills_ratio.hpp enters the recurrence: in double, and in double-double."""
    return 34 + int(1660 / (x * x)), 17 + int(500 / (x * x))


def derivatives(x, last):
    """G_0..G_last by the upward recurrence, with the digits that it loses to spare."""
    with mpmath.workdps(int(60 + 0.5 * x * x + 1.2 * last)):
        g = [mpmath.sqrt(mpmath.pi / 2) * mpmath.exp(x * x / 2) * mpmath.erfc(x / mpmath.sqrt(2))]
        g.append(1 - x * g[0])
        for k in range(1, last):
            g.append((g[k - 1] - x * g[k]) / (k + 1))
        return g


@pytest.mark.parametrize("x", [2, 2.25, 3, 7, 20, 60])
def test_the_recurrence_starts_far_enough_out(x):
    # rho_n falls and the weight rises with x: the ends of a short interval bound what is between.
    low, high = mpmath.mpf(x), mpmath.mpf(x) + mpmath.mpf(1) / 64
    starts = miller_starts(float(high))
    inside, outside = derivatives(low, starts[0] + 1), derivatives(-low, starts[0] + 1)
    mirrored, first = derivatives(-high, 33), derivatives(high, 2)
    half = min(mpmath.mpf(1) / 4, 4 / low)
    series = sum(half ** (k - 1) * mirrored[k] for k in range(1, 32, 2)) / first[1]
    weight = max(series, mirrored[0] / first[0])
    for start, bits in zip(starts, (110, 56), strict=True):
        assert inside[start + 1] / outside[start + 1] * weight < mpmath.mpf(2) ** -bits
