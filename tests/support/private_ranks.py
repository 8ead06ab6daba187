# SPDX-License-Identifier: Apache-2.0
"""One process of `test_torch_make_private_ranks.py`: a private training, alone or with others."""

from __future__ import annotations

import sys
import warnings
from datetime import timedelta
from pathlib import Path
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


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    found = {}
    for name, ranks in GROUPS.items():
        group = None if ranks is None else dist.new_group(ranks)
        if ranks is None or rank in ranks:
            for keep in (False, True):
                # Rank 0 says which order it is: the seeds of the others are not used.
                order_seed = 5 if rank == 0 else None
                found[f"{name} {keep}"] = trained(order_seed, keep, process_group=group)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
