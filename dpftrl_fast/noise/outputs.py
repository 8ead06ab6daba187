# SPDX-License-Identifier: Apache-2.0
"""Views of a caller's memory as a NumPy array, never copies."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

# DLDeviceType kDLCPU, kDLCUDAHost (pinned), kDLROCMHost, kDLCUDAManaged.
_HOST = (1, 3, 11, 13)


def writable_view(out: object) -> np.ndarray[Any, Any]:
    """Return the memory of `out` itself as an array.

    Parameters
    ----------
    out : ndarray, CPU tensor with ``__dlpack__``, buffer, or object with ``__array_interface__``
        The memory to write to; the caller checks its dtype, size and layout.

    Returns
    -------
    numpy.ndarray
        A view: writing to it writes to `out`.

    Raises
    ------
    TypeError
        If `out` is none of these, lies on another device, or will not lend its memory (a torch
        tensor that requires a gradient: pass ``tensor.detach()``).

    Examples
    --------
    >>> memory = bytearray(8)
    >>> writable_view(memory)[:] = 1
    >>> memory[0]
    1
    """
    if isinstance(out, np.ndarray):
        return out
    if hasattr(out, "__dlpack__"):
        try:
            return _lent(out)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(
                f"out, of type {type(out).__name__}, does not lend its memory: {error}"
            ) from error
    try:
        return np.asarray(memoryview(out))  # type: ignore[arg-type]
    except TypeError:
        # After the buffers: NumPy's scalars have this interface too, and would be copied.
        if hasattr(out, "__array_interface__"):
            return np.asarray(out, copy=False)
    if hasattr(out, "__cuda_array_interface__"):
        raise TypeError(
            f"out, of type {type(out).__name__}, must lie in CPU memory, got memory of a GPU"
        )
    raise TypeError(
        "out must be an array, a CPU tensor that speaks DLPack or a buffer, "
        f"got {type(out).__name__}"
    )


def _lent(out: Any) -> np.ndarray[Any, Any]:
    device = tuple(out.__dlpack_device__())
    if device[0] not in _HOST:
        raise TypeError(f"it must lie in CPU memory, got DLPack device {device}")
    # Through a DLPack older than 1.0, which is all that older torch and NumPy speak, NumPy
    # gets a read-only view.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(out, torch.Tensor):
        return np.asarray(out.numpy())
    return np.from_dlpack(out)
