# SPDX-License-Identifier: Apache-2.0
"""Views of a caller's memory as a NumPy array, never copies."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["writable_view"]

_CPU = 1  # DLDeviceType.kDLCPU


def writable_view(out: object) -> np.ndarray[Any, Any]:
    """Return the memory of `out` itself as an array.

    Parameters
    ----------
    out : ndarray, CPU tensor of any framework with ``__dlpack__``, or buffer
        The memory to write to. Its dtype, size and layout are checked by whoever writes.

    Returns
    -------
    numpy.ndarray
        A view: what is written to it is written to `out`.

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
        device = out.__dlpack_device__()  # type: ignore[attr-defined]
        if device[0] != _CPU:
            raise TypeError(f"out must lie in CPU memory, got DLPack device {tuple(device)}")
        try:
            return np.from_dlpack(out)
        except (BufferError, RuntimeError, ValueError) as error:
            raise TypeError(
                f"out, of type {type(out).__name__}, does not lend its memory: {error}"
            ) from error
    try:
        return np.asarray(memoryview(out))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            "out must be an array, a CPU tensor that speaks DLPack or a buffer, "
            f"got {type(out).__name__}"
        ) from None
