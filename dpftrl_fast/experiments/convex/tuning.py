# SPDX-License-Identifier: Apache-2.0
"""The same tuning effort for every gradient method: one grid, compared on held-out training rows.

The privacy cost of tuning is left out for all methods alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from dpftrl_fast.accounting import dpsgd_noise_multiplier
from dpftrl_fast.experiments.convex.methods import AMPLIFIED, gradient_method
from dpftrl_fast.experiments.convex.problem import Problem
from dpftrl_fast.experiments.fitted import TUNING_SEED, amplified_sigmas, sampling
from dpftrl_fast.experiments.study import Job, Laboratory


class Grid(NamedTuple):
    """The configurations: all pairs, each with its last iterate and tail average."""

    clip_norms: tuple[float, ...]
    learning_rates: tuple[float, ...]


class Run(NamedTuple):
    """A method of `convex.methods` and its budget; the unit "row" or "user" is protected."""

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
    """The scores of a run on the test rows, one a seed, at the chosen setting and average.

    `average` is "last" or "tail"; `at_edge` says that the rate is at an end of the grid.
    """

    run: Run
    setting: Mapping[str, float]
    average: str
    scores: tuple[float, ...]
    at_edge: bool

    def to_dict(self) -> dict[str, Any]:
        """Return all facts, JSON-able."""
        chosen = {**self.setting, "average": self.average, "at_edge": self.at_edge}
        scores = {"median": statistics.median(self.scores), "scores": [*self.scores]}
        return {**self.run._asdict(), **chosen, **scores}


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

    Configurations are compared on the problem of the run's unit in `tune_on`, and the chosen one is
    scored on that in `test_on`. All rows of results have the facts `common`. `quick` computes the
    noise of amplified runs with the faster accountant.
    """
    wanted = {}
    for run in runs:
        for stage, problems in (("tune", tune_on), ("test", test_on)):
            if run.method == AMPLIFIED:
                row = sampling(run, problems[run.unit].units, quick=quick)
                wanted[run, stage] = row, partial(_sigma, row)
    sigmas = amplified_sigmas(laboratory, "noise of the amplified runs", wanted)

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
    trials = [job(run, "tune", setting, TUNING_SEED) for run in runs for setting in pairs]
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
        partial(job, run, "test", setting) for run, (setting, _) in zip(runs, chosen, strict=True)
    ]
    scores = laboratory.repeat(f"{laboratory.experiment}: fits", finals, seeds)
    ends = (min(grid.learning_rates), max(grid.learning_rates))
    return [
        Outcome(
            run,
            setting,
            average,
            tuple(values[average] for values in part),
            setting["learning_rate"] in ends,
        )
        for run, (setting, average), part in zip(runs, chosen, scores, strict=True)
    ]


def _sigma(setting: Mapping[str, Any]) -> float:
    given = dict(setting)
    return dpsgd_noise_multiplier(sampling_probability=given.pop("probability"), **given)
