# SPDX-License-Identifier: Apache-2.0
"""The learning rate of each cell, by one rule for all methods, and the fits with it.

Rates are powers of two. Three about a first guess are tried, one fit each, on pictures kept from
training; while the best of a cell has a neighbour that was not tried, the neighbour is. What tuning
costs in privacy is left out for all methods alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from dpftrl_fast.experiments.climbing import climb
from dpftrl_fast.experiments.convex.dpsgd import amplified_sigma
from dpftrl_fast.experiments.images.data import Images
from dpftrl_fast.experiments.images.grid import Cell
from dpftrl_fast.experiments.images.methods import train
from dpftrl_fast.experiments.results import Values
from dpftrl_fast.experiments.study import Job, Laboratory

_TUNING_SEED = 1000
_FIRST = {True: -4, False: -1}  # with momentum, and without: exponents of two
_LOWEST, _HIGHEST = -12, 6


class Fitted(NamedTuple):
    """A cell, the rate that was chosen for it, and the accuracies of its fits, one a seed."""

    cell: Cell
    learning_rate: float
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
        chosen = {"learning_rate": self.learning_rate, "mean": self.mean, "std": self.std}
        return {**method.to_dict(), **vars(budget), **chosen, "scores": [*self.scores]}


def tuned(
    laboratory: Laboratory,
    images: Images,
    cells: Sequence[Cell],
    *,
    held_out: int,
    seeds: int,
    quick: bool = False,
) -> list[Fitted]:
    """Choose a rate for each cell, then fit with fresh seeds on all training pictures.

    Parameters
    ----------
    laboratory : Laboratory
    images : Images
    cells : sequence of Cell
    held_out : int
        Training pictures by which rates are compared.
    seeds : int
        Fits with the chosen rate.
    quick : bool
        Try three rates only, and find the noise of amplified methods with the faster accountant.
    """
    stages = {"tune": images.validation(held_out), "test": images}
    sigmas = {
        stage: _sigmas(laboratory, cells, len(part.y), quick) for stage, part in stages.items()
    }

    def job(place: int, stage: str, rate: float, seed: int) -> Job:
        method, budget = cells[place]
        part = stages[stage]
        setting = {
            "rows": len(part.y),
            "test_rows": len(part.test_y),
            **method.to_dict(),
            **vars(budget),
            "learning_rate": rate,
            "stage": stage,
        }
        sigma = sigmas[stage][place]
        return Job(setting, seed, partial(_fit, method, budget, part, rate, seed, sigma))

    def score(wanted: list[tuple[int, int]]) -> list[float]:
        jobs = [job(place, "tune", 2.0**k, _TUNING_SEED) for place, k in wanted]
        found = laboratory.run(f"{laboratory.experiment}: choosing rates", jobs)
        return [values["accuracy"] for values in found]

    first = [_FIRST[cell.method.momentum > 0.0] for cell in cells]
    exponents = climb(score, first, lowest=_LOWEST, highest=_HIGHEST, rounds=1 if quick else None)
    rates = [2.0**k for k in exponents]
    jobs = [job(i, "test", rate, seed) for i, rate in enumerate(rates) for seed in range(seeds)]
    found = laboratory.run(f"{laboratory.experiment}: fits", jobs)
    scores = [values["accuracy"] for values in found]
    return [
        Fitted(cell, rate, tuple(scores[i * seeds : (i + 1) * seeds]))
        for i, (cell, rate) in enumerate(zip(cells, rates, strict=True))
    ]


def _fit(*arguments: Any) -> Values:
    method, budget, images, rate, seed, sigma = arguments
    return {"accuracy": train(method, budget, images, learning_rate=rate, seed=seed, sigma=sigma)}


def _sigmas(
    laboratory: Laboratory, cells: Sequence[Cell], examples: int, quick: bool
) -> list[float | None]:
    """Return the noise multipliers of the amplified cells, None for the others."""
    jobs, places = [], []
    for place, (method, budget) in enumerate(cells):
        if method.kind != "amplified":
            continue
        setting: dict[str, Any] = {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "probability": budget.batch_size / examples,
            "steps": budget.epochs * -(-examples // budget.batch_size),
            "accountant": "rdp" if quick else "pld",
        }
        places.append(place)
        jobs.append(Job({"stage": "sigma", **setting}, 0, partial(_sigma, **setting)))
    found = laboratory.run(f"{laboratory.experiment}: noise of amplified DP-SGD", jobs)
    sigmas: list[float | None] = [None] * len(cells)
    for place, values in zip(places, found, strict=True):
        sigmas[place] = values["sigma"]
    return sigmas


def _sigma(**setting: Any) -> Values:
    return {"sigma": amplified_sigma(**setting)}
