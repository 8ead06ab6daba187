# SPDX-License-Identifier: Apache-2.0
"""Trees of a run: their lengths and completion against a list made one tree at a time."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast.mechanisms import Tree, TreeLayout
from dpftrl_fast.mechanisms.tree_layout import TreeRun

FAST = settings(max_examples=200, deadline=None, derandomize=True)


def one_by_one(steps: int, lengths: list[int], complete: Any) -> list[tuple[int, bool]]:
    """(steps, completed) of each tree, as the words say it."""
    assert sum(lengths) == steps
    found = []
    for i, n in enumerate(lengths):
        last = i == len(lengths) - 1
        if complete in (False, True, "all"):
            found.append((n, complete == "all" or (complete is True and not last)))
        else:
            found.append((n, complete[i]))
    return found


def unrolled(trees: TreeLayout) -> list[tuple[int, bool]]:
    return [(run.steps, run.completed) for run in trees.runs for _ in range(run.count)]


def lengths_every(steps: int, every: int | None) -> list[int]:
    lengths, left = [], steps
    while left:
        lengths.append(min(left, every or steps))
        left -= lengths[-1]
    return lengths


@FAST
@given(st.data(), st.integers(1, 60), st.one_of(st.none(), st.integers(1, 70)), st.booleans())
def test_against_trees_one_by_one(
    data: st.DataObject, steps: int, every: int | None, explicit: bool
) -> None:
    lengths = lengths_every(steps, every)
    if explicit:
        lengths = data.draw(st.permutations(lengths))
    flags = st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))
    complete = data.draw(st.one_of(st.sampled_from([False, True, "all"]), flags))
    given_as = {"tree_lengths": lengths} if explicit else {"restart_every": every}
    trees = Tree(complete=complete, **given_as).layout(steps)  # type: ignore[arg-type]
    expected = one_by_one(steps, lengths, complete)
    assert unrolled(trees) == expected
    assert (trees.steps, trees.count) == (steps, len(lengths))
    assert trees.longest == max(lengths)
    ends = [2 ** math.ceil(math.log2(n)) if completed else n for n, completed in expected]
    assert [run.end for run in trees.runs for _ in range(run.count)] == ends
    assert trees.tallest == max(ends)
    # No two neighbours that could be one.
    pairs = [(run.steps, run.completed) for run in trees.runs]
    assert all(a != b for a, b in itertools.pairwise(pairs))
    places = [(i, t) for i, n in enumerate(lengths) for t in range(1, n + 1)]
    assert [trees.locate(step) for step in range(1, steps + 1)] == places
    assert trees.blocks_of(np.arange(steps)).tolist() == [i for i, _ in places]
    assert [trees.run_of(i).steps for i in range(len(lengths))] == lengths
    assert [trees.steps_before(i) for i in range(len(lengths) + 1)] == [
        sum(lengths[:i]) for i in range(len(lengths) + 1)
    ]


def test_size_does_not_follow_the_number_of_trees() -> None:
    trees = Tree(restart_every=1, complete=True).layout(2**40)
    assert trees.runs == (TreeRun(1, True, 2**40 - 1), TreeRun(1, False, 1))
    assert trees.locate(2**40) == (2**40 - 1, 1)
    assert trees.run_of(2**40 - 1) == trees.runs[1]
    assert trees.steps_before(2**39) == 2**39
    uneven = Tree(restart_every=3).layout(2**40)
    assert uneven.runs == (TreeRun(3, False, (2**40 - 1) // 3), TreeRun(1, False, 1))
    assert uneven.locate(2**40 - 1) == ((2**40 - 1) // 3 - 1, 3)


def test_values_compare_and_hash() -> None:
    every = Tree(restart_every=5, complete=True).layout(10)
    listed = Tree(tree_lengths=np.array([5, 5]), complete=[True, False]).layout(10)
    assert every == listed
    assert hash(every) == hash(listed)
    assert every != Tree(restart_every=5).layout(10)


def test_a_period_beyond_the_run_is_one_tree() -> None:
    assert Tree(restart_every=10**30, complete=True).layout(10) == Tree().layout(10)
    assert Tree(complete="all").layout(10).tallest == 16


def test_completion_as_given() -> None:
    assert Tree(complete=np.array([True, False])).complete == (True, False)  # type: ignore[arg-type]
    assert Tree(complete=np.True_).complete is True  # type: ignore[arg-type]
    assert Tree(complete="all").complete == "all"


@pytest.mark.parametrize(
    ("steps", "options", "error", "message"),
    [
        (0, {}, ValueError, r"steps must be an integer in \[1, 1099511627776\], got 0"),
        (2**40 + 1, {}, ValueError, r"steps must be an integer in .*, got 1099511627777"),
        (1.0, {}, TypeError, "steps must be an integer in .*, got float"),
        (True, {}, TypeError, "steps must be an integer in .*, got bool"),
        (5, {"restart_every": 0}, ValueError, "restart_every must be an integer >= 1, got 0"),
        (5, {"restart_every": -3}, ValueError, "restart_every must be an integer >= 1, got -3"),
        (5, {"restart_every": math.nan}, TypeError, "restart_every must be .*, got float"),
        (5, {"tree_lengths": [2, 2]}, ValueError, "add up to the 5 steps of the run, got 4"),
        (5, {"tree_lengths": []}, ValueError, "tree_lengths must hold at least one tree, got none"),
        (
            5,
            {"tree_lengths": [5, 0]},
            ValueError,
            "each of tree_lengths must be an integer in .*, got 0",
        ),
        (
            5,
            {"tree_lengths": [5.0]},
            TypeError,
            "each of tree_lengths must be an integer in .*, got float",
        ),
        (5, {"tree_lengths": 5}, TypeError, "tree_lengths must be a sequence .*, got int"),
        (5, {"tree_lengths": "5"}, TypeError, "tree_lengths must be a sequence .*, got str"),
        (5, {"tree_lengths": {5: 1}}, TypeError, "tree_lengths must be a sequence .*, got dict"),
        (
            5,
            {"tree_lengths": np.ones((5, 1), int)},
            ValueError,
            r"tree_lengths must be .*, got an array of shape \(5, 1\)",
        ),
        (5, {"tree_lengths": [5], "restart_every": 5}, ValueError, "or tree_lengths, got both"),
        (5, {"complete": "some"}, ValueError, 'complete must be False, True, "all" or .*, got'),
        (5, {"complete": 1}, TypeError, 'complete must be False, True, "all" or .*, got int'),
        (5, {"complete": None}, TypeError, "complete must be False, .*, got NoneType"),
        (5, {"complete": [1]}, TypeError, "each of complete must be a bool, got int"),
        (5, {"complete": []}, ValueError, "one bool for each of 1 trees, got 0"),
        (
            5,
            {"complete": [True, True], "restart_every": 2},
            ValueError,
            "one bool for each of 3 trees, got 2",
        ),
    ],
)
def test_wrong_arguments(
    steps: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Tree(**options).layout(steps)


def test_places_that_there_are_not() -> None:
    trees = Tree(restart_every=4).layout(10)
    for step in (0, -1, 11):
        with pytest.raises(IndexError, match=rf"step must be an integer in \[1, 10\], got {step}"):
            trees.locate(step)
    for block in (-1, 3):
        with pytest.raises(IndexError, match=r"block must be an integer in \[0, 3\), got"):
            trees.run_of(block)
    for block in (-1, 4):
        with pytest.raises(IndexError, match=r"block must be an integer in \[0, 3\], got"):
            trees.steps_before(block)
    for steps in ([-1], [3, 10]):
        with pytest.raises(IndexError, match=r"steps must be integers in \[0, 10\), got"):
            trees.blocks_of(np.array(steps))
