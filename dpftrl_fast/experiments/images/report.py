# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of accuracies: means with standard deviations, and the paper's claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from dpftrl_fast.accounting.curve.rounding import short_up
from dpftrl_fast.experiments.fitted import (
    MOMENTUM,
    Cell,
    accuracy_lines,
    as_vanilla,
    by_epsilon,
    difference,
)
from dpftrl_fast.experiments.images.grid import LARGE_BATCH, Group
from dpftrl_fast.experiments.images.methods import Method
from dpftrl_fast.experiments.images.tuning import Fitted
from dpftrl_fast.experiments.study import Table
from dpftrl_fast.plots import Panel, panels_png


def scores_table(title: str, fitted: Sequence[Fitted]) -> Table:
    """Return accuracies in percent: a method a row, an epsilon a column."""
    return by_epsilon(title, fitted, _percent)


def settings_table(title: str, fitted: Sequence[Fitted]) -> Table:
    """Return the chosen learning rates, powers of two."""
    return by_epsilon(title, fitted, lambda one: f"2^{math.log2(one.learning_rate):.0f}")


class _Claim(NamedTuple):
    """A claim: `other` maps a method of FTRL to the one that it is compared with.

    The claim is "not below" with `at_least`, about the large batches and the largest epsilon only
    with `most`, and about no epsilon above `up_to`.
    """

    words: str
    other: Callable[[Method, Group], Method | None]
    at_least: bool = False
    most: bool = False
    up_to: float = math.inf


def leading_tree(group: Group, momentum: float = MOMENTUM) -> Method:
    """Return the method on trees that a group compares with others."""
    return Method("ftrl", momentum, group.restart, True)


def _leading(method: Method, group: Group) -> bool:
    return method == leading_tree(group, method.momentum)


def _sgd(kind: Literal["fixed", "amplified"]) -> Callable[[Method, Group], Method | None]:
    def other(method: Method, group: Group) -> Method | None:
        return Method(kind, method.momentum) if _leading(method, group) else None

    return other


def _leading_tree(method: Method, group: Group) -> Method | None:
    return leading_tree(group, method.momentum) if method.kind == "planned" else None


def _planned_beside(
    kind: Literal["fixed", "amplified"],
) -> Callable[[Method, Group], Method | None]:
    def other(method: Method, group: Group) -> Method | None:
        return Method(kind, method.momentum) if method.kind == "planned" else None

    return other


def _uncompleted(method: Method, group: Group) -> Method | None:
    completed = method.kind == "ftrl" and method.complete and method.restart == 1
    return replace(method, complete=False) if completed else None


_CLAIMS = (
    _Claim(
        "the planner's mechanism at least the tree, at every epsilon", _leading_tree, at_least=True
    ),
    _Claim("the planner's mechanism above the tree, at epsilon 1 to 4", _leading_tree, up_to=4.0),
    _Claim(
        "the planner's mechanism above DP-SGD over fixed batches, at every epsilon",
        _planned_beside("fixed"),
    ),
    _Claim(
        "the planner's mechanism at least amplified DP-SGD, at every epsilon",
        _planned_beside("amplified"),
        at_least=True,
    ),
    _Claim("DP-FTRL above DP-SGD over fixed batches, at every epsilon", _sgd("fixed")),
    _Claim(
        "at four times the batch DP-FTRL above amplified DP-SGD, at the largest epsilon",
        _sgd("amplified"),
        most=True,
    ),
    _Claim("Honaker at least vanilla", lambda method, _: as_vanilla(method), at_least=True),
    _Claim("completion helps at restart 1", _uncompleted),
)


class _Pair(NamedTuple):
    one: Fitted
    other: Fitted

    @property
    def word(self) -> str:
        found, error = difference(self.one, self.other)
        if abs(found) <= 2.0 * error:
            return "alike"
        return "above" if found > 0.0 else "below"


def _pairs(claim: _Claim, group: Group, fitted: Sequence[Fitted]) -> list[_Pair]:
    found = {one.cell: one for one in fitted}
    pairs = []
    for (method, budget), one in found.items():
        private = method.kind in ("ftrl", "planned")
        against = claim.other(method, group) if private else None
        other = None if against is None else found.get(Cell(against, budget))
        if other is not None:
            pairs.append(_Pair(one, other))
    return pairs


def claims_table(title: str, group: Group, fitted: Sequence[Fitted]) -> Table:
    """Return the claims, of the paper and about mechanisms, one a row, and whether they hold here.

    Two mean accuracies are alike within two standard errors of their difference. A claim "holds"
    where every pair of its cells is above (or, for "at least", none is below), "does not hold"
    where none is (where all are below), otherwise "holds in part". Claims without pairs are left
    out.
    """
    rows: list[tuple[str, ...]] = []
    for claim in _CLAIMS:
        pairs = [
            pair
            for pair in _pairs(claim, group, fitted)
            if pair.one.cell.budget.epsilon <= claim.up_to
        ]
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
    """Return the pairs of cells of the claims, at all epsilons.

    Mean accuracies in percent with their standard deviations over the seeds, and their difference
    with its standard error.
    """
    rows: list[tuple[str, ...]] = []
    pairs = (pair for claim in _CLAIMS for pair in _pairs(claim, group, fitted))
    for pair in dict.fromkeys(pairs):  # two claims can be about one pair
        one, other = pair.one, pair.other
        names = one.cell.method.name, other.cell.method.name, short_up(one.cell.budget.epsilon)
        found = "{:+.1f} ({:.1f})".format(*difference(one, other))
        rows.append((*names, _percent(one), _percent(other), found, pair.word))
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
    """Return the name without the variant, which is in the title of the panel."""
    return replace(method, variant="honaker").name


def _panels(title: str, fitted: Sequence[Fitted], label: Callable[[Method], str]) -> list[Panel]:
    lines = accuracy_lines(fitted, label)
    if len(lines) < 2:
        return []
    return [Panel(title, "epsilon", "test accuracy", lines, log_x=True)]
