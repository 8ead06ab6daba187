# SPDX-License-Identifier: Apache-2.0
"""FTRL against least squares with a whole and with a sketched second moment, at p = 4000.

`python benches/sketched_least_squares.py [epsilon ...]` prints the table of
docs/sklearn/least_squares.md: R^2 on held-out rows. A sketch is least squares on the k products of
a row with random vectors drawn beforehand: its second moment has k (k + 1) / 2 entries with noise,
not p (p + 1) / 2.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from dpftrl_fast.convex.glm.outlook import LearningWarning
from dpftrl_fast.linear_model import DPFTRLLeastSquares, DPFTRLRegressor

ROWS, HELD_OUT, P = 50_000, 4_000, 4_000
SKETCHES = 200, 800
KINDS = "isotropic", "power law", "sparse"

Array = np.ndarray[Any, np.dtype[Any]]


def data(kind: str) -> tuple[Array, Array]:
    """Return rows of norm 1, and targets of which noise is a tenth of the variance."""
    rng = np.random.default_rng(0)
    n = ROWS + HELD_OUT
    theta = rng.standard_normal(P).astype(np.float32)
    if kind == "sparse":  # 20 of 4000 categories
        X = np.zeros((n, P), np.float32)
        X[np.arange(n)[:, None], rng.integers(0, P, (n, 20))] = 1.0
    else:
        X = rng.standard_normal((n, P), dtype=np.float32)
    if kind == "power law":  # column j has the variance 1/j
        scales = np.arange(1, P + 1, dtype=np.float32) ** -0.5
        X *= scales
        theta *= scales
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    z = X @ theta
    z /= 4.0 * z.std()
    return X, np.clip(z + 0.08 * rng.standard_normal(n), -1.0, 1.0)


def score(model: Any, X: Array, y: Array) -> float:
    model.fit(X[:ROWS], y[:ROWS])
    held = y[ROWS:]
    return float(1.0 - np.mean((held - model.predict(X[ROWS:])) ** 2) / np.var(held))


def methods(epsilon: float) -> dict[str, Callable[[Array, Array], float]]:
    budget = (epsilon, 1e-6)

    def sketched(k: int) -> Callable[[Array, Array], float]:
        vectors = np.random.default_rng(1).standard_normal((P, k)).astype(np.float32) / np.sqrt(k)

        def call(X: Array, y: Array) -> float:
            return score(
                DPFTRLLeastSquares(*budget, x_norm_bound=1.2, y_bound=1.0),
                np.asarray(X @ vectors, np.float32),
                y,
            )

        return call

    return {
        "FTRL": lambda X, y: score(DPFTRLRegressor(*budget, x_norm_bound=1.0, y_bound=1.0), X, y),
        "least squares": lambda X, y: score(
            DPFTRLLeastSquares(*budget, x_norm_bound=1.0, y_bound=1.0), X, y
        ),
        **{f"sketch, k = {k}": sketched(k) for k in SKETCHES},
    }


def main(epsilons: list[float]) -> None:
    warnings.simplefilter("ignore", LearningWarning)
    print("| rows, epsilon |", " | ".join(methods(1.0)), "|")
    print("|---" * (1 + len(methods(1.0))) + "|")
    for kind in KINDS:
        X, y = data(kind)
        for epsilon in epsilons:
            scores = [method(X, y) for method in methods(epsilon).values()]
            print(
                f"| {kind}, {epsilon:g} |", " | ".join(f"{s:.2f}" for s in scores), "|", flush=True
            )


if __name__ == "__main__":
    main([float(given) for given in sys.argv[1:]] or [1.0, 4.0])
