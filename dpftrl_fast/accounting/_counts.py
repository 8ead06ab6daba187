# SPDX-License-Identifier: Apache-2.0
"""How many steps a run may have, and the check of every number that counts steps or uses."""

from __future__ import annotations

from typing import Any

from dpftrl_fast.accounting._checks import positive_int

__all__ = ["MAX_STEPS", "step_count"]

#: The most steps of a run, and the largest max_participations and min_separation.
MAX_STEPS = 2**40


def step_count(name: str, x: Any) -> int:
    """Return ``x`` as an int if it is an integer in [1, 2^40]."""
    value = positive_int(name, x)
    if value > MAX_STEPS:
        raise ValueError(f"{name} must be an integer <= 2^40 = {MAX_STEPS}, got {value}")
    return value
