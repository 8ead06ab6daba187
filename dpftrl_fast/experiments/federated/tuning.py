# SPDX-License-Identifier: Apache-2.0
"""The settings of each cell, by one rule for all methods, and the fits with them.

For each pair of a client rate and a clip norm the server rate is climbed to, by powers of two, one
fit each, on held-out training clients; the pair whose best fit is best is taken. The privacy cost
of tuning is left out for all methods alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from dpftrl_fast.experiments.climbing import climb
from dpftrl_fast.experiments.federated.clients import Population
from dpftrl_fast.experiments.federated.grid import MOMENTUM_GAIN, Grid
from dpftrl_fast.experiments.federated.methods import (
    Budget,
    Method,
    Setting,
    noise_multiplier_of,
    train,
)
from dpftrl_fast.experiments.fitted import TUNING_SEED, Cell, amplified_sigmas
from dpftrl_fast.experiments.fitted import Fitted as FittedCell
from dpftrl_fast.experiments.results import Values
from dpftrl_fast.experiments.study import Job, Laboratory

_LOWEST, _HIGHEST = -6, 12


class Stage(NamedTuple):
    """Clients for training and examples for testing, and their facts in rows of results."""

    name: str
    population: Population
    common: Mapping[str, Any]


@dataclass(frozen=True)
class Fitted(FittedCell):
    """A cell, its chosen settings and noise multiplier, and the accuracies of its fits."""

    setting: Setting
    noise: float

    @property
    def chosen(self) -> Mapping[str, float]:
        """Rates, clip norm and noise multiplier."""
        return {**vars(self.setting), "noise_multiplier": self.noise}


def tuned(
    laboratory: Laboratory, tune: Stage, test: Stage, grid: Grid, *, quick: bool = False
) -> list[Fitted]:
    """Choose settings for each cell, then fit with fresh seeds on all training clients.

    `quick` tries three server rates only, and computes the noise of amplified methods with the
    faster accountant.
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
            jobs.append(fit_job(*cells[cell], tune, setting, sigma, TUNING_SEED))
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
    fits = [*zip(cells, chosen, noise["test"], strict=True)]
    jobs = [partial(fit_job, *cell, test, setting, sigma) for cell, setting, sigma in fits]
    found = laboratory.repeat(f"{laboratory.experiment}: fits", jobs, grid.seeds)
    return [
        Fitted(cell, tuple(values["accuracy"] for values in part), setting, sigma)
        for (cell, setting, sigma), part in zip(fits, found, strict=True)
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
    clients, accountant = len(stage.population), "rdp" if quick else "pld"
    find = partial(noise_multiplier_of, clients=clients, quick=quick)
    wanted = {
        cell: (
            {"clients": clients, **vars(cell.budget), "accountant": accountant},
            partial(find, *cell),
        )
        for cell in cells
        if cell.method.kind == "amplified"
    }
    sigmas = amplified_sigmas(laboratory, "noise of amplified DP-FedAvg", wanted)
    return [sigmas[cell] if cell in sigmas else find(*cell) for cell in cells]
