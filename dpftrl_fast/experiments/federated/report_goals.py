# SPDX-License-Identifier: Apache-2.0
"""Epsilon against the report goal at fixed utility: the paper's StackOverflow tables reproduced.

The utility of a run depends on the noise of the mean update, sigma/goal in units of the clip norm.
If that ratio is kept, a larger report goal allows more noise, and more passes over the population
in the same number of rounds. The paper (its section on StackOverflow) does the arithmetic for 1,600
rounds, a ratio of 0.00149 and delta 1e-6. A pass is floor(population/goal) rounds, the tree is
restarted after each, and every pass, the last one too, counts as whole:

    zeta = ceil(1600/pass) (floor(log2 pass) + 1)

which is `sensitivity_squared` of fixed epochs with a restart after each, the plan that
`plan_rounds` makes with ``mechanism="tree each pass"``. The paper converts it to
epsilon by Renyi differential privacy at a fixed set of orders. Beside that figure stand the exact
epsilon of the same zeta, and the exact epsilon where only prefixes of the tree are released
(`bound="released"`), both of which hold for the runs of the paper.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import cache, partial
from itertools import groupby
from typing import Any, Literal, NamedTuple

import dpftrl_fast.accounting as acc
from dpftrl_fast._validate import integer
from dpftrl_fast.accounting.curve.rounding import fixed_up
from dpftrl_fast.experiments.results import Values
from dpftrl_fast.experiments.study import Job, Laboratory, Report, Table
from dpftrl_fast.federated.rounds_plan import rounds_participation
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.plots import Line, Panel, panels_png

#: Of the paper's runs.
ROUNDS = 1_600
DELTA = 1e-6
#: Noise multiplier over report goal.
NOISE_PER_REPORT = 0.00149
#: Renyi orders that the paper's accountant tried.
ORDERS = (*(k / 10 for k in range(11, 110)), *range(12, 64))

Bound = Literal["exact", "released"]
Accountant = Literal["rdp", "exact", "released"]


_ACCOUNTANTS: tuple[tuple[Accountant, str], ...] = (
    ("rdp", "the paper's way (RDP)"),
    ("exact", "exact"),
    ("released", "released"),
)
#: As published figures are rounded to nearest, so is the one that reproduces them; others go up.
_HEADING = ("the paper's way (RDP), to nearest", "exact", "released")


class Published(NamedTuple):
    """A line of the paper's table: a report goal and its epsilon."""

    population: int
    goal: int
    epsilon: float


#: The paper's table of report goals, for StackOverflow's population and for a million.
REPORT_GOALS = (
    Published(342_477, 100, 363.66),
    Published(342_477, 1_000, 32.52),
    Published(342_477, 5_060, 9.76),
    Published(342_477, 16_300, 4.11),
    Published(1_000_000, 3_850, 7.57),
    Published(1_000_000, 10_300, 3.56),
)

#: The paper's table of accuracies, a single pass of 1,600 rounds: noise multiplier and epsilon.
SINGLE_PASS = ((1.13, 18.71), (2.33, 7.83), (4.03, 4.19), (6.21, 2.60), (8.83, 1.77))


@cache
def pass_sensitivity(population: int, goal: int, bound: Bound = "exact") -> int | float:
    """Return zeta of 1,600 rounds of `goal` users whose tree is restarted after each pass.

    Examples
    --------
    >>> pass_sensitivity(342_477, 5_060)
    168
    """
    cohort = integer("goal", goal, 1, population)
    return _zeta(rounds_participation(population, ROUNDS, cohort, "passes"), bound)


@cache
def _zeta(passes: acc.FixedEpochs | acc.SinglePass, bound: Bound) -> int | float:
    tree = Tree(restart_every=passes.least_separation())
    return acc.sensitivity_squared(passes, tree, bound=bound)


def epsilons(noise_multiplier: float, exact: int | float, released: int | float) -> Values:
    """Return epsilon at delta 1e-6 by three accountants, for zeta with either bound.

    ``"rdp"`` is that of the paper, ``"exact"`` that of the same zeta.

    Examples
    --------
    >>> found = epsilons(1.49, 45, 45)
    >>> fixed_up(found["rdp"], 2), fixed_up(found["exact"], 2)
    ('32.53', '30.86')
    """
    zetas = {"rdp": exact, "exact": exact, "released": released}
    return {name: _epsilon(noise_multiplier, zetas[name], name) for name, _ in _ACCOUNTANTS}


def _epsilon(noise_multiplier: float, zeta: int | float, accountant: Accountant) -> float:
    if accountant == "rdp":
        return acc.epsilon(noise_multiplier, zeta, DELTA, "rdp", orders=ORDERS)
    return acc.epsilon(noise_multiplier, zeta, DELTA)


def smallest_goal(population: int, epsilon: float, accountant: Accountant = "exact") -> int:
    """Return the smallest report goal at which an accountant of `epsilons` states an epsilon.

    The utility is fixed. ValueError if there is no such goal up to the population.

    Examples
    --------
    >>> smallest_goal(342_477, 9.76)
    4599
    """
    bound: Bound = "released" if accountant == "released" else "exact"

    def at(goal: int) -> float:
        zeta = pass_sensitivity(population, goal, bound)
        return _epsilon(NOISE_PER_REPORT * goal, zeta, accountant)

    goals = range(1, population + 1)
    # while zeta stays, epsilon falls
    for _, stretch in groupby(goals, key=lambda goal: pass_sensitivity(population, goal, bound)):
        alike = list(stretch)
        if at(alike[-1]) <= epsilon:
            return alike[bisect_left(alike, -epsilon, key=lambda goal: -at(goal))]
    raise ValueError(f"no report goal up to {population} has epsilon {epsilon}")


