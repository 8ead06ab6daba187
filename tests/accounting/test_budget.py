# SPDX-License-Identifier: Apache-2.0
"""The largest runs within a budget, against trying one size after the other."""

import math

import pytest

from dpftrl_fast.accounting.participation import FixedEpochs, MinSeparation, SinglePass
from dpftrl_fast.accounting.planner.budget import (
    largest_epochs,
    largest_participations,
    largest_steps,
    largest_trees,
)
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

DELTA = 1e-6
BUDGETS = [(1.0, 6.0), (2.5, 4.0), (8.0, 2.33)]  # (epsilon, noise multiplier)
TREES = [
    Tree(),
    Tree(complete="all"),
    Tree(restart_every=4),
    Tree(restart_every=5, complete=True),
    Tree("vanilla", restart_every=3, complete="all"),
]


def one_by_one(make, epsilon, most):
    """The largest n <= most whose plan states at most epsilon, and 0 if 1 does not."""
    n = 0
    while n < most and make(n + 1).epsilon(DELTA) <= epsilon:
        n += 1
    return n


def check(call, make, epsilon, most):
    """Compare where the tried sizes reach far enough to tell."""
    expected = one_by_one(make, epsilon, most)
    if expected == 0:
        with pytest.raises(ValueError, match=r"epsilon must be at least that of one \w+, .* got"):
            call()
    else:
        found = call()
        assert found == expected or (expected == most and found > most)
        assert make(found).epsilon(DELTA) <= epsilon


@pytest.mark.parametrize(("epsilon", "sigma"), BUDGETS)
@pytest.mark.parametrize("tree", TREES)
def test_steps_of_a_single_pass(epsilon, sigma, tree):
    check(
        lambda: largest_steps(epsilon, DELTA, sigma, mechanism=tree),
        lambda n: PrivacyPlan(1.0, sigma, SinglePass(n), mechanism=tree),
        epsilon,
        40,
    )


