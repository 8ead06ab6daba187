# SPDX-License-Identifier: Apache-2.0
"""The ledger: realised values by brute force, at most the declared ones, and its state."""

from __future__ import annotations

import io
import json
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
from tree_options import with_tree

from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.accounting.guard.ledger import Ledger
from dpftrl_fast.accounting.guard.state import guard_state
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    SinglePass,
)
from dpftrl_fast.accounting.sensitivity.delta_floor import Touched
from dpftrl_fast.accounting.statement.statement import GaussianMechanism, Guarantee
from dpftrl_fast.mechanisms import Tree


def zeta_of(ledger: Ledger) -> int | float:
    (one,) = ledger.guarantee.mechanisms
    return one.sensitivity_squared


def through_json(state: dict[str, Any]) -> Any:
    return json.loads(json.dumps(state, default=lambda array: array.tolist()))


def through_npz(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    with np.load(file, allow_pickle=False) as read:
        return dict(read)


def recorded(ledger: Ledger, history: Steps) -> Ledger:
    for ids in history:
        ledger.record(ids)
    return ledger


@settings(max_examples=100, deadline=None)
@given(declared=declared_runs(), data=st.data())
def test_values_are_those_of_brute_force_and_at_most_the_declared(
    declared: Declared, data: st.DataObject
) -> None:
    ledger = Ledger(declared.pattern, 2.0, declared.tree, realised=True)
    history: Steps = []
    most = declared_zeta(declared)
    for _ in range(declared.pattern.steps):
        ids = proposed_step(data.draw, declared, history)
        if admissible(declared, [*history, ids]):
            ledger.record(ids)
            history.append(ids)
        else:
            with pytest.raises(ValueError, match="must have"):
                ledger.record(ids)
        if data.draw(st.integers(0, 4)) == 0:
            state = data.draw(st.sampled_from([dict, through_json, through_npz]))(
                ledger.state_dict()
            )
            ledger = Ledger(declared.pattern, 2.0, declared.tree, realised=True)
            ledger.load_state_dict(state)
        uses = uses_by_id(history)
        expected = {i: zeta_exact(uses[i], declared.trees) for i in sorted(uses)}
        found, values = ledger.values()
        assert dict(zip(found.tolist(), values.tolist(), strict=True)) == expected
        assert found.tolist() == list(expected)
        assert ledger.sensitivity_squared() == max(expected.values(), default=0) <= most


@settings(max_examples=50, deadline=None)
@given(declared=declared_runs())
def test_the_declared_zeta_is_that_of_brute_force(declared: Declared) -> None:
    ledger = Ledger(declared.pattern, 2.0, declared.tree, realised=True)
    assert zeta_of(ledger) == declared_zeta(declared)


def test_the_papers_example() -> None:
    # Fixed order [1, 2, 3, 1, 4]: 8, with three virtual steps 12.
    order = [1, 2, 3, 1, 4]
    steps = [[i] for i in order]
    assert recorded(Ledger(FixedOrder(order), 1.0, realised=True), steps).sensitivity_squared() == 8
    longer = Ledger(FixedOrder([*order, -1, -1, -1]), 1.0, realised=True)
    assert recorded(longer, [*steps, [], [], []]).sensitivity_squared() == 12
    completed = Ledger(FixedOrder(order), 1.0, mechanism=Tree(complete="all"), realised=True)
    assert recorded(completed, steps).sensitivity_squared() == 12


@pytest.mark.parametrize(
    ("epochs", "restart_every", "complete", "zeta"),
    [(100, None, False, 14349), (20, 500, False, 200), (20, 500, "all", 320)],
)
def test_a_cifar_run_realises_its_declared_figure(
    epochs: int, restart_every: int | None, complete: Any, zeta: int
) -> None:
    ledger = Ledger(
        FixedEpochs(100, epochs),
        1.0,
        mechanism=Tree(restart_every=restart_every, complete=complete),
        realised=True,
    )
    for t in range(100 * epochs):
        ledger.record([t % 100])
    assert ledger.sensitivity_squared() == zeta_of(ledger) == zeta


def test_many_ids_in_a_step_are_counted_as_few_are() -> None:
    n = 150_000
    ids = np.arange(n) * 17
    ledger = Ledger(
        MinSeparation(12, 3, 2), 1.0, mechanism=Tree(restart_every=7, complete=True), realised=True
    )
    small = Ledger(
        MinSeparation(12, 3, 2), 1.0, mechanism=Tree(restart_every=7, complete=True), realised=True
    )
    for t in range(12):
        ledger.record(ids if t in (1, 5, 8) else [])
        small.record([3] if t in (1, 5, 8) else [])
    assert np.unique(ledger.values()[1]).tolist() == [small.sensitivity_squared()]
    assert small.sensitivity_squared() == zeta_exact([1, 5, 8], [(7, True), (5, False)])


def test_a_long_run_is_declared_and_counted_without_listing_its_trees() -> None:
    ledger = Ledger(SinglePass(2**40), 1.0, mechanism=Tree(restart_every=1), realised=True)
    ledger.record([5])
    assert ledger.sensitivity_squared() == zeta_of(ledger) == 1
    tall = Ledger(SinglePass(2**40), 1.0, realised=True)
    tall.record([5])
    assert tall.sensitivity_squared() == zeta_of(tall) == 41


def test_the_epsilon_spent_is_the_declared_one_and_changes_nothing() -> None:
    ledger = Ledger(SinglePass(1600), 2.33, realised=True)
    first = ledger.epsilon_spent(1e-6)
    assert round(first, 3) == 7.342
    ledger.record([1])
    before = through_json(ledger.state_dict())
    assert ledger.epsilon_spent(1e-6) == first
    assert ledger.epsilon_spent(1e-6, realised=True) == first  # the first leaf has all the nodes
    assert ledger.epsilon_spent(1e-6, neighbours="replace-one") > first
    assert through_json(ledger.state_dict()) == before
    assert ledger.guarantee == Guarantee((GaussianMechanism(2.33, 11, Touched(11, 11, 1)),))


def test_a_realised_epsilon_grows_up_to_the_declared_one() -> None:
    ledger = Ledger(MinSeparation(16, 3, 4), 2.0, realised=True)
    found = [ledger.epsilon_spent(1e-5, realised=True)]
    for t in range(16):
        ledger.record([3] if t in (7, 15) else [])
        found.append(ledger.epsilon_spent(1e-5, realised=True))
    assert found[0] == 0.0
    assert found == sorted(found)
    assert 0 < found[-1] < ledger.epsilon_spent(1e-5)


@pytest.mark.parametrize(
    ("variant", "pattern", "declared", "exact"),
    [
        # All eight leaves: 8 + 4*4 + 2*16 + 64, and the nodes of even index 4 + 2*4 + 16 + 64.
        ("vanilla", MinSeparation(8, 8, 1), 92, 120),
        ("honaker", SinglePass(1024), 9.47, 11),
    ],
)
def test_where_only_prefixes_are_released_values_are_cut_at_the_declared(
    variant: Any, pattern: SinglePass | MinSeparation, declared: float, exact: int
) -> None:
    ledger = Ledger(pattern, 2.0, bound="released", mechanism=Tree(variant=variant), realised=True)
    for _ in range(pattern.most_uses()):
        ledger.record([1, 2])
    zeta = zeta_of(ledger)
    assert zeta == pytest.approx(declared, abs=5e-3)
    assert ledger.sensitivity_squared() == zeta
    assert ledger.values()[1].tolist() == [zeta, zeta]
    assert ledger.epsilon_spent(1e-6, realised=True) == ledger.epsilon_spent(1e-6)
    assert zeta_of(Ledger(pattern, 2.0)) == exact


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"noise_multiplier": 0.0}, ValueError, "noise_multiplier must be a finite number > 0"),
        ({"noise_multiplier": float("nan")}, ValueError, "noise_multiplier must be"),
        ({"noise_multiplier": "1"}, TypeError, "noise_multiplier must be"),
        ({"bound": "level"}, ValueError, "bound must be one of 'exact', 'released'"),
        ({"variant": "other"}, ValueError, "variant must be one of 'honaker', 'vanilla'"),
        ({"restart_every": 0}, ValueError, "restart_every must be"),
        ({"complete": "none"}, ValueError, "complete must be"),
    ],
)
def test_bad_declarations_are_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Ledger(SinglePass(3), **with_tree({"noise_multiplier": 1.0, **options}))


