# SPDX-License-Identifier: Apache-2.0
"""Private linear models of tables on disk: `run` fits, `model_file` saves, `evaluation` scores."""

from dpftrl_fast.convex.settings import FitSettings, LeastSquaresSettings, RunSettings
from dpftrl_fast.fitting.run import (
    Curve,
    FitResult,
    Plan,
    Settings,
    default_method,
    fit,
    make_plan,
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
    "default_method",
    "fit",
    "make_plan",
    "outlook",
    "resolve",
]
