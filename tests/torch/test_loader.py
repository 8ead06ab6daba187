# SPDX-License-Identifier: Apache-2.0
"""The order of batches: fixed, as declared, dealt afresh only where the plan says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)
from torch_cases import accumulator

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, MinSeparation, Participation, SinglePass
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.plan.epoch_order import EpochOrder
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.clipping import FlatClipping
from dpftrl_fast.torch.loader import FixedOrderLoader, check_loader

N, B = 10, 4  # 3 batches an epoch


def plan_for(participation: Participation, **fields: Any) -> PrivacyPlan:
    return PrivacyPlan(1.0, 2.0, participation, Tree(**fields))


def epochs(n: int, reshuffle: bool = True, **fields: Any) -> PrivacyPlan:
    return plan_for(FixedEpochs(3, n, reshuffle=reshuffle), **fields)


def data(n: int = N) -> TensorDataset:
    return TensorDataset(torch.arange(float(n)))


def run(loader: FixedOrderLoader, count: int) -> list[list[int]]:
    found = []
    for _ in range(count):
        for ids, [x] in loader:
            assert ids.tolist() == x.tolist()  # the rows are those of the ids, in their order
            found.append(ids.tolist())
    return found


def test_without_shuffling_batches_are_cut_as_they_come() -> None:
    loader = FixedOrderLoader(data(), B, epochs(2, reshuffle=False), shuffle=False)
    assert len(loader) == 3
    assert run(loader, 2) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2
    assert loader.position == 6 and loader.epoch == 2
    with pytest.raises(ValueError, match="all 6 declared steps are taken"):
        iter(loader)


def test_the_last_batch_can_be_left_out() -> None:
    plan = plan_for(FixedEpochs(2, 2, reshuffle=False))
    loader = FixedOrderLoader(data(), B, plan, shuffle=False, drop_last=True)
    assert run(loader, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


@pytest.mark.parametrize(
    ("fields", "fresh"),
    [
        ({}, [0]),
        ({"restart_every": 3}, [0, 1, 2, 3]),
        ({"restart_every": 6}, [0, 2]),
        ({"restart_every": 2}, [0, 2]),  # restarts at steps 3, 5, 7, ..: epochs begin at 4, 7, 10
        ({"tree_lengths": [3, 9]}, [0, 1]),
    ],
)
def test_examples_are_dealt_afresh_where_a_tree_begins_with_an_epoch(
    fields: dict[str, Any], fresh: list[int]
) -> None:
    plan = epochs(4, **fields)
    loader = FixedOrderLoader(data(), B, plan, order_seed=5)
    batches = run(loader, 4)
    by_epoch = [batches[3 * e : 3 * e + 3] for e in range(4)]
    for e in range(4):
        assert sorted(i for batch in by_epoch[e] for i in batch) == list(range(N))
        if e:
            assert (by_epoch[e] != by_epoch[e - 1]) == (e in fresh)
    guard = plan.guard()
    for batch in batches:  # and the plan declares it
        guard.admit(batch)


@pytest.mark.parametrize(
    "participation", [FixedEpochs(3, 4, reshuffle=False), MinSeparation(12, 4, 3)]
)
def test_one_order_where_no_other_is_declared(participation: Participation) -> None:
    plan = plan_for(participation, restart_every=3)
    loader = FixedOrderLoader(data(), B, plan, order_seed=5)
    batches = run(loader, 4)
    assert batches == batches[:3] * 4
    assert batches[:3] != [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    guard = plan.guard()
    for batch in batches:
        guard.admit(batch)


def test_the_order_follows_from_the_seed() -> None:
    plan = epochs(4, restart_every=3)
    a, b, c = (FixedOrderLoader(data(), B, plan, order_seed=s) for s in (1, 1, 2))
    first = run(a, 4)
    assert first == run(b, 4) != run(c, 4)
    other = FixedOrderLoader(data(), B, plan), FixedOrderLoader(data(), B, plan)
    assert other[0].fingerprint != other[1].fingerprint  # seeds of the operating system
    # Any step's batch can be asked for, in any order.
    assert [a.ids(step).tolist() for step in range(12, 0, -1)] == first[::-1]
    for step in (0, 13):
        with pytest.raises(ValueError, match=r"step must be in 1 \.\. 12"):
            a.ids(step)


def test_the_order_of_a_seed_stays() -> None:
    """A new NumPy that permutes otherwise would break states; they say so, and so does this."""
    order = EpochOrder(N, B, epochs(4, restart_every=3), 7)
    sequence = np.random.SeedSequence(7, spawn_key=(1,))
    expected = np.random.Generator(np.random.PCG64(sequence)).permutation(N)
    assert order.ids(4).tolist() == expected[:4].tolist()


def test_iterating_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    run(FixedOrderLoader(data(), B, epochs(2), order_seed=1), 2)
    assert torch.equal(before, torch.random.get_rng_state())


def test_workers_give_the_same_batches() -> None:
    plan = epochs(1)
    alone = run(FixedOrderLoader(data(), B, plan, order_seed=1), 1)
    source = DataLoader(data(), batch_size=B, num_workers=1)
    assert run(FixedOrderLoader.from_loader(source, plan, order_seed=1), 1) == alone


def test_collate_and_drop_last_are_taken_over() -> None:
    source = DataLoader(data(), batch_size=B, drop_last=True, collate_fn=lambda rows: len(rows))
    loader = FixedOrderLoader.from_loader(source, plan_for(SinglePass(2)), shuffle=False)
    assert [batch for _, batch in loader] == [4, 4]


@pytest.mark.parametrize("processes", [1, 2])
def test_each_process_gets_its_part_of_every_batch(processes: int) -> None:
    plan = epochs(2)
    parts = [
        run(FixedOrderLoader(data(), B, plan, order_seed=1, shard=(rank, processes)), 2)
        for rank in range(processes)
    ]
    whole = run(FixedOrderLoader(data(), B, plan, order_seed=1), 2)
    for step, batch in enumerate(whole):
        assert sorted(i for part in parts for i in part[step]) == sorted(batch)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(N))


class Bag(Dataset[Any]):
    def __getitem__(self, i: int) -> int:
        return i


@pytest.mark.parametrize(
    ("loader", "word"),
    [
        (DataLoader(data(), batch_size=B, shuffle=True), "RandomSampler"),
        (
            DataLoader(
                data(),
                batch_size=B,
                sampler=torch.utils.data.WeightedRandomSampler([1.0] * N, N),
            ),
            "WeightedRandomSampler",
        ),
        (
            DataLoader(data(), batch_size=B, sampler=SequentialSampler(range(8))),
            "SequentialSampler of 8 examples",
        ),
        (
            DataLoader(data(), batch_sampler=[[0, 1], [1, 2]]),
            "batch_sampler",
        ),
        (DataLoader(data(), batch_size=None), "fixed batch_size"),
        (DataLoader(Stream(), batch_size=B), "Stream"),
    ],
)
def test_loaders_with_an_order_of_their_own_are_refused(loader: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        check_loader(loader)


@pytest.mark.parametrize(
    ("arguments", "error", "word"),
    [
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": 3}, ValueError, "epochs of 4 steps"),
        ({"drop_last": True}, ValueError, "epochs of 2 steps"),
        ({"dataset": Bag()}, ValueError, "Bag"),
        ({"dataset": data(0)}, ValueError, "0 examples"),
        ({"dataset": data(13)}, ValueError, "epochs of 4 steps"),
        ({"plan": plan_for(SinglePass(4))}, ValueError, "epochs of 3 steps"),
        ({"order_seed": -1}, ValueError, "order_seed"),
        ({"order_seed": True}, TypeError, "order_seed"),
        ({"shard": (2, 2)}, ValueError, "rank < processes"),
        ({"shard": (0, 3)}, ValueError, "processes <= 2"),
        ({"sampler": None}, TypeError, "sampler"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: dict[str, Any], error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        FixedOrderLoader(**{"dataset": data(), "batch_size": B, "plan": epochs(2), **arguments})


def attached(plan: PrivacyPlan, **options: Any) -> tuple[FixedOrderLoader, Accumulator]:
    model = nn.Linear(1, 1, bias=False)
    sums = Accumulator(list(model.parameters()), FlatClipping(1.0), B, plan.guard())
    loader = FixedOrderLoader(data(), B, plan, order_seed=3, **options)
    loader.attach(sums)
    return loader, sums


def gradients(ids: np.ndarray[Any, Any]) -> list[torch.Tensor]:
    return [torch.ones(len(ids), 1, 1)]


def test_the_position_is_that_of_the_steps() -> None:
    loader, sums = attached(epochs(2))
    for ids, _ in loader:
        sums.add(gradients(ids))
        sums.finish()
        sums.done()
    assert loader.position == sums.steps_taken == 3


def test_a_batch_without_its_step_is_refused_and_comes_again() -> None:
    loader, sums = attached(epochs(2))
    batches = iter(loader)
    first, _ = next(batches)
    sums.add(gradients(first))
    with pytest.raises(ValueError, match=r"one optimizer\.step\(\)"):
        next(batches)
    again, _ = next(iter(loader))
    assert again.tolist() == first.tolist()
    sums.add(gradients(again))
    sums.finish()
    sums.done()
    second, _ = next(iter(loader))
    assert second.tolist() == loader.ids(2).tolist()


def test_an_older_loop_cannot_go_on_beside_a_new_one() -> None:
    loader, sums = attached(epochs(2))
    old, new = iter(loader), iter(loader)
    ids, _ = next(old)
    sums.add(gradients(ids))
    sums.finish()
    sums.done()
    with pytest.raises(ValueError, match="in one loop"):
        next(new)


@pytest.mark.parametrize("rows", [1, 3, 4, 7])
def test_pieces_make_up_the_batches(rows: int) -> None:
    loader, sums = attached(epochs(2))
    whole = [loader.ids(step).tolist() for step in (1, 2, 3)]
    found = []
    for pieces in loader.in_pieces(rows):
        batch: list[int] = []
        for ids, [x] in pieces:
            assert len(ids) <= rows and ids.tolist() == x.tolist()
            sums.add(gradients(ids))
            batch += ids.tolist()
        found.append(batch)
        sums.finish()
        sums.done()
    assert found == whole


def test_pieces_out_of_order_are_refused() -> None:
    loader, sums = attached(epochs(2))
    pieces = next(loader.in_pieces(2))
    ids, _ = next(pieces)
    with pytest.raises(ValueError, match="before the next piece, got 0"):
        next(pieces)
    pieces = next(loader.in_pieces(2))
    ids, _ = next(pieces)
    sums.add(gradients(ids))
    with pytest.raises(ValueError, match="after all 4 examples of the batch, got it after 2"):
        sums.finish()
    with pytest.raises(ValueError, match="rows"):
        loader.in_pieces(0)
    loader = FixedOrderLoader(data(), B, epochs(2))
    batches = loader.in_pieces(2)
    next(batches)
    with pytest.raises(ValueError, match="all pieces of step 1"):
        next(batches)


def test_an_accumulator_of_another_step_is_refused() -> None:
    plan = epochs(2)
    loader = FixedOrderLoader(data(), B, plan)
    next(batches := iter(loader))
    next(batches)
    sums = accumulator(nn.Linear(1, 1), FlatClipping(1.0), B)
    with pytest.raises(ValueError, match="at step 1"):
        loader.attach(sums)


@pytest.mark.parametrize("taken", range(7))
def test_a_state_goes_on_in_the_same_order(taken: int) -> None:
    plan = epochs(2, restart_every=3)
    first = FixedOrderLoader(data(), B, plan)
    whole = [first.ids(step).tolist() for step in range(1, 7)]
    run(first, taken // 3)
    batches = iter(first) if taken % 3 else None
    for _ in range(taken % 3 + 1 if batches else 0):  # a batch is over when the next is asked for
        assert batches is not None
        next(batches)
    again = FixedOrderLoader(data(), B, plan)  # of another seed, which the state replaces
    again.load_state_dict(first.state_dict())
    assert again.position == taken and again.fingerprint == first.fingerprint
    rest = run(again, 2 - taken // 3)
    assert rest == whole[taken:]


@pytest.mark.parametrize(
    ("options", "changes", "word"),
    [
        ({"order_seed": 4}, {}, "same order"),
        ({"shuffle": False}, {}, "same order"),
        ({"dataset": data(11)}, {}, "same order"),
        ({"plan": epochs(2, restart_every=3)}, {}, "same order"),
        ({"plan": epochs(3)}, {}, "same order"),
        ({}, {"deal": "0" * 64}, "same order"),
        ({}, {"fingerprint": "0" * 64}, "same order"),
        ({}, {"position": 7}, "position"),
        ({}, {"position": True}, "position"),
        ({}, {"version": 2}, "version 2"),
        ({}, {"kind": "Guard"}, "Guard"),
        ({}, {"more": 1}, "keys"),
        ({}, {"order_seed": -1}, "order_seed"),
    ],
)
def test_states_of_another_order_are_refused(
    options: dict[str, Any], changes: dict[str, Any], word: str
) -> None:
    fields = {"dataset": data(), "batch_size": B, "plan": epochs(2)}
    state = FixedOrderLoader(**fields, order_seed=3).state_dict()  # type: ignore[arg-type]
    loader = FixedOrderLoader(**{**fields, **options})  # type: ignore[arg-type]
    before = loader.state_dict()
    with pytest.raises(ValueError, match=word):
        loader.load_state_dict({**state, **changes})
    assert loader.state_dict() == before


def test_a_state_must_be_of_the_step_of_the_guard() -> None:
    loader, _ = attached(epochs(2))
    other = FixedOrderLoader(data(), B, epochs(2), order_seed=3)
    run(other, 1)
    with pytest.raises(ValueError, match="guard"):
        loader.load_state_dict(other.state_dict())
