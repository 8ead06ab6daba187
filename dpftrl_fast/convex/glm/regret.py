# SPDX-License-Identifier: Apache-2.0
"""Regret of a run against the best parameters in hindsight: NOT PRIVATE, for measuring only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.sums import Objective, clipped_sum, outputs_of
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.kernels.losses import loss_values

FloatArray = NDArray[np.float64]

_NO_CLIPPING = 1e100


class RegretMeter:
    """Take the steps of a run and add up the losses of its iterates: NOT PRIVATE.

    Examples
    --------
    >>> from dpftrl_fast.accounting import SinglePass
    >>> from dpftrl_fast.plan.privacy_plan import PrivacyPlan
    >>> plan = PrivacyPlan(1.0, 1.0, SinglePass(1))
    >>> meter = RegretMeter(GLMRun(Objective("squared", 1), plan, learning_rate=1.0, batch_size=2))
    >>> meter.step(Batch(np.ones((2, 1)), np.array([1.0, 3.0])))
    >>> meter.regret(Batch(np.ones((2, 1)), np.array([1.0, 3.0])))
    2.0
    """

    def __init__(self, run: GLMRun) -> None:
        self.run = run
        self._loss = 0.0
        self._rows = 0

    def step(self, batch: Batch) -> None:
        """Add the losses of the batch at the present iterate, and take the step."""
        self._loss += loss_sum(self.run.objective, self.run.theta, batch)
        self._rows += len(batch.y)
        self.run.step(batch)

    def regret(self, rows: Batch, radius: float | None = None) -> float:
        """Return the mean over all steps' rows of l(theta_t) - l(u).

        u are the best parameters for `rows`, which are those of one pass, within the ball.
        """
        best = best_parameters(self.run.objective, rows, radius)
        passes = self._rows / len(rows.y)
        loss = self._loss - passes * loss_sum(self.run.objective, best, rows)
        return float(loss / self._rows)


def loss_sum(objective: Objective, theta: FloatArray, batch: Batch) -> float:
    """Return the sum of the losses of a batch at theta, without clipping: NOT PRIVATE."""
    z = outputs_of(objective, theta, batch.X)
    z = z[:, 0] if objective.outputs == 1 else z
    return float(np.sum(loss_values(objective.loss, objective.loss_param, z, batch.y)))


def best_parameters(
    objective: Objective, rows: Batch, radius: float | None = None, *, tolerance: float = 1e-9
) -> FloatArray:
    """Return parameters that minimise the sum of the losses of rows: NOT PRIVATE.

    The mean loss is minimised by L-BFGS. Over a ball, bisection finds the weight nu >= 0 of nu/2
    ||theta||^2 at which the minimiser lies on the sphere: the minimiser over the ball (KKT). For
    non-smooth losses the result is near the minimum, not at it. `tolerance` is for the gradient,
    and for the norm relative to the radius. The clip norm of the objective is not used.

    Examples
    --------
    >>> rows = Batch(np.ones((2, 1)), np.array([1.0, 3.0]))
    >>> best_parameters(Objective("squared", 1), rows).round(6).tolist()
    [[2.0]]
    >>> best_parameters(Objective("squared", 1), rows, radius=0.5).round(6).tolist()
    [[0.5]]
    """
    free = replace(objective, clip_norm=_NO_CLIPPING)
    plain = rows._replace(starts=None, ids=None)
    n = max(len(rows.y), 1)

    def solve(weight: float, start: FloatArray) -> FloatArray:
        def value(flat: FloatArray) -> tuple[float, FloatArray]:
            theta = np.ascontiguousarray(flat).reshape(objective.shape)
            loss = loss_sum(free, theta, plain) / n + weight / 2.0 * float(np.sum(flat * flat))
            return loss, clipped_sum(free, theta, plain).reshape(-1) / n + weight * flat

        options = {"maxiter": 1000, "gtol": tolerance, "ftol": 1e-15}
        result = minimize(value, start, jac=True, method="L-BFGS-B", options=options)
        return np.asarray(result.x, dtype=np.float64)

    best = solve(0.0, np.zeros(objective.size))
    if radius is not None and np.linalg.norm(best) > radius:
        low, high = 0.0, 1.0
        while np.linalg.norm(best := solve(high, best)) > radius:
            low, high = high, 4.0 * high
        for _ in range(60):
            middle = (low + high) / 2.0
            best = solve(middle, best)
            norm = float(np.linalg.norm(best))
            if abs(norm - radius) <= tolerance * radius:
                break
            low, high = (middle, high) if norm > radius else (low, middle)
        best *= min(1.0, radius / float(np.linalg.norm(best)))
    return best.reshape(objective.shape)
