# SPDX-License-Identifier: Apache-2.0
"""Models that remember examples, or mix them in the backward pass; additions that end half-way."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_cases import accumulator, cross_entropy, grads

from dpftrl_fast.torch.gradients import accumulate
from dpftrl_fast.torch.gradients.alone.vmapped import VmapModule
from dpftrl_fast.torch.gradients.clipping import FlatClipping
from dpftrl_fast.torch.gradients.rows import hook_gradients

ROWS = 4
X, Y = torch.eye(ROWS), torch.zeros(ROWS, dtype=torch.long)


class Remembers(nn.Module):
    """Shifts its outputs by those of the batch before."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.linear, self.where = nn.Linear(4, 3), where
        self.kept: Any = {"dict": {}, "list": [], "ordered": OrderedDict()}.get(where)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        if self.where == "attribute":
            self.kept = out.detach().mean(0)
        elif self.where == "layer":
            self.linear.kept = out
        elif self.where == "list":
            self.kept.append((out.detach(),))
        elif self.where in ("dict", "ordered"):
            self.kept["last"] = [out.sum()]
        elif self.where == "deleted":
            self.kept = out
            del self.kept
        return out


@pytest.mark.parametrize("where", ["attribute", "layer", "list", "dict", "ordered"])
def test_a_model_that_keeps_a_tensor_of_a_pass_is_refused_before_anything_is_added(
    where: str,
) -> None:
    model = Remembers(where)
    sums = accumulator(model, FlatClipping(1.0), ROWS)
    module = VmapModule(model, cross_entropy, sums)
    sums.begin(range(ROWS))
    sums.expect(ROWS)
    with pytest.raises(ValueError, match=r"the model must keep nothing .* got model\."):
        module.backward(X, Y)
    assert sums.rows_due == ROWS


def closure() -> Any:
    kept: list[Tensor] = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        found = cross_entropy(output, target) + (kept[-1] if kept else 0.0)
        kept.append(found)
        return found

    return loss


class Loss:
    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.last = output
        return cross_entropy(output, target)

    def method(self, output: Tensor, target: Tensor) -> Tensor:
        return self(output, target)


@pytest.mark.parametrize("loss", [closure, Loss, lambda: Loss().method])
def test_a_loss_that_keeps_a_tensor_of_a_pass_is_refused(loss: Any) -> None:
    model = nn.Linear(4, 3)
    sums = accumulator(model, FlatClipping(1.0), ROWS)
    module = VmapModule(model, loss(), sums)
    sums.begin(range(ROWS))
    sums.expect(ROWS)
    with pytest.raises(ValueError, match="the criterion must keep nothing of the examples"):
        module.backward(X, Y)


@pytest.mark.parametrize("where", ["deleted", "nowhere"])
def test_what_is_kept_within_a_pass_only_is_no_matter(where: str) -> None:
    model = Remembers(where)
    model.public = torch.ones(3)  # type: ignore[assignment]  # a tensor of no pass
    sums = accumulator(model, FlatClipping(1.0), ROWS)
    module = VmapModule(model, nn.CrossEntropyLoss(), sums)
    sums.begin(range(ROWS))
    sums.expect(ROWS)
    module.backward(X, Y)
    sums.finish()


# ---- Backward passes that mix examples ----


class Scale(torch.autograd.Function):
    """The identity, whose gradients are divided by the norm of those of all examples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return 50 * g / g.norm()


class Backward(nn.Module):
    """A model whose backward pass is changed in one of several ways, from some pass on."""

    def __init__(self, how: str, start: int = 0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.how, self.start, self.passes = how, start, 0

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.first(x)
        self.passes += 1
        if self.passes > self.start and h.requires_grad:
            if self.how == "function":
                h = Scale.apply(h)
            elif self.how == "hook":
                h.register_hook(lambda g: g / g.norm())
            elif self.how == "mean":
                h.register_hook(lambda g: g + g.mean(0))
            elif self.how == "apart":  # no mixing: each row by its own norm
                h.register_hook(lambda g: g / (1.0 + g.norm(dim=1, keepdim=True)))
        return self.last(torch.tanh(h))  # type: ignore[no-any-return]


def trained(model: nn.Module, steps: int, functorch: bool) -> None:
    sums = accumulator(model, FlatClipping(1.0), ROWS, steps=steps)
    module = hook_gradients(model, sums, functorch=functorch).model
    for step in range(steps):
        sums.begin(range(ROWS * step, ROWS * (step + 1)))
        sums.expect(ROWS)
        cross_entropy(module(X), Y).backward()
        sums.finish()
        sums.done()


@pytest.mark.parametrize("functorch", [False, True])
@pytest.mark.parametrize("how", ["function", "hook", "mean"])
@pytest.mark.parametrize("start", [0, 6])  # 6: in the second trial
def test_a_backward_pass_that_mixes_examples_is_refused(
    how: str, start: int, functorch: bool
) -> None:
    torch.manual_seed(0)
    with pytest.raises(
        ValueError, match=r"a gradient of first\.\w+ for one that depends on others"
    ):
        trained(Backward(how, start), 6, functorch)


@pytest.mark.parametrize("functorch", [False, True])
def test_a_backward_pass_that_changes_each_example_alone_is_taken(functorch: bool) -> None:
    torch.manual_seed(0)
    trained(Backward("apart"), 3, functorch)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("way", ["hooks", "vmap"])
def test_rows_whose_addition_ended_half_way_are_not_added_again(
    way: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
    sums = accumulator(model, FlatClipping(1.0), ROWS)
    module: Any
    if way == "vmap":
        module = VmapModule(model, cross_entropy, sums)
    else:
        module = hook_gradients(model, sums).model

    def backward() -> None:
        if way == "vmap":
            module.backward(X, Y)
        else:
            cross_entropy(module(X), Y).backward()
            sums.take()

    def begin() -> None:
        sums.begin(range(ROWS))
        sums.expect(ROWS)

    begin()
    backward()
    expected = [total.clone() for total in sums._sums if total is not None]
    sums.abandon()

    real, calls = accumulate.add_clipped_, [0]

    def broken(*args: Any) -> None:
        calls[0] += 1
        real(*args)
        if calls[0] == 3:
            raise error

    begin()
    monkeypatch.setattr(accumulate, "add_clipped_", broken)
    with pytest.raises(error):
        backward()
    if way == "vmap":  # hooks leave passes outside of a batch alone
        with pytest.raises(ValueError, match="that had none yet, got 4"):
            backward()
    with pytest.raises(ValueError, match="a step without one"):
        sums.finish()
    begin()  # as the loader does when it is iterated anew
    backward()
    sums.finish()
    for got, wanted in zip(grads(model), expected, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=1e-7)
