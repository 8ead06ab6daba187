# SPDX-License-Identifier: Apache-2.0
"""Hooks on a network: chunks, in-place operations, checkpoints, passes in other orders."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_cases import cross_entropy, flat_sums, grads, one_by_one

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.torch.gradients import hooks as hooks_module
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.clipping import FlatClipping
from dpftrl_fast.torch.gradients.rows import hook_gradients

ROWS = 6
CLIP = 0.3


def begun(model: nn.Module, **options: Any) -> Any:
    plan = PrivacyPlan(CLIP, 1.0, SinglePass(3))
    trained = [p for p in model.parameters() if p.requires_grad]
    sums = Accumulator(trained, FlatClipping(CLIP), ROWS, plan.guard())
    hooks = hook_gradients(model, sums, **options)
    sums.begin(range(ROWS))
    sums.expect(ROWS)
    return sums, hooks


def check(model: nn.Module, x: Tensor, y: Tensor, loss: Any = cross_entropy) -> None:
    alone = copy.deepcopy(model)
    if isinstance(alone, Recomputed):
        alone.reentrant = False  # autograd.grad takes no other
    samples = one_by_one(alone, loss, x, y, [p for p in alone.parameters() if p.requires_grad])
    sums, _ = begun(model)
    loss(model(x), y).backward()
    sums.finish()
    trained = [p for p in model.parameters() if p.requires_grad]
    for p, expected in zip(trained, flat_sums(samples, CLIP), strict=True):
        torch.testing.assert_close(p.grad, expected, rtol=1e-6, atol=1e-9)


class Recomputed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.inner = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)
        return self.last(h)  # type: ignore[no-any-return]


class Added(nn.Module):
    """Adds to its stream in place, as residual networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h += self.second(h.tanh())
        return self.last(h.relu_())  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "in place": Added,
    "first layer, then in place": lambda: nn.Sequential(
        nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)
    ),
    "a layer of each": lambda: nn.Sequential(
        nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.RMSNorm(4), nn.Linear(4, 3, bias=False)
    ),
    "frozen in the middle": lambda: nn.Sequential(
        nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3)
    ),
    "only the last": lambda: nn.Sequential(
        nn.Linear(4, 4).requires_grad_(False), nn.ReLU(inplace=True), nn.Linear(4, 3)
    ),
    "checkpointed": lambda: Recomputed(False),
    "checkpointed, reentrant": lambda: Recomputed(True),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("width", [None, 1, 40])
def test_sums_are_those_of_one_example_at_a_time(
    name: str, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    if width is not None:  # one example, or some, at a time
        monkeypatch.setattr(hooks_module, "_CACHED", 500 * width)
        monkeypatch.setattr(hooks_module, "_MOST", 500 * width)
    model = MODELS[name]().double()
    check(model, torch.randn(ROWS, 4).double(), torch.randint(0, 3, (ROWS,)))


def frozen_norm() -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(20, 3))
    model.double()(torch.randn(32, 4, 5).double())  # statistics
    model[1].eval()
    return model


def test_batch_norm_in_evaluation_mode_is_trained() -> None:
    x, y = torch.randn(ROWS, 4, 5).double(), torch.randint(0, 3, (ROWS,))
    check(frozen_norm(), x, y)
    model = frozen_norm()
    sums, _ = begun(model)
    model.train()  # as loops do
    with pytest.raises(ValueError, match=r"1 \(BatchNorm1d\) must stay in evaluation mode"):
        model(x)
    model[1].eval()
    cross_entropy(model(x), y).backward()
    sums.finish()


def test_two_backward_passes_through_one_forward_pass_add_up() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(ROWS, 4).double(), torch.randint(0, 3, (ROWS,))

    def both(output: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(output, y) + output.square().mean()

    alone = copy.deepcopy(model)
    samples = one_by_one(alone, both, x, y, list(alone.parameters()))
    sums, _ = begun(model)
    output = model(x)
    cross_entropy(output, y).backward(retain_graph=True)
    output.square().mean().backward()
    sums.finish()
    for got, expected in zip(grads(model), flat_sums(samples, CLIP), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-9)


def test_a_backward_pass_through_an_earlier_batch_is_refused() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x, y = torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,))
    sums, _ = begun(model)
    old = cross_entropy(model(x), y)
    old.backward(retain_graph=True)
    sums.finish()
    sums.done()
    sums.begin(range(ROWS, 2 * ROWS))
    sums.expect(ROWS)
    new = cross_entropy(model(x), y)
    with pytest.raises(ValueError, match="through a forward pass of an earlier piece"):
        old.backward()
    new.backward()
    sums.finish()


class Overwriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        y = self.last(h)
        h.mul_(0.5)  # which the last layer got
        return y + h.sum(1, keepdim=True)


def test_an_input_that_is_changed_in_place_is_refused() -> None:
    model = Overwriting()
    begun(model)
    with pytest.raises(Exception, match=r"changed in place|modified by an inplace operation"):
        model(torch.randn(ROWS, 4))  # plain torch refuses it too, in the trial
    _, hooks = begun(Overwriting(), loss_reduction="sum")
    hooks.watch = lambda args, kwargs: None
    output = hooks.model(torch.randn(ROWS, 4))
    with pytest.raises(ValueError, match=r"last \(Linear\) must find its input unchanged"):
        output.sum().backward()


def test_no_gradient_of_the_whole_batch_is_made() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))
    sums, hooks = begun(model)
    cross_entropy(model(torch.randn(ROWS, 4)), torch.zeros(ROWS).long()).backward()
    assert all(p.grad is None for p in model.parameters())
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())
    sums.finish()
    hooks.remove()
    assert not model._forward_hooks and not model[0]._forward_pre_hooks


@pytest.mark.filterwarnings("ignore:the model cannot be tried on made-up inputs:UserWarning")
def test_an_error_in_a_forward_pass_leaves_the_parameters() -> None:
    class Failing(nn.Module):
        fails = False

        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.randn(1, 4))
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x + self.token)
            if self.fails:
                raise KeyError("half-way")
            return y  # type: ignore[no-any-return]

    model = Failing()
    before = dict(model.named_parameters())
    sums, _ = begun(model)
    x, y = torch.randn(ROWS, 4), torch.zeros(ROWS).long()
    cross_entropy(model(x), y).backward()
    model.fails = True
    sums.finish()
    sums.done()
    sums.begin(range(ROWS, 2 * ROWS))
    sums.expect(ROWS)
    with pytest.raises((KeyError, ValueError)):
        model(x)
    model.fails = False
    assert all(before[name] is p for name, p in model.named_parameters())
    cross_entropy(model(x), y).backward()
    sums.finish()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3))
    x, y = torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,))
    alone = copy.deepcopy(model)
    samples = one_by_one(alone, cross_entropy, x, y, list(alone.parameters()))
    sums, _ = begun(model)
    with torch.autocast("cpu", dtype):
        cross_entropy(model(x), y).backward()
    sums.finish()
    for got, expected in zip(grads(model), flat_sums(samples, CLIP), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.1, atol=0.02)
