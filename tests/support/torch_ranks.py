# SPDX-License-Identifier: Apache-2.0
"""Runs of several ranks, for the tests of distributed runs.

`start` runs `python torch_ranks.py FOLDER`: first what one process alone comes to, then its forks
are the ranks, which run all cases. Each writes its results.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import private_ranks
import run_ranks
import torch
import torch.distributed as dist
from processes import child
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.torch import DPFTRL, ResidualNoise, model_state_dict
from dpftrl_fast.torch.flat.distributed import Replicas, Shards

WORLDS = (1, 2, 3)
STEPS, BATCH = 9, 6
PLAN = PrivacyPlan(1.0, 0.5, accounting.SinglePass(STEPS), mechanism=Tree(restart_every=4))
OPTIONS: dict[str, Any] = {"plan": PLAN, "batch_size": BATCH, "noise_seed": 11, "momentum": 0.9}


def model() -> nn.Module:
    """A model whose rows do not divide by two or three, and with fewer rows than three."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def batch(t: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(t)
    return torch.randn(BATCH, 3, generator=rng), torch.randn(BATCH, 2, generator=rng)


def loss_of(net: nn.Module, t: int, rank: int, world: int) -> Tensor:
    """The summed loss of this rank's examples; clipping makes no difference to what is tested."""
    x, y = (part[rank::world] for part in batch(t))
    return (net(x) - y).square().sum()


def train(
    net: nn.Module, optimizer: Any, rank: int, world: int, first: int = 0, stop: int = STEPS
) -> None:
    """Take steps, from the fourth on with a smaller rate."""
    for t in range(first, stop):
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] = 0.02 if t < 3 else 0.01
        loss_of(net, t, rank, world).backward()
        optimizer.step()


def flat(net: nn.Module) -> Tensor:
    return torch.cat([value.reshape(-1) for value in model_state_dict(net).values()])


def replicas(rank: int, world: int) -> dict[str, Any]:
    net = model()
    optimizer = DPFTRL(net.parameters(), 0.02, radius=2.0, **OPTIONS)
    train(net, optimizer, rank, world)
    return {"parameters": flat(net), "sum": optimizer.state_dict(secrets=True)["vectors"]["sum"]}


def averaging_replicas(rank: int, world: int) -> dict[str, Any]:
    net = nn.parallel.DistributedDataParallel(model())
    optimizer = DPFTRL(net.parameters(), 0.02, radius=2.0, **OPTIONS)
    train(net, optimizer, rank, world)
    return {"parameters": flat(net)}


def residual(rank: int, world: int) -> dict[str, Any]:
    net = model()
    noise = ResidualNoise(net.parameters(), plan=PLAN, batch_size=BATCH, noise_seed=11)
    sgd = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    sgd.register_step_pre_hook(lambda *_: noise.add_())
    train(net, sgd, rank, world)
    return {"parameters": flat(net)}


def fresh_keys(rank: int, world: int) -> dict[str, Any]:
    p = nn.Parameter(torch.zeros(40))
    optimizer = DPFTRL([p], 1.0, plan=PLAN, batch_size=1)
    p.grad = torch.zeros(40)
    optimizer.step()
    return {"parameters": p.detach().clone()}


def without_examples(rank: int, world: int) -> dict[str, Any]:
    p = nn.Parameter(torch.zeros(4))
    optimizer = DPFTRL([p], 1.0, plan=PLAN, batch_size=1, noise_seed=1)
    if rank == 0:
        p.grad = torch.ones(4)
    optimizer.step()
    refused = ""
    try:
        optimizer.step()
    except ValueError as error:
        refused = str(error)
    return {"parameters": p.detach().clone(), "refused": refused}


def resumed(rank: int, world: int) -> dict[str, Any]:
    net = model()
    optimizer = DPFTRL(net.parameters(), 0.02, radius=2.0, **OPTIONS)
    train(net, optimizer, rank, world, 0, 5)
    state = optimizer.state_dict(secrets=True)
    other = model()
    other.load_state_dict(net.state_dict())
    again = DPFTRL(other.parameters(), 0.5, radius=2.0, **{**OPTIONS, "noise_seed": None})
    again.load_state_dict(state)
    train(other, again, rank, world, 5)
    return {"parameters": flat(other)}


def lone(rank: int, world: int) -> dict[str, Any]:
    """A group of this rank alone is a run of its own."""
    groups = [dist.new_group([r]) for r in range(world)]
    p = nn.Parameter(torch.zeros(4))
    optimizer = DPFTRL([p], 1.0, plan=PLAN, batch_size=1, process_group=groups[rank])
    if rank == 0:
        p.grad = torch.zeros(4)
        optimizer.step()
    return {"steps": optimizer.steps_taken}


