# SPDX-License-Identifier: Apache-2.0
"""Models of one layer, and the accumulator that watches them, for the tests of layers and rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.clipping import FlatClipping
from dpftrl_fast.torch.gradients.rows import hook_gradients


class Around(nn.Module):
    """A layer, called in some way, between two others."""

    def __init__(self, layer: nn.Module, call: Callable[[Any, Tensor], Any] | None = None) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x) if self.call is None else self.call(self.layer, x)
        return found[0] if isinstance(found, tuple) else found  # type: ignore[no-any-return]


def loss(output: Tensor, target: Tensor) -> Tensor:
    output = output.flatten(1)
    weights = torch.arange(1.0, output.shape[1] + 1, dtype=output.dtype).sin()
    return ((output @ weights).tanh() + output.square().mean(1)).mean()


def attend(layer: Any, x: Tensor) -> Tensor:
    return layer(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


def packed(layer: Any, x: Tensor, lengths: Tensor, in_order: bool) -> Tensor:
    pack = nn.utils.rnn.pack_padded_sequence
    state = layer(pack(x, lengths, batch_first=True, enforce_sorted=in_order))[1]
    return (state[0] if isinstance(state, tuple) else state).transpose(0, 1)  # type: ignore[no-any-return]


def in_order(layer: Any, x: Tensor) -> Tensor:
    return packed(layer, x, torch.linspace(5, 2, len(x)).round().long(), True)


def hooked(model: nn.Module, way: str, rows: int, batch_first: bool = True) -> tuple[Any, Any]:
    trained = [p for p in model.parameters() if p.requires_grad]
    plan = PrivacyPlan(1e3, 1.0, SinglePass(1))
    sums = Accumulator(trained, FlatClipping(1e3), rows, plan.guard())
    hooks = hook_gradients(model, sums, functorch=way == "functorch", batch_first=batch_first)
    sums.begin(range(rows))
    sums.expect(rows)
    return hooks.model, sums
