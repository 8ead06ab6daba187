# SPDX-License-Identifier: Apache-2.0
"""Which clip norms there are, and how far below them the clipping goes."""

from __future__ import annotations

__all__ = ["check_clip_norm", "clip_limit"]

# Inside, no step of the clipping itself and no sum of clipped vectors leaves the range of float64.
_SMALLEST, _LARGEST = 1e-100, 1e100

_MARGIN = 1.0 - 2.0**-20


def check_clip_norm(clip_norm: float) -> float:
    """Return `clip_norm` if it is within bounds; ValueError otherwise, for NaN too."""
    if not _SMALLEST <= clip_norm <= _LARGEST:
        raise ValueError(
            f"clip_norm must be a finite number in [{_SMALLEST}, {_LARGEST}], got {clip_norm}"
        )
    return clip_norm


def clip_limit(clip_norm: float) -> float:
    """Return the norm that vectors are clipped to, for a guaranteed norm of `clip_norm`.

    A little less than the clip norm leaves room for rounding: no contribution ever gets more.
    """
    return clip_norm * _MARGIN
