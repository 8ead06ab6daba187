# SPDX-License-Identifier: Apache-2.0
"""Parts that trials of models and of losses share."""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpftrl_fast.torch.plain_states import random_state, restore_random_state

# Rounding errors allowed in an activation and in a gradient, relative to the largest of a tensor.
# Products in float32 may have the precision of half of it (TF32).
_ROUNDING = {torch.float64: (1e-9, 1e-6), torch.float32: (1e-4, 1e-2)}
_ROUNDING_OF_HALVES = (0.05, 0.1)

_INNER = ("dpftrl_fast", "torch")  # their lines tell a caller nothing


def warn(text: str) -> None:
    """Warn at the line of the caller's own code, whatever parts of torch are between."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put random numbers and buffers back."""
    state = random_state()
    buffers = [
        (layer, name, x, x.detach().clone())
        for layer in model.modules()
        for name, x in layer.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        restore_random_state(state)
        for layer, name, x, old in buffers:
            if not torch.equal(x, old):  # a copy would count as a change in place
                x.detach().copy_(old)
            setattr(layer, name, x)


def give_back_memory() -> None:
    """Give the memory that a trial has freed back to the system, where the C library is glibc.

    Its tensors are smaller than those of the pass that follows, which lie badly in their places.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def copied(x: Any) -> Any:
    """Return a copy of a tensor; anything else itself."""
    return x.clone() if isinstance(x, Tensor) else x


def changed_rows(rows: int) -> list[int]:
    """Return the rows that are replaced: a third of them, so that rows in another order show.

    Examples
    --------
    >>> changed_rows(8)
    [1, 2, 4]
    """
    return [i for i in range(rows) if i % 7 in (1, 2, 4)]


def rounding(dtype: torch.dtype) -> tuple[float, float]:
    """Return the rounding errors allowed in an activation and in a gradient, as parts of 1."""
    return _ROUNDING.get(dtype, _ROUNDING_OF_HALVES)


def close(a: Tensor, b: Tensor, allowed: float) -> bool:
    """Whether floating-point tensors agree up to a part of the largest number of the first."""
    size = float(a.abs().nan_to_num(0.0, 0.0, 0.0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=allowed, atol=allowed * size, equal_nan=True)
