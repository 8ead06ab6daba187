# SPDX-License-Identifier: Apache-2.0
"""The noise of a plan on a GPU: the bits of the CPU's, made where the parameters are."""

from __future__ import annotations

from typing import Any

import torch

from dpftrl_fast.plan.planned_noise import PlannedTree
from dpftrl_fast.torch.device.tree import DeviceTree

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class DeviceNoise(PlannedTree):
    """A `PlannedTree` that writes tensors of one CUDA device, with nothing copied from the host.

    Same key, same numbers, whatever the device; states go from one to the other.

    Parameters
    ----------
    size, std, layout, **options
        As for `PlannedTree`. `threads` does not matter.
    device : torch.device
        A CUDA device; the CPU under Triton's interpreter (``TRITON_INTERPRET=1``).
    """

    def __init__(self, size: int, std: float, *, device: torch.device, **options: Any) -> None:
        self._device = torch.empty(0, device=device).device  # "cuda" is the present one
        super().__init__(size, std, **options)

    @property
    def device(self) -> torch.device:
        """Device on which the noise is made."""
        return self._device

    def _make_core(self, key: bytes) -> Any:
        return DeviceTree(
            key=key, dtype=_DTYPES[self._dtype], device=self._device, **self._core_settings()
        )

    def _view(self, out: Any) -> torch.Tensor:
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"out must be a tensor on {self._device}, got {type(out).__name__}")
        expected = (_DTYPES[self._dtype], self._device)
        if (out.dtype, out.device) != expected or out.numel() != self._size:
            raise ValueError(
                f"out must be a {self._dtype} tensor of {self._size} elements on {self._device}, "
                f"got {out.dtype} with {out.numel()} on {out.device}"
            )
        if not out.is_contiguous():
            raise ValueError("out must be contiguous, got a tensor that is not")
        if out.requires_grad and not out.is_leaf:
            raise ValueError("out must not be part of a graph, got a tensor that is")
        return out.detach()
