# SPDX-License-Identifier: Apache-2.0
"""A private training, alone or as one rank of several: see `torch_ranks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, SinglePass
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.torch import DPFTRL, ResidualNoise, make_private
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.clipping import FlatClipping
from dpftrl_fast.torch.loader import FixedOrderLoader

WORLD, ROWS, BATCH, EPOCHS = 3, 17, 7, 2
GROUPS = {"all": None, "two": [0, 2]}
PLAN = PrivacyPlan(1.0, 2.0, FixedEpochs(3, EPOCHS), mechanism=Tree(restart_every=3, complete=True))


def trained(order_seed: int | None, keep: bool, **options: Any) -> dict[str, Any]:
    """Train; return the examples this process had in each step, and the parameters."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    data = TensorDataset(torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,)))
    run = make_private(
        network,
        torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9),
        DataLoader(data, batch_size=BATCH),
        plan=PLAN,
        delta=1e-5,
        epochs=EPOCHS,
        clip_norm=1.0,
        order_seed=order_seed,
        keep_optimizer=keep,
        noise_seed=3,
        **options,
    )
    ids = []
    for _ in range(EPOCHS):
        for own, (x, y) in run.data_loader:
            ids.append(own.tolist())
            nn.functional.cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
    flat = torch.cat([p.detach().flatten() for p in network.parameters()])
    return {"ids": ids, "parameters": flat, "epsilon": run.ledger.epsilon_spent()}


def told(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "nothing"


#: What only the last rank asks of `make_private`, and what the others ask.
DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the same": ({}, {}),
    "shuffle": ({"shuffle": False}, {}),
    "length": ({"rows": ROWS + 1}, {}),
    "drop_last": ({"rows": 14, "drop_last": True}, {"rows": 14}),
    "batch_size": ({"rows": 16, "batch": 8}, {"rows": 16, "batch": 6}),
    "one refuses": ({"clip_norm": -1.0}, {}),
    "one refuses its loader": ({"rows": 8, "batch": 7}, {"rows": 14}),
    "parts of the data": ({"of": "part"}, {}),
    "random examples": ({"of": "random"}, {"of": "random"}),
}


class Examples(torch.utils.data.Dataset[Any]):
    """Rows of zeros; a part of others; or rows that are augmented at random."""

    def __init__(self, rows: int, of: str) -> None:
        self.rows, self.of = rows, of

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, place: int) -> Any:
        row = torch.full((2,), float(self.of == "part"))
        return [row + torch.rand(2) if self.of == "random" else row]


def made(
    rows: int = ROWS, batch: int = BATCH, drop_last: bool = False, of: str = "", **options: Any
) -> None:
    model = nn.Linear(2, 1)
    run = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(Examples(rows, of), batch_size=batch, drop_last=drop_last),
        **{"noise_multiplier": 1.0, "delta": 1e-5, "epochs": 1, "clip_norm": 1.0, **options},
    )
    assert run.ledger.steps_taken == run.noise.steps_taken == 0


def by_hand(
    rank: int, noise: str, shard: tuple[int, int] | None, ids: list[int] | None, **order: Any
) -> list[Any]:
    """Take a step with objects that are put together by hand; return what it is told."""
    plan = PrivacyPlan(1.0, 1.0, SinglePass(2))
    w = nn.Parameter(torch.zeros(2))
    sums = Accumulator([w], FlatClipping(1.0), 4, plan.guard(), roundings=WORLD)
    optimizer: Any = torch.optim.SGD([w], lr=1.0)
    if noise == "dpftrl":
        optimizer = sums.noise = DPFTRL([w], 1.0, plan=plan, batch_size=4, noise_seed=1)
        sums.attach(optimizer, check=optimizer.prepare_step)
    else:
        sums.noise = ResidualNoise([w], plan=plan, noise_seed=1)
        sums.attach(optimizer, after_sum=sums.noise.add_)
    rows = 1
    if shard is None:
        sums.begin(ids, 1)
        sums.expect(1)
    else:
        loader = FixedOrderLoader(range(7), 4, plan, shard=shard, **order)
        loader.attach(sums)
        rows = len(next(iter(loader))[0])
    sums.add([torch.ones(rows, 2)])
    text = told(optimizer.step)
    assert torch.equal(w, torch.zeros(2)) == (text != "nothing")
    return [text, sums.guard.steps_taken, sums.noise.steps_taken, w.grad is None]  # type: ignore[attr-defined]


def refusals(rank: int) -> dict[str, Any]:
    """What each rank is told where the last one has another order of the data."""
    last = rank == WORLD - 1
    torch.manual_seed(rank)
    results: dict[str, Any] = {
        name: told(lambda of=(own if last else others): made(**of))
        for name, (own, others) in DIFFERENT.items()
    }
    w = nn.Parameter(torch.zeros(2))
    w.grad = torch.zeros(2)
    first = DPFTRL([w], 1.0, plan=PLAN, batch_size=1)
    first.param_groups[0]["lr"] = -1.0 if last else 1.0
    results["one refuses its rate"] = told(first.step)
    wide = nn.Parameter(torch.zeros(2, dtype=torch.float64 if last else torch.float32))
    wide.grad = torch.zeros_like(wide)
    results["one refuses its dtype"] = told(ResidualNoise([wide], plan=PLAN).add_)
    one = (rank, WORLD)
    ids = [1, 2, 3, 6 if last else 5]
    for noise in ("dpftrl", "residual"):
        results[f"{noise} right"] = by_hand(rank, noise, one, None, order_seed=1)
        results[f"{noise} seeds"] = by_hand(rank, noise, one, None, order_seed=1 + last)
        results[f"{noise} shards"] = by_hand(rank, noise, (0, WORLD), None, order_seed=1)
        results[f"{noise} whole"] = by_hand(rank, noise, (0, 1), None, order_seed=1)
        results[f"{noise} loader"] = by_hand(
            rank, noise, None if last else one, [1, 2], order_seed=1
        )
        results[f"{noise} ids"] = by_hand(rank, noise, None, ids)
    return results


def found(rank: int) -> dict[str, Any]:
    """Train in each group that this rank belongs to."""
    results: dict[str, Any] = {"refusals": refusals(rank)}
    for name, ranks in GROUPS.items():
        group = None if ranks is None else dist.new_group(ranks)
        if ranks is None or rank in ranks:
            for keep in (False, True):
                # Rank 0 says which order it is: the seeds of the others are not used.
                order_seed = 5 if rank == 0 else None
                results[f"{name} {keep}"] = trained(order_seed, keep, process_group=group)
    return results
