# SPDX-License-Identifier: Apache-2.0
"""Histograms of scores, with the normal law that each is expected to have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpftrl_fast.plots.panels import COLOURS, empty_figure, png

_BINS = 60


class Histogram(NamedTuple):
    """One sample, at least one value, and the mean of its normal law with variance 1."""

    label: str
    values: npt.NDArray[np.float64]
    mean: float


def histograms_png(histograms: Sequence[Histogram], *, xlabel: str, title: str = "") -> bytes:
    """Return a PNG file with histograms as densities, at least one, and their normal laws."""
    figure, (axes,) = empty_figure()
    low = min(min(float(h.values.min()), h.mean - 4.0) for h in histograms)
    high = max(max(float(h.values.max()), h.mean + 4.0) for h in histograms)
    edges, x = np.linspace(low, high, _BINS + 1), np.linspace(low, high, 400)
    for i, (label, values, mean) in enumerate(histograms):
        colour = COLOURS[i % len(COLOURS)]
        axes.hist(values, edges, density=True, color=colour, alpha=0.35, label=label)
        axes.axvline(float(values.mean()), color=colour, linewidth=1.2, linestyle=(0, (5, 3)))
        law = np.exp(-0.5 * (x - mean) ** 2) / np.sqrt(2.0 * np.pi)
        axes.plot(x, law, color=colour, linewidth=1.8, label=f"{label}, expected")
    axes.set_xlabel(xlabel)
    axes.set_ylabel("density")
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    return png(figure)
