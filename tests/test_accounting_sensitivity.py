# SPDX-License-Identifier: Apache-2.0
"""The single-pass sensitivity against an enumeration of every node and every position."""

import math

import numpy as np
import pytest

from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.participation import participation_from_dict


def enumerated(steps, restart_every, complete):
    """zeta by listing trees, their readable nodes, and every step the record may be in."""
    trees, left = [], steps
    while left > 0:
        real = left if restart_every is None else min(left, restart_every)
        left -= real
        followed_by_restart = left > 0
        end = real
        if complete == "all" or (complete is True and followed_by_restart):
            end = 1
            while end < real:
                end *= 2
        trees.append((real, end))
    best = 0
    for real, end in trees:
        nodes = [
            (first, first + 2**level - 1)
            for level in range(end.bit_length())
            for first in range(1, end + 1, 2**level)
            if first + 2**level - 1 <= end
        ]
        for step in range(1, real + 1):
            best = max(best, sum(first <= step <= last for first, last in nodes))
    return best


@pytest.mark.parametrize("complete", [False, True, "all"])
def test_equals_the_enumeration(complete):
    for steps in range(1, 71):
        for restart_every in [None, *range(1, steps + 2)]:
            expected = enumerated(steps, restart_every, complete)
            for bound in ("exact", "level"):
                zeta = acc.sensitivity_squared(
                    acc.SinglePass(steps),
                    restart_every=restart_every,
                    complete=complete,
                    bound=bound,
                )
                assert zeta == expected, (steps, restart_every, complete, bound)


def test_published_single_pass_value():
    zeta = acc.sensitivity_squared(acc.SinglePass(1600))
    assert zeta == 11
    assert type(zeta) is int


def test_completion_counts_only_where_a_tree_is_completed():
    run = acc.SinglePass(100)
    assert acc.sensitivity_squared(run) == 7
    assert acc.sensitivity_squared(run, complete=True) == 7
    assert acc.sensitivity_squared(run, complete="all") == 8
    assert acc.sensitivity_squared(run, restart_every=50) == 6
    assert acc.sensitivity_squared(run, restart_every=50, complete=True) == 7


def test_very_long_runs_cost_nothing():
    assert acc.sensitivity_squared(acc.SinglePass(2**47 + 1), restart_every=3) == 2
    assert acc.sensitivity_squared(acc.SinglePass(2**47 + 1), complete="all") == 49


def test_numpy_integers_are_integers():
    run = acc.SinglePass(np.int64(1600))
    assert run == acc.SinglePass(1600)
    assert type(run.steps) is int
    assert acc.sensitivity_squared(run, restart_every=np.int32(400)) == 9


@pytest.mark.parametrize("steps", [0, -1])
def test_steps_below_one(steps):
    with pytest.raises(ValueError, match=rf"steps must be an integer >= 1, got {steps}"):
        acc.SinglePass(steps)


@pytest.mark.parametrize("steps", [True, 3.0, math.nan, "3", None, [3], np.float64(3)])
def test_steps_of_a_wrong_type(steps):
    with pytest.raises(TypeError, match=r"steps must be an integer >= 1, got \w+"):
        acc.SinglePass(steps)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"restart_every": 0}, ValueError, "restart_every must be an integer >= 1, got 0"),
        ({"restart_every": 2.0}, TypeError, "restart_every must be an integer >= 1, got float"),
        ({"complete": "restarts"}, ValueError, 'complete must be False, True or "all", got'),
        ({"complete": 1}, TypeError, 'complete must be False, True or "all", got int'),
        ({"complete": None}, TypeError, 'complete must be False, True or "all", got NoneType'),
        ({"bound": "released"}, ValueError, 'bound must be "exact" or "level", got \'released\''),
    ],
)
def test_wrong_options(wrong, error, message):
    with pytest.raises(error, match=message):
        acc.sensitivity_squared(acc.SinglePass(8), **wrong)


@pytest.mark.parametrize("participation", [1600, None, acc.SinglePass])
def test_wrong_participation(participation):
    with pytest.raises(TypeError, match=r"participation must be a SinglePass, got \w+"):
        acc.sensitivity_squared(participation)


def test_single_pass_is_a_frozen_value():
    run = acc.SinglePass(5)
    assert run == acc.SinglePass(5) != acc.SinglePass(6)
    assert hash(run) == hash(acc.SinglePass(5))
    with pytest.raises(AttributeError):
        run.steps = 6
    assert participation_from_dict(run.to_dict()) == run


@pytest.mark.parametrize(
    ("d", "error", "message"),
    [
        ([], TypeError, "participation must be a mapping, got list"),
        ({}, ValueError, "participation kind must be 'SinglePass', got None"),
        ({"kind": "Poisson", "steps": 3}, ValueError, "got 'Poisson'"),
        ({"kind": "SinglePass"}, ValueError, "exactly the keys 'kind' and 'steps'"),
        ({"kind": "SinglePass", "steps": 3, "x": 1}, ValueError, "exactly the keys"),
        ({"kind": "SinglePass", "steps": "3"}, TypeError, "steps must be an integer >= 1"),
    ],
)
def test_wrong_participation_dictionaries(d, error, message):
    with pytest.raises(error, match=message):
        participation_from_dict(d)