@pytest.mark.parametrize(("epsilon", "sigma"), BUDGETS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("bound", ["exact", "released"])
def test_steps_with_a_separation(epsilon, sigma, tree, bound):
    check(
        lambda: largest_steps(
            epsilon,
            DELTA,
            sigma,
            max_participations=5,
            min_separation=2,
            bound=bound,
            mechanism=tree,
        ),
        lambda n: PrivacyPlan(1.0, sigma, MinSeparation(n, 5, 2), bound=bound, mechanism=tree),
        epsilon,
        11,
    )


@pytest.mark.parametrize(("epsilon", "sigma"), BUDGETS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("reshuffle", [False, True])
def test_epochs(epsilon, sigma, tree, reshuffle):
    check(
        lambda: largest_epochs(epsilon, DELTA, sigma, 4, reshuffle=reshuffle, mechanism=tree),
        lambda n: PrivacyPlan(1.0, sigma, FixedEpochs(4, n, reshuffle), mechanism=tree),
        epsilon,
        8,
    )


@pytest.mark.parametrize(("epsilon", "sigma"), BUDGETS)
@pytest.mark.parametrize("tree", TREES)
def test_participations(epsilon, sigma, tree):
    steps, separation = 11, 2
    expected = one_by_one(
        lambda n: PrivacyPlan(1.0, sigma, MinSeparation(steps, n, separation), mechanism=tree),
        epsilon,
        6,
    )

    def call():
        return largest_participations(
            epsilon, DELTA, sigma, steps, min_separation=separation, mechanism=tree
        )

    if expected:
        assert call() == expected
    else:
        with pytest.raises(ValueError, match="that of one participation"):
            call()


@pytest.mark.parametrize(("epsilon", "sigma"), BUDGETS)
@pytest.mark.parametrize("complete", [False, True, "all"])
def test_trees(epsilon, sigma, complete):
    check(
        lambda: largest_trees(
            epsilon, DELTA, sigma, 6, steps_per_epoch=3, mechanism=Tree(complete=complete)
        ),
        lambda n: PrivacyPlan(
            1.0, sigma, FixedEpochs(3, 2 * n), mechanism=Tree(restart_every=6, complete=complete)
        ),
        epsilon,
        5,
    )
    check(
        lambda: largest_trees(
            epsilon,
            DELTA,
            sigma,
            3,
            max_participations=4,
            min_separation=2,
            mechanism=Tree(complete=complete),
        ),
        lambda n: PrivacyPlan(
            1.0,
            sigma,
            MinSeparation(3 * n, 4, 2),
            mechanism=Tree(restart_every=3, complete=complete),
        ),
        epsilon,
        4,
    )


def test_budgets_turned_round():
    """What a plan was calibrated for is what its noise allows."""
    steps = 4095  # one step more is one level more
    plan = PrivacyPlan.calibrate(
        epsilon=3.0,
        delta=DELTA,
        clip_norm=1.0,
        participation=SinglePass(steps),
        mechanism=Tree(),
    )
    assert largest_steps(3.0, DELTA, plan.noise_multiplier) == steps
    plan = PrivacyPlan.calibrate(
        epsilon=8.0,
        delta=1e-5,
        clip_norm=1.0,
        participation=FixedEpochs(100, 100),
        mechanism=Tree(restart_every=500, complete=True),
    )
    tree = Tree(restart_every=500, complete=True)
    assert largest_epochs(8.0, 1e-5, plan.noise_multiplier, 100, mechanism=tree) == 100
    less = math.nextafter(plan.noise_multiplier, 0.0)
    assert largest_epochs(8.0, 1e-5, less, 100, mechanism=tree) == 99
    found = largest_trees(
        8.0, 1e-5, plan.noise_multiplier, 500, steps_per_epoch=100, mechanism=Tree(complete=True)
    )
    assert found == 20


def test_what_every_budget_allows():
    assert largest_steps(1.0, DELTA, 1e6) == 2**40
    assert largest_steps(1.0, DELTA, 100.0, mechanism=Tree(restart_every=1)) == 2**40
    assert largest_trees(1.0, DELTA, 100.0, 3) == 2**40 // 3
    assert largest_participations(1.0, DELTA, 1e6, 100, min_separation=30) == 4
    assert largest_participations(1.0, DELTA, 1e6, 100, min_separation=2**40) == 1


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: largest_steps(0.1, DELTA, 1.0),
            ValueError,
            r"epsilon must be at least that of one step, 4\.\d+ at delta 1e-06, got 0.1",
        ),
        (lambda: largest_epochs(0.1, DELTA, 1.0, 10), ValueError, "that of one epoch"),
        (lambda: largest_participations(0.1, DELTA, 1.0, 9), ValueError, "of one participation"),
        (lambda: largest_trees(0.1, DELTA, 1.0, 10), ValueError, "that of one tree"),
        (lambda: largest_steps(1.0, 1e-300, 5.0), ValueError, "delta must be above the floor"),
        (lambda: largest_steps(math.nan, DELTA, 1.0), ValueError, "epsilon must be .*, got nan"),
        (lambda: largest_steps(-1.0, DELTA, 1.0), ValueError, "epsilon must be .*, got -1.0"),
        (lambda: largest_steps("1", DELTA, 1.0), TypeError, "epsilon must be .*, got str"),
        (lambda: largest_steps(1.0, 1.0, 1.0), ValueError, "delta must be .*, got 1.0"),
        (lambda: largest_steps(1.0, 0.0, 1.0), ValueError, "delta must be .*, got 0.0"),
        (lambda: largest_steps(1.0, math.nan, 1.0), ValueError, "delta must be .*, got nan"),
        (lambda: largest_steps(1.0, DELTA, 0.0), ValueError, "noise_multiplier must be .*, got 0"),
        (lambda: largest_steps(1.0, DELTA, math.nan), ValueError, "noise_multiplier must be"),
        (lambda: largest_steps(1.0, DELTA, math.inf), ValueError, "noise_multiplier must be"),
        (
            lambda: largest_steps(1.0, DELTA, 9.0, max_participations=0),
            ValueError,
            "max_participations must be an integer in .*, got 0",
        ),
        (
            lambda: largest_steps(1.0, DELTA, 9.0, min_separation=0.5),
            TypeError,
            "min_separation must be an integer in .*, got float",
        ),
        (
            lambda: largest_steps(1.0, DELTA, 9.0, mechanism=Tree(restart_every=0)),
            ValueError,
            "restart_every must be an integer >= 1, got 0",
        ),
        (
            lambda: largest_steps(1.0, DELTA, 9.0, mechanism=Tree(complete=[True])),
            TypeError,
            r"mechanism must fit any number of steps .*, got Tree\(.*complete=\(True,\)\)",
        ),
        (
            lambda: largest_steps(1.0, DELTA, 9.0, mechanism=Tree(complete=1)),
            TypeError,
            "complete must be",
        ),
        (lambda: largest_steps(1.0, DELTA, 9.0, bound="level"), ValueError, "bound must be"),
        (
            lambda: largest_steps(1.0, DELTA, 9.0, mechanism=Tree(variant="x")),
            ValueError,
            "variant must be",
        ),
        (lambda: largest_epochs(1.0, DELTA, 9.0, 0), ValueError, "steps_per_epoch must be"),
        (lambda: largest_epochs(1.0, DELTA, 9.0, 2, reshuffle=0), TypeError, "reshuffle must be"),
        (lambda: largest_participations(1.0, DELTA, 9.0, 0), ValueError, "steps must be"),
        (
            lambda: largest_participations(1.0, DELTA, 9.0, 2**40 + 1),
            ValueError,
            r"steps must be an integer in .*, got 1099511627777",
        ),
        (lambda: largest_trees(1.0, DELTA, 9.0, 0), ValueError, "tree_steps must be"),
        (
            lambda: largest_trees(1.0, DELTA, 9.0, 10, steps_per_epoch=3),
            ValueError,
            "tree_steps must be a multiple of 3 steps_per_epoch, got 10",
        ),
        (
            lambda: largest_trees(1.0, DELTA, 9.0, 9, steps_per_epoch=3, max_participations=2),
            ValueError,
            "expected steps_per_epoch, or max_participations and min_separation, got both",
        ),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
