# SPDX-License-Identifier: Apache-2.0
"""The learning curve on a public test table, as a PNG."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt

__all__ = ["learning_curve_png"]


def learning_curve_png(
    steps: npt.ArrayLike,
    last: npt.ArrayLike,
    average: npt.ArrayLike,
    *,
    tail: float | None = None,
    reference: float | None = None,
    metric: str = "R^2",
    title: str = "",
) -> bytes:
    """Draw the metric of the last iterate and of the average against the step.

    Parameters
    ----------
    steps, last, average : array_like of shape (m,)
        Steps, and the metric of theta and of the mean of all iterates at these steps.
    tail : float, optional
        The metric of the mean over the last half of the steps, drawn over that half.
    reference : float, optional
        The metric of a non-private fit, a dashed line.
    metric : str
        Its name; "R^2" is set with an exponent.
    title : str
        Such as the guarantee.

    Returns
    -------
    bytes
        A PNG file.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    x = np.asarray(steps, dtype=np.float64)
    y_last, y_average = _drawable(last), _drawable(average)
    line = None if tail is None else float(_drawable(tail))
    figure = Figure(figsize=(7.2, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
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
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _drawable(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return values with those below -1, where nothing is left to see, at -1."""
    array = np.asarray(values, dtype=np.float64)
    return np.where(array < -1.0, -1.0, array)


def _text(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.1e}"
