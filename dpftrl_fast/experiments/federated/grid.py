# SPDX-License-Identifier: Apache-2.0
"""The methods, epsilons and network sizes that are run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from dpftrl_fast.experiments.federated.methods import Budget, Method
from dpftrl_fast.experiments.federated.network import UNKNOWN, Sizes
from dpftrl_fast.experiments.fitted import MOMENTUM, Cell, Size
from dpftrl_fast.mechanisms import Variant

DELTA = 1e-4

#: log2 of the number of steps without momentum that one step with momentum 0.9 stands for, about.
MOMENTUM_GAIN = 3.0

_HELD_OUT = 10  # one training client in so many is held out to choose settings by


class Grid(NamedTuple):
    """The runs on a data set.

    The vocabulary has `words` words and the special tokens. All pairs of client rates and clip
    norms are tried; `first_step` is the first guess of the server rate: log2 of rate times clip
    norm with momentum; without, it is `MOMENTUM_GAIN` more. There are `seeds` fits with the chosen
    settings. The first cell's method is that of the search for the largest noise, which meets the
    accuracies `targets`.
    """

    words: int
    sizes: Sizes
    most_examples: int
    client_rates: tuple[float, ...]
    clip_norms: tuple[float, ...]
    first_step: float
    seeds: int
    cells: tuple[Cell, ...]
    targets: tuple[float, ...]


def all_methods(passes: int) -> list[Method]:
    """Return all methods, each with and without momentum.

    FTRL with either variant, without restarts and restarted after each pass, and with the mechanism
    of the planner; DP-FedAvg, amplified or not.

    Examples
    --------
    >>> len(all_methods(6)), len(all_methods(1))
    (14, 10)
    """
    variants: tuple[Variant, ...] = ("honaker", "vanilla")
    restarts = (1, None) if passes > 1 else (None,)
    found = []
    for momentum in (MOMENTUM, 0.0):
        found += [Method("ftrl", momentum, r, v) for v, r in product(variants, restarts)]
        found += [
            Method("planned", momentum), Method("fixed", momentum), Method("amplified", momentum)
        ]  # fmt: skip
    return found


def grid(data: str, size: Size) -> Grid:
    """Return the runs on "shakespeare", "shakespeare-96" or "online-retail".

    The second is the first with the network and the examples of the full grid, at one epsilon.

    Examples
    --------
    >>> found = grid("shakespeare", "reduced")
    >>> found.sizes.parameters, len(found.cells)
    (59672, 26)
    """
    goal = {"online-retail": 165}.get(data, 78)  # 32 and 16 rounds a pass
    first_step = {"online-retail": 0.0}.get(data, -2.0)
    leading = [
        Method("ftrl", MOMENTUM, 1), Method("fixed", MOMENTUM), Method("amplified", MOMENTUM)
    ]  # fmt: skip
    planned = Method("planned", MOMENTUM)
    if size == "quick":
        cells = _cells(product([*leading, planned], (8.0, 16.0)), 10, 2)
        return Grid(100, Sizes(104, 8, 8, 8), 16, (1.0,), (0.3,), -2.0, 2, cells, (0.05,))
    sizes = Sizes(1000 + UNKNOWN + 1, 96, 128, 96)
    if data == "shakespeare-96":
        cells = _cells(product(leading, (8.0,)), goal, 4)
        return Grid(1000, sizes, 256, (1.0,), (0.3,), first_step, 3, cells, ())
    if size == "full":
        cells = _cells(product(all_methods(6), (2.0, 4.0, 8.0, 16.0)), goal, 6)
        rates, norms, targets = (0.5, 1.0, 2.0), (0.1, 0.3, 1.0), (0.06, 0.08, 0.1)
        return Grid(1000, sizes, 256, rates, norms, first_step, 3, cells, targets)
    sizes = Sizes(500 + UNKNOWN + 1, 32, 64, 32)
    if data == "online-retail":
        cells = _cells(product((leading[0], leading[2]), (8.0,)), goal, 4)
        return Grid(500, sizes, 64, (1.0,), (0.3,), first_step, 3, cells, ())
    compared = [*leading, planned]
    compared += [replace(method, momentum=0.0) for method in compared]
    others = [Method("ftrl", MOMENTUM, 1, "vanilla"), Method("ftrl", MOMENTUM)]
    pairs = [*product(compared, (4.0, 8.0, 16.0)), *product(others, (8.0,))]
    cells = _cells(pairs, goal, 4)
    return Grid(500, sizes, 64, (1.0,), (0.3,), first_step, 3, cells, (0.08,))


def _cells(pairs: Iterable[tuple[Method, float]], goal: int, passes: int) -> tuple[Cell, ...]:
    return tuple(Cell(method, Budget(epsilon, DELTA, goal, passes)) for method, epsilon in pairs)


def held_out(clients: int) -> int:
    """Return the number of training clients held out to choose settings."""
    return max(1, clients // _HELD_OUT)