def sharded(world: int) -> Any:
    """The model cut by rows, whose gradients are the sums over all ranks, not their means."""
    net: Any = fully_shard(model(), mesh=init_device_mesh("cpu", (world,)))
    net.set_gradient_divide_factor(1.0)
    net.set_force_sum_reduction_for_comms(True)
    return net


def shards(rank: int, world: int) -> dict[str, Any]:
    net = sharded(world)
    optimizer = DPFTRL(net.parameters(), 0.02, radius=2.0, **OPTIONS)
    train(net, optimizer, rank, world)
    state = optimizer.state_dict(secrets=True)
    return {
        "parameters": flat(net),
        "sum": state["vectors"]["sum"],
        "ranges": state["noise"]["ranges"],
        "kept": sum(vector.numel() for piece in state["noise"]["vectors"] for *_, vector in piece),
    }


def shard_noise(rank: int, world: int) -> dict[str, Any]:
    """Zero gradients: the parameters are the noise."""
    net = sharded(world)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    optimizer = DPFTRL(net.parameters(), 1.0, plan=PLAN, batch_size=1, noise_seed=11)
    found = []
    for _ in range(STEPS):
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        found.append(flat(net))
    return {"parameters": torch.stack(found)}


def shard_residual(rank: int, world: int) -> dict[str, Any]:
    net = sharded(world)
    noise = ResidualNoise(net.parameters(), plan=PLAN, batch_size=BATCH, noise_seed=11)
    sgd = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    sgd.register_step_pre_hook(lambda *_: noise.add_())
    train(net, sgd, rank, world)
    return {"parameters": flat(net)}


def shard_resumed(rank: int, world: int) -> dict[str, Any]:
    net, other = sharded(world), sharded(world)
    optimizer = DPFTRL(net.parameters(), 0.02, radius=2.0, **OPTIONS)
    train(net, optimizer, rank, world, 0, 5)
    other.load_state_dict(net.state_dict())
    again = DPFTRL(other.parameters(), 0.5, radius=2.0, **{**OPTIONS, "noise_seed": None})
    again.load_state_dict(optimizer.state_dict(secrets=True))
    train(other, again, rank, world, 5)
    return {"parameters": flat(other)}


def refusals(rank: int, world: int) -> dict[str, Any]:
    """What each wrong set-up is told; every rank is told the same or fails alike."""
    found: dict[str, Any] = {}

    def told(name: str, call: Callable[[], Any]) -> None:
        try:
            call()
            found[name] = "nothing"
        except ValueError as error:
            found[name] = str(error)

    def stepped(members: list[nn.Parameter], **options: Any) -> None:
        for p in members:
            p.grad = torch.zeros_like(p)
        DPFTRL(members, 1.0, **{"plan": PLAN, "batch_size": 1, **options}).step()

    def parameter(*shape: int) -> nn.Parameter:
        return nn.Parameter(torch.zeros(shape))

    different = nn.Parameter(torch.full((3,), float(rank)))
    told("values", lambda: stepped([different]))
    told("shapes", lambda: stepped([parameter(3 + rank)]))
    told("batch", lambda: stepped([parameter(3)], batch_size=1 + rank))
    own = PrivacyPlan(1.0, 1.0 + rank, accounting.SinglePass(3))
    told("plan", lambda: stepped([parameter(3)], plan=own))

    net, wrong = nn.Linear(4, 4), nn.Linear(4, 4)
    mesh = init_device_mesh("cpu", (world,))
    fully_shard(net, mesh=mesh)
    told("mixed", lambda: stepped([*net.parameters(), parameter(2)]))
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    parallelize_module(wrong, mesh, RowwiseParallel())
    told("columns", lambda: stepped([wrong.weight]))
    rows = parallelize_module(nn.Linear(4, 4), mesh, ColwiseParallel())
    told("rows", lambda: stepped(list(rows.parameters())))
    weight = net.weight
    optimizer = DPFTRL([weight], 1.0, plan=PLAN, batch_size=1)
    weight.grad = torch.zeros_like(weight).redistribute(placements=[Shard(1)])  # type: ignore[attr-defined]
    told("placements", optimizer.step)

    p = parameter(3)
    behind = DPFTRL([p], 1.0, plan=PLAN, batch_size=1)
    p.grad = torch.zeros(3)
    behind.step()
    if rank == 0:
        behind._run.noise.step(torch.empty(3))
    p.grad = torch.zeros(3)
    told("steps", behind.step)
    return found


