# SPDX-License-Identifier: Apache-2.0
"""The largest noise that still meets a fixed accuracy, and what it costs at any report goal.

The noise on the mean update, L sigma/report goal, decides the accuracy; the epsilon does not: where
there are more clients, a larger goal with as much more noise has the same mean and less epsilon.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dpftrl_fast.experiments.federated.grid import DELTA, Cell
from dpftrl_fast.experiments.federated.methods import Budget, ftrl_plan
from dpftrl_fast.experiments.federated.tuning import Fitted, Stage, fit_job
from dpftrl_fast.experiments.study import Laboratory
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

_HALVINGS = 3


class Found(NamedTuple):
    """The outcome of a search.

    Attributes
    ----------
    cell : Cell
        Method, report goal and passes; its epsilon is that of the noise found.
    target : float
        The accuracy to meet.
    noise : float
        The largest noise multiplier found that meets it.
    accuracy : float
        With it.
    misses : float
        The smallest noise multiplier found that does not.
    """

    cell: Cell
    target: float
    noise: float
    accuracy: float
    misses: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything, of what JSON knows."""
        method, budget = self.cell
        found = {name: v for name, v in self._asdict().items() if name != "cell"}
        return {"search": "largest noise", **method.to_dict(), **vars(budget), **found}


def largest_passing(
    passes: Callable[[float], bool], low: float, high: float, *, halvings: int
) -> tuple[float, float]:
    """Return the ends of an interval, low passing and high not, halved so often in its logarithm.

    Parameters
    ----------
    passes : callable
    low, high : float
        Where `passes` is known to be true and to be false.
    halvings : int

    Examples
    --------
    >>> largest_passing(lambda noise: noise < 3.0, 1.0, 16.0, halvings=2)
    (2.0, 4.0)
    """
    for _ in range(halvings):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low, high


def largest_noise(
    laboratory: Laboratory, test: Stage, fitted: Sequence[Fitted], target: float, seeds: int
) -> Found | None:
    """Search for the largest noise multiplier with which a method's mean accuracy meets a target.

    It lies between two that were fitted (or up to four times beyond their ends); in between, each
    trial has as many fits as those, at the settings of the fitted cell whose noise is nearest.

    Parameters
    ----------
    laboratory : Laboratory
    test : Stage
    fitted : sequence of Fitted
        Of one method of DP-FTRL at several epsilons.
    target : float
        The accuracy to meet.
    seeds : int
        Fits of a trial.

    Returns
    -------
    Found or None
        None where no noise within the range meets the target, or all meet it.
    """
    method, budget = fitted[0].cell
    known = {one.noise: one.mean for one in fitted}

    def accuracy(noise: float) -> float:
        if noise not in known:
            near = min(fitted, key=lambda one: (abs(math.log(one.noise / noise)), one.noise))
            jobs = [
                fit_job(method, budget, test, near.setting, noise, seed) for seed in range(seeds)
            ]
            found = laboratory.run(f"{laboratory.experiment}: largest noise", jobs)
            known[noise] = statistics.fmean(values["accuracy"] for values in found)
        return known[noise]

    def meets(noise: float) -> bool:
        return accuracy(noise) >= target

    def plan_of(noise: float) -> PrivacyPlan:
        return ftrl_plan(method, budget, len(test.population), 1.0, noise)

    ladder = sorted(known)
    ladder = [ladder[0] / 4.0, ladder[0] / 2.0, *ladder, ladder[-1] * 2.0, ladder[-1] * 4.0]
    # of so little noise that no epsilon is stated at this delta there is nothing to say
    ladder = [noise for noise in ladder if plan_of(noise).delta_floor < budget.delta]
    # from the middle outwards, so that the ends are only fitted where they matter
    place = len(ladder) // 2
    if meets(ladder[place]):
        while place + 1 < len(ladder) and meets(ladder[place + 1]):
            place += 1
    else:
        place -= 1
        while place >= 0 and not meets(ladder[place]):
            place -= 1
    if not 0 <= place < len(ladder) - 1:
        return None
    low, high = largest_passing(meets, ladder[place], ladder[place + 1], halvings=_HALVINGS)
    spent = replace(budget, epsilon=plan_of(low).epsilon(budget.delta))
    return Found(Cell(method, spent), target, low, accuracy(low), high)


def epsilons_at_goals(found: Found, clients: int, factors: Sequence[int]) -> list[dict[str, float]]:
    """Return what the noise found costs where the population is larger by a factor, as the goal is.

    As many rounds and the same noise on the mean update, so (as far as the larger cohorts' mean is
    the same) the same accuracy: the noise multiplier grows with the goal.

    Parameters
    ----------
    found : Found
    clients : int
        Of the present population.
    factors : sequence of int

    Returns
    -------
    list of dict
        Clients, report goal, noise multiplier and epsilon at `DELTA`, a factor each.
    """
    method, budget = found.cell
    rows = []
    for factor in factors:
        larger = Budget(0.0, DELTA, budget.report_goal * factor, budget.passes)
        plan = ftrl_plan(method, larger, clients * factor, 1.0, found.noise * factor)
        rows.append(
            {
                "clients": clients * factor,
                "report_goal": larger.report_goal,
                "noise_multiplier": plan.noise_multiplier,
                "epsilon": plan.epsilon(DELTA),
            }
        )
    return rows
