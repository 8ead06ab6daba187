# SPDX-License-Identifier: Apache-2.0
"""Train on users with torchrun: all ranks train users, rank 0 is the server and has the folder.

torchrun --nproc-per-node=2 --max-restarts=3 examples/torchrun_users.py run

With `--fail-at 8` the last rank ends in that round of the first start, to see torchrun start all of
them again. With gloo on one machine this needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
"""

from __future__ import annotations

import argparse
import os
import traceback
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.federated import PartialSum, ServerDPFTRL, SumSpec

USERS, GOAL, ROUNDS, DELTA = 2_000, 100, 40, 1e-5  # 2 passes of 20 rounds
NETWORK = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


def examples_of(user: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the data of one user, wherever they lie."""
    x = torch.randn(20, 8, generator=torch.Generator().manual_seed(user))
    return x, (x[:, 0] > 0).long()


def update_of(user: int, model: dict[str, Any]) -> dict[str, Any]:
    """Return a user's model after training, minus the model that it was sent."""
    NETWORK.load_state_dict({name: torch.from_numpy(value) for name, value in model.items()})
    optimizer = torch.optim.SGD(NETWORK.parameters(), lr=0.5)
    for x, y in zip(*(part.split(5) for part in examples_of(user)), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(NETWORK(x), y).backward()
        optimizer.step()
    return {name: value.numpy() - model[name] for name, value in NETWORK.state_dict().items()}


def sum_of(spec: SumSpec, users: list[int], model: dict[str, Any]) -> PartialSum:
    """Return the clipped sum of some users; one that fails is an empty slot, and no more."""
    partial = PartialSum(spec)
    for user in users:
        try:
            partial.add(user, update_of(user, model))
        except Exception:
            traceback.print_exc()  # the log of a worker is as secret as its users' data
    return partial


def main(folder: str, fail_at: int | None) -> None:
    """Train the users of each round, a part of them on each rank."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)  # the layers are too small for more
    rank, ranks = dist.get_rank(), dist.get_world_size()
    starts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    server = None
    if rank == 0:
        torch.manual_seed(0)
        first = {name: value.numpy().copy() for name, value in NETWORK.state_dict().items()}
        server = ServerDPFTRL(
            first,
            plan=PrivacyPlan.calibrate(
                epsilon=8.0,
                delta=DELTA,
                clip_norm=0.5,
                participation=accounting.FixedEpochs(ROUNDS // 2, 2),
                workload=accounting.Workload(momentum=0.9),
            ),
            report_goal=GOAL,
            momentum=0.9,
            folder=folder,
        )
        print(f"start {starts + 1}: from round {server.rounds_done + 1} of {ROUNDS}", flush=True)
    while True:
        sent: list[Any] = [None]  # specification, users and model; None at the end
        if server is not None and server.rounds_done < ROUNDS:
            may = np.flatnonzero(server.eligible(range(USERS))).tolist()
            now = server.begin_round(may[:GOAL])
            sent = [(now.sum_spec, now.cohort, server.parameters)]
        dist.broadcast_object_list(sent, src=0)
        if sent[0] is None:
            break
        spec, cohort, model = sent[0]
        if (starts, rank) == (0, ranks - 1) and spec.token.endswith(f"-{fail_at}"):
            os._exit(1)
        partial = sum_of(spec, cohort[rank::ranks], model)
        parts: list[Any] | None = [None] * ranks if rank == 0 else None
        dist.gather_object(partial.answer(), parts)
        if server is not None and parts is not None:
            for part in parts:
                if part["clients"] and (problem := now.add_sum(**part)):
                    print("a part is not in the sum (not private):", problem)
            server.end_round()
    if server is not None:
        NETWORK.load_state_dict({n: torch.from_numpy(v) for n, v in server.parameters.items()})
        unseen = [examples_of(user) for user in range(USERS, USERS + 50)]
        x, y = (torch.cat(parts) for parts in zip(*unseen, strict=True))
        print(f"accuracy on other users {(NETWORK(x).argmax(1) == y).float().mean():.2f}")
        spent, replaced = server.epsilon(DELTA), server.epsilon(DELTA, neighbours="replace-one")
        print(f"epsilon of the run: {spent:.3f} at delta {DELTA} (replace-one {replaced:.3f})")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="of the run, a secret: it holds the noise key")
    parser.add_argument("--fail-at", type=int, metavar="ROUND")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.fail_at)
