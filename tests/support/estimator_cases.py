# SPDX-License-Identifier: Apache-2.0
"""Small private estimators and data for them, shared by the tests of `dpftrl_fast.linear_model`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.plan.planned_noise import PlannedNoise

Array = np.ndarray[Any, np.dtype[Any]]

CLASSES = (DPFTRLLeastSquares, DPFTRLRegressor, DPFTRLClassifier)
NAMES = tuple(cls.__name__ for cls in CLASSES)


def make(cls: Any, **parameters: Any) -> Any:
    """Return an estimator with its bounds, a batch of 10, one epoch and a clip norm of 1."""
    bounds: dict[str, Any] = {"x_norm_bound": 1.0, "batch_size": 10}
    if cls is not DPFTRLClassifier:
        bounds["y_bound"] = 1.0
    if cls is not DPFTRLLeastSquares:
        bounds |= {"epochs": 1, "clip_norm": 1.0, "momentum": 0.0}
    return cls(**{**bounds, **parameters})


def rows(cls: Any, n: int = 60, p: int = 3, seed: int = 0) -> tuple[Array, Array]:
    """Return rows of norm at most 1, and targets in [-1, 1] or labels 0 and 1."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    X /= 1.001 * np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    y = X @ np.linspace(0.9, -0.5, p) + 0.1 * rng.normal(size=n)
    if cls is DPFTRLClassifier:
        return X, (y > 0).astype(np.int64)
    return X, np.clip(y, -1.0, 1.0)


def learned(model: Any) -> set[str]:
    """Return the names of what a fit has set."""
    return {name for name in vars(model) if name.endswith("_")}


def first_of(cls: Any) -> dict[str, Any]:
    """Return what the first call of `partial_fit` needs besides a batch."""
    return {"classes": [0, 1]} if cls is DPFTRLClassifier else {}


def stream(model: Any, X: Any, y: Any, **first: Any) -> list[Array]:
    """Feed the rows after those already taken, and return the last iterate after every step."""
    size, path = model.batch_size, []
    for start in range(size * getattr(model, "n_steps_", 0), len(y), size):
        part = slice(start, start + size)
        model.partial_fit(X[part], y[part], **(first if start == 0 else {}))
        path.append(np.append(np.ravel(model.coef_last_), np.ravel(model.intercept_last_)))
    return path


@contextmanager
def recorded_noises() -> Iterator[list[PlannedNoise]]:
    """Give the noise objects that are made meanwhile: one a run (of least squares: two)."""
    made: list[PlannedNoise] = []
    follow = PlannedNoise._follow

    def record(self: Any, layout: Any) -> None:
        follow(self, layout)
        made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlannedNoise, "_follow", record)
        yield made


def outcome(call: Any) -> Any:
    """Return what a call says, not what it computes."""
    try:
        call()
    except (TypeError, ValueError, OverflowError, RuntimeWarning) as error:
        return type(error), str(error)
    return None
