# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST as a multinomial regression on 784 pixels: DP-FTRL against DP-SGD, by accuracy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.datasets import fashion_mnist
from dpftrl_fast.datasets.packages import file_in
from dpftrl_fast.experiments.convex.methods import AMPLIFIED, FIXED, FTRL
from dpftrl_fast.experiments.convex.problem import Problem
from dpftrl_fast.experiments.convex.scoreboard import Scored, comparison, panel, settings_table
from dpftrl_fast.experiments.convex.tuning import Grid, Run, tuned
from dpftrl_fast.experiments.study import Laboratory, Report, neighbours_table
from dpftrl_fast.plots import panels_png

EPSILON = 3.0
DELTA = 1e-5
BATCH = 500

_CONSTANT = 0.3
_CLASSES = 10


def load(data: Path | None) -> Problem:
    """Return the images as rows of norm 1, from four files in `data` or the Debian package."""
    here = file_in(data, "*-idx3-ubyte.gz")
    images = fashion_mnist(None if here is None else here.parent)
    return Problem(
        _unit(images.images),
        images.labels.astype(np.float64),
        _unit(images.test_images),
        images.test_labels.astype(np.float64),
        classes=_CLASSES,
        constant=_CONSTANT,
    )


def _unit(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    rows = images.astype(np.float32)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.ascontiguousarray(rows / np.maximum(norms, 1.0), dtype=np.float32)


def study(problem: Problem, laboratory: Laboratory, *, quick: bool = False) -> Report:
    """Compare the methods at epsilon 3, delta 1e-5, after 1, 5 and 20 epochs.

    Each method tries the same configurations, one fit each, on the first five sixths of the
    training rows, compared on the others; the chosen one is fitted to all training rows. `quick`
    runs one epoch, two seeds and a grid of two.
    """
    epochs = (1,) if quick else (1, 5, 20)
    seeds = 2 if quick else 5
    grid = Grid((1.0,), (8.0, 32.0)) if quick else Grid((0.3, 1.0), tuple(
        2.0**k for k in range(1, 11)
    ))  # fmt: skip
    n = len(problem.y)
    batch = min(BATCH, n // 4)
    common = {"rows": n, "test_rows": len(problem.z), "constant": problem.constant}
    bare = laboratory.once(
        "Fashion-MNIST: no privacy",
        {**common, "method": "L-BFGS"},
        lambda: problem.score(problem.without_privacy(1.0)),
    )
    runs = [
        Run(method, "row", EPSILON, DELTA, batch, count)
        for method in (FTRL, FIXED, AMPLIFIED)
        for count in epochs
    ]
    outcomes = tuned(
        laboratory, common, runs, grid, tune_on={"row": problem.validation(n // 6)},
        test_on={"row": problem}, seeds=seeds, quick=quick,
    )  # fmt: skip
    scored = [Scored(o.run.method, float(o.run.epochs), o.scores) for o in outcomes]
    title = f"Fashion-MNIST, test accuracy at epsilon {EPSILON:g} (no privacy: {bare:.3f})"
    words = f"epsilon {EPSILON:g}, delta {DELTA:g}"
    figure = panels_png([panel(words, "epochs", "test accuracy", scored, ("no privacy", bare))])
    return Report(
        [{"method": "no privacy", "median": bare}, *(o.to_dict() for o in outcomes)],
        [
            comparison(title, "epochs", scored),
            settings_table("Fashion-MNIST, settings chosen", outcomes),
            neighbours_table([(EPSILON, DELTA)]),
        ],
        {"convex_fashion_mnist.png": figure},
    )
