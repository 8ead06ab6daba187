# SPDX-License-Identifier: Apache-2.0
"""Figures as PNG files."""

from dpftrl_fast.plots.curves import Curve, error_curves_png, learning_curve_png
from dpftrl_fast.plots.histograms import Histogram, histograms_png
from dpftrl_fast.plots.panels import Line, Panel, panels_png

__all__ = [
    "Curve",
    "Histogram",
    "Line",
    "Panel",
    "error_curves_png",
    "histograms_png",
    "learning_curve_png",
    "panels_png",
]
