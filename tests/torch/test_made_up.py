# SPDX-License-Identifier: Apache-2.0
"""Passes on made-up values before those of examples alone: the way, and what a model may keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from layer_cases import Around
from torch import Tensor, nn
from torch_cases import accumulator, cross_entropy, flat_sums, grads, one_by_one

from dpftrl_fast.torch.gradients.alone.vmapped import VmapModule
from dpftrl_fast.torch.gradients.clipping import FlatClipping

ROWS = 6
ALONE = "ignore:examples pass one after the other:UserWarning"


def begun(model: nn.Module, **options: Any) -> Any:
    """The wrapper of a model, and its accumulator with a batch."""
    sums = accumulator(model, FlatClipping(0.1), ROWS, steps=3)
    module = VmapModule(model, None, sums, **options)
    sums.begin(range(ROWS))
    sums.expect(ROWS)
    return module, sums


class SetsOnce(nn.Module):
    """Sets something once, as models of transformers do, and cannot be run by vmap."""

    def __init__(self, what: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.what, self.kept, self.layer = what, None, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = self.what(x)
        return self.layer(x) * (1.0 + 0.0 * x.max().item())  # type: ignore[no-any-return]


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.filterwarnings(ALONE)
def test_what_is_set_once_from_public_facts_is_taken_and_numbers_of_examples_are_not(
    chunk: int,
) -> None:
    x, y = torch.randn(ROWS, 4), torch.zeros(ROWS, dtype=torch.long)

    def run(what: Callable[[Tensor], Any]) -> SetsOnce:
        model = SetsOnce(what)
        module, sums = begun(model, chunk_size=chunk)
        cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        sums.finish()
        return model

    assert run(lambda x: str(x.dtype)).kept == "torch.float32"
    assert run(lambda x: x.shape[1]).kept == 4
    for what in (lambda x: x.mean().item(), lambda x: x.detach().mean(0)):
        with pytest.raises(ValueError, match=r"must keep nothing .* model.kept.*; set it before"):
            run(what)


class Looks(nn.Module):
    """Raises on large numbers and counts on small ones, in what only vmap hands to it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(x):
            largest = float(torch.func.debug_unwrap(x, recurse=True).abs().max())
            self.seen.append(largest)
            if largest > 50.0:
                raise RuntimeError("too large")
        return self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("steps", [0, 1])
def test_the_way_does_not_depend_on_values_of_the_examples(steps: int) -> None:
    """Neighbours differ in one row, on which vmap fails: neither goes over to the other way."""
    x, y = torch.rand(ROWS, 4), torch.zeros(ROWS, dtype=torch.long)
    neighbour = x.clone()
    neighbour[2] = 100.0
    found = []
    for first in (x, neighbour):
        torch.manual_seed(0)
        model: Any = Looks()
        sums = accumulator(model, FlatClipping(0.1), ROWS, steps=3)
        module = VmapModule(model, None, sums)
        for step in range(steps):
            sums.begin(range(ROWS * step, ROWS * (step + 1)))
            sums.expect(ROWS)
            cross_entropy(module(x), y).backward()
            sums.finish()
            sums.done()
        sums.begin(range(50, 50 + ROWS))
        sums.expect(ROWS)
        if first is neighbour:
            with pytest.raises(RuntimeError, match="too large"):  # the model's, and no warning
                module(first)
        cross_entropy(module(x), y).backward()
        sums.finish()
        found.append(grads(model))
        assert model.seen[0] <= 1.0  # made up
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


class Seen:
    inputs: ClassVar[list[Tensor]] = []  # not in the model, which must keep nothing


def test_arguments_of_another_shape_are_tried_on_made_up_values() -> None:
    """Later in a run too, where a path may not depend on the examples."""

    def apply(layer: nn.Module, x: Tensor) -> Tensor:
        Seen.inputs.append(x.detach())
        wide = layer(x).mean(1)
        return wide * (1.0 + 0.0 * wide.max().item()) if x.shape[1] > 2 else wide  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Around(nn.Linear(4, 3), apply)
    sums = accumulator(model, FlatClipping(0.1), ROWS, steps=2)
    module = VmapModule(model, None, sums)
    y = torch.zeros(ROWS, dtype=torch.long)
    for step, length in enumerate((2, 3)):
        x = 7.0 + torch.rand(ROWS, length, 4)
        samples = one_by_one(model, cross_entropy, x, y, list(model.parameters()))
        seen = Seen.inputs
        seen.clear()
        sums.begin(range(ROWS * step, ROWS * (step + 1)))
        sums.expect(ROWS)
        if length == 2:
            out = module(x)
            assert len(seen) == 3  # made up, the batch, and two made-up rows for the shapes
            assert float(torch.func.debug_unwrap(seen[1]).max()) > 7.0 > float(seen[2].max())
        else:
            with pytest.warns(UserWarning, match=r"since torch.func.vmap cannot run the model"):
                out = module(x)
            tried = [t for t in seen if float(torch.func.debug_unwrap(t).max()) < 5.0]
            assert len(tried) == 3  # by vmap, with two kinds of indices, and alone
            assert all(torch.equal(a[0], b) for a, b in zip(seen[3:], x, strict=False))
        cross_entropy(out, y).backward()  # type: ignore[no-untyped-call]
        sums.finish()
        for a, b in zip(grads(model), flat_sums(samples, 0.1), strict=True):
            torch.testing.assert_close(a, b.double(), rtol=1e-5, atol=1e-5)
        sums.done()


class Late(nn.Module):
    """Keeps a tensor from its third pass on: the first is made up, the second gives the shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.passes, self.kept = nn.Linear(4, 3), 0, None

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.passes > 3:
            self.kept = x.detach()  # type: ignore[assignment]
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_tensor_that_is_kept_in_a_later_pass_is_refused() -> None:
    module, sums = begun(Late())
    x, y = torch.randn(ROWS, 4), torch.zeros(ROWS, dtype=torch.long)
    cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    sums.finish()
    sums.done()
    sums.begin(range(ROWS, 2 * ROWS))
    sums.expect(ROWS)
    with pytest.raises(ValueError, match=r"must keep nothing .* model.kept"):
        module(x)


@pytest.mark.parametrize("chunk", [1, None])
def test_made_up_values_change_neither_random_numbers_nor_buffers(chunk: int | None) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                self.passes = self.passes + 1.0
            return nn.functional.dropout(self.layer(x), 0.5)

    model = Noisy()
    module, sums = begun(model, chunk_size=chunk)
    x, found = torch.randn(ROWS, 4), []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(module(x).detach())
        sums.abandon()
        sums.begin(range(ROWS))
        sums.expect(ROWS)
    assert torch.equal(*found)
    assert float(model.passes) == 0.0
