# SPDX-License-Identifier: Apache-2.0
"""Lines over time with the bands of their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpftrl_fast.plots.panels import COLOURS, empty_figure, png


class Band(NamedTuple):
    """One line: its name, its points over times or numbers, and the interval at each."""

    label: str
    x: npt.NDArray[Any]
    y: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def bands_png(bands: Sequence[Band], *, ylabel: str, title: str = "", legend: str = "") -> bytes:
    """Return a PNG file with lines, and the band from `low` to `high` around each.

    The names stand beside the axes, where they cover no line, under the words `legend`.

    Examples
    --------
    >>> y = np.array([1.0, 2.0])
    >>> days = np.array(["2013-01-01", "2013-01-02"], "datetime64[D]")
    >>> bands_png([Band("EWR", days, y, y - 1, y + 1)], ylabel="departures")[1:4]
    b'PNG'
    """
    figure, (axes,) = empty_figure()
    for i, band in enumerate(bands):
        colour = COLOURS[i % len(COLOURS)]
        axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(band.x, band.y, color=colour, linewidth=1.2, label=band.label)
    if bands and bands[0].x.dtype.kind == "M":
        _mark_times(axes)
    axes.set_ylabel(ylabel)
    axes.set_title(title, loc="left", fontsize=9)
    if bands:
        figure.legend(
            loc="outside right upper", frameon=False, fontsize=8, title=legend, title_fontsize=8
        )
    return png(figure)


def _mark_times(axes: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator: Any = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
