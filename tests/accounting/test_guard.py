# SPDX-License-Identifier: Apache-2.0
"""The guard: admits exactly what was declared, and a refusal changes nothing."""

from __future__ import annotations

import copy
import io
import json
import pickle
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from participation_oracle import zeta_exact
from participation_runs import (
    Declared,
    Steps,
    admissible,
    declared_runs,
    declared_zeta,
    proposed_step,
    uses_by_id,
)

from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.accounting.guard.id_table import IdTable
from dpftrl_fast.accounting.guard.ledger import Ledger
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
    SinglePass,
)
from dpftrl_fast.mechanisms import BandedInverse, Tree


def same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[k], b[k]) for k in a)


def through_json(state: dict[str, Any]) -> Any:
    return json.loads(json.dumps(state, default=lambda array: array.tolist()))


def through_npz(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    with np.load(file, allow_pickle=False) as read:
        return dict(read)


def admitted(guard: Guard, ids: list[int]) -> bool:
    before = guard.state_dict()
    try:
        guard.admit(ids)
    except ValueError:
        assert same(guard.state_dict(), before)
        return False
    return True


def checked(guard: Guard, ids: list[int]) -> bool:
    """Whether the guard would admit a step; nothing may change."""
    before, allowed = guard.state_dict(), True
    try:
        guard.check(ids)
    except ValueError:
        allowed = False
    assert same(guard.state_dict(), before)
    return allowed


@settings(max_examples=100, deadline=None)
@given(declared=declared_runs(), data=st.data())
def test_it_admits_what_is_declared_and_nothing_else(
    declared: Declared, data: st.DataObject
) -> None:
    guard = Guard(declared.pattern, declared.tree)
    history: Steps = []
    for _ in range(declared.pattern.steps + 3):
        ids = proposed_step(data.draw, declared, history)
        expected = admissible(declared, [*history, ids])
        assert checked(guard, ids) == expected
        assert admitted(guard, ids) == expected
        if expected:
            history.append(ids)
        if data.draw(st.integers(0, 4)) == 0:
            state = guard.state_dict()
            guard = Guard(declared.pattern, declared.tree)
            guard.load_state_dict(
                data.draw(st.sampled_from([dict, through_json, through_npz]))(state)
            )
            assert same(guard.state_dict(), state)
    assert guard.steps_taken == len(history)
    declared_most = declared_zeta(declared)
    for uses in uses_by_id(history).values():
        assert zeta_exact(uses, declared.trees) <= declared_most


@settings(max_examples=60, deadline=None)
@given(declared=declared_runs(), data=st.data())
def test_eligible_says_who_may_be_in_the_next_step(declared: Declared, data: st.DataObject) -> None:
    guard = Guard(declared.pattern, declared.tree)
    everyone = list(range(6))
    while guard.steps_taken < declared.pattern.steps:
        mask = guard.eligible(everyone).tolist()
        ids = [i for i in everyone if data.draw(st.booleans())]
        if admitted(guard, ids):
            assert all(mask[i] for i in ids)
        elif isinstance(declared.pattern, (SinglePass, MinSeparation)):
            assert not all(mask[i] for i in ids)
            guard.admit([i for i in ids if mask[i]])
        else:
            break


def test_no_one_is_eligible_after_the_last_step() -> None:
    guard = Guard(SinglePass(1))
    guard.admit([])
    assert guard.eligible([1, 2]).tolist() == [False, False]
    with pytest.raises(ValueError, match="no more than the 1 declared steps"):
        guard.admit([])


def test_separation_counts_real_steps_across_a_completed_restart() -> None:
    # Trees of 3 steps completed to 4 leaves: leaves 3 and 5 are apart by 1 real step, not by 2.
    guard = Guard(MinSeparation(6, 2, 2), Tree(restart_every=3, complete="all"))
    for ids in ([], [], [7]):
        guard.admit(ids)
    with pytest.raises(ValueError, match=r"step 4 .* got id 7, used 1 times, last in step 3"):
        guard.admit([7])
    guard.admit([])
    guard.admit([7])


def test_the_number_of_uses_is_shared_by_the_trees() -> None:
    guard = Guard(MinSeparation(6, 2, 1), Tree(restart_every=2))
    guard.admit([3])
    guard.admit([3])
    with pytest.raises(ValueError, match="got id 3, used 2 times"):
        guard.admit([3])


@pytest.mark.parametrize("reshuffle", [False, True])
def test_a_reshuffle_at_a_restart_is_admitted_only_where_it_is_declared(reshuffle: bool) -> None:
    guard = Guard(FixedEpochs(2, 4, reshuffle), Tree(restart_every=4))
    for ids in ([1, 2], [3], [2, 1], [3]):
        guard.admit(ids)
    assert admitted(guard, [3, 1]) == reshuffle
    if reshuffle:
        guard.admit([2])
        assert not admitted(guard, [1, 2])
        guard.admit([1, 3])


def test_a_restart_within_an_epoch_starts_at_its_place() -> None:
    # Trees of 4 steps, epochs of 3: the second tree has places 1, 2, 0, 1.
    guard = Guard(FixedEpochs(3, 3), Tree(restart_every=4))
    for ids in ([1], [2], [3], [1]):
        guard.admit(ids)
    guard.admit([1])  # dealt to place 1 now
    guard.admit([2])
    guard.admit([3])
    with pytest.raises(ValueError, match=r"step 8 .* got id 2, used 2 times, last in step 6"):
        guard.admit([2])
    guard.admit([1])
    guard.admit([1, 2, 3])  # the last tree, of one step


def test_a_batch_must_come_back_whole() -> None:
    guard = Guard(FixedEpochs(2, 2))
    guard.admit([1, 2])
    guard.admit([])
    with pytest.raises(ValueError, match="step 3 must have the 2 ids of step 1"):
        guard.admit([1])
    with pytest.raises(ValueError, match="got id 4, not used before"):
        guard.admit([1, 2, 4])
    guard.admit([2, 1])
    with pytest.raises(ValueError, match="got id 5, not used before"):
        guard.admit([5])


def test_an_order_says_how_often_an_id_stands_in_a_step() -> None:
    guard = Guard(FixedOrder([4, 4, 5], [0, 3, 3]))
    with pytest.raises(ValueError, match="id 4 2 times, got it 1 times"):
        guard.admit([4, 5])
    with pytest.raises(ValueError, match="id 4 2 times, got it 3 times"):
        guard.admit([4, 4, 4, 5])
    guard.admit([4, 5, 4])
    with pytest.raises(ValueError, match="id 0 0 times, got it 1 times"):
        guard.admit([0])
    guard.admit([])


@pytest.mark.parametrize("pattern", [SinglePass(5), MinSeparation(5, 5, 1), FixedEpochs(5, 1)])
def test_an_id_stands_once_in_a_step(pattern: Participation) -> None:
    with pytest.raises(ValueError, match="step 1 must have distinct ids, got id 8 twice"):
        Guard(pattern).admit([8, 3, 8])


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([1.0], TypeError),
        ([True], TypeError),
        (["a"], TypeError),
        ([float("nan")], TypeError),
        ([-1], ValueError),
        ([2**63], ValueError),
        (5, ValueError),
        ([[1]], ValueError),
    ],
)
def test_ids_are_non_negative_integers(ids: Any, error: type[Exception]) -> None:
    guard = Guard(SinglePass(5))
    for call in (guard.admit, guard.eligible):
        with pytest.raises(error, match=r"ids must be"):
            call(ids)
    assert guard.steps_taken == 0


