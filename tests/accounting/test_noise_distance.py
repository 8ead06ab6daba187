# SPDX-License-Identifier: Apache-2.0
"""The distance of computed from real noise, against matrices, exact sums and enumerated laws."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, norm

from dpftrl_fast import PrivacyPlan, ToeplitzNoise, TreeNoise
from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.sensitivity.noise_distance import (
    computed_distance,
    correction,
    release_error,
)
from dpftrl_fast.mechanisms import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Identity,
    Layout,
    Mechanism,
    Tree,
)
from dpftrl_fast.mechanisms.tree_layout import TreeLayout

Matrix = NDArray[np.float64]
Row = dict[tuple[int, int, int], float]

TOEPLITZ: list[Mechanism] = [
    Identity(),
    BandedInverse.square_root(5),
    BandedInverse.anticorrelated(0.9, restart_every=7),
    BandedInverse.anticorrelated(0.999),
    BufferedToeplitz([0.9, 0.5], [0.2, 0.1]),
    BufferedToeplitz([0.98], [0.4], restart_every=9),
    BandedToeplitz([1.0, 0.5, 0.25]),
    BandedToeplitz([2.0, 1.5, 1.0], restart_every=8),
]
TREES: list[Mechanism] = [
    Tree("honaker"), Tree("vanilla"), Tree("honaker", complete="all"),
    Tree("honaker", 5), Tree("vanilla", 5), Tree("honaker", 6, complete=True),
    Tree("vanilla", 6, complete="all"), Tree("honaker", 1),
]  # fmt: skip


def combined(*terms: tuple[float, Row]) -> Row:
    found: Row = {}
    for weight, row in terms:
        for node, value in row.items():
            found[node] = found.get(node, 0.0) + weight * value
    return found


def estimate(tree: int, level: int, index: int, honaker: bool) -> Row:
    own: Row = {(tree, level, index): 1.0}
    if not (level and honaker):
        return own
    children = [(0.5, estimate(tree, level - 1, 2 * index + side, True)) for side in (0, 1)]
    return combined((1.0, own), *children)


def prefix(tree: int, t: int, honaker: bool) -> Row:
    levels = [level for level in range(t.bit_length()) if t >> level & 1]
    return combined(
        *((1 / (2 - 0.5**level) if honaker else 1.0,
           estimate(tree, level, (t >> level) - 1, honaker)) for level in levels)
    )  # fmt: skip


def matrix(layout: Layout) -> tuple[Matrix, NDArray[np.int64]]:
    """Return the noise of all sums as a matrix of normals, and the step that each is made in."""
    if not isinstance(layout, TreeLayout):
        step_noise = np.zeros((layout.steps, layout.steps))
        for t in range(1, layout.steps + 1):
            at = layout.locate(t)[1]
            step_noise[t - 1, t - at : t] = layout.mechanism.inverse(at)[::-1]
        return np.cumsum(step_noise, axis=0), np.arange(1, layout.steps + 1)
    honaker, carry, rows = layout.variant == "honaker", Row(), []
    ends: dict[tuple[int, int, int], int] = {}
    trees = [run for run in layout.runs for _ in range(run.count)]
    for tree, run in enumerate(trees):
        before = len(rows)
        rows += [
            combined((1, carry), (1, prefix(tree, t, honaker))) for t in range(1, run.steps + 1)
        ]
        carry = combined((1, carry), (1, prefix(tree, run.end, honaker)))
        for t in range(1, run.end + 1):
            for level in range((t & -t).bit_length()):
                ends[tree, level, (t >> level) - 1] = before + min(t, run.steps)
    used = [node for node in ends if any(node in row for row in rows)]
    sums = np.array([[row.get(node, 0.0) for node in used] for row in rows])
    return sums, np.array([ends[node] for node in used])


def least_norm(columns: Matrix, target: Matrix) -> float:
    answer, *_ = np.linalg.lstsq(columns, target, rcond=None)
    assert np.allclose(columns @ answer, target, atol=1e-8), "no later normals do it"
    return float(np.linalg.norm(answer))


@pytest.mark.parametrize("mechanism", TREES + TOEPLITZ, ids=repr)
@pytest.mark.parametrize("steps", [5, 8, 23, 32])
def test_later_normals_cancel_a_shift(mechanism: Mechanism, steps: int) -> None:
    """The least norms, by pseudo-inverses: of one sum alone, and of all sums after it."""
    layout = mechanism.layout(steps)
    sums, made = matrix(layout)
    alone, rest = (norm * (1 + 1e-9) for norm in correction(layout))
    for t in range(1, steps + 1):
        assert least_norm(sums[:, made >= t], np.eye(steps)[t - 1]) <= alone
        if t < steps:
            later = sums[t:, made > t]
            assert least_norm(later, np.ones(steps - t)) <= rest
            for normal in np.flatnonzero(made == t):  # moved so far that this sum moves by 1
                scale = 1 / sums[t - 1, normal] if sums[t - 1, normal] else 1.0
                assert least_norm(later, sums[t:, normal] * scale) <= rest


def test_the_bound_of_a_tree_is_near_the_least_norm() -> None:
    sums, made = matrix(Tree("vanilla").layout(32))
    found = least_norm(sums[:, made >= 16], np.eye(32)[15])
    assert (
        found == pytest.approx(math.sqrt(5))
        and correction(Tree("vanilla").layout(32)).alone < 2 * found
    )


@pytest.mark.parametrize("variant", ["honaker", "vanilla"])
def test_roundings_of_trees_stay_within_the_bound(variant: str) -> None:
    steps, size, layout = 64, 50, Tree(variant).layout(64)  # type: ignore[arg-type]
    noise = TreeNoise(size, 1.0, variant=variant, dtype="float64", seed=0)  # type: ignore[arg-type]
    worst = 0.0
    for t in range(1, steps + 1):
        computed = noise.step()
        for c in range(size):
            exact = sum((
                Fraction(1, 1) / (2 - Fraction(1, 2**level) if variant == "honaker" else 1)
                * exact_estimate(noise, level, (t >> level) - 1, c)
                for level in range(t.bit_length()) if t >> level & 1
            ), Fraction(0))  # fmt: skip
            worst = max(worst, abs(float(exact - Fraction(float(computed[c])))))
    assert 2.0**-53 < worst < release_error(layout) / 4


def exact_estimate(noise: TreeNoise, level: int, index: int, coordinate: int) -> Fraction:
    own = Fraction(float(noise.node(level, index)[coordinate]))
    if noise.variant == "vanilla" or not level:
        return own
    return (
        own
        + sum(
            (exact_estimate(noise, level - 1, 2 * index + side, coordinate) for side in (0, 1)),
            Fraction(0),
        )
        / 2
    )


@pytest.mark.parametrize("mechanism", TOEPLITZ, ids=repr)
def test_roundings_of_a_step_stay_within_the_bound(mechanism: Mechanism) -> None:
    """The error of the running noise grows in a step by no more than the bound."""
    steps, size = 40, 50
    layout = mechanism.layout(steps)
    noise = PrivacyPlan(1.0, 1.0, acc.SinglePass(steps), mechanism=mechanism).noise(
        size, dtype="float64", seed=0
    )
    assert isinstance(noise, ToeplitzNoise)
    plain = PrivacyPlan(1.0, 1.0, acc.SinglePass(steps), mechanism=Identity()).noise(
        size, dtype="float64", seed=0
    )
    if layout.count > 1:
        plain = PrivacyPlan(
            1.0, 1.0, acc.SinglePass(steps), mechanism=Identity(layout.runs[0].steps)
        ).noise(size, dtype="float64", seed=0)
    normal = [[Fraction(float(x)) for x in plain.residual()] for _ in range(steps)]
    errors, exact = np.zeros((steps + 1, size)), [Fraction(0)] * size
    for t in range(1, steps + 1):
        computed = noise.step()
        at = layout.locate(t)[1]
        weights = [Fraction(float(w)) for w in mechanism.inverse(at)]
        for c in range(size):
            exact[c] += sum((w * normal[t - 1 - i][c] for i, w in enumerate(weights)), Fraction(0))
            errors[t, c] = float(exact[c] - Fraction(float(computed[c])))
    grown = np.abs(np.diff(errors, axis=0)).max()
    assert 0 < grown < release_error(layout) / 4


# What a law of normals with errors does to paths of two steps, on a coarse scale.
_GRID, _ERROR = 2.0**-5, 2.0**-10


def errors_of(z: Matrix) -> Matrix:
    """Move normals near an odd cell's end into it, by at most the error."""
    cell = np.floor(z / _GRID + 0.5)
    place = z / _GRID + 0.5 - cell
    near = _ERROR / _GRID
    up = (cell % 2 == 0) & (place > 1 - near)
    down = (cell % 2 == 0) & (place < near)
    return z + _ERROR * up - _ERROR * down


