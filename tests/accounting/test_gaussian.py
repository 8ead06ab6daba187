# SPDX-License-Identifier: Apache-2.0
"""The exact Gaussian curve against mpmath, and the promises about its rounding.

The oracle writes the curve as the integral's two tails in mpmath, with as many digits as the
cancellation needs; it shares nothing with the decimal kernel.
"""

import decimal
import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.curve.hockey_stick import hockey_stick, mills_ratio
from dpftrl_fast.accounting.curve.rounding import fixed_up, short_up, smallest_double, text_up


def true_delta(sigma, zeta, eps):
    """delta(eps) with 60 digits left after all cancellation."""
    size = math.ceil(abs(math.log10(zeta) / 2 - math.log10(sigma)))
    with mpmath.workdps(80 + 3 * size):
        mu = mpmath.sqrt(mpmath.mpf(zeta)) / mpmath.mpf(sigma)
        a = mpmath.mpf(eps) / mu - mu / 2
        b = mpmath.mpf(eps) / mu + mu / 2
        root = mpmath.sqrt(2)
        return (mpmath.erfc(a / root) - mpmath.exp(mpmath.mpf(eps)) * mpmath.erfc(b / root)) / 2


def previous(x):
    return math.nextafter(x, 0.0)


SIGMAS = st.floats(-3, 4).map(lambda x: 10.0**x)
ZETAS = st.integers(1, 20000)
EPSILONS = st.floats(-6, 4).map(lambda x: 10.0**x)
DELTAS = st.floats(-300, -0.05).map(lambda x: 10.0**x)
FAST = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("sigma", "eps"),
    [(1.13, 17.667), (2.33, 7.342), (4.03, 3.920), (6.21, 2.424), (8.83, 1.649)],
)
def test_stackoverflow_table_exact(sigma, eps):
    assert acc.epsilon(sigma, 11, 1e-6) == pytest.approx(eps, abs=5e-4)


def test_published_cifar_and_readme_figures():
    # The sensitivities are given: they belong to other participation patterns.
    for zeta, sigma in [(700, 6.91), (1000, 8.26), (2125, 12.04), (14349, 31.28)]:
        assert acc.noise_multiplier(23.0, 1e-5, zeta) == pytest.approx(sigma, abs=5e-3)
    assert acc.epsilon(46.3, 4129, 1e-5) == pytest.approx(6.4275, abs=5e-5)


@FAST
@given(SIGMAS, ZETAS, EPSILONS)
def test_delta_is_the_true_one_rounded_up(sigma, zeta, eps):
    expected = true_delta(sigma, zeta, eps)
    got = acc.delta(sigma, zeta, eps)
    assert mpmath.mpf(got) >= expected
    assert got == 5e-324 or mpmath.mpf(previous(got)) < expected
    if expected > 1e-300:
        assert abs(got - expected) <= 1e-9 * expected


@FAST
@given(SIGMAS, ZETAS, DELTAS)
def test_epsilon_is_the_true_one_rounded_up(sigma, zeta, delta):
    eps = acc.epsilon(sigma, zeta, delta)
    assert true_delta(sigma, zeta, eps) <= delta
    if eps > 0:
        assert true_delta(sigma, zeta, previous(eps)) > delta
    else:
        assert true_delta(sigma, zeta, 0) <= delta


@FAST
@given(EPSILONS, DELTAS, ZETAS)
def test_noise_multiplier_is_the_true_one_rounded_up(eps, delta, zeta):
    sigma = acc.noise_multiplier(eps, delta, zeta)
    assert true_delta(sigma, zeta, eps) <= delta
    assert true_delta(previous(sigma), zeta, eps) > delta
    assert acc.epsilon(sigma, zeta, delta) <= eps


ANY_POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
ANY_DELTA = st.floats(0, 1, exclude_min=True, exclude_max=True)


@FAST
@given(st.one_of(st.just(0.0), ANY_POSITIVE), ANY_DELTA, ANY_POSITIVE)
def test_calibration_never_overshoots_for_any_doubles(eps, delta, zeta):
    sigma = acc.noise_multiplier(eps, delta, zeta)
    assert sigma > 0
    assert acc.epsilon(sigma, zeta, delta) <= eps
    if not math.isinf(sigma):
        assert acc.delta(sigma, zeta, eps) <= delta


@FAST
@given(ANY_POSITIVE, ANY_DELTA, ANY_POSITIVE)
def test_epsilon_and_delta_agree_for_any_doubles(sigma, delta, zeta):
    eps = acc.epsilon(sigma, zeta, delta)
    assert eps >= 0
    if not math.isinf(eps):
        assert acc.delta(sigma, zeta, eps) <= delta
    if 0 < eps < math.inf:
        assert acc.delta(sigma, zeta, previous(eps)) > delta


