# SPDX-License-Identifier: Apache-2.0
"""A small training in a `TrainingRun`, as a program that can be killed.

`SumOptimizer` is as little of an optimiser as a run needs: running sum, noise, parameters. Usage:
python training_run.py FOLDER OUT; a line per step on the standard output, the parameters in OUT.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.torch.checkpoint import TrainingRun
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.alone.vmapped import VmapModule
from dpftrl_fast.torch.gradients.clipping import Clipping, FlatClipping
from dpftrl_fast.torch.ledger import TrainingLedger
from dpftrl_fast.torch.loader import FixedOrderLoader
from dpftrl_fast.torch.optimizer import DPFTRL
from dpftrl_fast.torch.residual import ResidualNoise

EPOCHS, PER_EPOCH, BATCH = 3, 4, 5
STEPS = EPOCHS * PER_EPOCH
DELTA = 1e-6
FLAT = FlatClipping(1.0)
Left = Callable[[int, bytes], None]
PLAN = PrivacyPlan(
    1.0, 6.0, FixedEpochs(PER_EPOCH, EPOCHS), mechanism=Tree(restart_every=4, complete=True)
)


class SumOptimizer(torch.optim.Optimizer):
    """theta_t = theta_0 - lr (s_t + n_t)/B. `left` is told t and s_t + n_t: all that leaves."""

    def __init__(self, params: Any, plan: PrivacyPlan, left: Left, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.flat = [p for group in self.param_groups for p in group["params"]]
        size = sum(p.numel() for p in self.flat)
        self.noise = plan.noise(size, seed=11, memory="regenerate", threads=1)
        self.start = torch.cat([p.detach().reshape(-1) for p in self.flat])
        self.total = torch.zeros(size)
        self.left = left

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.total += torch.cat([p.grad.reshape(-1) for p in self.flat])
        noisy = self.total + torch.from_numpy(self.noise.step())
        self.left(self.noise.steps_taken, noisy.numpy().tobytes())
        theta = self.start - self.param_groups[0]["lr"] * noisy / BATCH
        for p, part in zip(self.flat, theta.split([p.numel() for p in self.flat]), strict=True):
            p.copy_(part.view_as(p))

    def recover(self, account: RunAccount) -> None:
        self.total += torch.from_numpy(self.noise.current())
        self.noise = account.noise(self.total.numel(), memory="regenerate", threads=1)

    def state_dict(self) -> dict[str, Any]:
        noise = self.noise.state_dict()
        return {**super().state_dict(), "total": self.total, "start": self.start, "noise": noise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self.noise.load_state_dict(state.pop("noise"))
        self.total, self.start = state.pop("total"), state.pop("start")
        super().load_state_dict(state)


class Training:
    """Everything of one process: made anew after each crash."""

    def __init__(
        self,
        *,
        left: Left = lambda step, noisy: None,
        plan: PrivacyPlan = PLAN,
        order_seed: int | None = 3,
        kind: str = "small",
        hidden: int = 4,
        examples: int = BATCH * PER_EPOCH,
        batch: int = BATCH,
        clipping: Clipping = FLAT,
        lr: float = 0.1,
        momentum: float = 0.9,
        gamma: float = 0.7,
        warmup: bool = False,
    ) -> None:
        torch.manual_seed(5)
        model = nn.Sequential(
            nn.Linear(3, hidden), nn.Dropout(0.4), nn.ReLU(), nn.Linear(hidden, 2)
        )
        data = TensorDataset(torch.randn(examples, 3), torch.arange(examples) % 2)
        weights = list(model.parameters())
        self.noise: Any = None
        if kind == "small":
            self.optimizer: Any = SumOptimizer(weights, plan, left, lr)
        elif kind == "dpftrl":
            self.optimizer = DPFTRL(
                weights,
                lr,
                plan=plan,
                batch_size=BATCH,
                momentum=momentum,
                l1=1e-3,
                noise_seed=11,
            )
        else:
            self.optimizer = torch.optim.Adam(weights, lr, betas=(momentum, 0.999))
            self.noise = ResidualNoise(weights, plan=plan, batch_size=BATCH, noise_seed=11)
        schedulers = torch.optim.lr_scheduler
        self.scheduler: Any = schedulers.StepLR(self.optimizer, 2, gamma)
        if warmup:
            self.scheduler = schedulers.LambdaLR(self.optimizer, lambda epoch: epoch / 2)
        self.ledger = TrainingLedger(plan, DELTA)
        sums = Accumulator(weights, clipping, batch, self.ledger)
        sums.attach(self.optimizer, after_sum=None if self.noise is None else self.noise.add_)
        self.model = VmapModule(model, nn.functional.cross_entropy, sums)
        self.loader = FixedOrderLoader(data, batch, plan, order_seed=order_seed)
        self.loader.attach(sums)

    def run(self, folder: Path, **options: Any) -> TrainingRun:
        extra = options.pop("extra", {"scheduler": self.scheduler})
        return TrainingRun(
            folder,
            self.model,
            self.optimizer,
            self.loader,
            noise=self.noise,
            extra=extra,
            **options,
        )

    def train(
        self,
        folder: Path,
        after_step: Callable[[int], None] = lambda step: None,
        before_step: Callable[[int], None] = lambda step: None,
        **options: Any,
    ) -> float:
        """Train to the end and return epsilon."""
        with self.run(folder, **options) as run:
            for _ in range(self.loader.epoch, EPOCHS):
                for _, (x, y) in run:
                    before_step(run.step + 1)
                    self.model.backward(x, y)
                    self.optimizer.step()
                    after_step(run.step)
                self.scheduler.step()
            return run.epsilon(DELTA)

    def parameters(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])


if __name__ == "__main__":
    torch.set_num_threads(1)
    training = Training()
    epsilon = training.train(
        Path(sys.argv[1]), lambda step: print(step, flush=True), checkpoint_every=3
    )
    np.savez(sys.argv[2], parameters=training.parameters().numpy(), epsilon=epsilon)
