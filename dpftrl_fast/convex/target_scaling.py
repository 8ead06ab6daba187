# SPDX-License-Identifier: Apache-2.0
"""Scaling of targets to [-1, 1] by their bounds."""

from __future__ import annotations

from typing import TypeAlias

#: (low, high), or b for (-b, b).
Bounds: TypeAlias = "float | tuple[float, float]"


def scaling_of(bounds: Bounds) -> tuple[float, float]:
    """Return the middle of bounds and half their width.

    Examples
    --------
    >>> scaling_of((0.0, 4.0)), scaling_of(3.0)
    ((2.0, 2.0), (0.0, 3.0))
    """
    low, high = bounds if isinstance(bounds, tuple) else (-bounds, bounds)
    return low / 2.0 + high / 2.0, high / 2.0 - low / 2.0
