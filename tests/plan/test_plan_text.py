# SPDX-License-Identifier: Apache-2.0
"""What a plan says of itself in words: rounded up, with the neighbours and the pattern named."""

import dataclasses
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast.accounting.curve.rounding import text_up
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    SinglePass,
)
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

FAST = settings(max_examples=60, deadline=None, derandomize=True)
PLAN = PrivacyPlan(clip_norm=0.3, noise_multiplier=2.33, participation=SinglePass(1600))


def test_describe():
    lines = PLAN.describe(1e-6).splitlines()
    assert "neighbours: one record's (or user's) gradients replaced by zero" in lines[0]
    assert lines[0].startswith("epsilon 7.342 at delta 1e-06")
    assert lines[1].startswith("epsilon 17 at delta 1e-06")
    assert "replaced by another's" in lines[1]
    assert "1600 steps" in lines[3]
    assert lines[3].endswith("one tree, honaker")
    assert lines[4] == "clip norm 0.3, noise multiplier 2.33, zeta 11, mu 1.424"


def test_one_step_and_a_sum_of_decimals_read_as_written():
    lines = PrivacyPlan(0.1 + 0.2, 2.0, SinglePass(1)).describe(1e-6).splitlines()
    assert lines[3].startswith("1 step, ") and lines[4].startswith("clip norm 0.3, ")


@FAST
@given(
    st.floats(-1, 4).map(lambda x: 10.0**x),
    st.integers(1, 10**9),
    st.floats(-11, -0.1).map(lambda x: 10.0**x),
)
def test_described_epsilon_is_rounded_up(sigma, steps, delta):
    plan = PrivacyPlan(1.0, sigma, SinglePass(steps))
    if delta <= plan.delta_floor:
        with pytest.raises(ValueError, match="above the floor"):
            plan.describe(delta)
        return
    text = plan.describe(delta)
    shown = float(re.match(r"epsilon (\S+) at", text).group(1))
    true = plan.epsilon(delta)
    assert true <= shown <= true * 1.0011


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "one tree, honaker"),
        ({"complete": True}, "one tree, honaker"),
        ({"complete": "all"}, "one tree, completed, honaker"),
        ({"restart_every": 20, "variant": "vanilla"}, "a new tree every 20 steps, vanilla"),
        ({"restart_every": 20, "complete": True}, "every 20 steps, completed before it, honaker"),
        ({"restart_every": 20, "complete": "all"}, "every 20 steps, each completed, honaker"),
        ({"restart_every": 600}, "a new tree every 600 steps, honaker"),
        ({"tree_lengths": [800, 800]}, "a new tree every 800 steps, honaker"),
        ({"tree_lengths": [700, 900]}, "2 trees of 700, 900 steps, honaker"),
        (
            {"tree_lengths": [700, 100, 800], "complete": True},
            "3 trees of 700, 100, 800 steps, 2 of them completed, honaker",
        ),
        (
            {"restart_every": 400, "complete": [True, False, True, False]},
            "a new tree every 400 steps, 2 of them completed, honaker",
        ),
        (
            {"tree_lengths": [*range(1, 51), 325]},
            "51 trees of 1, 2, 3, 4, 5, 6, .. steps, honaker",
        ),
    ],
)
def test_described_trees(options, text):
    described = dataclasses.replace(PLAN, mechanism=Tree(**options)).describe(1e-6).splitlines()[3]
    assert described.endswith(text)


def test_describe_without_a_replace_one_guarantee():
    plan = PrivacyPlan(1.0, 0.3, SinglePass(16))
    delta = math.sqrt(plan.delta_floor * plan.guarantee.floor(neighbours="replace-one"))
    lines = plan.describe(delta).splitlines()
    assert lines[0].startswith("epsilon ")
    assert lines[1].startswith("no epsilon at delta")
    floor = text_up(plan.guarantee.floor(neighbours="replace-one"))
    assert lines[1].endswith(f"; delta must be above {floor} for one")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (SinglePass(8), "8 steps, each record (or user) in at most one of them"),
        (
            FixedEpochs(4, 2),
            "8 steps, 2 epochs of 4 fixed batches, in one order between restarts of the noise",
        ),
        (FixedEpochs(4, 2, False), "8 steps, 2 epochs of 4 fixed batches, in one order"),
        (
            FixedOrder([1, 2, 1, -1, 2, 2]),
            "6 steps in a listed order, each record (or user) used at most 3 times",
        ),
        (
            MinSeparation(8, 2, 4),
            "8 steps, each record (or user) in at most 2 of them, 4 or more apart",
        ),
        (
            MinSeparation(8, 9, 4),
            "8 steps, each record (or user) in at most 2 of them, 4 or more apart (9 declared)",
        ),
    ],
)
def test_described_patterns(pattern, text):
    lines = PrivacyPlan(1.0, 20.0, pattern).describe(1e-6).splitlines()
    assert lines[3] == f"{text}; one tree, honaker"


def test_described_bound():
    pattern = FixedEpochs(4, 2)
    for variant in ("vanilla", "honaker"):
        plan = PrivacyPlan(1.0, 20.0, pattern, mechanism=Tree(variant=variant), bound="released")
        found = re.search(r"zeta (\S+) of the released prefixes,", plan.describe(1e-6))
        zeta = plan.sensitivity_squared
        assert zeta <= float(found.group(1)) <= zeta * 1.0011


def test_the_promise_shows_the_floor_of_each_line() -> None:
    plan = PrivacyPlan(1.0, 2.33, SinglePass(1600))
    first, second = (
        text_up(plan.guarantee.floor(neighbours=kind))  # type: ignore[arg-type]
        for kind in ("zero-out", "replace-one")
    )
    assert first != second
    words = f"includes {first} for the finite tail of the noise ({second} for the second line)"
    assert words in plan.promise(1e-6)
