# SPDX-License-Identifier: Apache-2.0
"""Stub."""

from __future__ import annotations

from dpftrl_fast.accounting.participation import Participation
from dpftrl_fast.mechanisms import BandedInverse, BufferedToeplitz, Mechanism
from dpftrl_fast.mechanisms.workload import Workload


def best_mechanism(
    epsilon: float,
    delta: float,
    participation: Participation,
    *,
    workload: Workload = Workload(),
    max_vectors: int | None = 3,
    max_normals: int | None = None,
    rank_by: str = "rms",
) -> Mechanism:
    """Stub."""
    if workload.momentum and participation.steps > 1:
        return BandedInverse((1.0, -0.96875))
    return BufferedToeplitz((0.984375, 0.75), (0.125, 0.125))
