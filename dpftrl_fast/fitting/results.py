# SPDX-License-Identifier: Apache-2.0
"""What a run releases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpftrl_fast.convex.least_squares.solver import Solve
from dpftrl_fast.fitting.engines import Plan
from dpftrl_fast.fitting.settings import Settings
from dpftrl_fast.tables.schema import Schema

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Models at evenly spaced steps: `last` and `average` have one model per entry of `steps`.

    `average` is None for least squares, whose models are not averaged.
    """

    steps: npt.NDArray[np.int64]
    last: FloatArray
    average: FloatArray | None


@dataclass(frozen=True)
class FitResult:
    """What a run releases: models, and the plan that covers them.

    Attributes
    ----------
    coefficients : dict
        Arrays of shape (p,), or (k, p) for k classes. From ftrl: "tail", "average" and "last", the
        mean over the last half of the steps, the mean of all iterates, and the last one; from least
        squares "last" alone, which is made of all rows.
    solve : Solve or None
        How the last model of least squares was made.
    """

    schema: Schema
    settings: Settings
    plan: Plan
    steps: int
    coefficients: dict[str, FloatArray]
    curve: Curve
    reproducible: bool
    solve: Solve | None = None

    @property
    def last(self) -> FloatArray:
        """The last iterate."""
        return self.coefficients["last"]

    @property
    def average(self) -> FloatArray:
        """The mean of all iterates (ftrl)."""
        return self.coefficients["average"]

    @property
    def tail(self) -> FloatArray:
        """The mean over the last half of the steps (ftrl)."""
        return self.coefficients["tail"]

    @property
    def epsilon(self) -> float:
        """The plan's epsilon at the settings' delta, one record (user) replaced by zero."""
        return float(self.plan.epsilon(self.settings.delta))

    @property
    def epsilon_replace_one(self) -> float | None:
        """The plan's epsilon when one is replaced by another; None if it states none."""
        return replace_one_epsilon(self.plan, self.settings.delta)


def replace_one_epsilon(plan: Plan, delta: float) -> float | None:
    """Return the epsilon for replace-one neighbours; None where delta is below their floor."""
    return plan.replace_one(delta)
