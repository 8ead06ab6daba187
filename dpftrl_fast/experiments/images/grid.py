# SPDX-License-Identifier: Apache-2.0
"""The methods and epsilons that are run: the full grid, a reduced one, and a quick one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from dpftrl_fast.experiments.fitted import MOMENTUM, Cell, Size
from dpftrl_fast.experiments.images.methods import Budget, Method
from dpftrl_fast.mechanisms import Variant

DELTA = 1e-5

#: Examples of a batch; and of one four times as large, in runs of 20 epochs.
BATCH, LARGE_BATCH = 250, 1_000

_EPSILONS = (1.0, 2.0, 4.0, 8.0, 14.0, 20.0)
_RESTARTS = (1, 5, 20)


class Group(NamedTuple):
    """Cells with the same batch size and number of epochs.

    `restart` is that of the schedule of FTRL that is compared with DP-SGD, in epochs.
    """

    batch_size: int
    epochs: int
    cells: tuple[Cell, ...]
    restart: int

    @property
    def title(self) -> str:
        """Title in tables."""
        epochs = "epoch" if self.epochs == 1 else "epochs"
        return f"batches of {self.batch_size}, {self.epochs} {epochs}"


def all_methods(epochs: int) -> list[Method]:
    """Return all methods: each with and without momentum.

    FTRL with either variant, without restarts, and with restarts after 1, 5 and 20 epochs as far as
    the run has more, completed or not, and with the mechanism of the planner; DP-SGD over fixed
    batches and amplified.

    Examples
    --------
    >>> len(all_methods(5)), len(all_methods(20))
    (18, 26)
    """
    trees: list[tuple[int | None, bool]] = [
        (restart, complete)
        for restart in _RESTARTS
        if restart < epochs
        for complete in (True, False)
    ]
    variants: tuple[Variant, ...] = ("honaker", "vanilla")
    found = []
    for momentum in (MOMENTUM, 0.0):
        found += [
            Method("ftrl", momentum, restart, complete, variant)
            for variant, (restart, complete) in product(variants, (*trees, (None, False)))
        ]
        found += [
            Method("planned", momentum), Method("fixed", momentum), Method("amplified", momentum)
        ]  # fmt: skip
    return found


def groups(data: str, size: Size) -> list[Group]:
    """Return the cells that are run on "fashion-mnist" or "digits"."""
    ours, sgd = Method("ftrl", MOMENTUM, 1, True), Method("amplified", MOMENTUM)
    fixed, planned = Method("fixed", MOMENTUM), Method("planned", MOMENTUM)
    others = [
        Method("ftrl", MOMENTUM, 1, True, "vanilla"),
        Method("ftrl", MOMENTUM, 1, False),
        Method("ftrl", MOMENTUM),
    ]
    if size == "quick":
        return [_group(100, 2, product([planned, ours, *others[:2], fixed, sgd], (4.0, 20.0)), 1)]
    if size == "full":
        return [
            _group(BATCH, 5, product(all_methods(5), _EPSILONS), 1),
            _group(LARGE_BATCH, 20, product(all_methods(20), _EPSILONS), 5),
        ]
    if data == "digits":
        return [_group(BATCH, 5, product(all_methods(5), (4.0, 20.0)), 1)]
    pairs = [*product((planned, ours, fixed, sgd), (1.0, 4.0, 20.0)), *product(others, (4.0,))]
    return [
        _group(BATCH, 5, pairs, 1),
        _group(LARGE_BATCH, 20, product((Method("ftrl", MOMENTUM, 5, True), sgd), (20.0,)), 5),
    ]


def _group(
    batch_size: int, epochs: int, pairs: Iterable[tuple[Method, float]], restart: int
) -> Group:
    cells = tuple(
        Cell(method, Budget(epsilon, DELTA, batch_size, epochs)) for method, epsilon in pairs
    )
    return Group(batch_size, epochs, cells, restart)
