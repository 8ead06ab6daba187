# SPDX-License-Identifier: Apache-2.0
"""Run a case as a user would; compare the sums with gradients of one example at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from zoo import Batch, Case, Rows

import dpftrl_fast
from dpftrl_fast.torch import make_private

PACKAGE = Path(dpftrl_fast.__file__).parent
Sums = dict[str, Tensor]


def made(case: Case, seed: int = 0) -> tuple[nn.Module, Batch]:
    """The network of a case in training mode, and a batch."""
    torch.manual_seed(seed)
    model = case.build().train()
    return model, case.batch()


def gradients_alone(case: Case, model: nn.Module, batch: Batch) -> list[Sums]:
    """Gradients of each example, which passes through the network alone, by autograd."""
    found = []
    for i in range(len(next(iter(batch.values())))):
        model.zero_grad()
        case.loss(model, {name: values[i : i + 1] for name, values in batch.items()}).backward()
        found.append(
            {
                name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                for name, p in model.named_parameters()
                if p.requires_grad
            }
        )
    model.zero_grad()
    return found


def expected(case: Case, model: nn.Module, batch: Batch) -> tuple[float, Sums]:
    """A clip norm that half of the examples exceed, and the sums of their clipped gradients."""
    alone = gradients_alone(case, model, batch)
    norms = [sum(float(g.double().square().sum()) for g in row.values()) ** 0.5 for row in alone]
    ordered = sorted(norms)
    clip = 0.5 * (ordered[len(norms) // 2 - 1] + ordered[len(norms) // 2])
    factors = [min(1.0, clip / norm) for norm in norms]
    sums = {
        name: sum(
            (f * row[name].double() for f, row in zip(factors, alone, strict=True)),
            torch.zeros((), dtype=torch.float64),
        )
        for name in alone[0]
    }
    return clip, sums


def sums_of(case: Case, model: nn.Module, batch: Batch, clip: float, **options: Any) -> Sums:
    """The sums of the only step of a private run, before its noise."""
    trained = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    parameters = [p for p in model.parameters() if p.requires_grad]
    names = [trained[id(p)] for p in parameters]
    found: list[list[Tensor]] = []
    private = make_private(
        model,
        torch.optim.SGD(parameters, lr=1e-3),
        DataLoader(Rows(batch), batch_size=len(next(iter(batch.values())))),
        noise_multiplier=1.0,
        delta=1e-5,
        epochs=1,
        clip_norm=clip,
        shuffle=False,
        **options,
    )
    assert private.data_loader.accumulator is not None
    private.data_loader.accumulator.before_step = lambda step, ids, sums: found.append(
        [s.clone() for s in sums]
    )
    for _, rows in private.data_loader:
        case.loss(private.model, rows).backward()
        private.optimizer.step()
    assert len(found) == 1
    return dict(zip(names, found[0], strict=True))


def difference(sums: Sums, right: Sums, clip: float) -> float:
    """The largest difference of a coordinate, in clip norms."""
    assert sums.keys() == right.keys()
    return max(float((sums[name].double() - right[name]).abs().max()) for name in right) / clip


def difference_of(
    case: Case, mode: str, fix: Callable[[nn.Module], nn.Module] | None = None
) -> float:
    """The largest error of a mode's sums, in clip norms."""
    model, batch = made(case)
    if fix is not None:
        model = fix(model).train()
    clip, right = expected(case, copy.deepcopy(model), batch)
    return difference(sums_of(case, model, batch, clip, grad_sample_mode=mode), right, clip)


def check_refused(case: Case, mode: str, sentence: str) -> None:
    """Check that this package refuses a mode with this sentence, and not torch or a library."""
    model, batch = made(case)
    with pytest.raises(ValueError, match="(?s)^" + sentence) as refused:
        sums_of(case, model, batch, 1.0, grad_sample_mode=mode)
    assert Path(refused.traceback[-1].path).is_relative_to(PACKAGE)
