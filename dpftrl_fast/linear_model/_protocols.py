# SPDX-License-Identifier: Apache-2.0
"""What the base of the estimators asks of a plan and of an engine."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.convex.row_batches import Batch

__all__ = ["Plan", "Run"]

FloatArray = NDArray[np.float64]


class Plan(Protocol):
    """What an estimator needs of a privacy plan."""

    @property
    def steps(self) -> int:
        """Declared steps."""

    @property
    def noise_multiplier(self) -> float:
        """Noise of a node in units of the clip norm."""

    @property
    def sensitivity_squared(self) -> float:
        """In units of the clip norm squared."""

    def epsilon(self, delta: float) -> float:
        """Epsilon of the whole run at delta."""


class Run(Protocol):
    """An engine: it holds the key and the sums, and gives out iterates.

    The iterates are arrays of shape (outputs, columns), the constant column, if there is one, being
    the last.
    """

    plan: Any
    steps_taken: int
    reproducible: bool

    @property
    def last(self) -> FloatArray:
        """The last iterate."""

    @property
    def average(self) -> FloatArray:
        """The mean of all iterates."""

    @property
    def tail(self) -> FloatArray:
        """The mean of the iterates of the last half of the declared steps."""

    def step(self, batch: Batch) -> None:
        """Take one step."""
