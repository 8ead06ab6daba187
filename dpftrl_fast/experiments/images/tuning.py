# SPDX-License-Identifier: Apache-2.0
"""The learning rate of each cell, by one rule for all methods, and the fits with it.

Rates are powers of two. Three about a first guess are tried, one fit each, on images kept from
training; while the best of a cell has an untried neighbour, the neighbour is tried. The privacy
cost of tuning is left out for all methods alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dpftrl_fast.accounting import dpsgd_noise_multiplier
from dpftrl_fast.experiments.climbing import climb
from dpftrl_fast.experiments.fitted import TUNING_SEED, Cell, amplified_sigmas, sampling
from dpftrl_fast.experiments.fitted import Fitted as FittedCell
from dpftrl_fast.experiments.images.data import Images
from dpftrl_fast.experiments.images.methods import train
from dpftrl_fast.experiments.results import Values
from dpftrl_fast.experiments.study import Job, Laboratory

_FIRST = {True: -4, False: -1}  # with momentum, and without: exponents of two
_LOWEST, _HIGHEST = -12, 6


@dataclass(frozen=True)
class Fitted(FittedCell):
    """A cell, the rate that was chosen for it, and the accuracies of its fits, one a seed."""

    learning_rate: float

    @property
    def chosen(self) -> Mapping[str, float]:
        """The learning rate."""
        return {"learning_rate": self.learning_rate}


def tuned(
    laboratory: Laboratory,
    images: Images,
    cells: Sequence[Cell],
    *,
    held_out: int,
    seeds: int,
    quick: bool = False,
) -> list[Fitted]:
    """Choose a rate for each cell, then fit with fresh seeds on all training images.

    Rates are compared on `held_out` training images. `quick` tries three rates only, and computes
    the noise of amplified methods with the faster accountant.
    """
    stages = {"tune": images.validation(held_out), "test": images}
    wanted = {}
    for stage, part in stages.items():
        for place, (method, budget) in enumerate(cells):
            if method.kind == "amplified":
                row = sampling(budget, len(part.y), quick=quick)
                wanted[stage, place] = row, partial(_sigma, row)
    sigmas = amplified_sigmas(laboratory, "noise of amplified DP-SGD", wanted)

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
        sigma = sigmas.get((stage, place))
        return Job(setting, seed, partial(_fit, method, budget, part, rate, seed, sigma))

    def score(wanted: list[tuple[int, int]]) -> list[float]:
        jobs = [job(place, "tune", 2.0**k, TUNING_SEED) for place, k in wanted]
        found = laboratory.run(f"{laboratory.experiment}: choosing rates", jobs)
        return [values["accuracy"] for values in found]

    first = [_FIRST[cell.method.momentum > 0.0] for cell in cells]
    exponents = climb(score, first, lowest=_LOWEST, highest=_HIGHEST, rounds=1 if quick else None)
    rates = [2.0**k for k in exponents]
    jobs = [partial(job, place, "test", rate) for place, rate in enumerate(rates)]
    found = laboratory.repeat(f"{laboratory.experiment}: fits", jobs, seeds)
    return [
        Fitted(cell, tuple(values["accuracy"] for values in part), rate)
        for cell, part, rate in zip(cells, found, rates, strict=True)
    ]


def _fit(*arguments: Any) -> Values:
    method, budget, images, rate, seed, sigma = arguments
    return {"accuracy": train(method, budget, images, learning_rate=rate, seed=seed, sigma=sigma)}


def _sigma(setting: Mapping[str, Any]) -> float:
    given = dict(setting)
    return dpsgd_noise_multiplier(sampling_probability=given.pop("probability"), **given)
