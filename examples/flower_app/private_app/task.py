# SPDX-License-Identifier: Apache-2.0
"""The model and its data: logistic regression on points that are divided among users.

Put your own model here: a dictionary of named arrays, which training takes and returns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]

FEATURES, EXAMPLES = 8, 60


def initial_model() -> Arrays:
    return {"weights": np.zeros(FEATURES, np.float32), "bias": np.zeros(1, np.float32)}


def examples(user: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return inputs and labels of a user; user -1 stands for the public test data."""
    rng = np.random.default_rng([7, user + 1])
    x = rng.normal(size=(EXAMPLES if user >= 0 else 4000, FEATURES)).astype(np.float32)
    labels = x[:, 0] - x[:, 1] + 0.5 * rng.normal(size=len(x)) > 0
    return x, labels.astype(np.float32)


def train(model: Arrays, user: int, epochs: int) -> Arrays:
    """Run gradient descent on a user's examples."""
    x, y = examples(user)
    w, b = model["weights"].copy(), model["bias"].copy()
    for _ in range(epochs):
        error = 1 / (1 + np.exp(-(x @ w + b))) - y
        w -= x.T @ error / len(x)
        b -= error.mean()
    return {"weights": w, "bias": b}


def accuracy(model: Arrays) -> float:
    """Compute the accuracy of the model on the public test data."""
    x, y = examples(-1)
    return float(np.mean((x @ model["weights"] + model["bias"] > 0) == (y > 0.5)))
