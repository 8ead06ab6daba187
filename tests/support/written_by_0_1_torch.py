# SPDX-License-Identifier: Apache-2.0
"""Small torch runs that 0.1 was killed in, and how they go on: see `written_by_0_1`.

Losses are linear in the parameters and nothing is clipped, so gradient sums are exact.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from written_by_0_1 import RunJournal, digests_of, in_stream, plan, to_hex

from dpftrl_fast.torch import DPFTRL, ResidualNoise, TrainingRun, make_private

Json = dict[str, Any]

DELTA = 1e-5
EPOCHS, BATCH = 3, 4

# ---- Optimisers by themselves ----

CASES: dict[str, Json] = {
    "momentum": {"plan": "restarts", "momentum": 0.5, "l1": 2.0**-10},
    "groups": {
        "plan": "epochs", "momentum": 0.5, "nesterov": True, "memory": "regenerate", "groups": True,
    },
    "float64": {"plan": "lengths", "memory": 2, "dtype": "float64", "radius": 2.0**10},
    "residual": {"plan": "apart", "residual": True, "batch_size": 4},
}  # fmt: skip


def parameters(case: Json) -> list[nn.Parameter]:
    """Return the parameters of a case, before the first step."""
    dtype = getattr(torch, case.get("dtype", "float32"))
    rng = np.random.default_rng(1)
    shapes: list[tuple[int, ...]] = [(2, 3), (3,), ()]
    return [nn.Parameter(torch.tensor(rng.integers(-8, 9, s) / 8, dtype=dtype)) for s in shapes]


def noise_of(case: Json, members: list[nn.Parameter], **secret: Any) -> Any:
    """Make the optimiser, or the residual noise, of a case."""
    special = ("plan", "groups", "residual")
    options = {name: value for name, value in case.items() if name not in special}
    options |= {"plan": plan(case["plan"]), "threads": 1, **secret}
    if case.get("residual"):
        return ResidualNoise(members, **options)
    groups: Any = members
    if case.get("groups"):
        groups = [{"params": members[:1], "lr": 0.5}, {"params": members[1:]}]
    return DPFTRL(groups, 0.25, batch_size=4, **options)


def steps(noise: Any, members: list[nn.Parameter], first: int, stop: int) -> list[str]:
    """Take steps; return the bits of the parameters, or of the noisy sums, after each."""
    found = []
    for t in range(first, stop):
        rng = np.random.default_rng(100 + t)
        for p in members:
            p.grad = torch.tensor(rng.integers(-16, 17, tuple(p.shape)) / 8, dtype=p.dtype)
        if isinstance(noise, ResidualNoise):
            noise.add_()
            found.append(bits_of(p.grad for p in members))
        else:
            noise.step()
            found.append(bits_of(members))
    return found


def bits_of(tensors: Iterable[Any]) -> str:
    """Return the bits of tensors, one after the other."""
    return "".join(to_hex(tensor.detach().numpy()) for tensor in tensors)


# ---- Trainings in a folder ----

KINDS: dict[str, Json] = {
    "restarted": {
        "key": bytes(range(32)),
        "memory": "regenerate",
        "schedule": "ftrl",  # the only meaning that 0.1 had
        "checkpoint_every": 5,
    },
    "sgd": {"noise_seed": 11, "keep_optimizer": True, "keep_sums": True, "checkpoint_every": 6},
}


class Killed(Exception):
    """The end of a process."""


def run(kind: str, folder: Path, *, kill_after: int | None = None, **options: Any) -> list[Json]:
    """Train in a folder; return what there is to see after each step and at the end."""
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002 - the global ones are kept with a run
    random.seed(5)
    rng = np.random.default_rng(2)
    model = nn.Linear(3, 2)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.tensor(rng.integers(-8, 9, tuple(p.shape)) / 8))
    x, y = (torch.tensor(rng.integers(-8, 9, (16, n)) / 8, dtype=torch.float32) for n in (3, 2))
    choice = dict(KINDS[kind])
    of_run = {
        name: choice.pop(name) for name in ("keep_sums", "checkpoint_every") if name in choice
    }
    private = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.0 if kind == "sgd" else 0.5),
        DataLoader(TensorDataset(x, y), batch_size=BATCH),
        plan=plan("training"),
        clip_norm=64.0,
        delta=DELTA,
        epochs=EPOCHS,
        order_seed=3,
        grad_sample_mode="vmap",
        criterion=loss,
        threads=1,
        **choice,
    )
    wrapped, optimizer, loader, ledger = private
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    found: list[Json] = []
    try:
        with TrainingRun(
            folder,
            wrapped,
            optimizer,
            loader,
            extra={"scheduler": scheduler},
            **of_run,
            **options,
        ) as training:
            for _ in range(loader.epoch, EPOCHS):
                for ids, (a, b) in training:
                    wrapped.backward(a, b)
                    optimizer.step()
                    found.append(
                        {
                            "step": training.step,
                            "ids": ids.tolist(),
                            "parameters": bits_of(model.parameters()),
                            "random": drawn(),
                        }
                    )
                    if training.step == kill_after:
                        raise Killed
                scheduler.step()
            account = training.account
            found.append(
                {
                    "epsilon": training.epsilon(DELTA).hex(),
                    "stated": ledger.epsilon_spent().hex(),
                    "abandoned": [list(stretch) for stretch in account.abandoned],
                    "start": account.start,
                    "rate": optimizer.param_groups[0]["lr"],
                }
            )
    except Killed:
        pass
    return found


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Return a loss whose gradients do not depend on the model."""
    return (output * target).sum()


def drawn() -> list[str]:
    """Return a number of each of the global generators."""
    numbers = (torch.rand(1).item(), np.random.rand(), random.random())  # noqa: NPY002
    return [float(number).hex() for number in numbers]


#: What of a checkpoint is ours: the state of torch's own optimisers and schedulers is torch's.
LATER = ("param_groups", "schedule")
OURS = ("noise", "parameters", "buffers", "loader", "random")


def kept(folder: Path) -> Json:
    """Return a hash of each entry of the last checkpoint that is ours, and of the DPFTRL's."""
    import json

    identity = json.loads((folder / "run.json").read_bytes())["identity"]
    with RunJournal(folder, identity) as journal:
        state = journal.resume()
    assert state is not None
    state = in_stream(state, 1)
    ours = {name: state[name] for name in OURS}
    if identity["optimizer"] == "DPFTRL":
        ours["optimizer"] = {k: v for k, v in state["optimizer"].items() if k not in LATER}
    return digests_of(ours)
