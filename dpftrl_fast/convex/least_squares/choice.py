# SPDX-License-Identifier: Apache-2.0
"""The mechanism of the two noises of least squares that leaves the released models least noise.

The error of a model is that of its own sums: models do not depend on each other. Where only the
last one is released, the noise of the last step decides, and a tree may be completed for it; where
models of all steps are, the root mean square over the steps.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from dpftrl_fast.accounting import mechanism_error
from dpftrl_fast.accounting.participation import Participation, SinglePass
from dpftrl_fast.accounting.planner.choice import MechanismChoice, TreeSearch, chosen_mechanism
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, sensitivity_squared
from dpftrl_fast.convex.least_squares.completion import best_completion
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.mechanisms import Mechanism, ToeplitzMechanism, Tree
from dpftrl_fast.mechanisms.tree_error import prefix_variance

Models = Literal["last", "all"]


def chosen_noise(
    mechanism: MechanismChoice,
    participation: Participation,
    *,
    epsilon: float,
    delta: float,
    models: Models = "last",
    complete: Literal[False, "all", "auto"] = "auto",
    variant: str = "honaker",
    bound: PlanBound = "released",
) -> Literal["tree"] | Mechanism:
    """Return the mechanism of a `LeastSquaresPlan` that a choice stands for.

    Parameters
    ----------
    mechanism : "auto", "tree" or Mechanism
        "auto" is the mechanism with the least noise in the released models at the same epsilon: one
        tree, or a Toeplitz mechanism of at most three vectors. All but "auto" are returned.
    participation : participation
        Who takes part when.
    epsilon, delta : float
        Budget for which mechanisms are ranked.
    models : {"last", "all"}
        The released models: the last one, or those of all steps.
    complete, variant
        As for `LeastSquaresPlan`. If they are not the defaults, "auto" is the tree.
    bound
        As for `LeastSquaresPlan`, for the tree.

    Notes
    -----
    In a single pass the last model has the least noise with a completed tree: at the same epsilon
    its standard deviation grows with the root of log T, that of a Toeplitz mechanism with log T. So
    nothing is searched there.

    Examples
    --------
    >>> run = SinglePass(1045)
    >>> chosen_noise("auto", run, epsilon=1.0, delta=1e-6)
    'tree'
    >>> chosen_noise("auto", run, epsilon=1.0, delta=1e-6, models="all").words
    'buffered Toeplitz noise, 3 buffers'
    """
    if isinstance(mechanism, TreeSearch):
        raise TypeError(
            "mechanism must be 'auto', 'tree' or a mechanism for least squares, got a TreeSearch: "
            "its sums have one tree"
        )
    if mechanism != "auto":
        return mechanism
    if complete is False or complete != "auto" or variant != "honaker":
        return "tree"
    if models == "last" and isinstance(participation, SinglePass):
        return "tree"
    rank: Literal["last", "rms"] = "last" if models == "last" else "rms"
    found = chosen_mechanism("auto", participation, epsilon, delta, rank_by=rank)
    if not isinstance(found, ToeplitzMechanism):
        return "tree"
    error: Any = getattr(mechanism_error(found, participation), rank)
    squared = sensitivity_squared(participation, found, bound=bound)
    better = math.sqrt(squared) * error < _tree_error(participation, rank, bound)
    return found if better else "tree"


def noise_share(plan: LeastSquaresPlan, p: int, rows: int) -> float:
    """Return the norm of the noise of the last covariance, as a share of the largest covariance.

    It is sigma_c sqrt(v_T p) for a sum of `rows` squares of rows, in units of their largest norm
    squared: a public number.

    Examples
    --------
    >>> plan = LeastSquaresPlan(1.0, 1.0, 3.0, SinglePass(1), split=0.36)
    >>> noise_share(plan, 16, 1000)
    0.015
    """
    variance = float(plan.variance_factors[-1])
    return plan.covariance.noise_multiplier * math.sqrt(variance * p) / rows


def _tree_error(
    participation: Participation, rank: Literal["last", "rms"], bound: PlanBound
) -> float:
    """Return the error of one tree, completed as `complete="auto"` does, times sqrt(zeta)."""
    tree = Tree(complete=best_completion(participation, bound=bound))
    layout = tree.layout(participation.steps)
    if rank == "last":
        error = math.sqrt(prefix_variance(layout.tallest, "honaker"))
    else:
        error = mechanism_error(Tree(), participation).rms
    return math.sqrt(sensitivity_squared(participation, tree, bound=bound)) * error