def study(laboratory: Laboratory, *, quick: bool = False) -> Report:
    """Make the tables and the figure; `quick` leaves out smallest goals and most points."""
    single = _single_pass(laboratory)
    goals = _report_goals(laboratory, smallest=not quick)
    curves = {
        population: _curve(laboratory, population, points=4 if quick else 24)
        for population in dict.fromkeys(line.population for line in REPORT_GOALS)
    }
    rows: list[Mapping[str, Any]] = [
        {"table": "single pass", "noise_multiplier": sigma, "published": epsilon, **values}
        for (sigma, epsilon), values in zip(SINGLE_PASS, single, strict=True)
    ]
    for (population, goal, epsilon), values in zip(REPORT_GOALS, goals, strict=True):
        row = {"population": population, "goal": goal, "published": epsilon}
        rows.append({"table": "report goals", **row, **values})
    tables = [_single_pass_table(single), _report_goals_table(goals)]
    if not quick:
        tables.append(_smallest_goals_table(goals))
    return Report(rows, tables, {"federated_report_goals.png": _figure(curves)})


# ---- numbers ----


def _single_pass(laboratory: Laboratory) -> list[Values]:
    jobs = [
        Job({"table": "single pass", "noise_multiplier": sigma}, 0, partial(_at_noise, sigma))
        for sigma, _ in SINGLE_PASS
    ]
    return laboratory.run("report goals: a single pass", jobs)


def _report_goals(laboratory: Laboratory, *, smallest: bool) -> list[Values]:
    def work(line: Published) -> Values:
        found = dict(_at_goal(line.population, line.goal))
        for name, _ in _ACCOUNTANTS if smallest else ():
            found[f"goal_{name}"] = smallest_goal(line.population, found["rdp"], name)
        return found

    jobs = []
    for line in REPORT_GOALS:
        setting = {"table": "report goals", **line._asdict(), "smallest": smallest}
        jobs.append(Job(setting, 0, partial(work, line)))
    return laboratory.run("report goals: the paper's table", jobs)


def _curve(laboratory: Laboratory, population: int, points: int) -> dict[int, Values]:
    """Return values at goals that are spread evenly over the logarithms from 100 to 30,000."""
    goals = [round(100 * 300 ** (i / (points - 1))) for i in range(points)]
    row = {"table": "curve", "population": population}
    jobs = [Job({**row, "goal": goal}, 0, partial(_at_goal, population, goal)) for goal in goals]
    return dict(zip(goals, laboratory.run("report goals: the curve", jobs), strict=True))


def _at_noise(noise_multiplier: float) -> Values:
    run = acc.SinglePass(ROUNDS)
    exact = acc.sensitivity_squared(run)
    released = acc.sensitivity_squared(run, bound="released")
    values = epsilons(noise_multiplier, exact, released)
    return {"zeta": exact, "zeta_released": released, **values}


def _at_goal(population: int, goal: int) -> Values:
    exact = pass_sensitivity(population, goal)
    released = pass_sensitivity(population, goal, "released")
    values = epsilons(NOISE_PER_REPORT * goal, exact, released)
    return {"zeta": exact, "zeta_released": released, **values}


# ---- tables and the figure ----


def _single_pass_table(found: Iterable[Values]) -> Table:
    rows = [
        (f"{sigma:g}", f"{epsilon:.2f}", *_figures(values))
        for (sigma, epsilon), values in zip(SINGLE_PASS, found, strict=True)
    ]
    heading = ("noise multiplier", "epsilon published", *_HEADING)
    return Table("The paper's StackOverflow runs: a single pass of 1,600 rounds", heading, rows)


def _report_goals_table(found: Iterable[Values]) -> Table:
    rows = [
        (
            f"{line.population:,}",
            f"{line.goal:,}",
            f"{NOISE_PER_REPORT * line.goal:.3f}",
            f"{values['zeta']:.0f}",
            f"{line.epsilon:.2f}",
            *_figures(values),
        )
        for line, values in zip(REPORT_GOALS, found, strict=True)
    ]
    heading = ("population", "report goal", "noise multiplier", "zeta", "epsilon published")
    return Table("The paper's report goals at fixed utility", (*heading, *_HEADING), rows)


def _smallest_goals_table(found: Iterable[Values]) -> Table:
    rows = [
        (
            f"{line.population:,}",
            f"{line.epsilon:.2f}",
            f"{line.goal:,}",
            *(
                f"{values[name]:,.0f} ({100 * (values[name] / line.goal - 1):+.1f} %)"
                for name in (f"goal_{name}" for name, _ in _ACCOUNTANTS)
            ),
        )
        for line, values in zip(REPORT_GOALS, found, strict=True)
    ]
    labels = (label for _, label in _ACCOUNTANTS)
    heading = ("population", "epsilon", "report goal published", *labels)
    return Table("The smallest report goal for the published epsilon", heading, rows)


def _figures(values: Values) -> tuple[str, ...]:
    paper, *ours = (values[name] for name, _ in _ACCOUNTANTS)
    return (f"{paper:.2f}", *(fixed_up(value, 2) for value in ours))


def _figure(curves: dict[int, dict[int, Values]]) -> bytes:
    panels = []
    for population, curve in curves.items():
        goals = [*curve]
        lines = [
            Line(label, goals, [curve[goal][name] for goal in goals], dashed=True)
            for name, label in _ACCOUNTANTS
        ]
        published = [line for line in REPORT_GOALS if line.population == population]
        lines.append(Line("published", [p.goal for p in published], [p.epsilon for p in published]))
        title = f"{population:,} users, noise/goal {NOISE_PER_REPORT:g}, delta {DELTA:g}"
        panels.append(Panel(title, "report goal", "epsilon", lines, log_x=True, log_y=True))
    return panels_png(panels)
