# SPDX-License-Identifier: Apache-2.0
"""The squared sensitivity of Toeplitz mechanisms against every pattern, with every sign."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from toeplitz_oracle import (
    ALL,
    POSITIVE,
    SIGNED,
    block_lengths,
    exact_column,
    exact_norm,
    largest,
    strategy,
    worth,
)

from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.sensitivity.squared import rule_of
from dpftrl_fast.mechanisms import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Identity,
    Tree,
)

HALVES = [1.0]
for _j in range(1, 100):
    HALVES.append(HALVES[-1] * (_j - 0.5) / _j)

PATTERNS = [
    acc.SinglePass(8),
    acc.FixedEpochs(1, 8),
    acc.FixedEpochs(2, 4),
    acc.FixedEpochs(3, 3),
    acc.FixedEpochs(3, 3, reshuffle=False),
    acc.FixedEpochs(9, 1),
    acc.FixedEpochs(5, 2, reshuffle=False),
    acc.MinSeparation(8, 8, 1),
    acc.MinSeparation(9, 3, 2),
    acc.MinSeparation(10, 3, 3),
    acc.MinSeparation(10, 2, 4),
    acc.MinSeparation(9, 2, 20),
    acc.MinSeparation(8, 1, 3),
]


def check_bounds(mechanism: Any, pattern: Any, every: int | None, *, signed: bool) -> bool:
    """zeta is never below the truth, and is it where the rule says so; returns whether it does."""
    made = replace(mechanism, restart_every=every)
    zeta = acc.sensitivity_squared(pattern, made)
    attained, most = largest(mechanism, pattern, every)
    assert isinstance(zeta, float)
    assert zeta >= attained * (1 - 1e-13)
    words = rule_of(made.layout(pattern.steps), pattern, "exact")
    exact = words.endswith(", exact")
    assert exact or words.endswith(", upper bound")
    if exact:
        assert zeta <= attained * (1 + 1e-12)
    if signed and isinstance(pattern, acc.FixedEpochs):
        assert zeta <= most * (1 + 1e-12) or every is not None
    return exact


# ---- Every pattern ----


@pytest.mark.parametrize("every", [None, 1, 2, 3, 4, 6])
@pytest.mark.parametrize("name", POSITIVE)
def test_every_pattern_of_a_positive_strategy(name: str, every: int | None) -> None:
    mechanism = POSITIVE[name]
    for pattern in PATTERNS:
        if mechanism.bands > pattern.steps:
            continue
        exact = check_bounds(mechanism, pattern, every, signed=False)
        if isinstance(pattern, acc.SinglePass) or (
            isinstance(pattern, acc.FixedEpochs)
            and (every is None or pattern.reshuffle or every % pattern.steps_per_epoch == 0)
        ):
            assert exact
        falls_from = {"bands": 3, "ripples": 20}.get(name, 1)
        if isinstance(pattern, acc.MinSeparation) and pattern.min_separation >= falls_from:
            assert exact or (every is not None and every % pattern.min_separation)


@pytest.mark.parametrize("every", [None, 2, 3, 4])
@pytest.mark.parametrize("name", SIGNED)
def test_every_pattern_of_a_strategy_with_signs(name: str, every: int | None) -> None:
    mechanism = SIGNED[name]
    for pattern in PATTERNS:
        if mechanism.bands <= pattern.steps:
            check_bounds(mechanism, pattern, every, signed=True)


def test_bands_that_do_not_overlap_are_exact_with_any_signs() -> None:
    mechanism = SIGNED["signed bands"]
    for pattern in (
        acc.FixedEpochs(5, 2),
        acc.MinSeparation(12, 2, 5),
        acc.MinSeparation(11, 3, 6),
    ):
        assert check_bounds(mechanism, pattern, None, signed=True)
    zeta = acc.sensitivity_squared(acc.MinSeparation(100, 10, 5), mechanism)
    assert zeta == pytest.approx(10 * 1.39)
    # The columns of the last uses end with the run.
    assert acc.sensitivity_squared(acc.MinSeparation(46, 10, 5), mechanism) < 10 * 1.39 - 0.3


def test_every_pattern_of_twelve_steps() -> None:
    for mechanism in (BandedInverse([1.0, -0.5, -0.25, -0.15]), SIGNED["both signs"]):
        for pattern in (acc.MinSeparation(12, 4, 3), acc.FixedEpochs(4, 3)):
            check_bounds(mechanism, pattern, None, signed=True)


def test_a_strategy_that_falls_only_from_the_separation_on_is_exact() -> None:
    rises = BandedToeplitz([0.2, 0.5, 1.0, 0.4, 0.3, 0.1])
    assert check_bounds(rises, acc.MinSeparation(12, 4, 3), None, signed=False)
    pattern = acc.MinSeparation(12, 4, 2)
    assert rule_of(rises.layout(12), pattern, "exact") == "minimum separation, exact"
    rises_late = BandedToeplitz([1.0, 0.2, 0.4, 0.6])
    assert not check_bounds(rises_late, acc.MinSeparation(12, 4, 2), None, signed=False)


def test_random_contributions_never_exceed_zeta() -> None:
    """A million contributions of vectors in two dimensions, over random patterns and strategies."""
    generator = np.random.default_rng(11)
    for trial in range(100):
        steps, separation = int(generator.integers(6, 25)), int(generator.integers(1, 7))
        uses, size = int(generator.integers(1, 7)), int(generator.integers(1, 6))
        taps = [1.0, *(generator.normal(size=size) * 0.4).tolist()]
        mechanism: Any = BandedInverse(taps) if trial % 2 else BandedToeplitz(taps)
        every = int(generator.integers(3, steps + 1))
        pattern = acc.MinSeparation(steps, uses, separation)
        zeta = acc.sensitivity_squared(pattern, replace(mechanism, restart_every=every))
        c = strategy(mechanism, block_lengths(steps, every))
        fit = pattern.most_participations
        # `fit` places out of the steps less what the separation takes, sorted, then spread again.
        free = steps - (fit - 1) * (separation - 1)
        order = np.argsort(generator.random((10_000, free)), axis=1)[:, :fit]
        places = np.sort(order, axis=1) + np.arange(fit) * (separation - 1)
        angles = generator.random((10_000, fit)) * 2 * np.pi
        total = np.zeros(10_000)
        for part in (np.cos(angles), np.sin(angles)):
            given = np.zeros((10_000, steps))
            np.put_along_axis(given, places, part, axis=1)
            total += np.sum((given @ c.T) ** 2, axis=1)
        assert total.max() <= zeta


# ---- The trap: strategies with signs ----


def test_signs_add_up_to_more_than_the_first_place_formula() -> None:
    trap = BandedToeplitz([1.0, -0.5, 0.3, -0.2, 0.1, 0.0, 0.0, 0.0])
    uses = (0, 3, 6)
    c = strategy(trap, [8])
    formula = float(np.sum(c[:, uses].sum(axis=1) ** 2))
    attained, most = worth(c.T @ c, uses)
    assert formula == pytest.approx(3.03)
    assert attained == pytest.approx(5.03)
    order = acc.FixedOrder([0, -1, -1, 0, -1, -1, 0, -1])
    assert acc.sensitivity_squared(order, trap) == pytest.approx(most)
    assert most >= 5.03
    for pattern in (acc.MinSeparation(8, 3, 3), acc.FixedEpochs(3, 3, reshuffle=False)):
        assert acc.sensitivity_squared(pattern, trap) >= 5.03
    assert rule_of(trap.layout(8), order, "exact").endswith("upper bound")


@pytest.mark.parametrize("pattern", [acc.FixedEpochs(100, 10), acc.MinSeparation(1000, 10, 100)])
def test_long_signed_taps_are_bounded(pattern: Any) -> None:
    # c_j is about 0.999^j sin(j pi/100) 32: half of a period is the separation.
    mechanism = BandedInverse([1.0, -2 * 0.999 * math.cos(math.pi / 100), 0.999**2])
    column = mechanism.strategy(1000)
    generator = np.random.default_rng(3)
    places = np.arange(0, 1000, 100)
    c = np.array([np.concatenate([np.zeros(u), column[: 1000 - u]]) for u in places])
    gram = c @ c.T
    signs = np.where(generator.random((2000, 10)) < 0.5, -1.0, 1.0)
    attained = np.einsum("si,ij,sj->s", signs, gram, signs).max()
    zeta = acc.sensitivity_squared(pattern, mechanism)
    alternating = (-1.0) ** np.arange(10)
    truth = alternating @ gram @ alternating
    assert truth > 10 * gram.sum()
    assert truth <= zeta
    assert attained <= zeta
    assert zeta <= (1.0 + 1e-7) * np.abs(gram).sum() or isinstance(pattern, acc.MinSeparation)


# ---- Rounding ----


@pytest.mark.parametrize("name", ALL)
def test_zeta_is_rounded_up_and_tight(name: str) -> None:
    mechanism, steps, separation, uses = ALL[name], 60, 15, 4
    column = exact_column(mechanism, steps)
    zeta = acc.sensitivity_squared(acc.SinglePass(steps), mechanism)
    exact = exact_norm(column, [0])
    assert exact <= Fraction(zeta) <= exact * (1 + Fraction(1, 10**11))
    if (name in POSITIVE and name != "ripples") or name.endswith("bands"):
        exact = exact_norm(column, list(range(0, steps, separation)))
        for pattern in (
            acc.MinSeparation(steps, uses, separation),
            acc.FixedEpochs(separation, uses),
            acc.FixedOrder([0 if t % separation == 0 else -1 for t in range(steps)]),
        ):
            zeta = acc.sensitivity_squared(pattern, mechanism)
            assert exact <= Fraction(zeta) <= exact * (1 + Fraction(1, 10**11)), pattern


def test_few_uses_of_many_that_fit_are_rounded_up_and_tight() -> None:
    for mechanism in (BandedInverse.square_root(4), POSITIVE["buffers"]):
        column = exact_column(mechanism, 50)
        for uses in (1, 2, 3, 7, 24, 25):
            zeta = acc.sensitivity_squared(acc.MinSeparation(50, uses, 2), mechanism)
            exact = exact_norm(column, list(range(0, 2 * uses, 2)))
            assert exact <= Fraction(zeta) <= exact * (1 + Fraction(1, 10**11))


def test_a_long_strategy_against_other_arithmetic() -> None:
    """The coefficients of anticorrelated taps are powers, those of this buffer too."""
    lam = 1.0 - 2.0**-10
    powers = np.longdouble(lam) ** np.arange(20_000, dtype=np.longdouble)
    total = powers.copy()
    for shift in range(1000, 20_000, 1000):
        total[shift:] += powers[:-shift]
    exact = float(np.sum(total * total))
    for mechanism in (BandedInverse.anticorrelated(lam), BufferedToeplitz([lam], [lam])):
        zeta = acc.sensitivity_squared(acc.FixedEpochs(1000, 20), mechanism)
        assert exact * (1 - 1e-15) <= zeta <= exact * (1 + 3e-11)


# ---- Known orders ----


@pytest.mark.parametrize("every", [None, 4, 5])
@pytest.mark.parametrize("name", ALL)
def test_each_id_of_an_order(name: str, every: int | None) -> None:
    mechanism, steps = ALL[name], 14
    if mechanism.bands > steps:
        return
    generator = np.random.default_rng(5)
    listed = [generator.integers(0, 6, size=3).tolist() for _ in range(steps)]  # some ids twice
    order = acc.FixedOrder.from_steps(listed)
    ids, values = acc.sensitivity_squared_by_id(order, replace(mechanism, restart_every=every))
    c = strategy(mechanism, block_lengths(steps, every))
    gram = c.T @ c
    assert ids.tolist() == sorted({i for step in listed for i in step})
    for one, value in zip(ids.tolist(), values.tolist(), strict=True):
        uses = np.array([t for t, step in enumerate(listed) for i in step if i == one])
        part = gram[np.ix_(uses, uses)]
        assert value >= part.sum() * (1 - 1e-13)
        bound = part.sum() if name in POSITIVE else np.abs(part).sum()
        assert bound * (1 - 1e-13) <= value <= bound * (1 + 1e-11)
    largest_value = acc.sensitivity_squared(order, replace(mechanism, restart_every=every))
    assert largest_value == values.max()


def test_an_order_with_ids_far_apart_and_chunks_of_steps() -> None:
    steps = 5000
    places = [0, 7, 1023, 1024, 1025, 4000, 4999]
    order = acc.FixedOrder.from_steps([[2**40] if t in places else [] for t in range(steps)])
    for mechanism in (
        BandedInverse.square_root(3),
        BufferedToeplitz([0.999, 0.5], [0.01, 0.3]),
        BandedToeplitz(HALVES),
        BandedToeplitz([1.0, -0.5, 0.25]),
    ):
        column = mechanism.strategy(steps)
        y = sum(np.concatenate([np.zeros(u), np.abs(column[: steps - u])]) for u in places)
        value = acc.sensitivity_squared(order, mechanism)
        if column.min() >= 0:
            assert value == pytest.approx(np.sum(y * y), rel=1e-10)
        assert value <= np.sum(y * y) * (1 + 1e-10)


@pytest.mark.parametrize(("buffers", "uses"), [(8, 20_000), (24, 20_000), (64, 7_500)])
def test_many_equal_buffers_and_many_uses_are_rounded_up(buffers: int, uses: int) -> None:
    # Every sum of pairs is rounded the same way, so that the errors add up.
    scale = 25.496362809831425
    order = acc.FixedOrder([0, -1] * uses)
    mechanism = BufferedToeplitz([2.0**-60] * buffers, [scale] * buffers)
    # Of a use c_0 and c_1 alone, which no other use meets.
    least = uses * (1 + (buffers * Fraction(scale)) ** 2)
    zeta = Fraction(acc.sensitivity_squared(order, mechanism))
    assert least <= zeta <= least * (1 + Fraction(1, 10**9))


def test_many_ids_with_the_same_uses_are_computed_once() -> None:
    order = acc.FixedOrder(
        np.tile(np.arange(200_000), 5), np.arange(0, 1_000_001, 1_000)
    )  # 200 batches of 1000 an epoch
    ids, values = acc.sensitivity_squared_by_id(order, BandedInverse.square_root(4))
    epochs = acc.sensitivity_squared(acc.FixedEpochs(200, 5), BandedInverse.square_root(4))
    assert ids.size == 200_000
    assert values.max() == pytest.approx(epochs, rel=1e-12)


# ---- Blocks ----


def test_equal_blocks_of_whole_epochs_add_up() -> None:
    whole = BandedInverse.square_root(4)
    one = acc.sensitivity_squared(acc.FixedEpochs(10, 5), whole)
    for reshuffle in (True, False):
        pattern = acc.FixedEpochs(10, 20, reshuffle)
        many = acc.sensitivity_squared(pattern, replace(whole, restart_every=50))
        assert many == pytest.approx(4 * one, rel=1e-13)


def test_many_blocks_use_an_envelope() -> None:
    mechanism = BandedInverse.square_root(4, restart_every=300)
    pattern = acc.MinSeparation(300 * 100, 7_000, 1)
    zeta = acc.sensitivity_squared(pattern, mechanism)
    one = acc.sensitivity_squared(acc.MinSeparation(300, 300, 1), mechanism)
    attained = 23 * one + acc.sensitivity_squared(acc.MinSeparation(300, 100, 1), mechanism)
    assert attained <= zeta <= 1.05 * attained
    assert rule_of(mechanism.layout(30_000), pattern, "exact").endswith("upper bound")


# ---- What is refused ----


def test_more_bands_than_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="at least the number of taps or bands, 4, got 3"):
        acc.sensitivity_squared(acc.SinglePass(3), BandedInverse.square_root(4))


def test_level_is_refused() -> None:
    with pytest.raises(ValueError, match='bound must be "exact" or "released" for Toeplitz'):
        acc.sensitivity_squared(acc.SinglePass(8), Identity(), bound="level")
    assert acc.sensitivity_squared(acc.SinglePass(8), Identity(), bound="released") >= 1.0


@pytest.mark.parametrize("pattern", [acc.SinglePass(8), acc.MinSeparation(8, 2, 2)])
def test_a_layout_of_other_steps_is_refused(pattern: Any) -> None:
    with pytest.raises(ValueError, match="must have the 8 steps of the participation, got 9"):
        acc.sensitivity.squared.squared_of(Identity().layout(9), pattern, "exact")


def test_a_strategy_that_overflows_is_refused() -> None:
    with pytest.raises(ValueError, match="largest strategy coefficient"):
        acc.sensitivity_squared(acc.SinglePass(2000), BandedInverse([1.0, -2.0]))
    with pytest.raises(ValueError, match="largest strategy coefficient"):
        acc.sensitivity_squared(acc.SinglePass(3), BandedToeplitz([1e-150, 1e-160]))


def test_signs_whose_rounding_cannot_be_bounded_are_refused() -> None:
    with pytest.raises(ValueError, match="taps of both signs"):
        acc.sensitivity_squared(acc.SinglePass(400), BandedInverse([1.0, 2.0, -0.5]))


def test_too_long_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 2\\^24"):
        acc.sensitivity_squared(acc.SinglePass(2**24 + 1), BandedInverse([1.0, -0.5]))
    with pytest.raises(ValueError, match="at most 2\\^24"):
        acc.sensitivity_squared(acc.FixedEpochs(2**24, 2), BufferedToeplitz([0.5], [0.5]))
    with pytest.raises(ValueError, match="within 2\\^24"):
        acc.sensitivity_squared(acc.MinSeparation(2**30, 2**29, 2), BandedToeplitz([1, 1, 1]))
    assert acc.sensitivity_squared(acc.MinSeparation(2**40, 2**30, 2), Identity()) >= 2**30


def test_a_separation_past_the_bands_needs_no_long_column() -> None:
    bands = BandedToeplitz([1.0, 0.5])
    zeta = acc.sensitivity_squared(acc.MinSeparation(2**40, 1000, 2**20), bands)
    assert 1250.0 <= zeta <= 1250.0 * (1 + 1e-11)


def test_trees_name_their_rule() -> None:
    layout = Tree().layout(64)
    assert rule_of(layout, acc.SinglePass(64), "exact") == "nodes of the tree, exact"
    pattern = acc.MinSeparation(64, 3, 5)
    assert rule_of(layout, pattern, "level").endswith("upper bound")
    assert "upper bound" in rule_of(layout, pattern, "released")
    with pytest.raises(TypeError, match="no sensitivity is registered"):
        rule_of(object(), pattern, "exact")  # type: ignore[arg-type]


def test_noise_of_another_kind_is_refused() -> None:
    class Other(Identity):
        @property
        def engine(self) -> Any:
            return ("others", (1.0, 0.5), ())

    with pytest.raises(TypeError, match="no sensitivity is known for Toeplitz noise"):
        acc.sensitivity_squared(acc.SinglePass(4), Other())
