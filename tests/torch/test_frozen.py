# SPDX-License-Identifier: Apache-2.0
"""Frozen parameters in the optimiser: no part in clipping and noise, and unchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset
from torch_cases import cross_entropy

from dpftrl_fast.torch import make_private
from dpftrl_fast.torch.make_private import PrivateTraining
from dpftrl_fast.torch.optimizer import DPFTRL

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(24, 4, generator=GENERATOR)
Y = torch.randint(0, 3, (24,), generator=GENERATOR)


def network() -> nn.Sequential:
    """A network with a frozen base, whose gradients of before it was frozen are still there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    cross_entropy(model(X), Y).backward()
    model[0].requires_grad_(False)
    return model


def private(model: nn.Module, optimizer: Optimizer, **options: Any) -> PrivateTraining:
    return make_private(
        model,
        optimizer,
        DataLoader(TensorDataset(X, Y), batch_size=8),
        **{
            "noise_multiplier": 2.0,
            "delta": 1e-5,
            "epochs": 2,
            "clip_norm": 0.5,
            "noise_seed": 0,
            "order_seed": 0,
            **options,
        },
    )


def train(run: PrivateTraining, vmap: bool = False) -> None:
    model: Any = run.model
    for _ in range(2):
        for _, (x, y) in run.data_loader:
            if vmap:
                model.backward(x, y)
            else:
                cross_entropy(model(x), y).backward()
            run.optimizer.step()


MAKES: dict[str, Any] = {
    "sgd": lambda params: SGD(params, lr=0.1, momentum=0.9),
    "adamw": lambda params: AdamW(params, lr=0.1, weight_decay=0.5),
    "adam": lambda params: Adam(params, lr=0.1, weight_decay=0.5),
}


@pytest.mark.parametrize("vmap", [False, True])
@pytest.mark.parametrize("kind", MAKES)
def test_frozen_parameters_stay_and_the_others_train_as_without_them(kind: str, vmap: bool) -> None:
    options: dict[str, Any] = {"grad_sample_mode": "hooks"}
    if vmap:
        options = {"grad_sample_mode": "vmap", "criterion": cross_entropy}
    found = []
    for every in (False, True):
        model = network()
        base = [p.clone() for p in model[0].parameters()]
        given = model.parameters() if every else model[2].parameters()
        run = private(model, MAKES[kind](given), **options)
        train(run, vmap)
        for p, before in zip(model[0].parameters(), base, strict=True):
            assert torch.equal(p, before)
        found.append([p.detach() for p in model[2].parameters()])
        accumulator = run.data_loader.accumulator
        assert accumulator is not None and len(accumulator.parameters) == 2
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_a_group_may_be_frozen_as_a_whole() -> None:
    model = network()
    groups = [
        {"params": model[0].parameters(), "lr": 1.0},
        {"params": model[2].parameters(), "lr": 0.1},
    ]
    run = private(model, SGD(groups, lr=1.0))
    # A scheduler has a function for each group of the optimiser that was given.
    torch.optim.lr_scheduler.LambdaLR(run.optimizer, [lambda t: 1.0, lambda t: 0.5])
    assert [group["lr"] for group in run.optimizer.param_groups] == [1.0, 0.05]
    before = model[2].weight.clone()
    train(run)
    assert not torch.equal(model[2].weight, before)


def test_per_layer_clip_norms_are_those_of_trained_parameters() -> None:
    model = network()
    run = private(
        model, SGD(model.parameters(), lr=0.1), clip_norm=[3.0, 4.0], clipping="per-layer"
    )
    assert run.data_loader.plan.clip_norm == 5.0
    train(run)


def test_a_frozen_base_of_another_dtype_is_no_matter() -> None:
    model = network()
    model[0].double()

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.head = model[0], model[2]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.base(x.double()).float().tanh())  # type: ignore[no-any-return]

    both = Halves()
    train(private(both, SGD(both.parameters(), lr=0.1)))


def test_all_frozen_is_refused_and_some_are_not() -> None:
    model = network()
    model.requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="got 4 that are frozen: set requires_grad to True"):
        private(model, optimizer)
    model[2].weight.requires_grad_(True)
    train(private(model, optimizer))


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("place", [0, 2])
def test_a_change_of_what_is_frozen_is_refused(kind: str, steps: int, place: int) -> None:
    model = network()
    run = private(model, MAKES[kind](model.parameters()))
    batches = iter(run.data_loader)

    def step() -> None:
        _, (x, y) = next(batches)
        cross_entropy(run.model(x), y).backward()
        run.optimizer.step()

    for _ in range(steps):
        step()
    before = [p.detach().clone() for p in model.parameters()]
    model[place].bias.requires_grad_(place == 0)
    with pytest.raises(ValueError, match=r"the same parameters must be frozen .* throughout a run"):
        step()
    assert run.ledger.steps_taken == steps
    for p, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, value)
    # Frozen before, with a run of its own, it trains.
    again = network()
    again.requires_grad_(True)
    train(private(again, MAKES[kind](again.parameters())))


def test_by_itself_the_optimiser_skips_them_too() -> None:
    model = network()
    run = private(model, SGD(model.parameters(), lr=0.1))
    assert isinstance(run.optimizer, DPFTRL)
    train(run)
    assert run.optimizer.state_dict(secrets=True)["vectors"]["sum"].numel() == 18
