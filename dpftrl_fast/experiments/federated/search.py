# SPDX-License-Identifier: Apache-2.0
"""The largest noise that still meets a fixed accuracy, and its epsilon at any report goal.

The noise on the mean update, L sigma/report goal, determines the accuracy, the epsilon does not:
with more clients, a larger goal and proportionally more noise give the same mean at less epsilon.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from dpftrl_fast.experiments.federated.grid import DELTA
from dpftrl_fast.experiments.federated.methods import Budget, ftrl_plan
from dpftrl_fast.experiments.federated.tuning import Fitted, Stage, fit_job
from dpftrl_fast.experiments.fitted import Cell
from dpftrl_fast.experiments.study import Laboratory
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

_HALVINGS = 3


class Found(NamedTuple):
    """The outcome of a search: the largest noise multiplier that meets an accuracy `target`.

    `accuracy` is that of `noise`, and `misses` the smallest noise multiplier that misses the
    target. The epsilon of the cell's budget is that of `noise`.
    """

    cell: Cell
    target: float
    noise: float
    accuracy: float
    misses: float

    def to_dict(self) -> dict[str, Any]:
        """Return all facts, JSON-able."""
        method, budget = self.cell
        found = {name: v for name, v in self._asdict().items() if name != "cell"}
        return {"search": "largest noise", **method.to_dict(), **vars(budget), **found}


def largest_passing(
    passes: Callable[[float], bool], low: float, high: float, *, halvings: int
) -> tuple[float, float]:
    """Bisect the logarithm of an interval, `passes` being true at `low` and false at `high`.

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

    `fitted` are the cells of one method at several epsilons. The search covers their noise
    multipliers, and up to four times beyond their ends; each trial has `seeds` fits, at the
    settings of the fitted cell with the nearest noise. None where no noise within the range meets
    the target, or all do.
    """
    method, budget = fitted[0].cell
    known = {one.noise: one.mean for one in fitted}

    def accuracy(noise: float) -> float:
        if noise not in known:
            near = min(fitted, key=lambda one: (abs(math.log(one.noise / noise)), one.noise))
            job = partial(fit_job, method, budget, test, near.setting, noise)
            (found,) = laboratory.repeat(f"{laboratory.experiment}: largest noise", [job], seeds)
            known[noise] = statistics.fmean(values["accuracy"] for values in found)
        return known[noise]

    def meets(noise: float) -> bool:
        return accuracy(noise) >= target

    def plan_of(noise: float) -> PrivacyPlan:
        return ftrl_plan(method, budget, len(test.population), 1.0, noise)

    ladder = sorted(known)
    ladder = [ladder[0] / 4.0, ladder[0] / 2.0, *ladder, ladder[-1] * 2.0, ladder[-1] * 4.0]
    # leave out noise so small that no epsilon can be stated at this delta
    ladder = [noise for noise in ladder if plan_of(noise).delta_floor < budget.delta]
    # from the middle outwards, so that the ends are only fitted where necessary
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
    """Return the epsilon of the noise found with population and report goal larger by factors.

    The number of rounds and the noise on the mean update stay, so (as far as the larger cohorts'
    mean is the same) the accuracy stays: the noise multiplier grows with the goal.
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
