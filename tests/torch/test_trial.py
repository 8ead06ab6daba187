# SPDX-License-Identifier: Apache-2.0
"""The trial of a model with hooks: wrong formulas, other outputs, errors of torch.func."""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_cases import cross_entropy, flat_sums, one_by_one

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.torch.gradients import formulas
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.clipping import FlatClipping
from dpftrl_fast.torch.gradients.recheck import recheck_due
from dpftrl_fast.torch.gradients.rows import hook_gradients
from dpftrl_fast.torch.gradients.trials import give_back_memory

ROWS, CLIP = 6, 0.3
X, Y = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0)), torch.arange(ROWS) % 3


def hooked(model: nn.Module, **options: Any) -> Any:
    plan = PrivacyPlan(CLIP, 1.0, SinglePass(4))
    sums = Accumulator(list(model.parameters()), FlatClipping(CLIP), ROWS, plan.guard())
    hooks = hook_gradients(model, sums, **options)
    sums.begin(range(ROWS))
    sums.expect(ROWS)
    return sums, hooks


def test_a_formula_that_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = formulas._OWN[nn.Linear]

    def wrong(*given: Any) -> dict[str, Tensor]:
        return {name: 2.0 * g for name, g in right(*given).items()}

    monkeypatch.setitem(formulas._OWN, nn.Linear, wrong)
    model = nn.Linear(4, 3)
    hooked(model)
    with pytest.raises(ValueError, match=r"must add up to its gradient, got others: .*formula"):
        model(X)


class Counts(nn.Module):
    """Its outputs, not its gradients, depend on the shape of a parameter beside its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.scale) + self.scale.numel()  # type: ignore[no-any-return]


def test_a_model_that_computes_something_else_with_copies_is_refused() -> None:
    model = Counts()
    hooked(model)
    with pytest.raises(ValueError, match=r"own copy of what all share .* got other outputs"):
        model(X)


class Clamped(nn.Module):
    """Changes its parameter on large numbers, such as no made-up ones are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        if bool((x.detach() > 5.0).any()):
            with torch.no_grad():
                self.weight.data.clamp_(max=2.0)
        return x * self.weight


def test_a_parameter_that_a_pass_changes_for_some_values_is_refused() -> None:
    model = Clamped()
    hooked(model)
    with pytest.raises(ValueError, match="must leave its parameters alone"):
        model(10.0 + X)
    assert bool((model.weight == 3.0).all())


def requiring(layer: nn.Module, args: Any, output: Tensor) -> Tensor:
    """A hook as of activation checkpoints in transformers."""
    return output.requires_grad_()


class Scaled(nn.Module):
    """A layer without a formula."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@pytest.mark.parametrize(("make", "functorch"), [(lambda: nn.Linear(4, 3), True), (Scaled, False)])
def test_a_layer_that_torch_func_cannot_run_is_refused(
    make: Callable[[], nn.Module], functorch: bool
) -> None:
    model = nn.Sequential(nn.Tanh(), make())
    model[1].register_forward_hook(requiring)
    hooked(model, functorch=functorch)
    with pytest.raises(
        ValueError,
        match=r"^1 \(\w+\) must be run .* got a RuntimeError .*: grad_sample_mode='auto'",
    ):
        model(X)


def test_gradients_of_a_look_in_evaluation_mode_are_no_matter() -> None:
    """Within a batch, before its pass, at a step whose pass is not tried."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    alone = copy.deepcopy(model)
    samples = one_by_one(alone, cross_entropy, X, Y, list(alone.parameters()))
    sums, _ = hooked(model)
    for step in range(1, 4):
        cross_entropy(model(X), Y).backward()
        sums.finish()
        sums.done()
        sums.begin(range(ROWS * step, ROWS * (step + 1)))
        sums.expect(ROWS)
    assert not recheck_due(3)
    model.eval()
    model(X).sum().backward()
    model.train()
    cross_entropy(model(X), Y).backward()
    sums.finish()
    for p, expected in zip(model.parameters(), flat_sums(samples, CLIP), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad.double(), expected.double(), rtol=1e-5, atol=1e-6)


class Shifted(nn.Module):
    """Subtracts the mean of the first rows that it gets, from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean = nn.Linear(4, 3), None

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = x.detach().mean(0)  # type: ignore[assignment]
        return self.layer(x - self.mean)  # type: ignore[no-any-return]


@pytest.mark.parametrize("functorch", [False, True])
def test_what_a_model_sets_in_its_first_pass_is_none_of_the_examples(functorch: bool) -> None:
    """Neighbours differ in one row: the gradients of the others are the same."""
    found = []
    for row in (0.0, 100.0):
        torch.manual_seed(0)
        model = Shifted()
        x = X.clone()
        x[2] = row
        sums, _ = hooked(model, functorch=functorch)
        (model(x)[torch.arange(ROWS) != 2].sum() / ROWS).backward()
        sums.finish()
        found.append([p.grad for p in model.parameters()])
        assert model.mean is not None
    for a, b in zip(*found, strict=True):
        assert a is not None and torch.equal(a, b)


@pytest.mark.parametrize("own", [False, True])
def test_what_is_taken_off_leaves_the_model_as_it_was(own: bool) -> None:
    """Also one that was given another forward pass, as by Accelerate."""
    model = nn.Sequential(nn.Linear(4, 3))
    if own:
        model.forward = model[0].forward  # type: ignore[method-assign]
    before = {name: x for name, x in vars(model).items() if name == "forward"}
    _, hooks = hooked(model)
    assert vars(model)["forward"] is not before.get("forward")
    hooks.remove()
    assert {name: x for name, x in vars(model).items() if name == "forward"} == before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have no malloc_trim")
def test_freed_memory_is_given_back() -> None:
    for _ in range(2):  # after the first, glibc keeps blocks of this size
        blocks = [torch.ones(2**18) for _ in range(200)]
        kept = blocks[::2]
        del blocks

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    give_back_memory()
    assert before - resident() > 2**25
    assert all(bool((x == 1).all()) for x in kept)
