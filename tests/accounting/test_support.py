# SPDX-License-Identifier: Apache-2.0
"""The floor of a noise stream with a finite tail, against the quantities that it bounds."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast.accounting.curve.gaussian import delta as gaussian_delta
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    SinglePass,
)
from dpftrl_fast.accounting.sensitivity.delta_floor import (
    MAX_COORDINATES,
    Touched,
    calibrated_noise_multiplier,
    support_floor,
    touched,
    truncated_delta,
    untruncated_delta,
)
from dpftrl_fast.mechanisms import Tree

RADIUS = math.sqrt(128 * math.log(2))
PAIRS = MAX_COORDINATES // 2
FAST = settings(max_examples=40, deadline=None, derandomize=True)


def once(nodes):
    """One contribution under each of so many nodes."""
    return Touched(nodes, nodes, 1)


def floor_once(sigma, nodes, scale=1.0):
    return support_floor(sigma, nodes, once(nodes), scale=scale)


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
    assert floor_once(1 / s, 1) >= truth


@FAST
@given(
    st.floats(-6, math.log10(8.99)).map(lambda x: 10.0**x),
    st.lists(st.tuples(st.floats(0, 1, exclude_min=True), st.integers(0, 35)), min_size=1),
)
def test_every_split_of_the_shift_over_the_pairs(shift, groups):
    # Groups of 2^k pairs that share a part of the squared shift equally, at most m pairs together.
    count, total = 0, sum(part for part, _ in groups)
    bound = mpmath.mpf(floor_once(1 / shift, 1))
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
        assert worst <= floor_once(1 / shift, 1) <= 2.1 * float(worst)


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
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.floats(-6, math.log10(8.99)).map(lambda x: 10.0**x),
    st.lists(st.integers(0, 35), min_size=1, max_size=4),
    st.sampled_from([1.0, 2.0]),
)
def test_every_split_over_nodes_with_several_contributions(counts, largest, splits, scale):
    # Node i has counts[i] contributions, evenly over 2^k of its pairs, k one of the splits.
    one = largest / max(counts)
    bound = support_floor(
        scale / one,
        sum(c * c for c in counts),
        Touched(len(counts), sum(counts), max(counts)),
        scale=scale,
    )
    lost = mpmath.mpf(0)
    for count, k in zip(counts, itertools.cycle(splits)):
        lost += 2**k * ring(count * one / math.sqrt(2**k) * (1 - 1e-12))
    assert lost <= mpmath.mpf(bound)


@FAST
@given(
    st.floats(-300, 300).map(lambda x: 10.0**x),
    st.integers(1, 50),
    st.sampled_from([1.0, 2.0]),
)
def test_monotone_and_capped(sigma, nodes, scale):
    floor = floor_once(sigma, nodes, scale)
    assert 0 < floor <= 1
    assert floor_once(sigma, nodes + 1, scale) >= floor
    assert floor_once(sigma * 1.001, nodes, scale) <= floor
    assert floor_once(sigma / 2, nodes) == floor_once(sigma, nodes, 2.0)
    for more in [
        Touched(nodes + 1, nodes, 1),
        Touched(nodes, nodes + 1, 1),
        Touched(nodes, nodes, 2),
    ]:
        assert support_floor(sigma, nodes, more, scale=scale) >= floor
    assert support_floor(sigma, nodes * 1.5, once(nodes), scale=scale) >= floor


def test_no_overlap_is_promised_from_nine_standard_deviations_on():
    assert floor_once(1 / 9, 1) == 1.0
    assert floor_once(1e-300, 3) == 1.0
    assert support_floor(2.0, 500, Touched(30, 100, 18)) == 1.0
    assert 0.05 < floor_once(1 / 8.999, 1) < 1


def test_nothing_is_promised_for_2_to_the_29_nodes():
    many = Touched(2**29, 2**29, 1)
    assert support_floor(1e300, 1.0, many) == 1.0
    assert truncated_delta(1e-6, many, 0.0) == 1.0
    assert untruncated_delta(0.999, many, 1.0) == 0.0
    assert support_floor(1e12, 1.0, Touched(2**28, 2**28, 1)) < 1.0


def test_published_setting():
    # 11 nodes at sigma 1.13: far below any delta in use.
    assert 9e-13 < floor_once(1.13, 11) < 9.3e-13


@FAST
@given(
    st.floats(-300, -0.01).map(lambda x: 10.0**x),
    st.integers(1, 50),
    st.floats(-20, 0).map(lambda x: 10.0**x),
)
def test_taking_the_floor_off_and_adding_it_again(delta, nodes, floor):
    exact = untruncated_delta(delta, once(nodes), floor)
    assert (exact > 0) == (delta > floor) or exact == 0.0
    if exact > 0:
        again = truncated_delta(exact, once(nodes), floor)
        assert again == pytest.approx(delta, rel=1e-12, abs=5e-324)
        assert exact < delta


def test_renormalisation():
    with mpmath.workdps(50):
        q = mpmath.mpf(11) * PAIRS * mpmath.mpf(2) ** -64
        expected = mpmath.mpf(1e-6) / (1 - q)
        assert 0 <= truncated_delta(1e-6, once(11), 0.0) - expected < 3e-22
        assert 0 <= mpmath.mpf(1e-6) * (1 - q) - untruncated_delta(1e-6, once(11), 0.0) < 3e-22
    assert truncated_delta(1.0, once(11), 0.5) == 1.0


# ---- What one id does to the nodes ----


def patterns_of(pattern, trees):
    """Every list of uses (steps from 0) that one id may have, as its definition says."""
    steps = pattern.steps
    if isinstance(pattern, SinglePass):
        return [[i] for i in range(steps)]
    if isinstance(pattern, MinSeparation):
        return [
            list(uses)
            for k in range(1, pattern.max_participations + 1)
            for uses in itertools.combinations(range(steps), k)
            if all(b - a >= pattern.min_separation for a, b in itertools.pairwise(uses))
        ]
    if isinstance(pattern, FixedOrder):
        listed = zip(pattern.offsets[:-1], pattern.offsets[1:], strict=True)
        by_step = [pattern.ids[a:b].tolist() for a, b in listed]
        return [
            [i for i, ids in enumerate(by_step) for x in ids if x == one]
            for one in set(pattern.ids.tolist())
        ]
    tree_of = [trees.locate(step + 1)[0] if pattern.reshuffle else 0 for step in range(steps)]
    places = itertools.product(range(pattern.steps_per_epoch), repeat=max(tree_of) + 1)
    return [
        [i for i in range(steps) if i % pattern.steps_per_epoch == place[tree_of[i]]]
        for place in places
    ]


def shifts_by_use(uses, trees):
    """Contributions under each node that can be read, the tree's number first in its name."""
    found = Counter()
    for step in uses:
        tree, t = trees.locate(step + 1)
        end = trees.run_of(tree).end
        for level in range(end.bit_length()):
            index = (t - 1) >> level
            if (index + 1) << level <= end:
                found[tree, level, index] += 1
    return list(found.values())


