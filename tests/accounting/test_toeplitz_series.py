# SPDX-License-Identifier: Apache-2.0
"""Closed forms of the sums of buffers' coefficients, against exact sums and high precision."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.sensitivity.strided import first_place
from dpftrl_fast.accounting.sensitivity.toeplitz_column import strategy_column
from dpftrl_fast.accounting.sensitivity.toeplitz_series import (
    geometric,
    has_series,
    largest_coefficient,
    series_norm,
    series_sum,
)
from dpftrl_fast.mechanisms import BandedInverse, BufferedToeplitz

DECAYS = st.one_of(
    st.floats(1e-9, 1.0),
    st.integers(0, 53).map(lambda bits: 1.0 - 2.0**-bits * 0.75),
    st.just(1.0),
)
SCALES = st.one_of(st.just(0.0), st.floats(1e-12, 3.0))
BUFFERS = st.lists(st.tuples(DECAYS, SCALES), min_size=1, max_size=5)


def coefficients(buffers, steps):
    """Return c_0, c_1, .. as fractions, without an error."""
    powers, found = [Fraction(scale) for _, scale in buffers], [Fraction(1)]
    for _ in range(steps - 1):
        found.append(sum(powers, Fraction(0)))
        powers = [
            power * Fraction(decay) for power, (decay, _) in zip(powers, buffers, strict=True)
        ]
    return found


@given(BUFFERS, st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_sums_are_the_next_float_above_the_exact_ones(buffers, steps):
    decay, scale = zip(*buffers, strict=True)
    exact = coefficients(buffers, steps)
    for found, wanted in (
        (series_sum(decay, scale, steps), sum(exact)),
        (series_norm(decay, scale, steps), sum(c * c for c in exact)),
    ):
        assert Fraction(found) >= wanted
        assert Fraction(math.nextafter(found, 0.0)) < wanted * (1 + Fraction(1, 2**60))


@given(BUFFERS, st.integers(2, 46))
@settings(max_examples=60, deadline=None)
def test_long_sums_against_60_digits(buffers, bits):
    decay, scale = zip(*buffers, strict=True)
    steps = 2**bits - 1
    with mpmath.workdps(120):

        def geometric(x):
            return mpmath.mpf(steps - 1) if x == 1 else (1 - x ** (steps - 1)) / (1 - x)

        d, s = [mpmath.mpf(x) for x in decay], [mpmath.mpf(x) for x in scale]
        total = 1 + sum(y * geometric(x) for x, y in zip(d, s, strict=True))
        norm = 1 + sum(
            s[i] * s[k] * geometric(d[i] * d[k]) for i in range(len(d)) for k in range(len(d))
        )
        for found, wanted in (
            (series_sum(decay, scale, steps), total),
            (series_norm(decay, scale, steps), norm),
        ):
            assert mpmath.mpf(found) >= wanted
            assert mpmath.mpf(found) <= wanted * (1 + mpmath.mpf(2) ** -50)


@given(DECAYS, DECAYS, st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_a_geometric_series_is_never_too_small(one, other, terms):
    x = Fraction(one) * Fraction(other)
    exact = sum((x**j for j in range(terms)), Fraction(0))
    found = geometric(x, terms)
    assert exact <= found <= exact + Fraction(1, 2**200)


def test_a_single_pass_agrees_with_its_column():
    mechanism = BufferedToeplitz([1.0 - 1e-6, 0.99, 1.0], [1e-3, 0.1, 1e-5])
    for steps in (1, 2, 3, 1000, 10**6):
        column = strategy_column(mechanism, steps)
        found = acc.sensitivity_squared(acc.SinglePass(steps), mechanism)
        above = first_place(column.upper, 1, steps)
        assert column.computed @ column.computed * (1 - 1e-9) <= found <= above
        assert above <= found * (1 + 1e-8)


def test_of_any_length_and_never_falling():
    mechanism = BufferedToeplitz([1.0 - 2.0**-45, 0.9], [2.0**-23, 0.2])
    values = [acc.sensitivity_squared(acc.SinglePass(2**n), mechanism) for n in range(47)]
    assert values == sorted(values)
    blocks = BufferedToeplitz(mechanism.decay, mechanism.scale, restart_every=2**30)
    assert acc.sensitivity_squared(acc.SinglePass(2**46), blocks) == values[30]
    once = acc.MinSeparation(2**40, 1, 1)
    assert acc.sensitivity_squared(once, mechanism) == values[40]


def test_the_largest_coefficient():
    assert largest_coefficient([0.25, 0.5]) == 1.0
    assert largest_coefficient([1.0, 2.0**-60]) == math.nextafter(1.0, 2.0)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        decay, scale = rng.random(3), rng.random(3)
        column = BufferedToeplitz(decay.tolist(), scale.tolist()).strategy(50)
        assert column.max() <= largest_coefficient(scale.tolist()) <= max(1.0, scale.sum()) + 1e-15


def test_scales_beyond_all_bounds_are_refused_as_before():
    huge = BufferedToeplitz([0.5], [1e101])
    assert not has_series(huge) and not has_series(BandedInverse([1.0]))
    with pytest.raises(ValueError, match="largest strategy coefficient"):
        acc.sensitivity_squared(acc.SinglePass(3), huge)
