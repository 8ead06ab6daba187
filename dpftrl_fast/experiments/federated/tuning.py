# SPDX-License-Identifier: Apache-2.0
"""The settings of each cell, by one rule for all methods, and the fits with them.

For each pair of a client rate and a clip norm the server rate is climbed to, by powers of two, one
fit each, on training clients kept out; the pair whose best fit is best is taken. What tuning costs
in privacy is left out for all methods alike.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from dpftrl_fast.experiments.climbing import climb
from dpftrl_fast.experiments.federated.clients import Population
from dpftrl_fast.experiments.federated.grid import MOMENTUM_GAIN, Cell, Grid
from dpftrl_fast.experiments.federated.methods import (
    Budget,
    Method,
    Setting,
    noise_multiplier_of,
    train,
)
from dpftrl_fast.experiments.results import Values
from dpftrl_fast.experiments.study import Job, Laboratory

_TUNING_SEED = 1000
_LOWEST, _HIGHEST = -6, 12


class Stage(NamedTuple):
    """Clients to train on and examples to test on, and what rows of results say of them.

    Attributes
    ----------
    name : {"tune", "test"}
    population : Population
    common : mapping
        Sizes of data and network.
    """

    name: str
    population: Population
    common: Mapping[str, Any]


class Fitted(NamedTuple):
    """A cell, the settings that were chosen for it, and its fits.

    Attributes
    ----------
    cell : Cell
    setting : Setting
    noise : float
        The noise multiplier.
    scores : tuple of float
        Accuracies, one a seed.
    """

    cell: Cell
    setting: Setting
    noise: float
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of the accuracies."""
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float:
        """Standard deviation of the accuracies over the seeds."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return everything, of what JSON knows."""
        method, budget = self.cell
        found = {"noise_multiplier": self.noise, "mean": self.mean, "std": self.std}
        return {
            **method.to_dict(),
            **vars(budget),
            **vars(self.setting),
            **found,
            "scores": [*self.scores],
        }


def tuned(
    laboratory: Laboratory, tune: Stage, test: Stage, grid: Grid, *, quick: bool = False
) -> list[Fitted]:
    """Choose settings for each cell, then fit with fresh seeds on all training clients.

    Parameters
    ----------
    laboratory : Laboratory
    tune, test : Stage
    grid : Grid
    quick : bool
        Try three server rates only, and find the noise of amplified methods with the faster
        accountant.
    """
    cells = grid.cells
    noise = {stage.name: _noise(laboratory, cells, stage, quick) for stage in (tune, test)}
    pairs = [*product(grid.client_rates, grid.clip_norms)]
    places = [(i, *pair) for i in range(len(cells)) for pair in pairs]

    def score(wanted: list[tuple[int, int]]) -> list[float]:
        jobs = []
        for place, exponent in wanted:
            cell, client_rate, clip_norm = places[place]
            setting = Setting(client_rate, clip_norm, 2.0**exponent)
            sigma = noise["tune"][cell]
            jobs.append(fit_job(*cells[cell], tune, setting, sigma, _TUNING_SEED))
        found = laboratory.run(f"{laboratory.experiment}: choosing rates", jobs)
        return [values["accuracy"] for values in found]

    first = [
        round(
            grid.first_step
            + (0.0 if cells[cell].method.momentum > 0.0 else MOMENTUM_GAIN)
            - math.log2(clip_norm)
        )
        for cell, _, clip_norm in places
    ]
    exponents = climb(score, first, lowest=_LOWEST, highest=_HIGHEST, rounds=1 if quick else None)
    best = score([*enumerate(exponents)])  # no new fits: all were made in climbing
    chosen = []
    for i in range(len(cells)):
        part = range(i * len(pairs), (i + 1) * len(pairs))
        place = max(part, key=lambda place: (best[place], -place))
        chosen.append(Setting(places[place][1], places[place][2], 2.0 ** exponents[place]))
    jobs = [
        fit_job(*cell, test, setting, sigma, seed)
        for cell, setting, sigma in zip(cells, chosen, noise["test"], strict=True)
        for seed in range(grid.seeds)
    ]
    found = laboratory.run(f"{laboratory.experiment}: fits", jobs)
    scores = [values["accuracy"] for values in found]
    return [
        Fitted(cell, chosen[i], noise["test"][i], tuple(scores[i * grid.seeds :][: grid.seeds]))
        for i, cell in enumerate(cells)
    ]


def fit_job(
    method: Method, budget: Budget, stage: Stage, setting: Setting, noise: float, seed: int
) -> Job:
    """Return one fit as a job of a laboratory."""
    row = {
        "stage": stage.name,
        **stage.common,
        **method.to_dict(),
        "report_goal": budget.report_goal,
        "passes": budget.passes,
        **vars(setting),
        "noise_multiplier": noise,
    }
    return Job(row, seed, partial(_fit, method, budget, stage.population, setting, noise, seed))


def _fit(*arguments: Any) -> Values:
    method, budget, population, setting, noise, seed = arguments
    return {"accuracy": train(method, budget, population, setting, noise=noise, seed=seed)}


def _noise(laboratory: Laboratory, cells: Sequence[Cell], stage: Stage, quick: bool) -> list[float]:
    """Return the noise multipliers of all cells; those of amplified ones are kept in results."""
    clients = len(stage.population)
    jobs, places, sigmas = [], [], [0.0] * len(cells)
    for place, (method, budget) in enumerate(cells):
        if method.kind != "amplified":
            sigmas[place] = noise_multiplier_of(method, budget, clients)
            continue
        row = {
            "stage": "sigma", "clients": clients, **vars(budget),
            "accountant": "rdp" if quick else "pld",
        }  # fmt: skip
        places.append(place)
        jobs.append(Job(row, 0, partial(_sigma, method, budget, clients, quick)))
    found = laboratory.run(f"{laboratory.experiment}: noise of amplified DP-FedAvg", jobs)
    for place, values in zip(places, found, strict=True):
        sigmas[place] = values["sigma"]
    return sigmas


def _sigma(method: Method, budget: Budget, clients: int, quick: bool) -> Values:
    return {"sigma": noise_multiplier_of(method, budget, clients, quick=quick)}