def shortest_shifts(uses, trees):
    """Node shifts of least norm that move every released Honaker prefix as the uses do."""
    found = []
    by_tree = {}
    for step in uses:
        tree, t = trees.locate(step + 1)
        by_tree.setdefault(tree, []).append(t)
    for tree, leaves in by_tree.items():
        run = trees.run_of(tree)
        times = [*range(1, run.steps + 1), *([run.end] if run.end > run.steps else [])]
        levels = range(run.end.bit_length())
        names = {v: i for i, v in enumerate((m, j) for m in levels for j in range(run.end >> m))}
        mixing = np.zeros((len(times), len(names)))
        for row, t in enumerate(times):
            for level in (x for x in levels if t >> x & 1):
                index = (t >> level) - 1
                for m in range(level + 1):
                    below = range(index << (level - m), (index + 1) << (level - m))
                    for j in below:
                        mixing[row, names[m, j]] = 2.0 ** (m - level) / (2 - 2.0**-level)
        moved = np.array([sum(leaf <= t for leaf in leaves) for t in times], float)
        found += list(np.linalg.pinv(mixing) @ moved)
    return [abs(x) for x in found if abs(x) > 1e-9]


CASES = [
    (pattern, options)
    for pattern in [
        SinglePass(11),
        FixedEpochs(4, 3),
        FixedEpochs(4, 3, reshuffle=False),
        FixedEpochs(3, 3),
        FixedOrder([1, 2, 3, 1, 4, 1, -1, 2, 2, 1]),
        FixedOrder([1, 1, 2, 1, 3, 2, 2, 2], [0, 2, 4, 4, 5, 8]),
        MinSeparation(9, 3, 2),
        MinSeparation(8, 2, 3),
        MinSeparation(7, 7, 1),
    ]
    for options in [
        {},
        {"complete": "all"},
        {"restart_every": 2},
        {"restart_every": 3, "complete": True},
        {"restart_every": 5, "complete": "all"},
    ]
]


