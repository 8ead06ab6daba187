# SPDX-License-Identifier: Apache-2.0
"""torch.compile of a private model, its parts or its loss: the same sums, or a warning."""

from __future__ import annotations

import copy
import inspect
import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpftrl_fast.torch import make_private
from dpftrl_fast.torch.gradients.layers import GradSampleMode

MODES: list[GradSampleMode] = ["auto", "hooks", "functorch", "vmap"]
X, Y = torch.randn(12, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
Change = Callable[[Any], Any]


def built() -> Any:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 6))
    return nn.Sequential(inner, nn.ReLU(), nn.Linear(6, 3))


def same(x: Any) -> Any:
    return x


def compiled(x: Any) -> Any:
    return torch.compile(x, backend="eager")


def compiled_itself(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def with_compiled_part(model: Any) -> Any:
    model[0] = compiled(model[0])
    return model


def with_part_compiled_itself(model: Any) -> Any:
    model[0].compile(backend="eager")
    return model


def trained(
    mode: GradSampleMode, before: Change = same, after: Change = same, loss: Change = same
) -> list[list[Tensor]]:
    """The sums of the steps of a run, and the model's outputs in evaluation mode."""
    model = before(built())
    run = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        DataLoader(TensorDataset(X, Y), batch_size=4),
        noise_multiplier=1.0,
        delta=1e-5,
        epochs=1,
        clip_norm=0.5,
        shuffle=False,
        grad_sample_mode=mode,
    )
    found: list[list[Tensor]] = []
    assert run.data_loader.accumulator is not None
    run.data_loader.accumulator.before_step = lambda step, ids, sums: found.append(
        [s.clone() for s in sums]
    )
    given, criterion = after(run.model), loss(nn.functional.cross_entropy)
    for _, (x, y) in run.data_loader:
        criterion(given(x), y).backward()
        run.optimizer.step()
    given.eval()
    with torch.no_grad():
        return [*found, [given(X)]]


WAYS: dict[str, dict[str, Change]] = {
    "after": {"after": compiled},
    "after, by its method": {"after": compiled_itself},
    "before, by its method": {"before": compiled_itself},
    "a part before": {"before": with_compiled_part},
    "a part, by its method": {"before": with_part_compiled_itself},
    "a part after": {"after": with_compiled_part},
}


# The wrapper of vmap has no items to assign to.
CELLS = [(m, way) for m in MODES for way in WAYS if (m, way) != ("vmap", "a part after")]


@pytest.mark.parametrize(("mode", "way"), CELLS)
def test_sums_are_those_of_the_model_as_it_is(
    mode: GradSampleMode, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = trained(mode)
    torch._dynamo.reset()
    torch_log = logging.getLogger("torch")
    torch_log.addHandler(caplog.handler)
    try:
        got = trained(mode, **WAYS[way])
    finally:
        torch_log.removeHandler(caplog.handler)
    assert not caplog.records
    assert len(got) == len(expected) == 4
    for tensors, right in zip(got, expected, strict=True):
        for a, b in zip(tensors, right, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("mode", MODES)
def test_a_compiled_loss_is_taken_with_a_warning_that_it_could_not_be_tried(
    mode: GradSampleMode,
) -> None:
    expected = trained(mode)
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = trained(mode, loss=compiled)
    told = [str(w.message) for w in caught]
    assert len(told) == 1 and "the loss could not be tried" in told[0], told
    assert "compiled or scripted code" in told[0]
    for tensors, right in zip(got, expected, strict=True):
        for a, b in zip(tensors, right, strict=True):
            torch.testing.assert_close(a, b)


def private(model: nn.Module) -> nn.Module:
    return make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(TensorDataset(X, Y), batch_size=4),
        noise_multiplier=1.0,
        delta=1e-5,
        epochs=1,
        clip_norm=0.5,
        grad_sample_mode="hooks",
    ).model


class Named(nn.Linear):
    def forward(self, pixels: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(pixels) * scale


def patched(model: nn.Module) -> nn.Module:
    """With a forward pass of its own, as Accelerate gives a model."""
    model.forward = Patch(model)  # type: ignore[method-assign]
    return model


class Patch:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, pixels: Tensor, scale: float = 1.0) -> Tensor:
        return type(self.model).forward(self.model, pixels, scale) + 100.0


def test_the_forward_pass_keeps_its_signature() -> None:
    model = private(Named(8, 3))
    assert list(inspect.signature(model.forward).parameters) == ["pixels", "scale"]


@pytest.mark.parametrize("change", [same, patched])
def test_a_copy_has_the_forward_pass_of_the_model_it_was(change: Change) -> None:
    plain = change(Named(8, 3))
    expected = plain(X, scale=2.0).detach()
    model = private(plain)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert type(twin.forward).__name__ == ("method" if change is same else "Patch")
        with torch.no_grad():
            twin.weight.zero_()
            without = expected - 2.0 * X @ plain.weight.T
            torch.testing.assert_close(twin(X, scale=2.0), without, rtol=0.0, atol=1e-4)
    with torch.no_grad():
        assert torch.equal(model(X, scale=2.0), expected)
