# SPDX-License-Identifier: Apache-2.0
"""Trainings of several ranks in a `TrainingRun`, stopped and started again: see `torch_ranks`.

As a program, under torchrun: python run_ranks.py FOLDER STEP, which rank 1 does not survive.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.run.step_log import Diverged
from dpftrl_fast.torch import TrainingRun, make_private
from dpftrl_fast.torch.make_private import PrivateTraining

WORLD, ROWS, BATCH, EPOCHS, DELTA = 3, 17, 7, 2, 1e-5
STEPS = 6
PLAN = PrivacyPlan(1.0, 8.0, FixedEpochs(3, EPOCHS), mechanism=Tree(restart_every=3, complete=True))
ACCEPT = (1e9, DELTA)


def made(group: Any, keep: bool, *, other_rows: bool = False, **options: Any) -> PrivateTraining:
    """A new program on each rank of a group, with the default shuffle."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.3), nn.Tanh(), nn.Linear(5, 3))
    x, y = torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,))
    torch.manual_seed(dist.get_rank())  # dropout of each rank is its own
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    of = make_private(
        net,
        optimizer if keep else sgd,
        DataLoader(TensorDataset(x, y), batch_size=BATCH),
        plan=PLAN,
        delta=DELTA,
        epochs=EPOCHS,
        clip_norm=1.0,
        process_group=group,
        **options,
    )
    if other_rows:  # after the comparison of the data
        x.add_(0.1)
    return of


def steps(run: Any, of: PrivateTraining, last: int) -> None:
    """Take the steps up to `last`, with batches from `run`."""
    while of.ledger.steps_taken < last:
        for _, (x, y) in run:
            nn.functional.cross_entropy(of.model(x), y).backward()
            of.optimizer.step()
            if of.ledger.steps_taken == last:
                break


def flat(of: PrivateTraining) -> Tensor:
    return torch.cat([p.detach().flatten() for p in of.model.parameters()])


class Folder:
    """A folder that only rank 0 has; the others name one that does not exist."""

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path if rank == 0 else path / "not" / "here"

    def stop(self, group: Any, keep: bool, at: int, **options: Any) -> None:
        """Begin a run, and end it after a step without a word."""
        of = made(group, keep, noise_seed=7)
        run = self.run(of, **options)
        steps(run, of, at)
        run.close()

    def run(self, of: PrivateTraining, **options: Any) -> TrainingRun:
        return TrainingRun(
            self.path, of.model, of.optimizer, of.data_loader, **{"checkpoint_every": 2, **options}
        )

    def finish(self, group: Any, keep: bool, *, other_rows: bool = False, **options: Any) -> Any:
        """Start the program again and train to the end; or return what it is told."""
        of = made(group, keep, other_rows=other_rows)
        before = flat(of)
        try:
            with self.run(of, **options) as run:
                begun = run.step
                before = flat(of)
                steps(run, of, STEPS)
                return {"from": begun, "parameters": flat(of), "epsilon": run.epsilon(DELTA)}
        except (Diverged, ValueError, RuntimeError) as error:
            same = torch.equal(before, flat(of))
            return {"told": f"{type(error).__name__}: {error}", "unchanged": same}


def told(call: Callable[[], Any]) -> str:
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return "nothing"


def stopped_and_resumed(rank: int, group: Any, root: Path) -> dict[str, Any]:
    """Bits of a run that nothing stops, and of runs that are stopped at a step."""
    found: dict[str, Any] = {}
    for keep in (False, True):
        of = made(group, keep, noise_seed=7, order_seed=3)
        with Folder(root / f"whole {keep}", rank).run(of) as run:
            steps(run, of, STEPS)
        whole = flat(of)
        of = made(group, keep, noise_seed=7, order_seed=3)
        steps(of.data_loader, of, STEPS)
        found[f"{keep} without a folder"] = torch.equal(flat(of), whole)
        for at, keep_sums in ((1, False), (4, False), (5, False), (5, True)):
            folder = Folder(root / f"{keep} {at} {keep_sums}", rank)
            of = made(group, keep, noise_seed=7, order_seed=3)
            run = folder.run(of, keep_sums=keep_sums)
            steps(run, of, at)
            run.close()
            of = made(group, keep, order_seed=3)
            torch.manual_seed(99)
            with folder.run(of, keep_sums=keep_sums) as run:
                begun = run.step
                steps(run, of, STEPS)
                epsilon = run.epsilon(DELTA)
            same = torch.equal(flat(of), whole)
            found[f"{keep} {at} {keep_sums}"] = [same, begun, epsilon]
        found[f"{keep} parameters"] = whole
    return found


def with_other_sums(rank: int, group: Any, root: Path) -> dict[str, Any]:
    """The rows of rank 1 are others after the restart."""
    found = {}
    for keep_sums in (False, True):
        folder = Folder(root / f"other {keep_sums}", rank)
        folder.stop(group, False, 3, checkpoint_every=100, keep_sums=keep_sums)
        found[f"keep_sums={keep_sums}"] = folder.finish(
            group, False, other_rows=rank == 1, keep_sums=keep_sums
        )
    return found


