# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of `TreeNoise`."""

from __future__ import annotations

import math
import os
from typing import Any, Literal, TypeAlias

import numpy as np

from dpftrl_fast._validate import integer, positive

Memory: TypeAlias = Literal["stored", "regenerate"] | int

MAX_STEPS = 2**46
"""Steps of one tree, at most."""
MAX_COORDINATES = 2**36
"""Of one noise vector, at most; float64 has half as many, which the core checks."""
MAX_THREADS = 1024
"""Of one call, at most."""
_MAX_VECTORS = 2**31


def std_in(value: Any, dtype: str) -> float:
    """Return `value` rounded to the dtype: finite, > 0 and a normal number."""
    std = positive("std", value)
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.dtype(dtype).type(std))
    # Noise of a subnormal std would lie on a grid as coarse as itself.
    if not (rounded >= np.finfo(dtype).tiny and math.isfinite(rounded)):
        raise ValueError(f"std must be a finite, normal number > 0 in {dtype}, got {std}")
    return rounded


def memory_setting(value: Any) -> Memory:
    """Return "stored", "regenerate" or an integer >= 1."""
    if isinstance(value, str):
        if value not in ("stored", "regenerate"):
            raise ValueError(
                f"memory must be 'stored', 'regenerate' or an integer >= 1, got {value!r}"
            )
        return value  # type: ignore[return-value]
    return integer("memory", value, 1, _MAX_VECTORS)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
