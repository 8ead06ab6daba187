# SPDX-License-Identifier: Apache-2.0
"""Let torchvision be imported beside a torch for which it was not built.

The wheel of the package index has a C++ library for CUDA's torch, which the CPU's cannot load. Its
models need none of it, but the import describes two operators of that library, so they must exist.
"""

from __future__ import annotations

import importlib.util

import torch

_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")


def declare() -> None:
    """Declare the operators that ``import torchvision`` describes, if nothing has."""
    if importlib.util.find_spec("torchvision") is None:
        return
    for name in ("nms", "qnms"):
        try:
            _ = getattr(torch.ops.torchvision, name)
        except AttributeError:
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


declare()
