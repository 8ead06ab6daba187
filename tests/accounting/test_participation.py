# SPDX-License-Identifier: Apache-2.0
"""Participation patterns as values: what they accept, equality, and their dictionaries."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
    SinglePass,
    check_participation,
    participation_from_dict,
)

FAST = settings(max_examples=200, deadline=None, derandomize=True)
COUNTS = st.integers(1, 2**40)
STEPS = st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=12).filter(
    lambda steps: any(steps)
)
PATTERNS: st.SearchStrategy[Participation] = st.one_of(
    st.builds(SinglePass, COUNTS),
    st.builds(FixedEpochs, st.integers(1, 2**20), st.integers(1, 2**20), st.booleans()),
    st.builds(MinSeparation, COUNTS, COUNTS, COUNTS),
    st.builds(FixedOrder.from_steps, STEPS),
)


@FAST
@given(PATTERNS)
def test_values_survive_copies_pickles_and_json(pattern: Participation) -> None:
    text = json.dumps(pattern.to_dict(), allow_nan=False)
    for again in (
        participation_from_dict(json.loads(text)),
        pickle.loads(pickle.dumps(pattern)),
        copy.deepcopy(pattern),
        dataclasses.replace(pattern),
    ):
        assert again == pattern
        assert hash(again) == hash(pattern)
        assert type(again) is type(pattern)
        assert json.dumps(again.to_dict()) == text
    assert check_participation(pattern) is pattern


@FAST
@given(PATTERNS, PATTERNS)
def test_equal_only_with_equal_fields(a: Participation, b: Participation) -> None:
    assert (a == b) == (a.to_dict() == b.to_dict())
    assert (a != b) == (a.to_dict() != b.to_dict())


@FAST
@given(STEPS)
def test_an_order_holds_what_its_steps_say(steps: list[list[int]]) -> None:
    order = FixedOrder.from_steps(steps)
    assert order.steps == len(steps)
    assert [
        order.ids[a:b].tolist() for a, b in zip(order.offsets[:-1], order.offsets[1:], strict=True)
    ] == steps
    assert order.step_of_uses().tolist() == [i for i, step in enumerate(steps) for _ in step]
    assert order.most_uses() == max(Counter(i for step in steps for i in step).values())
    assert order == FixedOrder(order.ids, order.offsets)


@FAST
@given(st.lists(st.integers(-1, 6), min_size=1, max_size=12).filter(lambda x: max(x) >= 0))
def test_one_id_a_step(ids: list[int]) -> None:
    order = FixedOrder(ids)
    assert order == FixedOrder.from_steps([[i] if i >= 0 else [] for i in ids])
    assert order.steps == len(ids)


def test_the_arrays_of_an_order_are_its_own_and_read_only() -> None:
    ids, offsets = np.array([3, 4], np.int32), np.array([0, 1, 2])
    order = FixedOrder(ids, offsets)
    ids[0] = offsets[1] = 2
    for same in (order, copy.deepcopy(order), pickle.loads(pickle.dumps(order))):
        assert same.ids.tolist() == [3, 4]
        assert same.offsets.tolist() == [0, 1, 2]
        for array in (same.ids, same.offsets):
            assert array.dtype == np.int64
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        order.ids = ids  # type: ignore[misc]


def test_an_order_takes_any_integers() -> None:
    largest = 2**63 - 1
    assert FixedOrder(np.array([largest], np.uint64)).ids.tolist() == [largest]
    assert FixedOrder((0, 1)) == FixedOrder(np.array([0, 1], np.uint8))
    assert FixedOrder(np.arange(10)[::2]).ids.tolist() == [0, 2, 4, 6, 8]


def test_orders_differ_from_other_patterns() -> None:
    assert FixedOrder([0]) != SinglePass(1)
    assert FixedOrder([0]) != "FixedOrder(1 steps, 1 uses)"


@pytest.mark.parametrize(
    ("pattern", "steps", "uses"),
    [
        (SinglePass(7), 7, 1),
        (FixedEpochs(3, 5), 15, 5),
        (MinSeparation(64, 4, 8), 64, 4),
        (MinSeparation(64, 8, 8), 64, 8),
        (MinSeparation(64, 9, 8), 64, 8),
        (MinSeparation(65, 9, 8), 65, 9),
        (MinSeparation(5, 2**40, 2**40), 5, 1),
        (FixedOrder([1, 2, 3, 1, 4, -1]), 6, 2),
        (FixedOrder([1, 1, 2], [0, 2, 2, 3]), 3, 2),
    ],
)
def test_steps_and_most_uses(pattern: Participation, steps: int, uses: int) -> None:
    assert (pattern.steps, pattern.most_uses()) == (steps, uses)


def test_what_cannot_happen_is_clamped_and_says_so() -> None:
    assert repr(MinSeparation(64, 9, 8)) == (
        "MinSeparation(steps=64, max_participations=9 (8 fit), min_separation=8)"
    )
    assert "fit" not in repr(MinSeparation(64, 8, 8))
    assert MinSeparation(64, 9, 8) != MinSeparation(64, 8, 8)  # values as declared


def test_numpy_integers_become_plain_ones() -> None:
    pattern = MinSeparation(np.int64(8), np.int32(2), np.uint8(3))  # type: ignore[arg-type]
    assert all(type(x) is int for x in pattern.to_dict().values() if x != "MinSeparation")


@pytest.mark.parametrize("wrong", [0, -1, 2**46 + 1])
def test_a_single_pass_has_at_most_2_to_the_46_steps(wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"an integer in \[1, 70368744177664\], got {wrong}"):
        SinglePass(wrong)
    SinglePass(2**46)
    for other in (1.0, math.nan, "3", None, True):
        with pytest.raises(TypeError, match=r"an integer in \[1, 70368744177664\], got "):
            SinglePass(other)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, 2**40 + 1])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: FixedEpochs(x, 1),
        lambda x: FixedEpochs(1, x),
        lambda x: MinSeparation(x, 1, 1),
        lambda x: MinSeparation(1, x, 1),
        lambda x: MinSeparation(1, 1, x),
    ],
)
def test_counts_are_positive_and_at_most_2_to_the_40(make: Any, wrong: int) -> None:
    expected = r"must be an integer in \[1, 1099511627776\], got "
    with pytest.raises(ValueError, match=rf"{expected}{wrong}"):
        make(wrong)
    make(2**40)
    for other in (1.0, math.nan, "3", None, True):
        with pytest.raises(TypeError, match=expected):
            make(other)


def test_the_steps_of_all_epochs_are_limited() -> None:
    with pytest.raises(
        ValueError, match=r"steps_per_epoch \* epochs must be an integer in .*, got"
    ):
        FixedEpochs(2**20 + 1, 2**20)
    for wrong in (1, None, "yes"):
        with pytest.raises(TypeError, match="reshuffle must be a bool, got "):
            FixedEpochs(2, 2, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ids", "offsets", "error", "message"),
    [
        ([], None, ValueError, "ids must hold at least one step, got none"),
        ([-1, -1], None, ValueError, "at least one id >= 0, got virtual steps only"),
        ([], [0, 0], ValueError, "at least one id >= 0, got virtual steps only"),
        ([0, -2], None, ValueError, "ids must be integers >= -1, got -2"),
        ([0, -1], [0, 2], ValueError, "ids must be integers >= 0, got -1"),
        ([0.0, 1.0], None, TypeError, "sequence of integers, got dtype float64"),
        ([math.nan], None, TypeError, "sequence of integers, got dtype float64"),
        ([True, False], None, TypeError, "sequence of integers, got dtype bool"),
        (["a"], None, TypeError, "sequence of integers, got dtype <U1"),
        ([None], None, TypeError, "sequence of integers, got dtype object"),
        ([2**63], None, ValueError, r"integers below 2\^63, got 9223372036854775808"),
        ([2**64], None, ValueError, r"integers below 2\^63, got larger ones"),
        ([[0, 1]], None, ValueError, r"one-dimensional .*, got shape \(1, 2\)"),
        (3, None, ValueError, r"one-dimensional .*, got shape \(\)"),
        ([[0], [1, 2]], None, ValueError, "got a ragged one"),
        ([0], [], ValueError, r"offsets must have T \+ 1 values .*, got 0"),
        ([0], [0], ValueError, r"offsets must have T \+ 1 values .*, got 1"),
        ([0], [0.0, 1.0], TypeError, "offsets must be .* integers, got dtype float64"),
        ([0], [1, 1], ValueError, "offsets must go from 0 to the 1 ids, got 1 to 1"),
        ([0], [0, 2], ValueError, "offsets must go from 0 to the 1 ids, got 0 to 2"),
        ([0, 1], [0, 2, 1, 2], ValueError, "offsets must never decrease, got some that do"),
    ],
)
def test_wrong_orders(ids: Any, offsets: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        FixedOrder(ids, offsets)


@pytest.mark.parametrize(
    ("d", "error", "message"),
    [
        ([], TypeError, "participation must be a mapping, got list"),
        ({}, ValueError, "participation kind must be one of .*, got None"),
        ({"kind": "Poisson"}, ValueError, "participation kind must be one of .*, got 'Poisson'"),
        ({"kind": []}, ValueError, r"participation kind must be one of .*, got \[\]"),
        ({"kind": "SinglePass"}, ValueError, "must have exactly the keys .*, got"),
        ({"kind": "SinglePass", "steps": 1, "x": 1}, ValueError, "must have exactly the keys"),
        ({"kind": "SinglePass", "steps": 1.0}, TypeError, "steps must be an integer"),
        ({"kind": "FixedOrder", "ids": [0]}, ValueError, "must have exactly the keys"),
        ({"kind": "FixedOrder", "ids": [0], "offsets": [0, 2]}, ValueError, "offsets must go"),
    ],
)
def test_wrong_dictionaries(d: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        participation_from_dict(d)


def test_what_is_no_pattern() -> None:
    for wrong in (1600, None, "SinglePass", SinglePass):
        with pytest.raises(TypeError, match=r"participation must be one of \['SinglePass', .*got "):
            check_participation(wrong)
