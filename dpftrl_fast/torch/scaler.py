# SPDX-License-Identifier: Apache-2.0
"""Refusal of ``torch.amp.GradScaler``, which skips steps by the values of gradients."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

_GIVEN = ("grad_scale", "found_inf")


def take_scaler(optimizer: Optimizer) -> None:
    """Let a scaler call ``optimizer.step()`` whatever it found, so that the step can refuse it."""
    given: Any = optimizer
    given._step_supports_amp_scaling = True


def refuse_scaler(optimizer: Optimizer) -> None:
    """Raise ValueError if a scaler calls the step; the next step is as if it had not."""
    if not any(name in vars(optimizer) for name in _GIVEN):
        return
    for name in _GIVEN:
        vars(optimizer).pop(name, None)
    raise ValueError(
        "a private optimiser must be stepped by itself, got a GradScaler, which scales gradients "
        "before they are clipped and skips steps by private values: call loss.backward() and "
        "optimizer.step() without it (autocast to bfloat16 needs no scaler)"
    )
