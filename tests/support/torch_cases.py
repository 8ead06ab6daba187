# SPDX-License-Identifier: Apache-2.0
"""Models and a plain oracle for the tests of per-example gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.clipping import Clipping

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target)


class Tied(nn.Module):
    """An embedding that is the output layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embedding(x).mean(1))  # type: ignore[no-any-return]


class Shifted(nn.Module):
    """A parameter outside of any layer, beside a buffer: what Opacus refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(4))
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.scale + self.shift)  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(-1) * torch.ones(4, dtype=x.dtype)
        return self.out(self.attention(x, x, x, need_weights=False)[0].mean(1))  # type: ignore[no-any-return]


def images(n: int) -> Tensor:
    return torch.randn(n, 1, 6, 6)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


#: name -> (model, inputs of n examples, classes)
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], int]] = {
    "linear": (lambda: nn.Linear(4, 3), lambda n: torch.randn(n, 4), 3),
    "layers": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3)),
        lambda n: torch.randn(n, 4),
        3,
    ),
    "images": (convolutional, images, 3),
    "words": (
        lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2), nn.Flatten(), nn.Linear(6, 3)),
        lambda n: torch.randint(0, 9, (n, 3)),
        3,
    ),
    "tied": (Tied, lambda n: torch.randint(0, 7, (n, 3)), 7),
}
REFUSED_BY_OPACUS = {
    "buffers": (Shifted, lambda n: torch.randn(n, 4), 3),
    "attention": (Attention, lambda n: torch.randn(n, 5), 3),
}


def one_by_one(
    model: nn.Module, loss: Loss, x: Tensor, y: Tensor, parameters: Sequence[Tensor]
) -> list[Tensor]:
    """Per-example gradients by as many backward passes, in float64, one tensor a parameter."""
    rows = []
    for i in range(len(x)):
        value = loss(model(x[i : i + 1]), y[i : i + 1])
        gradients = torch.autograd.grad(value, list(parameters), allow_unused=True)
        rows.append(
            [
                torch.zeros_like(p) if g is None else g
                for g, p in zip(gradients, parameters, strict=True)
            ]
        )
    return [torch.stack(column).double() for column in zip(*rows, strict=True)]


def flat_sums(samples: Sequence[Tensor], clip_norm: float) -> list[Tensor]:
    """The sums of gradients clipped to a norm over all parameters, one example at a time."""
    sums = [torch.zeros_like(s[0]) for s in samples]
    for i in range(len(samples[0])):
        norm = sum(float(s[i].square().sum()) for s in samples) ** 0.5
        if norm == norm and norm < float("inf"):
            for total, s in zip(sums, samples, strict=True):
                total += s[i] * min(1.0, clip_norm / max(norm, 1e-300))
    return sums


def accumulator(
    model: nn.Module, clipping: Clipping, batch_size: int, steps: int = 1
) -> Accumulator:
    plan = PrivacyPlan(clipping.clip_norm, 1.0, SinglePass(steps))
    return Accumulator(list(model.parameters()), clipping, batch_size, plan.guard())


def grads(model: nn.Module) -> list[Tensor]:
    return [p.grad.double() for p in model.parameters() if p.grad is not None]
