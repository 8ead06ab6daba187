# SPDX-License-Identifier: Apache-2.0
"""What all figures share: size, grid, colours, and the bytes of a PNG file."""

from __future__ import annotations

import io
from typing import Any

COLOURS = ("#08519c", "#e6550d", "#31a354", "#756bb1", "#636363", "#d6a100")


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