@pytest.mark.parametrize(("pattern", "options"), CASES)
def test_touched_against_every_pattern(pattern, options):
    trees = Tree(**options).layout(pattern.steps)
    every = patterns_of(pattern, trees)
    exact = touched(trees, pattern)
    worst = [shifts_by_use(uses, trees) for uses in every]
    assert exact.nodes >= max(len(shifts) for shifts in worst)
    assert exact.total >= max(sum(shifts) for shifts in worst)
    assert exact.largest >= max(max(shifts, default=0) for shifts in worst)
    assert touched(replace(trees, variant="vanilla"), pattern, "released") == exact
    released = touched(trees, pattern, "released")
    worst = [shortest_shifts(uses, trees) for uses in every]
    assert released.nodes >= max(len(shifts) for shifts in worst)
    assert released.total >= max(sum(shifts) for shifts in worst)
    assert released.largest >= max(max(shifts, default=0) for shifts in worst)


def test_touched_is_no_loose_bound_where_it_is_simple():
    for steps in [1, 2, 3, 1600, 2**40]:
        levels = steps.bit_length()
        assert touched(Tree().layout(steps), SinglePass(steps)) == once(levels)
    separated = MinSeparation(1000, 10, 100)
    assert touched(Tree().layout(1000), separated).largest == 10
    assert touched(Tree(restart_every=100).layout(1000), separated).largest == 1
    dealt_again = FixedEpochs(10, 2)
    assert touched(Tree(restart_every=5).layout(20), dealt_again).total == 4 * 3
    assert touched(Tree(restart_every=5).layout(20), FixedEpochs(10, 2, reshuffle=False)).total == 6


def test_touched_with_very_many_trees():
    trees = Tree(restart_every=1, complete=True).layout(2**40)
    assert touched(trees, MinSeparation(2**40, 5, 1)) == Touched(5, 5, 1)


# ---- The noise multiplier of a budget ----


@FAST
@given(
    st.one_of(st.just(0.0), st.floats(-4, 4).map(lambda x: 10.0**x)),
    st.floats(-300, -0.1).map(lambda x: 10.0**x),
    st.lists(st.integers(1, 40), min_size=1, max_size=50),
)
def test_calibration_is_the_least_double_within_the_budget(eps, delta, counts):
    zeta, nodes = sum(c * c for c in counts), Touched(len(counts), sum(counts), max(counts))

    def within(sigma):
        exact = untruncated_delta(delta, nodes, support_floor(sigma, zeta, nodes))
        return exact > 0 and gaussian_delta(sigma, zeta, eps) <= exact

    sigma = calibrated_noise_multiplier(eps, delta, zeta, nodes)
    assert within(sigma)
    assert not within(math.nextafter(sigma, 0.0))