def pairs(numbers):
    """Two numbers in order: apart, or one ulp apart."""
    apart = st.tuples(numbers, numbers).map(lambda p: (min(p), max(p)))
    return st.one_of(apart, numbers.map(lambda x: (previous(x), x)))


@FAST
@given(pairs(SIGMAS), pairs(ZETAS.map(float)), pairs(DELTAS))
def test_epsilon_is_monotone(sigmas, zetas, deltas):
    low = acc.epsilon(sigmas[1], zetas[0], deltas[1])
    assert acc.epsilon(sigmas[0], zetas[0], deltas[1]) >= low
    assert acc.epsilon(sigmas[1], zetas[1], deltas[1]) >= low
    assert acc.epsilon(sigmas[1], zetas[0], deltas[0]) >= low


@FAST
@given(pairs(SIGMAS), pairs(ZETAS.map(float)), pairs(EPSILONS))
def test_delta_is_monotone(sigmas, zetas, epsilons):
    low = acc.delta(sigmas[1], zetas[0], epsilons[1])
    assert acc.delta(sigmas[0], zetas[0], epsilons[1]) >= low
    assert acc.delta(sigmas[1], zetas[1], epsilons[1]) >= low
    assert acc.delta(sigmas[1], zetas[0], epsilons[0]) >= low


@FAST
@given(pairs(EPSILONS), pairs(DELTAS), pairs(ZETAS.map(float)))
def test_noise_multiplier_is_monotone(epsilons, deltas, zetas):
    low = acc.noise_multiplier(epsilons[1], deltas[1], zetas[0])
    assert acc.noise_multiplier(epsilons[0], deltas[1], zetas[0]) >= low
    assert acc.noise_multiplier(epsilons[1], deltas[0], zetas[0]) >= low
    assert acc.noise_multiplier(epsilons[1], deltas[1], zetas[1]) >= low


@FAST
@given(SIGMAS, ZETAS, DELTAS)
def test_exact_is_below_every_rdp_figure(sigma, zeta, delta):
    exact = acc.epsilon(sigma, zeta, delta)
    best = acc.epsilon(sigma, zeta, delta, "rdp")
    assert exact <= best <= acc.epsilon(sigma, zeta, delta, "rdp", conversion="mironov")


def test_the_ends_of_the_noise():
    assert acc.epsilon(0, 11, 1e-6) == math.inf
    assert acc.epsilon(math.inf, 11, 1e-6) == 0.0
    assert acc.delta(0.0, 11, 3.0) == 1.0
    assert acc.delta(math.inf, 11, 3.0) == 0.0
    for conversion in ("cks", "mironov"):
        assert acc.epsilon(0, 11, 1e-6, "rdp", conversion=conversion) == math.inf
        assert acc.epsilon(math.inf, 11, 1e-6, "rdp", conversion=conversion) == 0.0


def test_epsilon_is_zero_exactly_where_delta_is_large_enough():
    at_zero = acc.delta(3.0, 1, 0)
    assert at_zero == pytest.approx(math.erf(1 / (6 * math.sqrt(2))), rel=1e-12)
    assert acc.epsilon(3.0, 1, at_zero) == 0.0
    assert acc.epsilon(3.0, 1, previous(at_zero)) > 0.0


def test_delta_below_every_double_is_not_zero():
    assert acc.delta(10.0, 1, 1e4) == 5e-324
    assert acc.epsilon(10.0, 1, 5e-324) < 4


def test_the_callers_decimal_context_does_not_matter():
    expected = acc.epsilon(1.13, 11, 1e-6), acc.noise_multiplier(1.0, 1e-9, 3)
    rdp = acc.epsilon(1.13, 11, 1e-6, "rdp", orders=[1.1, 4.7])
    with decimal.localcontext() as context:
        context.prec = 3
        context.Emax = 5
        context.rounding = decimal.ROUND_DOWN
        assert (acc.epsilon(1.13, 11, 1e-6), acc.noise_multiplier(1.0, 1e-9, 3)) == expected
        assert acc.epsilon(1.13, 11, 1e-6, "rdp", orders=[1.1, 4.7]) == rdp


@pytest.mark.parametrize("digits", [48, 64, 128, 368])
def test_mills_ratio_has_the_digits_it_promises(digits):
    edge = 0.65 * math.sqrt(digits)
    for x in [0.0, 1e-200, 1e-3, 0.5, 2.0, previous(edge), edge, 9.3, 38.0, 1e5, 1e150]:
        got = mills_ratio(decimal.Decimal(x), digits)
        with mpmath.workdps(digits + 60):
            y = mpmath.mpf(x)
            if x > 1e4:  # 1/x - 1/x^3 < R(x) < 1/x
                assert mpmath.mpf(str(got)) <= 1 / y * (1 + mpmath.mpf(10) ** -digits)
                assert mpmath.mpf(str(got)) * y >= (1 - 1 / y**2) * (1 - mpmath.mpf(10) ** -digits)
                continue
            root = mpmath.sqrt(2)
            expected = mpmath.sqrt(mpmath.pi / 2) * mpmath.exp(y * y / 2) * mpmath.erfc(y / root)
            assert abs(mpmath.mpf(str(got)) / expected - 1) < mpmath.mpf(10) ** -digits


