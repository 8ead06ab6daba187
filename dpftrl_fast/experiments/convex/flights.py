# SPDX-License-Identifier: Apache-2.0
"""The flights: two trees, one tree, one release at the end, DP-SGD and no privacy, by R^2."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from dpftrl_fast.datasets import FLIGHTS_HELD_OUT, flights
from dpftrl_fast.datasets.packages import file_in
from dpftrl_fast.experiments.convex.methods import (
    AMPLIFIED,
    FIXED,
    FTRL,
    PLANNED,
    gradient_method,
    least_squares,
)
from dpftrl_fast.experiments.convex.problem import Problem
from dpftrl_fast.experiments.convex.scoreboard import Scored, comparison, panel, settings_table
from dpftrl_fast.experiments.convex.tuning import Grid, Run, tuned
from dpftrl_fast.experiments.results import Values
from dpftrl_fast.experiments.study import Laboratory, Report, neighbours_table, seeded
from dpftrl_fast.plots import panels_png
from dpftrl_fast.tables import Encoder, TableReader
from dpftrl_fast.tables.schema import Schema

DELTA = 1e-6
BATCH = 256

_LS = "least squares, two trees"
_LS_PLAIN = "least squares, not completed"
_ONCE = "both sums, one release at the end"
_UNTUNED = "DP-FTRL, rate and clip norm untuned"
_CLIP = 0.3  # of the untuned fits: that of the demo


def load(data: Path | None, *, held_out: int = FLIGHTS_HELD_OUT) -> Problem:
    """Return the flights of the demo, whose rows have a constant column.

    The data are ``flights.csv.zip`` in `data`, or that of the installed package.
    """
    source = file_in(data, "flights.csv.zip")
    parts: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        paths = flights(folder, source=source, held_out=held_out)
        schema = Schema.load(paths["schema"])
        encoder = Encoder(schema)
        for name in ("train", "test"):
            blocks = [encoder.encode(block) for block in TableReader(paths[name], schema)]
            rows = [csr_array(b.matrix(schema.n_features)).astype(np.float32) for b in blocks]
            parts += [csr_array(vstack(rows)), np.concatenate([b.target for b in blocks])]
    X, y, Z, z = parts
    return Problem(X, y, Z, z)


def study(problem: Problem, laboratory: Laboratory, *, quick: bool = False) -> Report:
    """Compare the methods at epsilon 0.3, 1 and 3 in one pass, delta 1e-6.

    `quick` runs one epsilon, two seeds and a grid of two.
    """
    epsilons = (1.0,) if quick else (0.3, 1.0, 3.0)
    seeds = 2 if quick else 5
    grid = Grid((0.1, _CLIP), (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0))
    if quick:
        grid = Grid((_CLIP,), (1.0, 2.0))
    n = len(problem.y)
    batch = min(BATCH, n // 4)
    common = {"rows": n, "test_rows": len(problem.z), "batch_size": batch, "delta": DELTA}

    bare = laboratory.once(
        "flights: no privacy",
        {**common, "method": "ridge"},
        lambda: problem.score(problem.without_privacy()),
    )

    def untuned(**options: Any) -> Values:
        return gradient_method(
            FTRL, problem, batch_size=batch, epochs=1, clip_norm=_CLIP, learning_rate="auto",
            **options,
        )  # fmt: skip

    sums = partial(least_squares, problem)
    methods: dict[str, Callable[..., Values]] = {
        _LS: partial(sums, batch_size=batch, complete="auto"),
        _LS_PLAIN: partial(sums, batch_size=batch, complete=False),
        _UNTUNED: untuned,
        _ONCE: partial(sums, batch_size=n, complete=False),
    }
    jobs, places = [], []
    for epsilon in epsilons:
        for method, fit in methods.items():
            places.append((method, epsilon))
            fit = partial(fit, epsilon=epsilon, delta=DELTA)
            setting = {**common, "method": method, "epsilon": epsilon}
            jobs.append(seeded(setting, fit))
    found = laboratory.repeat("flights: fits", jobs, seeds)
    scored = [
        Scored(method, epsilon, tuple(v["tail" if method == _UNTUNED else "last"] for v in part))
        for (method, epsilon), part in zip(places, found, strict=True)
    ]
    runs = [
        Run(method, "row", epsilon, DELTA, batch, 1)
        for method in (FTRL, PLANNED, FIXED, AMPLIFIED)
        for epsilon in epsilons
    ]
    outcomes = tuned(
        laboratory, common, runs, grid, tune_on={"row": problem.validation(n // 6)},
        test_on={"row": problem}, seeds=seeds, quick=quick,
    )  # fmt: skip
    scored += [Scored(o.run.method, o.run.epsilon, o.scores) for o in outcomes]
    scored.sort(key=lambda s: _ORDER.index(s.method))
    reference = ("no privacy", bare)
    table = comparison(f"Flights, held-out R^2 (no privacy: {bare:.3f})", "epsilon", scored)
    drawn = [s for s in scored if s.method != _UNTUNED]
    figure = panels_png([panel("flights, one pass", "epsilon", "held-out $R^2$", drawn, reference)])
    return Report(
        [{"method": "no privacy", "median": bare}, *(s.to_dict("epsilon") for s in scored)],
        [
            table,
            settings_table("Flights, settings chosen", outcomes),
            neighbours_table((epsilon, DELTA) for epsilon in epsilons),
        ],
        {"convex_flights.png": figure},
    )


_ORDER = (_LS, _LS_PLAIN, FTRL, PLANNED, _UNTUNED, FIXED, AMPLIFIED, _ONCE)
