# SPDX-License-Identifier: Apache-2.0
"""`Call`: the steps of one call of a stream, as sums that are ready to be added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.rounding import PLAIN_SUMMANDS, clip_limit
from dpftrl_fast.streams.contributions import Bounded, Contributions, Floats, sum_of_step

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Call:
    """The un-noised sums of some steps, **a secret**, and who is in them.

    Attributes
    ----------
    sums : ndarray of float64, shape (steps, size)
        Sum of the contributions of each step.
    records : ndarray of int64, shape (steps,)
        Number of records of each step; 0 where it is private.
    users : list of ndarray of int64, or None
        The users of each step who count; None where nobody is named.
    counting : bool
        Whether the sums are numbers of events.
    """

    sums: Floats
    records: NDArray[np.int64]
    users: list[Ids] | None = None
    counting: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the call as a state that a folder keeps."""
        users, sizes = None, None
        if self.users is not None:
            users = np.concatenate([np.zeros(0, np.int64), *self.users])
            sizes = np.array([x.size for x in self.users], np.int64)
        return {
            "sums": self.sums,
            "records": self.records,
            "users": users,
            "sizes": sizes,
            "counting": self.counting,
        }

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Call:
        """Return the call of a dictionary of :meth:`to_dict`."""
        users = None
        if d["users"] is not None:
            users = np.split(d["users"], np.cumsum(d["sizes"]))[:-1]
        return cls(d["sums"], d["records"], users, d["counting"])


def sums_of_steps(rule: Contributions, records: Floats) -> Floats:
    """Return the sum of the contributions of each step.

    `records` has shape (steps, size), one record a step, or (steps, n, size).
    """
    if records.ndim == 2:
        return _contributions(rule, records)
    steps, each, size = records.shape
    if each > PLAIN_SUMMANDS:
        return np.array([sum_of_step(rule, one) for one in records]).reshape(steps, size)
    found = _contributions(rule, records.reshape(-1, size))
    return np.asarray(found.reshape(records.shape).sum(axis=1))


def _contributions(rule: Contributions, records: Floats) -> Floats:
    """Return the contribution of each row, as ``rule.of`` does."""
    from dpftrl_fast.kernels.stream_sums import bounded_steps, clipped_steps

    if isinstance(rule, Bounded):
        return bounded_steps(records, rule.low, rule.high, rule.centre, rule.unit)
    return clipped_steps(records, clip_limit(rule.clip_norm))
