# SPDX-License-Identifier: Apache-2.0
"""The squared sensitivity against brute force over who may take part when."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from participation_oracle import (
    TreeSpecs,
    max_fixed_epochs,
    max_level_wise,
    maximal_patterns,
    tree_specs,
    zeta_exact,
    zeta_released_honaker,
    zeta_released_vanilla,
)
from separation_program import plain_min_separation
from tree_options import zeta_of

from dpftrl_fast import accounting as acc

FAST = settings(max_examples=50, deadline=None, derandomize=True)

ZETA = {
    "exact": zeta_exact,
    "vanilla": zeta_released_vanilla,
    "honaker": zeta_released_honaker,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "exact": {},
    "vanilla": {"bound": "released", "variant": "vanilla"},
    "honaker": {"bound": "released", "variant": "honaker"},
}
KINDS = list(ZETA)


# ---- Brute force at speed: each zeta is a quadratic form of the uses, one block a tree ----


@cache
def form(kind: str, steps: int, completed: bool) -> NDArray[np.float64]:
    """M with zeta = u^T M u, from the oracle's values for one and for two uses."""
    zeta, tree = ZETA[kind], [(steps, completed)]
    one = [zeta([i], tree) for i in range(steps)]
    m = np.diag(np.array(one, float))
    for i in range(steps):
        for j in range(i):
            m[i, j] = m[j, i] = (zeta([i, j], tree) - one[i] - one[j]) / 2
    return m


@cache
def patterns(steps: int, most: int, separation: int) -> NDArray[np.float64]:
    """One row of zeros and ones for each set of uses to which none can be added."""
    found = maximal_patterns(steps, most, separation)
    rows = np.zeros((len(found), steps))
    for row, uses in zip(rows, found, strict=True):
        row[list(uses)] = 1
    return rows


def values(kind: str, rows: NDArray[np.float64], trees: TreeSpecs) -> NDArray[np.float64]:
    """zeta of each row of uses (a column a step, any multiplicity)."""
    total, start = np.zeros(len(rows)), 0
    for steps, completed in trees:
        u = rows[:, start : start + steps]
        total += np.sum((u @ form(kind, steps, completed)) * u, axis=1)
        start += steps
    return total


def agrees(kind: str, got: float, wanted: float) -> bool:
    """Whether ``got`` is the exact integer or, for Honaker, the value rounded up."""
    if kind == "honaker":
        return type(got) is float and wanted * (1 - 1e-13) <= got <= wanted * (1 + 1e-11)
    return type(got) is int and got == round(wanted) and abs(got - wanted) < 1e-6


def lengths_and_completion(trees: TreeSpecs) -> dict[str, Any]:
    return {"tree_lengths": [n for n, _ in trees], "complete": [c for _, c in trees]}


def completions(lengths: list[int]) -> Iterator[list[bool]]:
    """All choices of completed trees that differ: a tree of 2^k steps has nothing to complete."""
    yield from map(list, product(*([True, False] if n & (n - 1) else [False] for n in lengths)))


@st.composite
def trees_of(draw: st.DrawFn, steps: int) -> list[tuple[int, bool]]:
    cuts = draw(st.sets(st.integers(1, steps - 1), max_size=5)) if steps > 1 else set()
    ends = [*sorted(cuts), steps]
    if draw(st.booleans()):
        period = draw(st.integers(1, steps))
        ends = [*range(period, steps, period), steps]
    lengths = np.diff([0, *ends]).tolist()
    return [(n, draw(st.booleans())) for n in lengths]