def refused_by_one(rank: int, world: int) -> dict[str, Any]:
    """What the last rank refuses is refused on all, and the run goes on from where it was."""
    p = nn.Parameter(torch.zeros(3))
    optimizer = DPFTRL([p], 1.0, plan=PLAN, batch_size=1, noise_seed=1, momentum=0.5)
    noise = ResidualNoise([p], plan=PLAN, noise_seed=1)
    last = rank == world - 1
    told = []

    def tried(call: Callable[[], Any], gradient: Tensor) -> None:
        p.grad = gradient
        try:
            call()
            told.append("nothing")
        except ValueError as error:
            told.append(str(error))

    ones = torch.ones(3)
    tried(optimizer.step, ones.to_sparse() if last else ones)
    optimizer.param_groups[0]["lr"] = 2.0 if last else 1.0
    tried(optimizer.step, ones)
    optimizer.param_groups[0]["lr"] = -1.0 if last else 1.0
    tried(optimizer.step, ones)
    optimizer.param_groups[0]["lr"] = 1.0
    tried(optimizer.step, ones)
    after = p.detach().clone()
    tried(noise.add_, ones.to_sparse() if last else ones)
    tried(noise.add_, ones)
    tried(noise.add_, p.grad if last else ones.clone())  # type: ignore[arg-type]
    return {"told": told, "parameters": after, "steps": noise.steps_taken}


def norms(rank: int, world: int) -> dict[str, Any]:
    """Ranks with the same rows whose summation came out otherwise in the last bits."""
    part = torch.full((4,), 1.0 + rank * 2.0**-50, dtype=torch.float64)
    group = dist.group.WORLD
    return {"found": [kind.norm(part) for kind in (Replicas(group), Shards(group, None))]}


CASES = [
    replicas,
    averaging_replicas,
    residual,
    fresh_keys,
    without_examples,
    resumed,
    lone,
    shards,
    shard_noise,
    shard_residual,
    shard_resumed,
    refusals,
    refused_by_one,
    norms,
]


def alone() -> dict[str, Any]:
    """What one process comes to: torch.distributed is not started."""
    return {
        "replicas": replicas(0, 1),
        "residual": residual(0, 1),
        "private": {keep: private_ranks.trained(5, keep) for keep in (False, True)},
    }


def run_rank(rank: int, folder: Path) -> None:
    """Run all cases of the worlds that have this rank, and a private training."""
    for world in WORLDS:
        with in_world(rank, world, folder / f"world{world}") as result:
            for case in CASES if rank < world else ():
                result[case.__name__] = case(rank, world)
    with in_world(rank, private_ranks.WORLD, folder / "private") as result:
        result.update(private_ranks.found(rank))
    with in_world(rank, run_ranks.WORLD, folder / "runs") as result:
        result.update(run_ranks.results(rank, folder / "folders"))


def main(folder: Path) -> None:
    """Run one process alone, then all ranks.

    The ranks are forks of it: most of the time would go into their imports and first steps.
    """
    torch.set_num_threads(1)
    torch.save(alone(), folder / "alone.pt")
    fresh_keys(0, 1)  # so that the loop without momentum is compiled once too
    fork = multiprocessing.get_context("fork")
    running = {}
    for rank in range(max(WORLDS)):
        process = fork.Process(target=run_rank, args=(rank, folder), daemon=True)
        process.start()
        running[process.sentinel] = process
    while running:
        for sentinel in wait(list(running)):
            process = running.pop(sentinel)
            process.join()
            assert process.exitcode == 0  # the others end with this process


@contextmanager
def in_world(rank: int, world: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Be a rank of a world, if there is one of this number, and write the results."""
    result: dict[str, Any] = {}
    if rank >= world:
        yield result
        return
    folder.mkdir(exist_ok=True)
    store = dist.FileStore(str(folder / "store"), world)
    # A rank may have to wait for the others to finish the world before.
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=240)
    )
    yield result
    torch.save(result, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def start(folder: Path) -> None:
    """Run the ranks to their end; the results are in the folder."""
    # Forks must find neither threads nor a device in use.
    limits = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    program = [sys.executable, "-W", "error", __file__, folder]
    with child(program, env={**os.environ, **limits}, stderr=subprocess.PIPE, text=True) as process:
        errors = process.communicate(timeout=480)[1]
    assert process.returncode == 0, errors


if __name__ == "__main__":
    main(Path(sys.argv[1]))
