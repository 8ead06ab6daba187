# SPDX-License-Identifier: Apache-2.0
"""A private training, alone or as one rank of several: see `torch_ranks`."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.torch import make_private

WORLD, ROWS, BATCH, EPOCHS = 3, 17, 7, 2
GROUPS = {"all": None, "two": [0, 2]}
PLAN = PrivacyPlan(1.0, 2.0, FixedEpochs(3, EPOCHS), mechanism=Tree(restart_every=3, complete=True))


def trained(order_seed: int | None, keep: bool, **options: Any) -> dict[str, Any]:
    """Train; return the examples this process had in each step, and the parameters."""
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
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


def found(rank: int) -> dict[str, Any]:
    """Train in each group that this rank belongs to."""
    results = {}
    for name, ranks in GROUPS.items():
        group = None if ranks is None else dist.new_group(ranks)
        if ranks is None or rank in ranks:
            for keep in (False, True):
                # Rank 0 says which order it is: the seeds of the others are not used.
                order_seed = 5 if rank == 0 else None
                results[f"{name} {keep}"] = trained(order_seed, keep, process_group=group)
    return results