def test_two_steps_with_errors_against_the_enumerated_law() -> None:
    """Errors that all favour odd cells: seen in the law of paths, and within its bound."""
    fine = np.arange(-5.0, 5.0, _GRID / 256) + _GRID / 512
    mass = norm.cdf(fine + _GRID / 512) - norm.cdf(fine - _GRID / 512)
    first = np.floor(fine / _GRID + 0.5).astype(int)
    moved = np.floor(errors_of(fine) / _GRID + 0.5).astype(int)
    ratios = []
    for cell in (1, 16, 33):
        real = mass[first == cell], fine[first == cell]
        computed = mass[moved == cell], errors_of(fine)[moved == cell]
        for second in (cell - 20, cell, cell + 31):
            edges = (second - 0.5) * _GRID, (second + 0.5) * _GRID
            low, high = edges
            inner = _ERROR * (1 if (second - cell) % 2 else 0)
            p = sum(real[0] * (norm.cdf(high - real[1]) - norm.cdf(low - real[1])))
            widened = norm.cdf(high - computed[1] + inner) - norm.cdf(low - computed[1] - inner)
            ratios.append(math.log(sum(computed[0] * widened) / p))
    bound = 2 * 9 * _ERROR / _GRID
    assert 2 * _ERROR / _GRID < max(ratios) < bound
    assert 1 / correction(Identity().layout(2)).alone > 16 * _GRID  # the condition of the bound