def refusals(rank: int, group: Any, root: Path) -> dict[str, Any]:
    """What one rank does otherwise is refused on all; then the same program goes on."""
    found: dict[str, Any] = {}
    folder = Folder(root / "refusals", rank)

    def of() -> PrivateTraining:
        return made(group, False)

    found["every"] = told(lambda: folder.run(of(), checkpoint_every=2 + rank))
    found["wrong"] = told(lambda: folder.run(of(), checkpoint_every=1 - rank))
    found["parameters"] = told(lambda: folder.run(of(), spare_recoveries=rank))
    begun = of()
    steps(begun.data_loader, begun, 1)
    found["begun"] = told(lambda: folder.run(begun))
    folder.stop(group, False, 1)
    found["another"] = told(lambda: folder.run(of(), spare_recoveries=1))
    found["finished"] = folder.finish(group, False)["from"]
    if rank == 1:
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    again = of()
    found["restart"] = told(lambda: steps(again.data_loader, again, 1))
    found["in a folder"] = Folder(root / "restart", rank).finish(group, False)["from"]
    os.environ.pop("TORCHELASTIC_RESTART_COUNT", None)
    return found


def by_states(rank: int, group: Any, root: Path) -> dict[str, Any]:
    """Resume without a folder, from states that each rank has saved, with the default shuffle."""
    found = {}
    for keep in (False, True):
        whole = made(group, keep)
        steps(whole.data_loader, whole, 2)
        file = root / f"state {keep} {rank}.pt"
        parts = {
            "noise": whole.noise.state_dict(secrets=True),
            "optimizer": whole.optimizer.state_dict(),
            "ledger": whole.ledger.state_dict(),
            "data_loader": whole.data_loader.state_dict(),
            "model": whole.model.state_dict(),
        }
        torch.save({"parts": parts, "random": torch.get_rng_state()}, file)
        steps(whole.data_loader, whole, STEPS)
        again = made(group, keep)
        saved = torch.load(file, weights_only=True)
        for name, state in saved["parts"].items():
            getattr(again, name).load_state_dict(state)
        torch.set_rng_state(saved["random"])
        steps(again.data_loader, again, STEPS)
        found[str(keep)] = torch.equal(flat(whole), flat(again))
    return found


def elastic(rank: int, two: Any, root: Path) -> dict[str, Any]:
    """Begun by two ranks and continued by three; rank 2 has no part in the beginning."""
    found: dict[str, Any] = {}

    def begun(name: str, at: int, **options: Any) -> Folder:
        folder = Folder(root / name, rank)
        if two is not None:
            folder.stop(two, False, at, **options)
        dist.barrier()
        return folder

    # The last checkpoint is that of the last step: nothing is to be repeated.
    folder = Folder(root / "clean", rank)
    if two is not None:
        of = made(two, False, noise_seed=7)
        with folder.run(of) as run:
            steps(run, of, 4)
    dist.barrier()
    found["clean"] = folder.finish(None, False)
    folder = begun("killed", 3)
    found["killed"] = folder.finish(None, False)
    found["recovered"] = folder.finish(None, False, recover=True, accept_epsilon=ACCEPT)
    folder = begun("back", 3)
    found["more"] = folder.finish(None, False)
    if two is not None:
        found["back"] = folder.finish(two, False)
    dist.barrier()
    folder = begun("kept", 3, keep_sums=True)
    found["kept"] = folder.finish(None, False, keep_sums=True)
    return found


def results(rank: int, root: Path) -> dict[str, Any]:
    """Run all cases; the first two ranks are a group of their own."""
    root.mkdir(exist_ok=True)
    group = dist.new_group([0, 1])
    found: dict[str, Any] = {}
    if rank < 2:
        for case in (stopped_and_resumed, with_other_sums, refusals, by_states):
            found[case.__name__] = case(rank, group, root)
    dist.barrier()
    found["elastic"] = elastic(rank, group if rank < 2 else None, root)
    return found


def worker(out: Path, kill: int) -> None:
    """Train under torchrun; at a step of the first start, rank 1 ends."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, start = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    of = made(None, False, noise_seed=7, order_seed=3)
    folder = Folder(out / "run", rank)
    with folder.run(of) as run:
        if kill and start == "0":
            steps(run, of, kill)
            if rank == 1:
                os._exit(1)
        steps(run, of, STEPS)
        found = {"parameters": flat(of), "epsilon": run.epsilon(DELTA), "start": start}
    dist.destroy_process_group()
    # A thread of the group may abort the interpreter at its end.
    tasks = Path("/proc/self/task").glob("*/comm")
    found["threads"] = [task.read_text().strip() for task in tasks if "gloo" in task.read_text()]
    torch.save(found, out / f"{rank}.pt")


if __name__ == "__main__":
    worker(Path(sys.argv[1]), int(sys.argv[2]))
