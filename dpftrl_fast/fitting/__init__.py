# SPDX-License-Identifier: Apache-2.0
"""Private linear models of tables on disk: `run` fits, `model_file` saves, `evaluation` scores."""

from dpftrl_fast.convex.least_squares.settings import LeastSquaresSettings
from dpftrl_fast.convex.settings import FitSettings, RunSettings
from dpftrl_fast.fitting.run import (
    Curve,
    FitResult,
    Plan,
    Settings,
    fit,
    make_plan,
    method_for,
    outlook,
    resolve,
)

__all__ = [
    "Curve",
    "FitResult",
    "FitSettings",
    "LeastSquaresSettings",
    "Plan",
    "RunSettings",
    "Settings",
    "fit",
    "make_plan",
    "method_for",
    "outlook",
    "resolve",
]