@pytest.mark.parametrize("delta", [0.0, 1.0, float("nan"), -1e-5])
@pytest.mark.parametrize("realised", [False, True])
def test_a_bad_delta_is_refused(delta: float, realised: bool) -> None:
    with pytest.raises(ValueError, match="delta must be"):
        Ledger(SinglePass(3), 1.0, realised=True).epsilon_spent(delta, realised=realised)


# ---- State ----


def test_a_state_of_another_declaration_is_refused() -> None:
    pattern = SinglePass(6)
    ledgers = [
        Ledger(pattern, 1.0),
        Ledger(pattern, 1.5),
        Ledger(SinglePass(5), 1.0),
        Ledger(pattern, 1.0, mechanism=Tree(restart_every=3)),
        Ledger(pattern, 1.0, bound="released"),
        Ledger(pattern, 1.0, mechanism=Tree(variant="vanilla")),
    ]
    for i, ledger in enumerate(ledgers):
        for j, other in enumerate(ledgers):
            if i == j:
                ledger.load_state_dict(other.state_dict())
            else:
                with pytest.raises(ValueError, match="state must have declaration"):
                    ledger.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=r"state must have format 'dpftrl_fast\.Ledger'"):
        ledgers[0].load_state_dict(Guard(pattern).state_dict())
    with pytest.raises(ValueError, match=r"state must have format 'dpftrl_fast\.Guard'"):
        Guard(pattern).load_state_dict(ledgers[0].state_dict())
    counted = Ledger(pattern, 1.0, realised=True).state_dict()
    with pytest.raises(ValueError, match="must have the keys"):
        Guard(pattern).load_state_dict(counted)
    Guard(pattern).load_state_dict(guard_state(counted))
    with pytest.raises(ValueError, match="state must have declaration"):
        Guard(SinglePass(7)).load_state_dict(guard_state(counted))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"values": [3, 3]}, ValueError, "values must be an array"),
        ({"values": [0, 3, 1]}, ValueError, "values must be an array of integers >= 1"),
        ({"values": [1.0, 3, 1]}, TypeError, "values must be an array"),
        ({"node_counts": [[1, 1], [1, 1], [1, 1]]}, ValueError, "node_counts must be an array"),
        ({"node_counts": [[2, 1, 2]] * 3}, ValueError, "node_counts must never fall"),
        ({"step": 1}, ValueError, "last_step must be"),
        ({"uses": [9, 1, 1]}, ValueError, "uses must be"),
    ],
)
def test_a_broken_state_is_refused_and_changes_nothing(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    pattern = MinSeparation(5, 2, 2)
    state = recorded(Ledger(pattern, 1.0, realised=True), [[1, 2], [], [1], [5]]).state_dict()
    ledger = recorded(Ledger(pattern, 1.0, realised=True), [[8]])
    before = through_json(ledger.state_dict())
    with pytest.raises(error, match=message):
        ledger.load_state_dict({**state, **change})
    assert through_json(ledger.state_dict()) == before
    ledger.load_state_dict(state)
    assert through_json(ledger.state_dict()) == through_json(state)


# ---- Realised values are opt-in ----


def test_a_ledger_counts_realised_values_only_if_asked_to() -> None:
    ledger = recorded(Ledger(SinglePass(4), 1.0), [[1, 2], [3]])
    for call in (
        ledger.values,
        ledger.sensitivity_squared,
        lambda: ledger.epsilon_spent(1e-6, realised=True),
    ):
        with pytest.raises(ValueError, match=r"counted only by a ledger .* realised=True"):
            call()
    assert ledger.epsilon_spent(1e-6) == ledger.epsilon(1e-6)
    with pytest.raises(TypeError, match="realised must be"):
        Ledger(SinglePass(4), 1.0, realised=1)  # type: ignore[arg-type]


def test_states_with_values_load_in_both_settings_and_others_in_the_default() -> None:
    pattern, history = MinSeparation(9, 3, 2), [[1, 2], [], [1], [5]]
    counted = recorded(Ledger(pattern, 1.0, realised=True), history)
    plain = recorded(Ledger(pattern, 1.0), history)
    state = counted.state_dict()
    assert {*state} - {*plain.state_dict()} == {"values", "node_counts"}
    again = Ledger(pattern, 1.0)
    again.load_state_dict(through_npz(state))
    assert through_json(again.state_dict()) == through_json(plain.state_dict())
    again.record([2])
    with pytest.raises(ValueError, match="must have ids"):
        again.record([2])
    other = Ledger(pattern, 1.0, realised=True)
    with pytest.raises(ValueError, match=r"must have the keys .*'values'"):
        other.load_state_dict(plain.state_dict())
    other.load_state_dict(state)
    assert other.values()[1].tolist() == counted.values()[1].tolist()
    with pytest.raises(ValueError, match="must have the keys"):
        again.load_state_dict({**again.state_dict(), "values": [1, 1, 1]})


def test_a_hundred_thousand_ids_take_the_bytes_that_a_guard_keeps() -> None:
    def size(state: dict[str, Any]) -> int:
        return sum(array.nbytes for array in state.values() if isinstance(array, np.ndarray))

    n = 10**5
    plain, counted = Ledger(SinglePass(1024), 1.0), Ledger(SinglePass(1024), 1.0, realised=True)
    for ledger in (plain, counted):
        ledger.record(np.arange(n))
    assert size(plain.state_dict()) == 24 * n
    assert size(counted.state_dict()) == (24 + 8 + 8 * 11) * n
