# SPDX-License-Identifier: Apache-2.0
"""Scores of diffprivlib on rows from `bench_defaults`, in an interpreter that has it.

``python peer_models.py FILE EPSILON ..``, where FILE holds the rows of `numpy.savez`. It prints
the scores of its models as JSON, a line for each epsilon.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from diffprivlib.models import GaussianNB, LinearRegression, LogisticRegression


def main() -> None:
    """Fit and score."""
    warnings.simplefilter("ignore")
    data = np.load(sys.argv[1])
    for epsilon in sys.argv[2:]:
        print(json.dumps(scores(data, float(epsilon))))


def scores(data: Mapping[str, Any], epsilon: float) -> dict[str, float]:
    """Return the score of each model on the test rows."""
    X, y, X_test, y_test = (data[name] for name in ("X", "y", "X_test", "y_test"))
    p = X.shape[1]
    bounds = (-np.ones(p), np.ones(p))
    if "y_bound" in data:
        low, high = data["y_bound"]
        model = LinearRegression(epsilon=epsilon, bounds_X=bounds, bounds_y=(low, high))
        found = {"linear": model.fit(X, np.clip(y, low, high)).score(X_test, y_test)}
    else:
        linear = LogisticRegression(epsilon=epsilon, data_norm=float(data["x_norm_bound"]))
        bayes = GaussianNB(epsilon=epsilon, bounds=bounds)
        found = {
            "linear": linear.fit(X, y).score(X_test, y_test),
            "Gaussian naive Bayes": bayes.fit(X, y).score(X_test, y_test),
        }
    return found


if __name__ == "__main__":
    main()
