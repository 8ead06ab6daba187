# SPDX-License-Identifier: Apache-2.0
"""Curves over the steps: learning on a public test table, and the error of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpftrl_fast.plots.panels import COLOURS, empty_figure, png

# Longer curves are drawn in so many stretches: extremes and root mean square of each.
_STRETCHES = 200


class Curve(NamedTuple):
    """One line of a figure: its name, and a value a step."""

    label: str
    values: npt.NDArray[np.float64]


def learning_curve_png(
    steps: npt.ArrayLike,
    last: npt.ArrayLike,
    average: npt.ArrayLike | None = None,
    *,
    tail: float | None = None,
    reference: float | None = None,
    metric: str = "R^2",
    title: str = "",
) -> bytes:
    """Return a PNG file with the metric of the last iterate and of the average by step.

    Parameters
    ----------
    steps, last : array_like of shape (m,)
        Steps, and the metric of theta at these steps.
    average : array_like of shape (m,), optional
        The metric of the mean of all iterates.
    tail : float, optional
        The metric of the mean over the last half of the steps, drawn over that half.
    reference : float, optional
        The metric of a non-private fit, a dashed line.
    metric : str
        Its name; "R^2" is set with an exponent.
    title : str
        For example the guarantee.
    """
    x = np.asarray(steps, dtype=np.float64)
    y_last, y_average = _drawable(last), _drawable([] if average is None else average)
    line = None if tail is None else float(_drawable(tail))
    figure, (axes,) = empty_figure()
    if average is None:
        axes.plot(x, y_last, color="#08519c", linewidth=2.0, label="last model")
    else:
        axes.plot(x, y_last, color="#9ecae1", linewidth=1.2, label="last iterate")
        axes.plot(x, y_average, color="#08519c", linewidth=2.0, label="average")
    if tail is not None and line is not None:
        axes.plot(
            [x[-1] / 2, x[-1]], [line, line], color="#e6550d", linewidth=2.5,
            solid_capstyle="round", label=f"tail average: {_text(tail)}",
        )  # fmt: skip
    if reference is not None:
        axes.axhline(
            reference, color="#555555", linewidth=1.2, linestyle=(0, (5, 3)), zorder=1,
            label=f"non-private: {_text(reference)}",
        )  # fmt: skip
    shown = np.concatenate([y_last, y_average, [v for v in (line, reference) if v is not None]])
    shown = shown[np.isfinite(shown)]
    if shown.size:
        # the first steps may be far off: show from the lowest tenth down by one spread
        top, low = float(shown.max()), float(np.quantile(shown, 0.1))
        margin = max(top - low, 1e-3)
        axes.set_ylim(max(float(shown.min()), low - margin) - 0.05 * margin, top + 0.15 * margin)
    axes.set_xlim(0, x[-1] * 1.01)
    name = "$R^2$" if metric == "R^2" else metric
    axes.set_xlabel("step")
    axes.set_ylabel(f"{name} on the public test rows")
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(frameon=False, loc="lower right")
    return png(figure)


def error_curves_png(
    curves: Sequence[Curve], *, ylabel: str, title: str = "", legend: str = ""
) -> bytes:
    """Return a PNG file with errors by step: for long runs the root mean square, and the range.

    Curves, at least one, the best first, have finite values >= 0, one a step. Labels name for
    example the unit, the guarantee and the difference between the curves.
    """
    figure, (axes,) = empty_figure()
    steps = 1
    for i, (label, values) in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        steps = max(steps, values.size)
        edges = np.unique(np.linspace(0, values.size, _STRETCHES + 1).astype(np.int64))
        first, width = edges[:-1], np.diff(edges)
        x = first + (width + 1) / 2  # the middle of steps first + 1 .. first + width
        if values.size > _STRETCHES:
            low, high = np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        mean = np.sqrt(np.add.reduceat(values**2, first) / width)
        axes.plot(x, mean, color=colour, linewidth=1.8, label=label, zorder=3 - i / 100)
    axes.set_xlim(0, steps * 1.01)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    axes.set_title(title, loc="left", fontsize=9)
    axes.legend(frameon=False, loc="lower right", fontsize=9, title=legend, title_fontsize=9)
    return png(figure)


def _drawable(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return values, at least -1: nothing is to be seen below."""
    array = np.asarray(values, dtype=np.float64)
    return np.where(array < -1.0, -1.0, array)


def _text(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.1e}"
