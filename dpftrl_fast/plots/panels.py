# SPDX-License-Identifier: Apache-2.0
"""Panels of lines with ranges: methods against a budget, measurements against a bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dpftrl_fast.plots.figure import COLOURS, empty_figure, png


class Line(NamedTuple):
    """One line: its name, its points, and the range about each; dashed for a bound."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False
    colour: int | None = None


class Panel(NamedTuple):
    """Lines on one pair of axes, and a horizontal line with its name."""

    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    reference: tuple[str, float] | None = None


def panels_png(panels: Sequence[Panel]) -> bytes:
    """Draw panels side by side.

    Parameters
    ----------
    panels : sequence of Panel
        At least one. Lines have finite points, above 0 on a logarithmic axis; those of the same
        label have the same colour.

    Returns
    -------
    bytes
        A PNG file.
    """
    figure, all_axes = empty_figure(len(panels))
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    for axes, panel in zip(all_axes, panels, strict=True):
        ticks: set[float] = set()
        for line in panel.lines:
            place = labels.index(line.label) if line.colour is None else line.colour
            colour = COLOURS[place % len(COLOURS)]
            axes.plot(
                line.x, line.y, color=colour, linewidth=1.8, label=line.label,
                linestyle=(0, (5, 3)) if line.dashed else "-", marker="" if line.dashed else "o",
                markersize=4,
            )  # fmt: skip
            if line.low:
                axes.fill_between(
                    line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0
                )
            ticks |= set(line.x)
        if panel.reference is not None:
            name, value = panel.reference
            axes.axhline(
                value, color="#555555", linewidth=1.2, linestyle=(0, (2, 2)), zorder=1, label=name
            )
        if panel.log_y:
            axes.set_yscale("log")
        if panel.log_x:
            axes.set_xscale("log")
            if len(ticks) <= 4:
                axes.set_xticks(sorted(ticks), [f"{tick:g}" for tick in sorted(ticks)])
                axes.set_xticks([], minor=True)
        axes.set_title(panel.title, loc="left", fontsize=10)
        axes.set_xlabel(panel.xlabel)
        axes.set_ylabel(panel.ylabel)
        names = [line.label for line in panel.lines]
        if panel is panels[0] or names != [line.label for line in panels[0].lines]:
            axes.legend(frameon=False, fontsize=8)
    return png(figure)
