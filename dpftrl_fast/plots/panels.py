# SPDX-License-Identifier: Apache-2.0
"""Panels of lines with ranges: methods against a budget, measurements against a bound."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

COLOURS = ("#08519c", "#e6550d", "#31a354", "#756bb1", "#636363", "#d6a100", "#c51b8a", "#17a2a2")


class Line(NamedTuple):
    """One line: its name, its points, and the range at each; dashed for a bound."""

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
    """Return a PNG file with panels, at least one, side by side.

    Lines have finite points, above 0 on a logarithmic axis; those of the same label have the same
    colour.
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


def empty_figure(panels: int = 1) -> tuple[Any, list[Any]]:
    """Return a figure and the axes of its panels, side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width = 7.2 if panels == 1 else min(4.8 * panels, 13.0)
    figure = Figure(figsize=(width, 4.4), dpi=150 if panels == 1 else 110, layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for axes in all_axes:
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure, all_axes


def png(figure: Any) -> bytes:
    """Return the figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
