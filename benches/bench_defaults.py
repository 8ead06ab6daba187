# SPDX-License-Identifier: Apache-2.0
"""Scores of the estimators with nothing tuned, on ten data sets.

They stand beside the best of a grid that looks at the test rows, the model without privacy, and
diffprivlib. ``python benches/bench_defaults.py [--sets NAME ..] [--peer PYTHON]`` prints a table,
with PYTHON an interpreter that has diffprivlib.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from default_data import SETS, Table, tables
from sklearn.linear_model import LogisticRegression, Ridge

from dpftrl_fast.convex.method import default_method
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor

EPSILONS = (0.3, 1.0, 3.0)
SEEDS, LARGE_SEEDS = 5, 3  # of splits and keys; fewer from 60,000 rows on
_LARGE, _MOST_CELLS = 60_000, 10**8


def default(table: Table, epsilon: float) -> Any:
    """Return the estimator that from_schema would make, with nothing set but the facts."""
    facts: dict[str, Any] = {"epsilon": epsilon, "x_norm_bound": table.x_norm_bound}
    if table.y_bound is None:
        return DPFTRLClassifier(**facts, classes=np.unique(table.y))
    n, p = table.X.shape
    squares = default_method(n, p + 1, epsilon=epsilon, delta=1e-6) == "least-squares"
    cls = DPFTRLLeastSquares if squares else DPFTRLRegressor
    return cls(**facts, y_bound=table.y_bound)


def grid(table: Table, epsilon: float, fitted: Any) -> Iterator[Any]:
    """Yield estimators with settings around those of a default fit, and least squares."""
    facts = {"epsilon": epsilon, "x_norm_bound": table.x_norm_bound}
    if table.y_bound is not None:
        facts["y_bound"] = table.y_bound
        if table.X.shape[1] <= 1000:
            for factor in (0.5, 1.0, 2.0):
                for share in (0.6, 1.0):
                    norm = share * table.x_norm_bound
                    options = {**facts, "x_norm_bound": norm, "ridge_factor": factor}
                    yield DPFTRLLeastSquares(**options, long_rows="weight")
    cls: Any = DPFTRLRegressor
    if table.y_bound is None:
        cls, facts["classes"] = DPFTRLClassifier, np.unique(table.y)
    if isinstance(fitted, DPFTRLLeastSquares):
        fitted = cls(**facts).fit(table.X, table.y)
    for clip in (0.3, 1.0, 3.0):
        for rate in (0.1, 0.3, 1.0, 3.0, 10.0):
            yield cls(
                **facts,
                clip_norm=clip * fitted.clip_norm_,
                learning_rate=rate * fitted.learning_rate_ / clip,
                momentum=fitted.momentum_,
                batch_size=fitted.batch_size_,
                epochs=fitted.n_iter_,
            )


def plain(train: Table, test: Table) -> float:
    """Return the score of a model without privacy."""
    if train.y_bound is not None:
        return float(Ridge(alpha=1.0).fit(train.X, train.y).score(test.X, test.y))
    some = slice(None) if train.X.shape[1] < 500 else slice(0, 20_000)
    model = LogisticRegression(max_iter=300).fit(train.X[some], train.y[some])
    return float(model.score(test.X, test.y))


def peer(python: str, train: Table, test: Table, *epsilons: float) -> list[float | None]:
    """Return the best score of diffprivlib's models; None for too many cells as an array."""
    if np.prod(train.X.shape, dtype=float) > _MOST_CELLS:
        return [None] * len(epsilons)
    rows = [part.X.toarray() if scipy.sparse.issparse(part.X) else part.X for part in (train, test)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.npz")
        bound = {} if train.y_bound is None else {"y_bound": np.array(train.y_bound)}
        np.savez(
            file, X=rows[0], y=train.y, X_test=rows[1], y_test=test.y,
            x_norm_bound=train.x_norm_bound, **bound,
        )  # fmt: skip
        script = Path(__file__).with_name("peer_models.py")
        done = subprocess.run(
            [python, str(script), str(file), *map(str, epsilons)],
            capture_output=True,
            text=True,
            check=True,
        )
    lines = done.stdout.splitlines()[-len(epsilons) :]
    return [float(max(json.loads(line).values())) for line in lines]


def line(name: str, table: Table, epsilon: float, python: str | None) -> str:
    """Return the row of the table in docs/sklearn/defaults.md."""
    seeds = range(SEEDS if table.X.shape[0] < _LARGE else LARGE_SEEDS)
    splits = [table.split(seed) for seed in seeds]
    fitted = [default(train, epsilon).fit(train.X, train.y) for train, _ in splits]
    ours = [m.score(test.X, test.y) for m, (_, test) in zip(fitted, splits, strict=True)]
    searched = [
        [m.fit(train.X, train.y).score(test.X, test.y) for m in grid(train, epsilon, first)]
        for first, (train, test) in zip(fitted, splits, strict=True)
    ]
    tuned = float(np.median(searched, axis=0).max())
    private_free = np.median([plain(*split) for split in splits])
    others = [peer(python, *split, epsilon)[0] for split in splits[:3]] if python else [None]
    other = "-"
    if None not in others:
        score = float(np.median(np.array(others, dtype=float)))
        other = "below -1" if score < -1.0 else f"{score:.3f}"
    kind = "least squares" if isinstance(fitted[0], DPFTRLLeastSquares) else "DP-FTRL"
    n, p = splits[0][0].X.shape
    return (
        f"| {name} | {n:,} x {p:,} | {epsilon:g} | {kind}, {fitted[0].n_iter_} | "
        f"{np.median(ours):.3f} ({min(ours):.3f} to {max(ours):.3f}) | {tuned:.3f} | "
        f"{private_free:.3f} | {other} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="+", choices=[*SETS])
    parser.add_argument("--peer", help="interpreter that has diffprivlib")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, table in tables(given.sets):
        for epsilon in EPSILONS:
            print(line(name, table, epsilon, given.peer), flush=True)


if __name__ == "__main__":
    sys.exit(main())
