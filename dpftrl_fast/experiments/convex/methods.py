# SPDX-License-Identifier: Apache-2.0
"""The compared private methods, each one call that returns scores on the test rows."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.experiments.convex.dpsgd import dpsgd, fixed_batches_sigma
from dpftrl_fast.experiments.convex.problem import Problem
from dpftrl_fast.experiments.results import Values
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor

FTRL = "DP-FTRL"
PLANNED = "DP-FTRL, mechanism of the planner"
FIXED = "DP-SGD, fixed batches"
AMPLIFIED = "DP-SGD, amplified"

FloatArray = NDArray[np.float64]


def gradient_method(
    method: str,
    problem: Problem,
    *,
    epsilon: float,
    delta: float,
    batch_size: int,
    epochs: int,
    clip_norm: float,
    learning_rate: float | str,
    seed: int,
    sigma: float | None = None,
) -> Values:
    """Fit by DP-FTRL or by DP-SGD, and return the scores of two of its models.

    The method is `FTRL` (its estimator with trees, restarts by the planner), `PLANNED` (with the
    planner's mechanism), `FIXED` or `AMPLIFIED`, which needs its noise multiplier `sigma`. Where
    the problem has users, they are protected and `batch_size` counts them; otherwise rows. Scores
    are those of the "last" iterate and of the "tail" average.
    """
    shared: dict[str, Any] = {"batch_size": batch_size, "epochs": epochs}
    if method in (FTRL, PLANNED):
        kind = DPFTRLRegressor if problem.classes == 1 else DPFTRLClassifier
        model = kind(
            epsilon, delta, clip_norm=clip_norm, learning_rate=learning_rate, x_norm_bound=1.0,
            fit_intercept=problem.constant != 0.0, intercept_scaling=problem.constant or 1.0,
            mechanism="tree" if method == FTRL else "auto", noise_seed=seed, threads=1, **shared,
        )  # fmt: skip
        if problem.classes > 1:
            model.set_params(classes=np.arange(problem.classes))
        model.fit(problem.X, problem.y, groups=problem.users)
        return {
            "last": problem.score(_theta(problem, model.coef_, model.intercept_)),
            "tail": problem.score(_theta(problem, model.coef_tail_, model.intercept_tail_)),
        }
    amplified = method == AMPLIFIED
    if amplified and sigma is None:
        raise ValueError(f"sigma must be given for {AMPLIFIED!r}, got None")
    if sigma is None:
        sigma = fixed_batches_sigma(epsilon, delta, epochs)
    objective = Objective(
        problem.loss,
        problem.X.shape[1],
        outputs=problem.classes,
        clip_norm=clip_norm,
        row_bound=1.0,
        constant=problem.constant,
    )
    users = None if problem.users is None else problem.user_bounds
    found = dpsgd(
        objective, problem.rows, problem.y, sigma=sigma, learning_rate=float(learning_rate),
        amplified=amplified, seed=seed, users=users, **shared,
    )  # fmt: skip
    return {"last": problem.score(found.last), "tail": problem.score(found.tail)}


def least_squares(
    problem: Problem,
    *,
    epsilon: float,
    delta: float,
    batch_size: int,
    complete: Literal["auto", False],
    seed: int,
) -> Values:
    """Fit by `DPFTRLLeastSquares` and return the score of the last model.

    One batch of all rows releases the two sums at the end: one Gaussian mechanism, no tree.
    """
    model = DPFTRLLeastSquares(
        epsilon, delta, x_norm_bound=1.0, y_bound=1.0, batch_size=batch_size, complete=complete,
        fit_intercept=problem.constant != 0.0, intercept_scaling=problem.constant or 1.0,
        noise_seed=seed, threads=1,
    ).fit(problem.X, problem.y)  # fmt: skip
    return {"last": problem.score(_theta(problem, model.coef_, model.intercept_))}


def _theta(problem: Problem, coef: Any, intercept: Any) -> FloatArray:
    """Return parameters with those of the constant column last."""
    matrix = np.asarray(coef, dtype=np.float64).reshape(problem.classes, -1)
    if problem.constant == 0.0:
        return matrix
    column = np.asarray(intercept, dtype=np.float64).reshape(-1, 1) / problem.constant
    return np.hstack([matrix, column])
