# SPDX-License-Identifier: Apache-2.0
"""States of torch objects as plain data, and the states of the process's global random numbers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

_TENSOR = "torch.Tensor"
# NumPy lacks these; their bits are kept.
_AS_BITS = {torch.bfloat16: torch.int16}


def to_plain(value: Any) -> Any:
    """Replace tensors in a nest of containers by arrays with their dtype, bit for bit.

    Examples
    --------
    >>> to_plain({"w": torch.ones(2)})
    {'w': {'torch.Tensor': 'float32', 'data': array([1., 1.], dtype=float32)}}
    """
    if isinstance(value, Tensor):
        held = value.detach().cpu()
        bits = _AS_BITS.get(held.dtype)
        name = str(held.dtype).removeprefix("torch.")
        data = (held if bits is None else held.contiguous().view(bits)).numpy().copy()
        return {_TENSOR: name, "data": data}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [to_plain(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value.item() if isinstance(value, np.generic) else value


def from_plain(value: Any) -> Any:
    """Invert :func:`to_plain`, with tensors on the CPU."""
    if isinstance(value, dict):
        if set(value) == {_TENSOR, "data"}:
            dtype = getattr(torch, value[_TENSOR])
            tensor = torch.from_numpy(np.array(value["data"]))
            return tensor.view(dtype) if dtype in _AS_BITS else tensor
        return {key: from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    return tuple(from_plain(item) for item in value) if isinstance(value, tuple) else value


def random_state() -> dict[str, Any]:
    """Return the states of the random generators of torch (CUDA too), NumPy and Python.

    Layers like dropout and augmentations draw from these; no noise comes from them.
    """
    used = torch.cuda.is_available()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if used else [],
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - the global one is meant
        "python": random.getstate(),
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Restore the states that :func:`random_state` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    np.random.set_state(state["numpy"])  # noqa: NPY002 - the global one is meant
    random.setstate(state["python"])
