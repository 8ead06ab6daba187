# SPDX-License-Identifier: Apache-2.0
"""The noise of a plan on a GPU: the bits of the CPU's, made where the parameters are."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from dpftrl_fast.mechanisms import Layout, ToeplitzLayout, TreeLayout
from dpftrl_fast.plan.planned_noise import PlannedNoise, PlannedToeplitz, PlannedTree
from dpftrl_fast.torch.device.toeplitz import ToeplitzCore
from dpftrl_fast.torch.device.tree import DeviceTree

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class _OnDevice(PlannedNoise):
    """The noise of a plan in tensors of one device; first base of a class of planned noise."""

    _device_core: ClassVar[Any]

    def __init__(self, size: int, std: float, *, device: torch.device, **options: Any) -> None:
        self._device = torch.empty(0, device=device).device  # "cuda" is the present one
        super().__init__(size, std, **options)

    @property
    def device(self) -> torch.device:
        """Device on which the noise is made."""
        return self._device

    def _make_core(self, key: bytes) -> Any:
        return self._device_core(
            key=key, dtype=_DTYPES[self._dtype], device=self._device, **self._core_settings()
        )

    def _new_rows(self, count: int) -> torch.Tensor:
        shape = count, self._size
        return torch.empty(shape, dtype=_DTYPES[self._dtype], device=self._device)

    def release(self, *_: Any, **__: Any) -> None:
        """Refuse: sums at addresses are those of the CPU."""
        raise ValueError(
            f"release writes to sums on the CPU, got noise on {self._device}: call residual"
        )

    def _view(self, out: Any, rows: int = 1) -> torch.Tensor:
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"out must be a tensor on {self._device}, got {type(out).__name__}")
        expected, elements = (_DTYPES[self._dtype], self._device), rows * self._size
        if (out.dtype, out.device) != expected or out.numel() != elements:
            raise ValueError(
                f"out must be a {self._dtype} tensor of {elements} elements on {self._device}, "
                f"got {out.dtype} with {out.numel()} on {out.device}"
            )
        if not out.is_contiguous():
            raise ValueError("out must be contiguous, got a tensor that is not")
        if out.requires_grad and not out.is_leaf:
            raise ValueError("out must not be part of a graph, got a tensor that is")
        return out.detach()


class DeviceNoise(_OnDevice, PlannedTree):
    """A `PlannedTree` that writes tensors of one CUDA device, with nothing copied from the host.

    Same key, same numbers, whatever the device; states go from one to the other.

    Parameters
    ----------
    size, std, layout, **options
        As for `PlannedTree`. `threads` does not matter.
    device : torch.device
        A CUDA device; the CPU under Triton's interpreter (``TRITON_INTERPRET=1``).
    """

    _device_core = DeviceTree


class DeviceToeplitz(_OnDevice, PlannedToeplitz):
    """A `PlannedToeplitz` that writes tensors of one CUDA device, as `DeviceNoise` does.

    Parameters
    ----------
    size, std, layout, **options
        As for `PlannedToeplitz`. `threads` does not matter. Two taps keep no earlier z for any
        `memory`; an integer that has no room for all earlier z of more taps keeps none of them.
    device : torch.device
        A CUDA device; the CPU under Triton's interpreter (``TRITON_INTERPRET=1``).
    """

    _device_core = ToeplitzCore


def device_source_of(layout: Layout) -> type[DeviceNoise] | type[DeviceToeplitz]:
    """Return the class of the noise of a layout on a device; TypeError if there is none."""
    if isinstance(layout, TreeLayout):
        return DeviceNoise
    if isinstance(layout, ToeplitzLayout):
        return DeviceToeplitz
    raise TypeError(f"no noise on a GPU for layouts of type {type(layout).__name__}")