@pytest.mark.parametrize("pairs", [1, 10, 1000])
@pytest.mark.parametrize("one", [1e-4, 0.01, 0.5])
@pytest.mark.parametrize("chance", [1e-3, 1e-9])
def test_coins_against_the_binomial_law(pairs: int, one: float, chance: float) -> None:
    """m coins of weight e^a : 1 pass the ratio e^tau with a probability of at most beta_2."""
    tau = pairs * one * one / 2 + one * math.sqrt(2 * pairs * -math.log(chance))
    least = (tau / one + pairs) / 2  # heads for a log-ratio of tau
    passed = binom.sf(math.floor(least), pairs, math.exp(one) / (1 + math.exp(one)))
    assert passed <= chance


@pytest.mark.parametrize("mechanism", [Tree(), BandedInverse.square_root(8)], ids=repr)
def test_more_coordinates_steps_and_certainty_cost_more(mechanism: Mechanism) -> None:
    def tau(steps: int, dimension: int, chance: float) -> float:
        return computed_distance(mechanism.layout(steps), 2.0**-8, dimension, chance).tau

    base = tau(1000, 10**5, 1e-9)
    assert tau(1000, 10**6, 1e-9) == pytest.approx(base * math.sqrt(10), rel=1e-2)
    assert tau(2000, 10**5, 1e-9) > 1.9 * base
    assert tau(1000, 10**5, 1e-16) > base
    assert tau(1000, 10**5 - 1, 1e-9) == base > tau(1000, 10**5 - 2, 1e-9)


def test_a_grid_too_coarse_for_the_proof_has_no_bound() -> None:
    layout = Tree().layout(1000)
    edge = 1 / (16 * correction(layout).alone)
    assert computed_distance(layout, edge * 0.999, 10, 1e-9).tau < 1e-3
    assert computed_distance(layout, edge * 1.001, 10, 1e-9).tau == math.inf


# Released grids are at most 1/128 of the least deviation, which is 0.7 or more.
@pytest.mark.parametrize("mechanism", TREES + TOEPLITZ, ids=repr)
def test_the_grid_of_a_plan_is_fine_enough(mechanism: Mechanism) -> None:
    for steps in (30, 1000, 2**20):
        if steps == 30 or (mechanism.any_length and not isinstance(mechanism, BandedToeplitz)):
            plan = PrivacyPlan(1.0, 3.3, acc.SinglePass(steps), mechanism=mechanism)
            grid = plan.noise_spec.grid("float64") / plan.noise_spec.std("float64")
            assert 16 * grid * correction(plan.layout).alone < 1


@pytest.mark.parametrize(
    ("steps", "dimension", "tree", "buffers"),
    [(1000, 10**4, 0.0003, 0.0001), (1000, 10**5, 0.001, 0.0003),
     (2000, 10**6, 0.006, 0.002), (10**4, 10**7, 0.12, 0.03)],
)  # fmt: skip
def test_figures_of_the_documentation(
    steps: int, dimension: int, tree: float, buffers: float
) -> None:
    for mechanism, figure in ((Tree(), tree), (BufferedToeplitz([0.98], [0.3]), buffers)):
        plan = PrivacyPlan(1.0, 8.0, acc.SinglePass(steps), mechanism=mechanism)
        added = plan.computed_epsilon(1e-6, dimension) - plan.epsilon(1e-6)
        assert 0 < added <= 1.2 * figure and added >= figure / 2
