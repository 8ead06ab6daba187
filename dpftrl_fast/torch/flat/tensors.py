# SPDX-License-Identifier: Apache-2.0
"""Plain tensors and DTensors as one: the part of a tensor that lies on this rank."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


def _dtensor() -> Any:
    if not torch.distributed.is_available():
        return ()
    try:
        from torch.distributed.tensor import DTensor
    except ImportError:  # torch 2.4
        return ()
    return DTensor


_DTENSOR = _dtensor()


def is_sharded(tensor: Tensor) -> bool:
    """Whether `tensor` is a DTensor, as the parameters of FSDP2 are."""
    return isinstance(tensor, _DTENSOR)


def mesh_of(tensor: Tensor) -> Any:
    """Return the device mesh of a DTensor, None of a plain tensor."""
    return cast(Any, tensor).device_mesh if is_sharded(tensor) else None


def placements_of(tensor: Tensor) -> Any:
    """Return the placements of a DTensor, None of a plain tensor."""
    return cast(Any, tensor).placements if is_sharded(tensor) else None


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the part of `tensor` that lies on this rank: its own memory, without a graph."""
    if not is_sharded(tensor):
        return tensor.detach()
    with torch.no_grad():
        return cast(Tensor, cast(Any, tensor).to_local()).detach()


def shard_dimension(name: str, tensor: Tensor) -> int | None:
    """Return the dimension of the mesh over which a DTensor is cut by rows; None if over none.

    ValueError if it is cut otherwise, or over several dimensions.
    """
    if not is_sharded(tensor):
        return None
    placements = placements_of(tensor)
    cut = [i for i, placement in enumerate(placements) if not placement.is_replicate()]
    if not cut:
        return None
    # A subclass of Shard may lay out its rows in another order.
    known = type(placements[cut[0]]).__name__ == "Shard" and placements[cut[0]].is_shard(0)
    if len(cut) > 1 or not known:
        raise ValueError(
            f"{name} must be sharded by rows over one dimension of its mesh, as fully_shard does "
            f"it, or replicated, got {placements}"
        )
    return cut[0]


def local_range(name: str, tensor: Tensor) -> tuple[int, int]:
    """Return first and number of this rank's coordinates, counted row-major in the whole tensor.

    ValueError if a DTensor is not sharded by rows; `name` is for the message.

    Examples
    --------
    >>> local_range("w", torch.zeros(2, 3))
    (0, 6)
    """
    dimension = shard_dimension(name, tensor)
    if dimension is None:
        return 0, tensor.numel()
    mesh = mesh_of(tensor)
    rows, parts, part = tensor.shape[0], mesh.size(dimension), mesh.get_local_rank(dimension)
    each = -(-rows // parts)
    first, stop = min(rows, part * each), min(rows, (part + 1) * each)
    row = tensor.numel() // rows if rows else 0
    found = tuple(local_tensor(tensor).shape)
    if found != (stop - first, *tensor.shape[1:]):
        raise ValueError(
            f"rank {part} of {parts} must hold rows {first} to {stop} of {name}, which has {rows}, "
            f"got a part of shape {found}"
        )
    return first * row, (stop - first) * row