# ---- A minimum separation ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", range(1, 13))
def test_every_pattern_every_restart_period_every_completion(kind: str, steps: int) -> None:
    # All numbers of uses and separations of short runs, and some of longer ones.
    uses, apart = (range(1, 5), range(1, 7)) if steps <= 8 else ((2, 4), (1, 2, 3, 6))
    for most, separation in product(uses, apart):
        run = acc.MinSeparation(steps, most, separation)
        rows = patterns(steps, most, separation)
        for period in [None, *range(1, steps)]:
            trees = tree_specs(steps, period)
            choices = [False, True, "all"]
            if steps <= 8 or len(trees) <= 3:
                choices += completions([n for n, _ in trees])
            for complete in choices:
                trees = tree_specs(steps, period, complete)
                wanted = values(kind, rows, trees).max()
                got = zeta_of(run, restart_every=period, complete=complete, **OPTIONS[kind])
                assert agrees(kind, got, wanted), (run, period, complete, got, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", range(2, 9))
def test_every_split_into_trees(kind: str, steps: int) -> None:
    for cuts in product([False, True], repeat=steps - 1):
        ends = [t for t, cut in enumerate(cuts, 1) if cut] + [steps]
        lengths = np.diff([0, *ends]).tolist()
        for complete in completions(lengths):
            trees = list(zip(lengths, complete, strict=True))
            for most, separation in ((2, 1), (2, 3), (2, 5), (3, 1), (3, 2), (3, 3)):
                wanted = values(kind, patterns(steps, most, separation), trees).max()
                got = zeta_of(
                    acc.MinSeparation(steps, most, separation),
                    **lengths_and_completion(trees),
                    **OPTIONS[kind],
                )
                assert agrees(kind, got, wanted), (trees, most, separation, got, wanted)


@FAST
@given(st.data())
def test_longer_runs_with_few_uses(data: st.DataObject) -> None:
    most = data.draw(st.integers(1, 4))
    steps = data.draw(st.integers(1, {1: 70, 2: 50, 3: 30, 4: 20}[most]))
    separation = data.draw(st.integers(1, steps + 3))
    trees = data.draw(trees_of(steps))
    run = acc.MinSeparation(steps, most, separation)
    for kind in KINDS:
        wanted = values(kind, patterns(steps, most, separation), trees).max()
        got = zeta_of(run, **lengths_and_completion(trees), **OPTIONS[kind])
        assert agrees(kind, got, wanted), (kind, got, wanted)


@FAST
@given(st.data())
def test_the_plain_program_up_to_256_steps(data: st.DataObject) -> None:
    steps = data.draw(st.integers(1, 256))
    separation = data.draw(st.integers(1, 40))
    most = data.draw(st.integers(1, max(1, min(9, 3000 // separation**2))))
    trees = data.draw(trees_of(steps))
    run = acc.MinSeparation(steps, most, separation)
    for kind, counted in (("exact", "all"), ("vanilla", "even")):
        got = zeta_of(run, **lengths_and_completion(trees), **OPTIONS[kind])
        assert got == plain_min_separation(trees, most, separation, counted)


@FAST
@given(st.data())
def test_bounds_are_ordered(data: st.DataObject) -> None:
    steps = data.draw(st.integers(1, 300))
    most = data.draw(st.integers(1, 12))
    separation = data.draw(st.integers(1, 40))
    trees = data.draw(trees_of(steps))
    options = lengths_and_completion(trees)
    run = acc.MinSeparation(steps, most, separation)
    exact = zeta_of(run, **options)
    assert zeta_of(run, bound="level", **options) >= exact
    released = {k: zeta_of(run, **options, **OPTIONS[k]) for k in KINDS[1:]}
    assert max(released.values()) <= exact

    gaps = data.draw(st.lists(st.integers(separation, separation + 9), max_size=most - 1))
    uses = np.cumsum([data.draw(st.integers(0, steps - 1)), *gaps])
    ids = np.full(steps, -1)
    ids[uses[uses < steps]] = 7
    order = acc.FixedOrder(ids)
    assert zeta_of(order, **options) <= exact
    assert zeta_of(order, bound="level", **options) >= zeta_of(order, **options)
    for kind, zeta in released.items():
        single = zeta_of(order, **options, **OPTIONS[kind])
        assert single <= zeta * (1 + 1e-12)


@pytest.mark.parametrize("steps", range(1, 9))
def test_level_wise_bound(steps: int) -> None:
    # At least the largest sum of one level that a pattern attains, level by level, and equal to it
    # where any node can be filled without keeping others from it.
    for most, separation, period in product((1, 2, 3), (1, 2, 3), (None, 1, 2, 3, 5)):
        for complete in (False, True, "all"):
            trees = tree_specs(steps, period, complete)
            attained = max_level_wise(steps, most, separation, trees)
            got = zeta_of(
                acc.MinSeparation(steps, most, separation),
                restart_every=period,
                complete=complete,
                bound="level",
            )
            assert got >= attained
            if most == 1 or separation == 1:
                assert got == attained


@FAST
@given(st.data())
def test_monotone_in_the_declaration(data: st.DataObject) -> None:
    steps, most = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 8))
    separation = data.draw(st.integers(1, 30))
    for kind in KINDS:
        zeta = zeta_of(acc.MinSeparation(steps, most, separation), **OPTIONS[kind])
        for wider in (
            acc.MinSeparation(steps + 1, most, separation),
            acc.MinSeparation(steps, most + 1, separation),
            acc.MinSeparation(steps, most, max(1, separation - 1)),
        ):
            assert zeta_of(wider, **OPTIONS[kind]) >= zeta * (1 - 1e-12)


def test_more_uses_than_fit_are_clamped() -> None:
    for kind in KINDS:
        fitting = zeta_of(acc.MinSeparation(65, 9, 8), **OPTIONS[kind])
        clamped = zeta_of(acc.MinSeparation(65, 2**40, 8), **OPTIONS[kind])
        assert clamped == fitting
        apart = zeta_of(acc.MinSeparation(65, 2**40, 2**40), **OPTIONS[kind])
        assert apart == zeta_of(acc.SinglePass(65), **OPTIONS[kind])
    level = zeta_of(acc.MinSeparation(65, 2**40, 8), bound="level")
    assert level == zeta_of(acc.MinSeparation(65, 9, 8), bound="level")


def test_every_step_is_every_epoch_of_one_batch() -> None:
    for kind in KINDS:
        always = zeta_of(acc.MinSeparation(37, 37, 1), **OPTIONS[kind])
        one_batch = zeta_of(acc.FixedEpochs(1, 37), **OPTIONS[kind])
        assert always == pytest.approx(one_batch, rel=1e-10)


# ---- One pass ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("complete", [False, True, "all"])
def test_single_pass(kind: str, complete: Any) -> None:
    for steps in (*range(1, 10), 12, 15, 16, 17, 23, 31, 32, 33):
        for period in [None, 1, 2, 3, 5, 8, 11, 16]:
            trees = tree_specs(steps, period, complete)
            wanted = values(kind, np.eye(steps), trees).max()
            got = zeta_of(
                acc.SinglePass(steps), restart_every=period, complete=complete, **OPTIONS[kind]
            )
            assert agrees(kind, got, wanted)
            if kind == "exact":
                level = zeta_of(
                    acc.SinglePass(steps), restart_every=period, complete=complete, bound="level"
                )
                assert level == got


# ---- Epochs of fixed batches ----


@FAST
@given(st.data())
def test_fixed_epochs(data: st.DataObject) -> None:
    steps_per_epoch = data.draw(st.integers(1, 9))
    epochs = data.draw(st.integers(1, 36 // steps_per_epoch))
    reshuffle = data.draw(st.booleans())
    trees = data.draw(trees_of(steps_per_epoch * epochs))
    run = acc.FixedEpochs(steps_per_epoch, epochs, reshuffle)
    for kind in KINDS:

        def zeta(uses: Any, specs: TreeSpecs, kind: str = kind) -> float:
            row = np.bincount(list(uses), minlength=sum(n for n, _ in specs)).astype(float)
            return float(values(kind, row[None, :], specs)[0])

        wanted = max_fixed_epochs(zeta, steps_per_epoch, epochs, trees, reshuffle)
        got = zeta_of(run, **lengths_and_completion(trees), **OPTIONS[kind])
        assert agrees(kind, got, wanted), (kind, got, wanted)
    exact = zeta_of(run, **lengths_and_completion(trees))
    assert zeta_of(run, bound="level", **lengths_and_completion(trees)) >= exact


def test_a_reshuffle_at_restarts_costs_where_batches_move() -> None:
    kept = acc.FixedEpochs(3, 4, reshuffle=False)
    dealt = acc.FixedEpochs(3, 4)
    for period in (3, 6, 12, None):  # the batch of the first step is the worst of every tree
        assert zeta_of(kept, restart_every=period) == zeta_of(dealt, restart_every=period)
    assert zeta_of(kept, restart_every=5) == 13
    assert zeta_of(dealt, restart_every=5) == 18


def test_epochs_of_a_size_that_nobody_lists() -> None:
    run = acc.FixedEpochs(2**20, 2**20)
    assert zeta_of(run, restart_every=2**20) == 21 * 2**20
    with pytest.raises(ValueError, match="computed for at most 134217728 steps"):
        zeta_of(run, bound="released")
    assert zeta_of(acc.FixedEpochs(1, 2**40), restart_every=1) == 2**40


@pytest.mark.parametrize("bound", ["exact", "released"])
def test_more_uses_than_the_program_takes_are_refused(bound):
    many = acc.MinSeparation(2**21, 2**20 + 1, 1)
    with pytest.raises(ValueError, match=r"more than 2\^20 uses needs bound=\"level\""):
        acc.sensitivity_squared(many, bound=bound)
    assert acc.sensitivity_squared(many, bound="level") > 2**40
