# SPDX-License-Identifier: Apache-2.0
"""The published sensitivities, and those that the design of this package was checked with."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tree_options import with_tree

from dpftrl_fast import accounting as acc
from dpftrl_fast.mechanisms import Tree


def test_stackoverflow_single_pass() -> None:
    assert acc.sensitivity_squared(acc.SinglePass(1600)) == 11


@pytest.mark.parametrize(
    ("population", "goal", "zeta"),
    [
        (342_477, 100, 11),
        (342_477, 1000, 45),
        (342_477, 5060, 168),
        (342_477, 16300, 385),
        (1_000_000, 3850, 63),
        (1_000_000, 10300, 119),
    ],
)
def test_report_goals_restart_once_a_population(population: int, goal: int, zeta: int) -> None:
    # ceil(1600/per) * (floor(log2 min(per, 1600)) + 1): each tree counted as if it were whole.
    per = population // goal
    assert math.ceil(1600 / per) * (int(math.log2(min(per, 1600))) + 1) == zeta
    trees = -(-1600 // per)
    run = acc.FixedEpochs(min(per, 1600), trees)
    assert acc.sensitivity_squared(run, Tree(restart_every=min(per, 1600))) == zeta


def test_five_steps_and_three_virtual_ones() -> None:
    assert acc.sensitivity_squared(acc.FixedOrder([1, 2, 3, 1, 4])) == 8
    assert acc.sensitivity_squared(acc.FixedOrder([1, 2, 3, 1, 4, -1, -1, -1])) == 12
    assert acc.sensitivity_squared(acc.FixedOrder([1, 2, 3, 1, 4]), Tree(complete="all")) == 12


CIFAR = acc.FixedEpochs(steps_per_epoch=100, epochs=100)
IN_ORDER = acc.FixedOrder(np.tile(np.arange(100), 100))


@pytest.mark.parametrize(
    ("epochs", "plain", "restarts", "every"),
    [
        (1, 700, 799, 800),
        (5, 1000, 1570, 1600),
        (20, 2125, 4129, 4630),
        (None, 14349, 14349, None),
    ],
)
def test_cifar(epochs: int | None, plain: int, restarts: int, every: int | None) -> None:
    period = None if epochs is None else 100 * epochs
    for run in (CIFAR, acc.FixedEpochs(100, 100, reshuffle=False), IN_ORDER):
        assert acc.sensitivity_squared(run, Tree(restart_every=period)) == plain
        assert acc.sensitivity_squared(run, Tree(restart_every=period, complete=True)) == restarts
        if every is not None:
            assert acc.sensitivity_squared(run, Tree(restart_every=period, complete="all")) == every


@pytest.mark.parametrize(
    ("steps", "uses", "separation", "exact", "level"),
    [
        (64, 4, 8, 56, 56),
        (128, 4, 16, 60, 60),
        (256, 5, 32, 81, 81),
        (512, 6, 32, 140, 140),
        (1024, 8, 64, 232, 232),
        (2000, 20, 100, 425, 467),
        (10_000, 100, 100, 14351, 14729),
        (69_750, 50, 1395, 4926, 5023),
    ],
)
def test_min_separation(steps: int, uses: int, separation: int, exact: int, level: int) -> None:
    run = acc.MinSeparation(steps, uses, separation)
    assert acc.sensitivity_squared(run) == exact
    assert acc.sensitivity_squared(run, bound="level") == level


VANILLA = {"bound": "released", "variant": "vanilla"}


def test_released_vanilla_prefixes() -> None:
    assert acc.sensitivity_squared(CIFAR, **with_tree(VANILLA)) == 10784
    assert acc.sensitivity_squared(acc.FixedEpochs(100, 20), **with_tree(VANILLA)) == 312
    assert acc.sensitivity_squared(acc.MinSeparation(2000, 20, 100), **with_tree(VANILLA)) == 315


def test_uses_that_attain_the_maximum() -> None:
    uses = [0, 100, 200, 300, 400, 500, 600, 704, 804, 904]
    uses += [1008, 1120, 1220, 1320, 1424, 1536, 1640, 1744, 1856, 1984]
    assert min(np.diff(uses)) == 100
    order = np.full(2000, -1)
    order[uses] = 0
    assert acc.sensitivity_squared(acc.FixedOrder(order), **with_tree(VANILLA)) == 315


def test_released_honaker_prefixes() -> None:
    single = acc.sensitivity_squared(acc.SinglePass(1024), bound="released")
    assert single == pytest.approx(9.47, abs=0.005)
    short = acc.sensitivity_squared(acc.SinglePass(256), bound="released")
    assert short == pytest.approx(7.778544714842, abs=1e-11)
