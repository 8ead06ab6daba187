# SPDX-License-Identifier: Apache-2.0
"""The same tuning effort for every gradient method: one grid, chosen on rows kept from training.

What tuning costs in privacy is left out for all methods alike: the comparison is of the methods.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from dpftrl_fast.experiments.convex.dpsgd import amplified_sigma
from dpftrl_fast.experiments.convex.methods import AMPLIFIED, gradient_method
from dpftrl_fast.experiments.convex.problem import Problem
from dpftrl_fast.experiments.results import Values
from dpftrl_fast.experiments.study import Job, Laboratory

_TUNING_SEED = 1000


class Grid(NamedTuple):
    """The configurations that are tried: all pairs, each with its last iterate and tail average."""

    clip_norms: tuple[float, ...]
    learning_rates: tuple[float, ...]


class Run(NamedTuple):
    """A method and its budget.

    Attributes
    ----------
    method : str
        Of `dpftrl_fast.experiments.convex.methods`.
    unit : {"row", "user"}
        Who is protected.
    epsilon, delta : float
    batch_size, epochs : int
    """

    method: str
    unit: str
    epsilon: float
    delta: float
    batch_size: int
    epochs: int

    @property
    def budget(self) -> dict[str, Any]:
        """The arguments of the method."""
        return {name: v for name, v in self._asdict().items() if name not in ("method", "unit")}


class Outcome(NamedTuple):
    """The scores of a run, at the settings that were chosen.

    Attributes
    ----------
    run : Run
    setting : mapping
        Of the grid.
    average : {"last", "tail"}
        Which model was chosen.
    scores : tuple of float
        On the test rows, one a seed.
    at_edge : bool
        Whether the chosen rate is the smallest or the largest of the grid.
    """

    run: Run
    setting: Mapping[str, float]
    average: str
    scores: tuple[float, ...]
    at_edge: bool

    @property
    def median(self) -> float:
        """Of the scores."""
        return statistics.median(self.scores)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, of what JSON knows."""
        chosen = {**self.setting, "average": self.average, "at_edge": self.at_edge}
        return {**self.run._asdict(), **chosen, "median": self.median, "scores": [*self.scores]}


def tuned(
    laboratory: Laboratory,
    common: Mapping[str, Any],
    runs: Sequence[Run],
    grid: Grid,
    *,
    tune_on: Mapping[str, Problem],
    test_on: Mapping[str, Problem],
    seeds: int,
    quick: bool = False,
) -> list[Outcome]:
    """Choose settings for each run by one fit a configuration, then fit with fresh seeds.

    Parameters
    ----------
    laboratory : Laboratory
    common : mapping
        What the settings of all jobs have: the data and their size.
    runs : sequence of Run
    grid : Grid
        The same for all.
    tune_on, test_on : mapping of unit to Problem
        Where configurations are compared, and where the chosen one is scored.
    seeds : int
        Fits with the chosen one.
    quick : bool
        Whether the noise of the amplified runs may be that of the faster accountant.
    """
    sigmas = _sigmas(laboratory, runs, tune_on, test_on, quick)

    def job(run: Run, stage: str, setting: Mapping[str, float], seed: int) -> Job:
        problem = (tune_on if stage == "tune" else test_on)[run.unit]
        options = {**run.budget, **setting, "seed": seed, "sigma": sigmas.get((run, stage))}
        return Job(
            {**common, **run._asdict(), **setting, "stage": stage},
            seed,
            partial(gradient_method, run.method, problem, **options),
        )

    pairs = [
        {"clip_norm": clip, "learning_rate": rate}
        for clip, rate in product(grid.clip_norms, grid.learning_rates)
    ]
    trials = [job(run, "tune", setting, _TUNING_SEED) for run in runs for setting in pairs]
    found = laboratory.run(f"{laboratory.experiment}: choosing settings", trials)
    chosen: list[tuple[Mapping[str, float], str]] = []
    for i in range(len(runs)):
        part = found[i * len(pairs) : (i + 1) * len(pairs)]
        _, place, average = max(
            (values[average], -place, average)
            for place, values in enumerate(part)
            for average in ("last", "tail")
        )
        chosen.append((pairs[-place], average))
    finals = [
        job(run, "test", setting, seed)
        for run, (setting, _) in zip(runs, chosen, strict=True)
        for seed in range(seeds)
    ]
    scores = laboratory.run(f"{laboratory.experiment}: fits", finals)
    ends = (min(grid.learning_rates), max(grid.learning_rates))
    return [
        Outcome(
            run,
            setting,
            average,
            tuple(values[average] for values in scores[i * seeds : (i + 1) * seeds]),
            setting["learning_rate"] in ends,
        )
        for i, (run, (setting, average)) in enumerate(zip(runs, chosen, strict=True))
    ]


def _sigmas(
    laboratory: Laboratory,
    runs: Sequence[Run],
    tune_on: Mapping[str, Problem],
    test_on: Mapping[str, Problem],
    quick: bool,
) -> dict[tuple[Run, str], float]:
    """Return the noise multipliers of the amplified runs, which depend on the number of units."""
    keys, jobs = [], []
    for run in runs:
        for stage, problems in (("tune", tune_on), ("test", test_on)):
            if run.method != AMPLIFIED:
                continue
            problem = problems[run.unit]
            units = len(problem.y) if problem.users is None else problem.user_bounds.size - 1
            setting: dict[str, Any] = {
                "epsilon": run.epsilon,
                "delta": run.delta,
                "probability": run.batch_size / units,
                "steps": run.epochs * -(-units // run.batch_size),
                "accountant": "rdp" if quick else "pld",
            }
            keys.append((run, stage))
            jobs.append(Job({"stage": "sigma", **setting}, 0, partial(_sigma, **setting)))
    found = laboratory.run(f"{laboratory.experiment}: noise of the amplified runs", jobs)
    return {key: values["sigma"] for key, values in zip(keys, found, strict=True)}


def _sigma(**setting: Any) -> Values:
    return {"sigma": amplified_sigma(**setting)}
