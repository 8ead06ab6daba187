# SPDX-License-Identifier: Apache-2.0
"""Attacks on the low-order bits of noisy sums, which must not tell neighbours apart.

Each statistic is a number for one run: of the released vectors, of the sums of everybody else,
which the attacker knows, and of the public grid. An attack compares its mean over runs with a
record and without it. The record is so small that its sum under the noise cannot be told from zero.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
#: Runs of an attack: in every test run, and in the slow ones (`make attack` makes 10,000).
FEW, MANY = 60, int(os.environ.get("DPFTRL_ATTACK_RUNS", "200"))

#: (released vectors, sums of the others, grid) -> a number.
Statistic = Callable[[Array, Array, float], float]


def _off_the_lattice(values: Array) -> float:
    return float(np.mean(np.round(values * 2.0**50) / 2.0**50 != values))


def _trailing_zeros(values: Array) -> float:
    """Mean number of zeros at the end of the significands."""
    bits = np.frexp(values)[0] * 2.0**53
    whole = np.abs(bits).astype(np.int64) | (1 << 53)
    return float(np.mean(np.log2((whole & -whole).astype(float))))


def _small(released: Array, others: Array, grid: float) -> float:
    last = released[-1]
    near = last[np.abs(last) < 8 * grid]
    return _off_the_lattice(near) if near.size else 0.0


def _near_the_others(released: Array, others: Array, grid: float) -> float:
    return _trailing_zeros(released[-1] - others[-1])


def _between_steps(released: Array, others: Array, grid: float) -> float:
    change = np.diff(released, axis=0) - np.diff(others, axis=0)
    return _trailing_zeros(change)


def _parity(released: Array, others: Array, grid: float) -> float:
    return float(np.mean(np.floor(released[-1] / grid) % 2))


def _parities_of_steps(released: Array, others: Array, grid: float) -> float:
    return float(np.mean(np.floor(released.sum(axis=0) / grid) % 2))


def _place_in_four(released: Array, others: Array, grid: float) -> float:
    return float(np.mean(np.cos(released[-1] / grid * (math.pi / 2))))


STATISTICS: dict[str, Statistic] = {
    "small values": _small,
    "last places of all": lambda released, others, grid: _trailing_zeros(released[-1]),
    "known rest": _near_the_others,
    "known changes": _between_steps,
    "parity": _parity,
    "parity of several steps": _parities_of_steps,
    "place in four": _place_in_four,
}


def scores(
    run: Callable[[bool, int], tuple[Array, Array]], grid: float, runs: int
) -> dict[str, float]:
    """Return for each statistic the difference of its means, in standard errors.

    ``run(has_record, number)`` returns the released vectors, one a row, and the others' sums.
    Infinity means that the statistic is constant in each group, and another one.
    """
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in STATISTICS}
    for number in range(runs):
        released, others = run(bool(number % 2), number)
        assert np.isfinite(released).all()
        for name, statistic in STATISTICS.items():
            found[name][number % 2].append(statistic(released, others, grid))
    return {name: _score(*groups) for name, groups in found.items()}


def _score(without: list[float], with_: list[float]) -> float:
    difference = float(np.mean(with_) - np.mean(without))
    error = math.sqrt(np.var(without) / len(without) + np.var(with_) / len(with_))
    if error > 0.0:
        return abs(difference) / error
    return math.inf if difference else 0.0