def test_ids_may_be_as_large_as_int64_and_of_any_integer_dtype() -> None:
    guard = Guard(SinglePass(3))
    guard.admit(np.array([2**63 - 1], np.uint64))
    guard.admit(np.array([0, 255], np.uint8))
    assert guard.eligible([2**63 - 1, 255, 1]).tolist() == [False, False, True]


def test_bad_declarations_are_refused() -> None:
    with pytest.raises(TypeError, match="participation must be"):
        Guard(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tree_lengths must add up"):
        Guard(SinglePass(5), Tree(tree_lengths=[2, 2]))


# ---- State ----


def test_a_state_of_another_declaration_is_refused() -> None:
    guards = [
        Guard(SinglePass(6)),
        Guard(SinglePass(7)),
        Guard(SinglePass(6), Tree(restart_every=3)),
        Guard(SinglePass(6), Tree(restart_every=3, complete=True)),
        Guard(SinglePass(6), Tree(restart_every=3, complete="all")),
        Guard(SinglePass(6), Tree(tree_lengths=(2, 4))),
        Guard(SinglePass(6), BandedInverse((1.0, -0.5), restart_every=2)),
        Guard(MinSeparation(6, 1, 1)),
        Guard(MinSeparation(6, 2, 1)),
        Guard(MinSeparation(6, 2, 2)),
        Guard(MinSeparation(7, 2, 2)),
        Guard(FixedEpochs(3, 2)),
        Guard(FixedEpochs(2, 3)),
        Guard(FixedEpochs(3, 2, reshuffle=False)),
        Guard(FixedOrder([1, 2, 3, 4, 5, 6])),
        Guard(FixedOrder([1, 2, 3, 4, 5, 7])),
        Guard(FixedOrder.from_steps([[1, 2], [], [3], [4], [5], [6]])),  # the same ids elsewhere
        Guard(FixedOrder.from_steps([[], [1], [2], [3], [4], [5, 6]])),
    ]
    for i, guard in enumerate(guards):
        for j, other in enumerate(guards):
            if i == j:
                guard.load_state_dict(other.state_dict())
            else:
                with pytest.raises(ValueError, match="state must have declaration"):
                    guard.load_state_dict(other.state_dict())


def separated() -> Guard:
    guard = Guard(MinSeparation(9, 2, 2))
    for ids in ([1, 2], [], [1], [5]):
        guard.admit(ids)
    return guard


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"last_step": [3, 1, 5]}, ValueError, "last_step must be at most its step 4, got 5"),
        ({"version": 2}, ValueError, "version 1, got 2"),
        ({"version": True}, ValueError, "version 1, got True"),
        ({"format": "dpftrl_fast.Ledger"}, ValueError, "format 'dpftrl_fast.Guard'"),
        ({"more": 1}, ValueError, "must have the keys"),
        ({"step": 10}, ValueError, r"step must be in \[0, 9\]"),
        ({"step": 4.0}, TypeError, "step must be an integer"),
        ({"step": False}, TypeError, "step must be an integer"),
        ({"step": 2}, ValueError, "last_step must be at most its step 2"),
        ({"ids": [1, 2]}, ValueError, "last_step must be an array .* of shape"),
        ({"ids": [1, 2, 2]}, ValueError, "ids must be distinct"),
        ({"ids": [1, 2, -5]}, ValueError, "ids must be an array of integers >= 0"),
        ({"ids": [1, 2, 5.0]}, TypeError, "ids must be an array of integers"),
        ({"ids": [[1, 2, 5]]}, ValueError, "ids must be an array of integers"),
        ({"ids": [[1, 2], [5]]}, ValueError, "ids must be an array of integers"),
        ({"uses": [2, 0, 1]}, ValueError, "uses must be an array of integers >= 1"),
        ({"uses": [3, 1, 1]}, ValueError, "uses must be such as"),
        ({"uses": [2, 2, 1]}, ValueError, "uses must be such as"),
        ({"uses": np.array([1, 2**63, 1], np.uint64)}, ValueError, "uses must be an array"),
    ],
)
def test_a_broken_state_is_refused_and_changes_nothing(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    good = separated().state_dict()
    guard = Guard(MinSeparation(9, 2, 2))
    before = guard.state_dict()
    with pytest.raises(error, match=message):
        guard.load_state_dict({**good, **change})
    assert same(guard.state_dict(), before)
    guard.load_state_dict(good)
    assert same(guard.state_dict(), good)


@pytest.mark.parametrize(
    ("pattern", "steps", "change"),
    [
        (SinglePass(4), [[1], [2]], {"uses": [1, 2]}),
        (FixedEpochs(2, 2, False), [[1], [2]], {"uses": [1, 2]}),
        (FixedOrder([1, 2, 1]), [[1], [2], [1]], {"uses": [1, 1]}),
        (FixedOrder([1, 2, 1]), [[1], [2], [1]], {"last_step": [1, 2]}),
        (FixedOrder([1, 2, 1]), [[1], [2], [1]], {"ids": [1, 3]}),
    ],
)
def test_a_state_that_the_pattern_cannot_have_is_refused(
    pattern: Participation, steps: Steps, change: dict[str, Any]
) -> None:
    guard = Guard(pattern)
    for ids in steps:
        guard.admit(ids)
    with pytest.raises(ValueError, match="uses must be such as"):
        Guard(pattern).load_state_dict({**guard.state_dict(), **change})


def test_a_state_lacking_an_entry_or_no_mapping_is_refused() -> None:
    state = separated().state_dict()
    del state["uses"]
    with pytest.raises(ValueError, match="must have the keys"):
        Guard(MinSeparation(9, 2, 2)).load_state_dict(state)
    with pytest.raises(TypeError, match="must be a mapping, got list"):
        Guard(MinSeparation(9, 2, 2)).load_state_dict([])  # type: ignore[arg-type]


def test_a_step_back_is_refused() -> None:
    guard = separated()
    earlier = guard.state_dict()
    guard.admit([])
    with pytest.raises(ValueError, match="step 5 or later"):
        guard.load_state_dict(earlier)


def test_the_state_is_a_copy() -> None:
    guard = separated()
    state = guard.state_dict()
    state["last_step"][:] = 0
    assert not guard.eligible([5])[0]


def test_threads_do_not_lose_a_step() -> None:
    guard = Guard(SinglePass(400))

    def admit_many(first: int) -> None:
        for i in range(100):
            guard.admit([first + i])

    threads = [threading.Thread(target=admit_many, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert guard.steps_taken == 400
    assert sorted(guard.state_dict()["last_step"].tolist()) == list(range(1, 401))


# ---- Many ids ----


def test_a_hundred_thousand_ids_with_gaps() -> None:
    rng = np.random.default_rng(5)
    ids = np.unique(rng.integers(0, 2**62, 100_000))
    guard = Guard(MinSeparation(4, 2, 2))
    guard.admit(ids)
    guard.admit([])
    guard.admit(ids[::2])
    guard.admit(ids[1::2])
    assert guard.steps_taken == 4
    assert guard.state_dict()["ids"].size == ids.size


@given(batches=st.lists(st.sets(st.integers(0, 2**63 - 1) | st.integers(0, 60), max_size=40)))
@settings(deadline=None, max_examples=40)
def test_the_id_table_is_a_dictionary(batches: list[set[int]]) -> None:
    table, places = IdTable(), dict[int, int]()
    for batch in batches:
        asked = np.array(sorted(batch), np.int64)
        assert table.find(asked).tolist() == [places.get(i, -1) for i in sorted(batch)]
        new = sorted(batch - set(places))
        table.add(np.array(new, np.int64))
        places.update(zip(new, range(len(places), len(places) + len(new)), strict=True))
        assert table.find(asked).tolist() == [places[i] for i in sorted(batch)]
    assert table.ids.tolist() == list(places)
    assert len(table) == len(places)


@pytest.mark.parametrize("kind", [Guard, lambda pattern: Ledger(pattern, 2.0)])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_two_copies_would_admit_one_user_twice(kind: Any, copied: Any) -> None:
    guard = kind(SinglePass(3))
    guard.admit([5])
    with pytest.raises(TypeError, match="is not copied nor pickled, since two of one run"):
        copied(guard)
    again = kind(SinglePass(3))  # the way to resume
    again.load_state_dict(guard.state_dict())
    assert again.eligible([5, 6]).tolist() == [False, True]


def test_uses_of_a_step_that_names_an_id_several_times_are_counted() -> None:
    guard = Guard(FixedOrder.from_steps([[0, 0, 0, 1], [1], [0, 0]]), Tree())
    guard.admit([0, 1, 0, 0])
    assert guard.state_dict()["uses"].tolist() == [3, 1]
    guard.admit([1])
    guard.admit([0, 0])
    assert guard.state_dict()["uses"].tolist() == [5, 2]
