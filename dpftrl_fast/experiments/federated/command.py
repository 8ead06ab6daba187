# SPDX-License-Identifier: Apache-2.0
"""Next-token prediction of clients, DP-FTRL beside DP-FedAvg: ``dpftrl-fast experiment federated``.

The paper's table of report goals is included; it needs no training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dpftrl_fast._validate import choice
from dpftrl_fast.experiments.convex.command import Finished, run_experiments
from dpftrl_fast.experiments.federated import report_goals
from dpftrl_fast.experiments.federated.clients import Population
from dpftrl_fast.experiments.federated.grid import Grid, grid, held_out
from dpftrl_fast.experiments.federated.items import load_online_retail
from dpftrl_fast.experiments.federated.methods import Method, ftrl_plan
from dpftrl_fast.experiments.federated.report import (
    claims_table,
    figure,
    noise_table,
    scores_table,
    search_tables,
    settings_table,
)
from dpftrl_fast.experiments.federated.search import Found, largest_noise
from dpftrl_fast.experiments.federated.text import Clients, load_shakespeare
from dpftrl_fast.experiments.federated.tuning import Stage, tuned
from dpftrl_fast.experiments.fitted import SIZES, Size, mechanisms_tables
from dpftrl_fast.experiments.study import Laboratory, Progress, Report, neighbours_table
from dpftrl_fast.kernels.blas_threads import one_blas_thread

#: Name of the experiment and the loader of its data, for a vocabulary of a given size.
FEDERATED: Mapping[str, Callable[[Path | None, int], Clients]] = {
    "shakespeare": load_shakespeare,
    "shakespeare-96": load_shakespeare,
    "online-retail": load_online_retail,
}

_QUICK_CLIENTS, _QUICK_TEST = 60, 60


def study(clients: Clients, laboratory: Laboratory, size: Size, plan: Grid) -> Report:
    """Compare the methods: accuracy against epsilon, the paper's claims, and the largest noise.

    Clients and grid `plan` have the same vocabulary; "quick" uses some dozen clients.
    """
    quick = size == "quick"
    if quick:
        clients = clients.first(_QUICK_CLIENTS, _QUICK_TEST)
    name = laboratory.experiment
    tune = _stage("tune", clients.validation(held_out(len(clients))), plan)
    test = _stage("test", clients, plan)
    fitted = tuned(laboratory, tune, test, plan, quick=quick)
    leading = [one for one in fitted if one.cell.method == plan.cells[0].method]
    found = [
        largest_noise(laboratory, test, leading, target, plan.seeds) for target in plan.targets
    ]
    searches: list[Found] = [one for one in found if one is not None]
    leader = plan.cells[0].method
    compared = [
        replace(method, momentum=momentum)
        for momentum in (leader.momentum, 0.0)
        for method in (leader, Method("planned"))
    ]
    plans = [
        (*one.cell, ftrl_plan(*one.cell, len(clients), 1.0, one.noise))
        for one in fitted
        if one.cell.method in compared
    ]
    tables = [
        scores_table(f"{name}: test accuracy in percent (standard deviation)", fitted),
        claims_table(f"{name}: differences in percent", fitted),
        noise_table(f"{name}: noise multipliers", fitted),
        settings_table(f"{name}: server rate, client rate, clip norm", fitted),
        *mechanisms_tables(f"{name}: noise in the smoothed running sum", plans),
        *search_tables(name, searches, len(clients)),
        neighbours_table((one.cell.budget.epsilon, one.cell.budget.delta) for one in fitted),
    ]
    drawn = figure(name, fitted)
    figures = {} if drawn is None else {f"federated_{name.replace('-', '_')}.png": drawn}
    data: list[Mapping[str, Any]] = [one.to_dict() for one in fitted]
    data += [one.to_dict() for one in searches]
    return Report(data, tables, figures)


def _stage(name: str, clients: Clients, plan: Grid) -> Stage:
    common = {
        "clients": len(clients),
        "test_examples": len(clients.test),
        "sizes": [*plan.sizes],
        "most_examples": plan.most_examples,
    }
    return Stage(name, Population(clients, plan.sizes, plan.most_examples), common)


def run_federated(
    names: Sequence[str],
    out: Path,
    *,
    data: Path | None = None,
    size: Size = "reduced",
    progress: Progress | None = None,
) -> Iterator[Finished]:
    """Run the federated experiments, as `dpftrl_fast.experiments.convex.command.run_experiments`.

    Names are those of `FEDERATED`, and "report-goals", the paper's table. All on one thread: a
    second one would not speed up such small matrix products, and would change sums.
    """
    choice("size", size, SIZES)

    def trained(
        name: str,
        load: Callable[[Path | None, int], Clients],
        folder: Path | None,
        laboratory: Laboratory,
        quick: bool,
    ) -> Report:
        plan = grid(name, size)
        with one_blas_thread():
            return study(load(folder, plan.words), laboratory, size, plan)

    def goals(folder: Path | None, laboratory: Laboratory, quick: bool) -> Report:
        return report_goals.study(laboratory, quick=quick)

    experiments: dict[str, Any] = {"report-goals": goals}
    experiments |= {name: partial(trained, name, load) for name, load in FEDERATED.items()}
    yield from run_experiments(
        names, out, data=data, quick=size == "quick", progress=progress, experiments=experiments
    )
