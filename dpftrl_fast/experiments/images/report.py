# SPDX-License-Identifier: Apache-2.0
"""From accuracies to tables and figures: means with standard deviations, and the paper's claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from dpftrl_fast.experiments.epsilon_table import by_epsilon
from dpftrl_fast.experiments.images.grid import LARGE_BATCH, Cell, Group
from dpftrl_fast.experiments.images.methods import Method
from dpftrl_fast.experiments.images.tuning import Fitted
from dpftrl_fast.experiments.study import Table
from dpftrl_fast.plots import Line, Panel, panels_png


def scores_table(title: str, fitted: Sequence[Fitted]) -> Table:
    """Return accuracies in percent: a method a row, an epsilon a column."""
    return by_epsilon(title, fitted, _percent)


def settings_table(title: str, fitted: Sequence[Fitted]) -> Table:
    """Return the learning rates that were chosen, powers of two."""
    return by_epsilon(title, fitted, lambda one: f"2^{math.log2(one.learning_rate):.0f}")


class _Claim(NamedTuple):
    """A claim of the paper.

    Attributes
    ----------
    words : str
    other : callable
        From a method of FTRL to what it is compared with, or None.
    at_least : bool
        Whether it is enough not to be below.
    most : bool
        Whether the claim is about the large batches and the largest epsilon only.
    """

    words: str
    other: Callable[[Method, Group], Method | None]
    at_least: bool = False
    most: bool = False


def _leading(method: Method, group: Group) -> bool:
    return method == Method("ftrl", method.momentum, group.restart, True)


def _sgd(kind: Literal["fixed", "amplified"]) -> Callable[[Method, Group], Method | None]:
    def other(method: Method, group: Group) -> Method | None:
        return Method(kind, method.momentum) if _leading(method, group) else None

    return other


def _vanilla(method: Method, group: Group) -> Method | None:
    return None if method.variant == "vanilla" else replace(method, variant="vanilla")


def _uncompleted(method: Method, group: Group) -> Method | None:
    completed = method.complete and method.restart == 1
    return replace(method, complete=False) if completed else None


_CLAIMS = (
    _Claim("DP-FTRL above DP-SGD over fixed batches, at every epsilon", _sgd("fixed")),
    _Claim(
        "at four times the batch DP-FTRL above amplified DP-SGD, at the largest epsilon",
        _sgd("amplified"),
        most=True,
    ),
    _Claim("Honaker at least vanilla", _vanilla, at_least=True),
    _Claim("completion helps at restart 1", _uncompleted),
)


class _Pair(NamedTuple):
    one: Fitted
    other: Fitted

    @property
    def difference(self) -> float:
        return 100.0 * (self.one.mean - self.other.mean)

    @property
    def error(self) -> float:
        """Standard error of the difference."""
        return 100.0 * math.hypot(
            self.one.std / math.sqrt(len(self.one.scores)),
            self.other.std / math.sqrt(len(self.other.scores)),
        )

    @property
    def word(self) -> str:
        if abs(self.difference) <= 2.0 * self.error:
            return "alike"
        return "above" if self.difference > 0.0 else "below"


def _pairs(claim: _Claim, group: Group, fitted: Sequence[Fitted]) -> list[_Pair]:
    found = {one.cell: one for one in fitted}
    pairs = []
    for (method, budget), one in found.items():
        against = claim.other(method, group) if method.kind == "ftrl" else None
        other = None if against is None else found.get(Cell(against, budget))
        if other is not None:
            pairs.append(_Pair(one, other))
    return pairs


def claims_table(title: str, group: Group, fitted: Sequence[Fitted]) -> Table:
    """Return what the paper claims, one claim a row, and whether it held here.

    Two mean accuracies are alike within two standard errors of their difference. A claim "holds"
    where every pair of cells that it is about is above (or, for "at least", none is below), "does
    not hold" where none is (where all are below), else "holds in part". Claims without pairs are
    left out.
    """
    rows: list[tuple[str, ...]] = []
    for claim in _CLAIMS:
        pairs = _pairs(claim, group, fitted)
        if claim.most:
            largest = max((pair.one.cell.budget.epsilon for pair in pairs), default=0.0)
            pairs = [
                pair
                for pair in pairs
                if group.batch_size == LARGE_BATCH and pair.one.cell.budget.epsilon == largest
            ]
        if not pairs:
            continue
        words = [pair.word for pair in pairs]
        good = sum(word != "below" if claim.at_least else word == "above" for word in words)
        verdict = "holds" if good == len(words) else "holds in part" if good else "does not hold"
        counts = (str(words.count(word)) for word in ("above", "alike", "below"))
        rows.append((claim.words, verdict, *counts))
    return Table(title, ("", "", "above", "alike", "below"), rows)


def pairs_table(title: str, group: Group, fitted: Sequence[Fitted]) -> Table:
    """Return the pairs of cells that the claims are about, all of their epsilons.

    Mean accuracies in percent with their standard deviations over the seeds, and their difference
    with its standard error.
    """
    rows: list[tuple[str, ...]] = []
    for claim in _CLAIMS:
        for pair in _pairs(claim, group, fitted):
            rows.append(
                (
                    pair.one.cell.method.name,
                    pair.other.cell.method.name,
                    f"{pair.one.cell.budget.epsilon:g}",
                    _percent(pair.one),
                    _percent(pair.other),
                    f"{pair.difference:+.1f} ({pair.error:.1f})",
                    pair.word,
                )
            )
    return Table(
        title, ("", "beside", "epsilon", "accuracy", "that beside", "difference", ""), rows
    )


def _percent(one: Fitted) -> str:
    return f"{100 * one.mean:.1f} ({100 * one.std:.1f})"


def figures(name: str, parts: Sequence[tuple[Group, Sequence[Fitted]]]) -> dict[str, bytes]:
    """Return figures of accuracy against epsilon, as PNG files: methods, and schedules of FTRL.

    A panel has at least two lines, a line at least two epsilons.
    """
    methods: list[Panel] = []
    trees: list[Panel] = []
    for group, fitted in parts:
        drawn = [
            one
            for one in fitted
            if one.cell.method.kind != "ftrl" or _leading(one.cell.method, group)
        ]
        methods += _panels(group.title, drawn, lambda method: method.name)
        for variant in ("honaker", "vanilla"):
            drawn = [
                one
                for one in fitted
                if one.cell.method.kind == "ftrl"
                and one.cell.method.variant == variant
                and one.cell.method.momentum > 0.0
            ]
            trees += _panels(f"{variant}, {group.title}", drawn, _schedule)
    found = {}
    if methods:
        found[f"{name.replace('-', '_')}.png"] = panels_png(methods)
    if trees:
        found[f"{name.replace('-', '_')}_trees.png"] = panels_png(trees)
    return found


def _schedule(method: Method) -> str:
    """Return the name but for the variant, which the title of the panel says."""
    return replace(method, variant="honaker").name


def _panels(title: str, fitted: Sequence[Fitted], label: Callable[[Method], str]) -> list[Panel]:
    lines = []
    for method in dict.fromkeys(one.cell.method for one in fitted):
        own = sorted(
            (one for one in fitted if one.cell.method == method),
            key=lambda one: one.cell.budget.epsilon,
        )
        if len(own) < 2:
            continue
        lines.append(
            Line(
                label(method),
                [one.cell.budget.epsilon for one in own],
                [one.mean for one in own],
                [one.mean - one.std for one in own],
                [one.mean + one.std for one in own],
            )
        )
    if len(lines) < 2:
        return []
    return [Panel(title, "epsilon", "test accuracy", lines, log_x=True)]
