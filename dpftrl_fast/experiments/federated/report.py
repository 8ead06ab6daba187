# SPDX-License-Identifier: Apache-2.0
"""Tables and a figure of accuracies: means with standard deviations, the paper's claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dpftrl_fast.accounting.curve.rounding import fixed_up, short_up
from dpftrl_fast.experiments.federated.methods import Method
from dpftrl_fast.experiments.federated.search import Found, epsilons_at_goals
from dpftrl_fast.experiments.federated.tuning import Fitted
from dpftrl_fast.experiments.fitted import accuracy_lines, as_vanilla, by_epsilon, difference
from dpftrl_fast.experiments.study import Table
from dpftrl_fast.plots import Panel, panels_png

_FACTORS = (1, 2, 4, 16, 64)


def scores_table(title: str, fitted: Sequence[Fitted]) -> Table:
    """Return accuracies in percent: a method a row, an epsilon a column."""
    return by_epsilon(title, fitted, lambda one: f"{100 * one.mean:.2f} ({100 * one.std:.2f})")


def noise_table(title: str, fitted: Sequence[Fitted]) -> Table:
    """Return the noise multipliers."""
    return by_epsilon(title, fitted, lambda one: f"{one.noise:.2f}")


def settings_table(title: str, fitted: Sequence[Fitted]) -> Table:
    """Return the chosen server rates, client rates and clip norms."""
    return by_epsilon(
        title,
        fitted,
        lambda one: (
            f"2^{math.log2(one.setting.server_rate):.0f}, {one.setting.client_rate:g}, "
            f"{one.setting.clip_norm:g}"
        ),
    )


def claims_table(title: str, fitted: Sequence[Fitted]) -> Table:
    """Return the claims of the paper, one pair of cells a row.

    A row has the difference of the mean accuracies in percent, its standard error over the seeds,
    and whether it is above 0: "no difference" within two standard errors.
    """
    found = {(one.cell.method, one.cell.budget.epsilon): one for one in fitted}
    rows: list[tuple[str, ...]] = []
    for words, other in _CLAIMS.items():
        for (method, epsilon), one in found.items():
            compared = other(method)
            against = None if compared is None else found.get((compared, epsilon))
            if against is not None:
                name = f"{method.name}: {words}"
                rows.append((name, short_up(epsilon), *_compared(one, against)))
    return Table(title, ("", "epsilon", "difference", "its error", ""), rows)


def _averaging(other: Method) -> Callable[[Method], Method | None]:
    def compared(method: Method) -> Method | None:
        leading = Method("ftrl", method.momentum, 1)
        return replace(other, momentum=method.momentum) if method == leading else None

    return compared


def _leading_tree(method: Method) -> Method | None:
    return Method("ftrl", method.momentum, 1) if method.kind == "planned" else None


def _beside(other: Method) -> Callable[[Method], Method | None]:
    def compared(method: Method) -> Method | None:
        return replace(other, momentum=method.momentum) if method.kind == "planned" else None

    return compared


def _unrestarted(method: Method) -> Method | None:
    return replace(method, restart=None) if method.restart is not None else None


def _without_momentum(method: Method) -> Method | None:
    return replace(method, momentum=0.0) if method.momentum > 0.0 else None


#: Maps the words of a claim to the method that is compared with.
_CLAIMS: Mapping[str, Callable[[Method], Method | None]] = {
    "above DP-FedAvg, not amplified": _averaging(Method("fixed")),
    "above DP-FedAvg, amplified": _averaging(Method("amplified")),
    "above a tree for each pass": _leading_tree,
    "beside DP-FedAvg, not amplified": _beside(Method("fixed")),
    "beside DP-FedAvg, amplified": _beside(Method("amplified")),
    "above no momentum": _without_momentum,
    "above vanilla": as_vanilla,
    "above no restart": _unrestarted,
}


def _compared(one: Fitted, other: Fitted) -> tuple[str, str, str]:
    found, error = difference(one, other)
    word = "no difference" if abs(found) <= 2.0 * error else "yes" if found > 0 else "no"
    return f"{found:+.2f}", f"{error:.2f}", word


def search_tables(name: str, searches: Sequence[Found], clients: int) -> list[Table]:
    """Return the largest noise for each accuracy, and its epsilon with more clients."""
    if not searches:
        return []
    rows: list[tuple[str, ...]] = [
        (
            one.cell.method.name,
            f"{100 * one.target:g}",
            f"{one.noise:.2f}",
            f"{100 * one.accuracy:.2f}",
            f"{one.misses:.2f}",
            fixed_up(one.cell.budget.epsilon, 2),
        )
        for one in searches
    ]
    heading: tuple[str, ...] = (
        *("", "accuracy to meet", "largest noise"), *("accuracy", "too much noise", "epsilon")
    )  # fmt: skip
    tables = [Table(f"{name}: the largest noise that meets an accuracy in percent", heading, rows)]
    rows = [
        (
            f"{100 * one.target:g}",
            f"{row['clients']:,}",
            f"{row['report_goal']:,}",
            f"{row['noise_multiplier']:.2f}",
            fixed_up(row["epsilon"], 2),
        )
        for one in searches
        for row in epsilons_at_goals(one, clients, _FACTORS)
    ]
    heading = ("accuracy to meet", "clients", "report goal", "noise multiplier", "epsilon")
    tables.append(
        Table(f"{name}: the same noise on the mean of more clients, computed", heading, rows)
    )
    return tables


def figure(title: str, fitted: Sequence[Fitted]) -> bytes | None:
    """Return accuracy against epsilon as a PNG file, or None where no method has two epsilons."""
    lines = accuracy_lines(fitted)
    if not lines:
        return None
    return panels_png([Panel(title, "epsilon", "test accuracy", lines, log_x=True)])
