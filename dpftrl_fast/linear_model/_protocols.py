# SPDX-License-Identifier: Apache-2.0
"""What the base of the estimators asks of a plan and of an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.convex.row_batches import Batch

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


class Stepper(Protocol):
    """What takes batches: an engine, or what looks on as it does."""

    def step(self, batch: Batch) -> None:
        """Take one step with this batch."""


@runtime_checkable
class SumStepper(Protocol):
    """What takes the sums of batches, which other processes can make.

    Attributes
    ----------
    sums_follow_model : bool
        Whether the sums of a batch are made at the last iterate; otherwise they can be made at any
        time.
    """

    sums_follow_model: bool

    def summing(self) -> Callable[[Batch], Any]:
        """Return what makes the sums of the next batch; it can be pickled and has no secrets."""

    def advance(self, sums: Any) -> None:
        """Take one step with such sums."""


class Run(Stepper, SumStepper, Protocol):
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
