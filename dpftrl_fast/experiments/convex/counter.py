# SPDX-License-Identifier: Apache-2.0
"""A continual counter: the noise of mechanisms at one mu against the number of steps. No fits.

Each value is counted once, and the counter releases its running sum after every step. At mu = 1 the
standard deviation of the noise in it is that of unit noise times the square root of zeta, in units
of the largest value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.accounting.planner.lower_bound import nuclear_norm
from dpftrl_fast.accounting.planner.mechanisms import best_mechanism
from dpftrl_fast.accounting.sensitivity.squared import squared_of
from dpftrl_fast.experiments.results import Values
from dpftrl_fast.experiments.study import Job, Laboratory, Report, Table
from dpftrl_fast.mechanisms import Identity, Mechanism, Tree
from dpftrl_fast.mechanisms.run_error import mechanism_error
from dpftrl_fast.mechanisms.workload import Workload
from dpftrl_fast.plots import Line, Panel, panels_png

_INDEPENDENT = "independent noise"
_TREE = "tree, Honaker"
_VANILLA = "tree, vanilla"
_BUFFERS = "mechanism of the planner, 3 vectors at most"
_ROOT = "square root, all taps"
_BOUND = "lower bound"


def study(laboratory: Laboratory, *, quick: bool = False) -> Report:
    """Compute the noise of a counter of 10^2 to 10^6 steps; `quick` stops at 10^3."""
    places = [10**k for k in range(2, 4 if quick else 7)]
    jobs = [
        Job({"measure": name, "steps": steps}, 0, partial(work, steps))
        for name, work in _MEASURES.items()
        for steps in places
    ]
    found = iter(laboratory.run("counter: noise", jobs))
    data: list[Mapping[str, Any]] = [
        {"method": name, "steps": steps, **next(found)} for name in _MEASURES for steps in places
    ]
    longest = [row for row in data if row["steps"] == places[-1]]
    table = Table(
        f"A counter of {places[-1]:,} steps at mu = 1: noise in the running sum",
        ("", "root mean square", "largest", "vectors kept"),
        [
            (
                row["method"], f"{row['rms']:.2f}",
                *(("", "") if row["method"] == _BOUND
                  else (f"{row['worst']:.2f}", f"{row['vectors']:,.0f}")),
            )
            for row in longest
        ],
    )  # fmt: skip
    lines = [
        Line(
            name, places, [row["rms"] for row in data if row["method"] == name],
            dashed=name == _BOUND,
        )
        for name in _MEASURES
        if name != _INDEPENDENT
    ]  # fmt: skip
    panel = Panel("a counter, mu = 1", "steps", "noise, root mean square", lines, log_x=True)
    return Report(data, [table], {"convex_counter.png": panels_png([panel])})


def square_root_noise(steps: int) -> tuple[float, float]:
    """Return the root mean square and the largest noise of the square root with all taps, mu = 1.

    B and C are both the square root of the matrix of running sums, whose coefficients are those of
    (1 - x)^(-1/2).

    Examples
    --------
    >>> root, largest = square_root_noise(2)  # C has the rows (1, 0) and (1/2, 1)
    >>> round(root**2, 6), round(largest**2, 6)  # 1.25 (1 + 1.25)/2 and 1.25^2
    (1.40625, 1.5625)
    """
    j = np.arange(1, steps, dtype=np.float64)
    squares = np.cumprod(np.concatenate([[1.0], (2.0 * j - 1.0) / (2.0 * j)])) ** 2
    variance = np.cumsum(squares)
    zeta = float(variance[-1])
    return math.sqrt(zeta * float(variance.mean())), zeta


def _of(mechanism: Mechanism, vectors: int, steps: int) -> Values:
    pattern = SinglePass(steps)
    error = mechanism_error(mechanism, pattern, Workload())
    scale = math.sqrt(squared_of(mechanism.layout(steps), pattern, "released"))
    return {"rms": scale * error.rms, "worst": scale * error.worst, "vectors": vectors}


def _tree(mechanism: Tree, steps: int) -> Values:
    return _of(mechanism, math.floor(math.log2(steps)) + 2, steps)


def _planned(steps: int) -> Values:
    mechanism = best_mechanism(1.0, 1e-6, SinglePass(steps), max_vectors=3)
    return _of(mechanism, getattr(mechanism, "vectors", 0), steps)


def _square_root(steps: int) -> Values:
    rms, worst = square_root_noise(steps)
    return {"rms": rms, "worst": worst, "vectors": steps - 1}


def _lower_bound(steps: int) -> Values:
    norm = nuclear_norm(Workload(), steps)
    assert norm is not None  # of running sums it is known for every length
    return {"rms": norm / steps}


_MEASURES: Mapping[str, Callable[[int], Values]] = {
    _INDEPENDENT: partial(_of, Identity(), 0),
    _VANILLA: partial(_tree, Tree("vanilla")),
    _TREE: partial(_tree, Tree()),
    _BUFFERS: _planned,
    _ROOT: _square_root,
    _BOUND: _lower_bound,
}
