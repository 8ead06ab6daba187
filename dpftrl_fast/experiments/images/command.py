# SPDX-License-Identifier: Apache-2.0
"""The paper's network on images, DP-FTRL beside DP-SGD: ``dpftrl-fast experiment images``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpftrl_fast._validate import choice, positive_integer
from dpftrl_fast.experiments.convex.command import Finished, run_experiments
from dpftrl_fast.experiments.fitted import MOMENTUM, SIZES, Size, mechanisms_tables
from dpftrl_fast.experiments.images.data import Images, load_digits, load_fashion
from dpftrl_fast.experiments.images.grid import Group, groups
from dpftrl_fast.experiments.images.methods import Method, ftrl_plan
from dpftrl_fast.experiments.images.report import (
    claims_table,
    figures,
    leading_tree,
    pairs_table,
    scores_table,
    settings_table,
)
from dpftrl_fast.experiments.images.tuning import Fitted, tuned
from dpftrl_fast.experiments.study import Laboratory, Progress, Report, Table, neighbours_table

#: Name of the experiment and the loader of its data, in order.
IMAGES: Mapping[str, Callable[[Path | None], Images]] = {
    "images-fashion-mnist": load_fashion,
    "images-digits": load_digits,
}

_QUICK_ROWS, _QUICK_TEST_ROWS = 600, 200


def study(images: Images, laboratory: Laboratory, size: Size) -> Report:
    """Compare the methods: accuracy against epsilon, and the paper's claims.

    The experiment of the laboratory is one of `IMAGES`; "quick" uses some hundred images.
    """
    quick = size == "quick"
    if quick:
        rows, test_rows = slice(_QUICK_ROWS), slice(_QUICK_TEST_ROWS)
        images = Images(
            images.x[rows], images.y[rows], images.test_x[test_rows], images.test_y[test_rows]
        )
    name = laboratory.experiment
    held_out = len(images.y) // 6
    parts: list[tuple[Group, list[Fitted]]] = []
    data: list[Mapping[str, Any]] = []
    tables: list[Table] = []
    for group in groups(name.removeprefix("images-"), size):
        fitted = tuned(
            laboratory, images, group.cells, held_out=held_out, seeds=2 if quick else 5,
            quick=quick,
        )  # fmt: skip
        parts.append((group, fitted))
        data += [one.to_dict() for one in fitted]
        title = f"{name}, {group.title}"
        tables += [
            scores_table(f"{title}: test accuracy in percent (standard deviation)", fitted),
            claims_table(f"{title}: the paper's claims", group, fitted),
            pairs_table(f"{title}: pairs that the claims are about", group, fitted),
            settings_table(f"{title}: learning rates", fitted),
        ]
        plans = [
            (*one.cell, ftrl_plan(*one.cell, len(images.y)))
            for one in fitted
            if one.cell.method in (Method("planned", MOMENTUM), leading_tree(group))
        ]
        tables += mechanisms_tables(f"{title}: noise in the smoothed running sum", plans)
    budgets = [one.cell.budget for _, fitted in parts for one in fitted]
    tables.append(neighbours_table((each.epsilon, each.delta) for each in budgets))
    return Report(data, tables, figures(name, parts))


def run_images(
    names: Sequence[str],
    out: Path,
    *,
    data: Path | None = None,
    size: Size = "reduced",
    threads: int = 1,
    progress: Progress | None = None,
) -> Iterator[Finished]:
    """Run the experiments on images, as `dpftrl_fast.experiments.convex.command.run_experiments`.

    Sums, and so accuracies, can depend on the number of torch's threads.
    """
    choice("size", size, SIZES)
    positive_integer("threads", threads)

    def experiment(
        load: Callable[[Path | None], Images],
        folder: Path | None,
        laboratory: Laboratory,
        quick: bool,
    ) -> Report:
        with _threads(threads):
            return study(load(folder), laboratory, size)

    experiments = {name: partial(experiment, load) for name, load in IMAGES.items()}
    yield from run_experiments(
        names, out, data=data, quick=size == "quick", progress=progress, experiments=experiments
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