NAN, ONE = math.nan, once(1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: support_floor(NAN, 1, ONE), ValueError, "noise_multiplier must be .*, got nan"),
        (lambda: support_floor(0.0, 1, ONE), ValueError, "noise_multiplier must be .*, got 0.0"),
        (lambda: support_floor(1.0, NAN, ONE), ValueError, "sensitivity_squared must be .* nan"),
        (lambda: support_floor(1.0, 0, ONE), ValueError, "sensitivity_squared must be .* 0.0"),
        (lambda: support_floor(1.0, 1, ONE, scale=NAN), ValueError, "scale must be .* nan"),
        (lambda: Touched(0, 1, 1), ValueError, "nodes must be an integer >= 1, got 0"),
        (lambda: Touched(1, 1.0, 1), TypeError, "total must be an integer >= 1, got float"),
        (lambda: Touched(1, 1, -1), ValueError, "largest must be an integer >= 1, got -1"),
        (
            lambda: touched(Tree().layout(3), 3),
            TypeError,
            "participation must be one of .*, got int",
        ),
        (
            lambda: touched(Tree().layout(4), SinglePass(3)),
            ValueError,
            "trees must have the 3 steps of the run, got 4",
        ),
        (
            lambda: touched(Tree().layout(3), SinglePass(3), bound="level"),
            ValueError,
            "bound must be one of 'exact', 'released', got 'level'",
        ),
        (
            lambda: touched(Tree("top-down").layout(3), SinglePass(3)),
            ValueError,
            "variant must be one of 'honaker', 'vanilla', got 'top-down'",
        ),
        (lambda: touched(3, SinglePass(3)), TypeError, "layouts of type int"),
        (lambda: calibrated_noise_multiplier(NAN, 0.1, 1, ONE), ValueError, "epsilon must be"),
        (lambda: calibrated_noise_multiplier(-1.0, 0.1, 1, ONE), ValueError, "epsilon must be"),
        (lambda: calibrated_noise_multiplier(1.0, 1.0, 1, ONE), ValueError, "delta must be"),
        (lambda: calibrated_noise_multiplier(1.0, NAN, 1, ONE), ValueError, "delta must be"),
        (lambda: calibrated_noise_multiplier(1.0, 0.1, 0, ONE), ValueError, "sensitivity_squ"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("sigma", "zeta", "held"),
    [
        (1.0, 30, Touched(11, 20, 3)),
        (0.7, 500.0, Touched(40, 60, 3)),
        (2.33, 11, Touched(2**28, 2**28, 1)),  # half of the noise is not inside
        (4.0, 10**3, Touched(2**28 + 5, 2**29, 5)),
    ],
)
def test_the_floor_is_the_formula_rounded_up(sigma: float, zeta: float, held: Touched) -> None:
    """Of the module's docstring, term by term: nodes, total and largest shift."""
    with mpmath.workdps(60):
        radius, pairs = mpmath.sqrt(128 * mpmath.ln(2)), mpmath.mpf(2) ** 35
        outside, s = mpmath.mpf(2) ** -64, 1 / mpmath.mpf(sigma)
        x = s * held.largest
        curve = (mpmath.exp(radius * x - x * x / 2) - 1 - radius * x) / (x * x)
        lost = radius * mpmath.sqrt(pairs) * held.total * s + zeta * s * s * curve
        exact = outside / (1 - held.nodes * pairs * outside) * lost
        found = support_floor(sigma, zeta, held)
        assert exact <= found <= exact * (1 + mpmath.mpf(10) ** -11) < 1


def test_a_node_that_is_shifted_by_nine_deviations_has_no_floor() -> None:
    assert support_floor(1.0, 81, Touched(1, 9, 9)) == 1.0
    assert support_floor(1.0, 81, Touched(9, 9, 1)) < 1e-9
    assert support_floor(1.0, 81, Touched(2**29, 2**29, 1)) == 1.0
