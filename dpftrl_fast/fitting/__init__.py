# SPDX-License-Identifier: Apache-2.0
"""Private linear models of tables on disk: plan, rows, engine, model.

`settings` holds the public choices of a run, `engines` makes plan and engine from them, `results`
is what a run releases and `run` runs it.
"""

from dpftrl_fast.fitting.engines import Plan, make_plan
from dpftrl_fast.fitting.results import Curve, FitResult, replace_one_epsilon
from dpftrl_fast.fitting.run import fit
from dpftrl_fast.fitting.settings import FitSettings, LeastSquaresSettings, Settings

__all__ = [
    "Curve",
    "FitResult",
    "FitSettings",
    "LeastSquaresSettings",
    "Plan",
    "Settings",
    "fit",
    "make_plan",
    "replace_one_epsilon",
]
