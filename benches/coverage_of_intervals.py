# SPDX-License-Identifier: Apache-2.0
"""Coverage of the confidence intervals of `DPFTRLLeastSquares`, over simulated data sets.

`python benches/coverage_of_intervals.py 2000` prints the table of docs/sklearn/least_squares.md;
the number is that of data sets per line.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.linear_model import DPFTRLLeastSquares

Array = NDArray[np.float64]

#: Coefficients of the first columns, those of the others being 0; the intercept.
COEF, INTERCEPT = (0.4, -0.2, 0.1), 0.1


class Coverage(NamedTuple):
    """Shares of data sets whose interval held each coefficient, the intercept last."""

    shares: Array
    infinite: int
    half_widths: Array


def coverage(
    rows: int,
    columns: int,
    epsilon: float,
    repetitions: int,
    *,
    noise: float = 0.1,
    level: float = 0.95,
    seed: int = 0,
    **options: Any,
) -> Coverage:
    """Fit models to `repetitions` data sets of a linear model and count covered coefficients."""
    rng = np.random.default_rng(seed)
    truth = np.zeros(columns + 1)
    truth[: len(COEF)], truth[-1] = COEF, INTERCEPT
    covered, widths, infinite = np.zeros(columns + 1), np.zeros(columns + 1), 0
    for _ in range(repetitions):
        X = rng.uniform(-1, 1, (rows, columns))
        y = X @ truth[:-1] + truth[-1] + noise * rng.standard_normal(rows)
        model = DPFTRLLeastSquares(
            epsilon=epsilon, x_norm_bound=columns**0.5, y_bound=0.8 + 4 * noise,
            intervals=True,
            noise_seed=rng.bytes(32), **options,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the noise of the sum", UserWarning)
            found = model.fit(X, y).conf_int(level)
        ends = np.vstack([found.coef, found.intercept])
        if np.isfinite(ends).all():
            covered += (ends[:, 0] <= truth) & (truth <= ends[:, 1])
            widths += (ends[:, 1] - ends[:, 0]) / 2
        else:
            infinite += 1
    finite = max(repetitions - infinite, 1)
    return Coverage(covered / finite, infinite, widths / finite)


#: Rows, columns, epsilon, and the standard deviation of the errors.
CASES = (
    (3_000, 5, 0.5, 0.1),
    (3_000, 5, 1.0, 0.1),
    (20_000, 5, 1.0, 0.1),
    (20_000, 5, 1.0, 0.3),
    (100_000, 10, 3.0, 0.1),
)


def main() -> None:
    """Print the table."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print("| rows | columns | epsilon | errors | coverage | infinite | half-width |")
    print("|---|---|---|---|---|---|---|")
    for rows, columns, epsilon, noise in CASES:
        found = coverage(rows, columns, epsilon, repetitions, noise=noise)
        low, high = found.shares.min(), found.shares.max()
        print(
            f"| {rows:,} | {columns} | {epsilon:g} | {noise:g} | {low:.3f} to {high:.3f} "
            f"| {found.infinite} | {found.half_widths[:-1].mean():.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
