# SPDX-License-Identifier: Apache-2.0
"""The floor of a noise stream with a finite tail, against the quantities that it bounds."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast.accounting.support import (
    MAX_COORDINATES,
    support_floor,
    truncated_delta,
    untruncated_delta,
)

RADIUS = math.sqrt(128 * math.log(2))
PAIRS = MAX_COORDINATES // 2
FAST = settings(max_examples=100, deadline=None, derandomize=True)


def leaves_the_disc(s):
    """P(|z| <= R and |z + s e_1| > R) of a standard normal point z of the plane, by quadrature."""
    # At the angle t to e_1, the points with |z + s e_1| = R have the radius
    # sqrt(R^2 - s^2 sin(t)^2) - s cos(t); between it and R lies a difference of exponentials.
    t = (np.arange(100_000) + 0.5) * (np.pi / 100_000)
    edge = np.minimum(np.sqrt(RADIUS**2 - (s * np.sin(t)) ** 2) - s * np.cos(t), RADIUS)
    return float(np.mean(2.0**-64 * np.expm1((RADIUS**2 - edge**2) / 2)))


def ring(s):
    """h(s) = P(R - s < |z| <= R), the proof's bound for one pair."""
    with mpmath.workdps(60):
        r = mpmath.sqrt(128 * mpmath.log(2))
        return mpmath.exp(-((r - s) ** 2) / 2) - mpmath.exp(-r * r / 2)


@pytest.mark.parametrize("s", [1e-6, 1e-3, 0.1, 0.5, 0.885, 1.0, 2.0, 3.0, 5.0, 7.0, 8.9])
def test_one_pair(s):
    truth = leaves_the_disc(s)
    assert 0 < truth <= float(ring(s))
    assert truth >= 0.02 * float(ring(s))  # the bound is no empty one
    # All of the shift in one pair is one of the cases the floor covers.
    assert support_floor(1 / s, 1) >= truth


@FAST
@given(
    st.floats(-6, math.log10(8.99)).map(lambda x: 10.0**x),
    st.lists(st.tuples(st.floats(0, 1, exclude_min=True), st.integers(0, 35)), min_size=1),
)
def test_every_split_of_the_shift_over_the_pairs(shift, groups):
    # Groups of 2^k pairs that share a part of the squared shift equally, at most m pairs together.
    count, total = 0, sum(part for part, _ in groups)
    bound = mpmath.mpf(support_floor(1 / shift, 1))
    lost = mpmath.mpf(0)
    for part, k in groups:
        size = min(2**k, PAIRS - count)
        count += size
        if size:
            lost += size * ring(shift * math.sqrt(part / total / size) * (1 - 1e-12))
    assert lost <= bound


def test_the_floor_is_close_to_the_worst_split():
    for shift in [1e-3, 0.1, 0.885, 3.0, 6.0]:
        even = PAIRS * ring(shift / math.sqrt(PAIRS))
        worst = max(even, ring(shift))
        assert worst <= support_floor(1 / shift, 1) <= 2.1 * float(worst)


def test_the_curve_of_the_proof_increases():
    # k(s) = (e^(R s - s^2/2) - 1 - R s)/s^2 on (0, 9.2].
    with mpmath.workdps(60):
        r = mpmath.sqrt(128 * mpmath.log(2))
        grid = [mpmath.mpf(10) ** (mpmath.mpf(k) / 50) for k in range(-400, 48)] + [mpmath.mpf(9.2)]
        values = [(mpmath.exp(r * s - s * s / 2) - 1 - r * s) / s**2 for s in grid]
    assert all(low < high for low, high in itertools.pairwise(values))


def test_truncated_law_against_the_claim():
    # One coordinate with a small radius: the divergence of the truncated law by direct summation
    # lies between the exact one and exact/(1 - Q) + the mass that leaves the support.
    radius, mu = 3.0, 0.8
    z = np.linspace(-radius - mu, radius + mu, 400_001)
    dz = z[1] - z[0]
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    other = np.exp(-((z - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
    inside = math.erf(radius / math.sqrt(2))
    p = np.where(np.abs(z) <= radius, density, 0) / inside
    q = np.where(np.abs(z - mu) <= radius, other, 0) / inside
    escaping = float(np.sum(p[q == 0]) * dz)
    for eps in [0.0, 0.5, 1.0, 2.0, 4.0]:
        truncated = float(np.sum(np.maximum(p - math.exp(eps) * q, 0)) * dz)
        exact = float(np.sum(np.maximum(density - math.exp(eps) * other, 0)) * dz)
        assert truncated <= exact / inside + escaping + 1e-5
        assert truncated >= escaping


@FAST
@given(
    st.floats(-300, 300).map(lambda x: 10.0**x),
    st.integers(1, 50),
    st.sampled_from([1.0, 2.0]),
)
def test_monotone_and_capped(sigma, nodes, l2_sensitivity):
    floor = support_floor(sigma, nodes, l2_sensitivity=l2_sensitivity)
    assert 0 < floor <= 1
    assert support_floor(sigma, nodes + 1, l2_sensitivity=l2_sensitivity) >= floor
    assert support_floor(sigma * 1.001, nodes, l2_sensitivity=l2_sensitivity) <= floor
    assert support_floor(sigma / 2, nodes) == support_floor(sigma, nodes, l2_sensitivity=2.0)


def test_no_overlap_is_promised_from_nine_standard_deviations_on():
    assert support_floor(1 / 9, 1) == 1.0
    assert support_floor(1e-300, 3) == 1.0
    assert 0.05 < support_floor(1 / 8.999, 1) < 1


def test_published_setting():
    # 11 nodes at sigma 1.13: far below any delta in use.
    assert 1e-13 < support_floor(1.13, 11) < 1e-12


@FAST
@given(
    st.floats(-300, -0.01).map(lambda x: 10.0**x),
    st.integers(1, 50),
    st.floats(-20, 0).map(lambda x: 10.0**x),
)
def test_taking_the_floor_off_and_adding_it_again(delta, nodes, floor):
    exact = untruncated_delta(delta, nodes, floor)
    assert (exact > 0) == (delta > floor) or exact == 0.0
    if exact > 0:
        again = truncated_delta(exact, nodes, floor)
        assert again == pytest.approx(delta, rel=1e-12, abs=5e-324)
        assert exact < delta


def test_renormalisation():
    with mpmath.workdps(50):
        q = mpmath.mpf(11) * PAIRS * mpmath.mpf(2) ** -64
        expected = mpmath.mpf(1e-6) / (1 - q)
        assert 0 <= truncated_delta(1e-6, 11, 0.0) - expected < 3e-22
        assert 0 <= mpmath.mpf(1e-6) * (1 - q) - untruncated_delta(1e-6, 11, 0.0) < 3e-22
    assert truncated_delta(1.0, 11, 0.5) == 1.0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((math.nan, 1), ValueError, "noise_multiplier must be a finite number > 0, got nan"),
        ((0.0, 1), ValueError, "noise_multiplier must be a finite number > 0, got 0.0"),
        ((1.0, 0), ValueError, "nodes must be an integer >= 1, got 0"),
        ((1.0, 1.0), TypeError, "nodes must be an integer >= 1, got float"),
        ((1.0, 2**29), ValueError, r"nodes must be an integer < 2\^29, got 536870912"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        support_floor(*arguments)