@FAST
@given(st.floats(-12, 2.5), st.floats(-9, 4.5))
def test_kernel_has_the_digits_it_promises(log_mu, log_eps):
    mu, eps = 10.0**log_mu, 10.0**log_eps
    assume(abs(eps / mu - mu / 2) < 45)
    got = hockey_stick(decimal.Decimal(mu), decimal.Decimal(eps)).delta
    with mpmath.workdps(120):
        a, b = mpmath.mpf(eps) / mu - mpmath.mpf(mu) / 2, mpmath.mpf(eps) / mu + mpmath.mpf(mu) / 2
        root = mpmath.sqrt(2)
        expected = (mpmath.erfc(a / root) - mpmath.exp(eps) * mpmath.erfc(b / root)) / 2
        excess = mpmath.mpf(str(got)) / expected - 1
        assert 0 <= excess < 3e-36


@given(st.floats(0, exclude_min=True), st.floats(0, exclude_min=True))
def test_smallest_double_needs_no_good_guess(threshold, guess):
    calls = []

    def holds(x):
        calls.append(x)
        return x >= threshold

    assert smallest_double(holds, guess) == threshold
    assert len(calls) <= 130
    assert 0.0 not in calls
    assert math.inf not in calls


def test_numpy_scalars_are_numbers():
    assert acc.epsilon(np.float64(1.13), np.int64(11), np.float64(1e-6)) == acc.epsilon(
        1.13, 11, 1e-6
    )


NOT_NUMBERS = ["1", None, [1.0], True, 1j, np.array([1.0]), decimal.Decimal(1)]
GOOD = {
    acc.epsilon: {"noise_multiplier": 1.0, "sensitivity_squared": 1, "delta": 1e-6},
    acc.delta: {"noise_multiplier": 1.0, "sensitivity_squared": 1, "epsilon": 1.0},
    acc.noise_multiplier: {"epsilon": 1.0, "delta": 1e-6, "sensitivity_squared": 1},
}
CASES = [(function, name) for function, good in GOOD.items() for name in good]


@pytest.mark.parametrize(("function", "name"), CASES)
def test_wrong_types(function, name):
    for wrong in NOT_NUMBERS:
        with pytest.raises(
            TypeError, match=rf"{name} must be a .*number.*, got {type(wrong).__name__}"
        ):
            function(**{**GOOD[function], name: wrong})


@pytest.mark.parametrize(("function", "name"), CASES)
def test_wrong_values(function, name):
    bad = [math.nan, -1.0, -math.inf, -5e-324]
    bad += {
        "delta": [0.0, 1.0, 2, math.inf],
        "sensitivity_squared": [0, math.inf, 10**400],
        "epsilon": [math.inf, 10**400],
        "noise_multiplier": [10**400],
    }[name]
    for wrong in bad:
        with pytest.raises(ValueError, match=rf"{name} must be a .*number.*, got"):
            function(**{**GOOD[function], name: wrong})


def test_the_message_for_nan():
    with pytest.raises(
        ValueError,
        match=r"^noise_multiplier must be a number >= 0 \(infinity allowed\), got nan$",
    ):
        acc.epsilon(math.nan, 11, 1e-6)


@pytest.mark.parametrize("power", [-300, -9, -1, 0, 3, 17])
def test_texts_of_privacy_losses_are_never_below_them(power: int) -> None:
    rng = np.random.default_rng(abs(power))
    for x in (rng.uniform(1.0, 10.0, 200) * 10.0**power).tolist():
        assert float(text_up(x)) >= x
        assert x <= float(short_up(x)) <= x * 1.001
        for digits in (0, 2, 4):
            # To a digit; where a double has no such digit any more, to the next double.
            assert x <= float(fixed_up(x, digits)) <= x + 10.0**-digits + abs(x) * 2.0**-51
    assert [fixed_up(x, 2) for x in (0.0, 4.11, 0.1, 9.995)] == ["0.00", "4.11", "0.10", "10.00"]
    assert [fixed_up(x, 2) for x in (1.0000001, 1e-9, float("inf"))] == ["1.01", "0.01", "inf"]
    assert [short_up(x) for x in (0.0, 0.1, 8.0, 18.71, 2.0000001)] == [
        *("0", "0.1", "8", "18.71", "2.001"),
    ]
