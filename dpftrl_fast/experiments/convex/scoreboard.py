# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of scores: medians, with the range over the seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from dpftrl_fast.accounting.curve.rounding import short_up
from dpftrl_fast.experiments.convex.tuning import Outcome
from dpftrl_fast.experiments.study import Table, grid_table
from dpftrl_fast.plots import Line, Panel


class Scored(NamedTuple):
    """The scores of a method at one position of an axis (an epsilon, a number of epochs)."""

    method: str
    place: float
    scores: tuple[float, ...]

    @property
    def text(self) -> str:
        """Median and range.

        Examples
        --------
        >>> Scored("m", 1.0, (0.5, 0.75, 0.25)).text
        '0.500 (0.250 to 0.750)'
        """
        middle = f"{statistics.median(self.scores):.3f}"
        if len(self.scores) == 1:
            return middle
        return f"{middle} ({min(self.scores):.3f} to {max(self.scores):.3f})"

    def to_dict(self, axis: str) -> dict[str, Any]:
        """Return all facts, JSON-able."""
        return {
            "method": self.method,
            axis: self.place,
            "median": statistics.median(self.scores),
            "scores": [*self.scores],
        }


def comparison(title: str, axis: str, scored: Sequence[Scored]) -> Table:
    """Return a table with a method a row and a position a column."""
    return grid_table(title, axis, [(s.method, s.place, s.text) for s in scored])


def panel(
    title: str,
    xlabel: str,
    ylabel: str,
    scored: Sequence[Scored],
    reference: tuple[str, float] | None = None,
) -> Panel:
    """Return a figure of the same scores."""
    lines = []
    for method in dict.fromkeys(s.method for s in scored):
        own = sorted((s for s in scored if s.method == method), key=lambda s: s.place)
        lines.append(
            Line(
                method,
                [s.place for s in own],
                [statistics.median(s.scores) for s in own],
                [min(s.scores) for s in own],
                [max(s.scores) for s in own],
            )
        )
    return Panel(title, xlabel, ylabel, lines, log_x=True, reference=reference)


def settings_table(title: str, outcomes: Sequence[Outcome]) -> Table:
    """Return the chosen settings of each run."""
    return Table(
        title,
        ("", "unit", "epsilon", "epochs", "clip norm", "learning rate", "model"),
        [
            (
                o.run.method, o.run.unit, short_up(o.run.epsilon), f"{o.run.epochs}",
                f"{o.setting['clip_norm']:g}",
                f"{o.setting['learning_rate']:g}{' (edge of the grid)' if o.at_edge else ''}",
                {"last": "last iterate", "tail": "tail average"}[o.average],
            )
            for o in outcomes
        ],
    )  # fmt: skip
