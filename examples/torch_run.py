# SPDX-License-Identifier: Apache-2.0
"""Train on several processes with torchrun, in a folder from which killed runs continue.

torchrun --nproc-per-node=2 --max-restarts=3 examples/torch_run.py run

With `--fail-at 30` the last rank ends at that step of the first start, to see torchrun start all of
them again. With gloo on one machine this needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpftrl_fast.torch import TrainingRun, make_private

EPOCHS, DELTA = 3, 1e-5


def main(folder: str, fail_at: int | None) -> None:
    """Train on this rank's part of each batch."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)  # the layers are too small for more
    rank, ranks = dist.get_rank(), dist.get_world_size()
    starts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    torch.manual_seed(0)  # public: the same data and first weights on all ranks
    inputs, unseen = torch.randn(2_000, 8), torch.randn(500, 8)
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())  # the whole data set, on each rank

    network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))  # not in a DDP
    model, optimizer, loader, ledger = make_private(
        network,
        torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9),
        DataLoader(data, batch_size=100),  # of all ranks together
        epsilon=8.0,
        delta=DELTA,
        epochs=EPOCHS,
        clip_norm=1.0,
    )
    with TrainingRun(folder, model, optimizer, loader, checkpoint_every=20) as run:
        if rank == 0:
            print(f"start {starts + 1}: from step {run.step} of {loader.plan.steps}", flush=True)
        for _ in range(loader.epoch, EPOCHS):
            for _, (x, y) in run:
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                if ledger.steps_taken == fail_at and (starts, rank) == (0, ranks - 1):
                    os._exit(1)
        spent, replaced = run.epsilon(DELTA), run.epsilon(DELTA, neighbours="replace-one")
    if rank == 0:
        correct = (model(unseen).argmax(1) == (unseen[:, 0] > 0)).float()
        print(f"accuracy on test data {correct.mean():.2f}")
        print(f"epsilon of the run: {spent:.3f} at delta {DELTA} (replace-one {replaced:.3f})")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="of the run, a secret: it holds the noise key")
    parser.add_argument("--fail-at", type=int, metavar="STEP")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.fail_at)
