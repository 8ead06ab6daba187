# SPDX-License-Identifier: Apache-2.0
"""A small table for the tests of `dpftrl_fast.fitting`, and what the steps of a fit sum up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpftrl_fast.convex.glm import fit as glm_fit
from dpftrl_fast.fitting import Settings, fit
from dpftrl_fast.tables import TableReader
from dpftrl_fast.tables.schema import Schema

ROWS, BATCH = 50, 8
LABELS = ["low", "mid", "high"]
REGRESSION: dict[str, Any] = {
    "rows": ROWS,
    "target": {"name": "y", "bounds": [-2, 2], "divisor": 1},
    "columns": {"a": {"bounds": [-1, 1]}, "c": {"categories": ["u", "v", "w"]}},
}
CLASSES: dict[str, Any] = {**REGRESSION, "target": {"name": "k", "categories": ["no", "yes"]}}
SEVERAL: dict[str, Any] = {**REGRESSION, "target": {"name": "m", "categories": LABELS}}
USERS: dict[str, Any] = {"users": 12, "group_column": "who"}

Array = np.ndarray[Any, np.dtype[Any]]
Lines = list[str]


def lines(seed: int = 0, rows: int = ROWS, users: int = 11) -> Lines:
    """Return rows a,c,y,k,m,who as text; some of their cells lie beyond the schemas."""
    rng = np.random.default_rng(seed)
    a = rng.uniform(-1.5, 1.5, rows)
    c = rng.choice(["u", "v", "w", "?"], rows)
    y = a + (c == "v") + 0.1 * rng.normal(size=rows)
    k = np.where(y > 0.3, "yes", "no")
    m = np.array(LABELS)[(y > -0.3).astype(int) + (y > 0.7)]
    who = rng.integers(users, size=rows)
    return [f"{a[i]},{c[i]},{y[i]},{k[i]},{m[i]},p{who[i]}" for i in range(rows)]


def table(path: Path, rows: Lines, schema: dict[str, Any] | None = None) -> TableReader:
    """Write the rows and open them."""
    path.write_text("\n".join(["a,c,y,k,m,who", *rows]) + "\n", encoding="utf-8")
    return TableReader(path, Schema.from_dict(REGRESSION if schema is None else schema))


def features(rows: Lines) -> tuple[Array, Array]:
    """Return features and target of good rows, by hand."""
    x, y = [], []
    for row in rows:
        a, c, target, *_ = row.split(",")
        one_hot = [float(c == name) for name in ("u", "v", "w")]
        x.append([min(max(float(a), -1.0), 1.0), *one_hot, 1.0])
        y.append(min(max(float(target), -2.0), 2.0))
    return np.array(x) / math.sqrt(3.0), np.array(y)


def clipped(gradient: Array, clip_norm: float) -> Array:
    """Return a gradient cut to the clip norm."""
    return gradient * min(1.0, clip_norm / max(float(np.linalg.norm(gradient)), 1e-300))


def gradient_sums(
    rows: TableReader,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    thetas: list[Array] | None = None,
) -> tuple[list[Array], list[Array], list[int]]:
    """Run a fit and return each step's sum, its theta and its number of rows.

    With `thetas` every step looks at these instead of its own, as the definition of the
    sensitivity of an adaptive mechanism asks.
    """
    sums: list[Array] = []
    used: list[Array] = []
    sizes: list[int] = []
    real = glm_fit.clipped_sum

    def spy(objective: Any, theta: Any, batch: Any, **options: Any) -> Any:
        theta = np.array(theta if thetas is None else thetas[len(used)])
        used.append(theta)
        out = real(objective, theta, batch, **options)
        sums.append(out.copy())
        sizes.append(len(batch.y))
        return out

    with monkeypatch.context() as patch:
        patch.setattr(glm_fit, "clipped_sum", spy)
        fit(rows, settings)
    return sums, used, sizes


#: Lines that are no rows, or rows that are no good: of any number of fields, with the user last.
GARBAGE = [
    "0,u,0,no,low,{}", "1e300,u,-1e300,yes,high,{}", "nan,u,nan,nan,nan,{}", ",,,,,{}", ",,,,,",
    "", "1", '"', '",', "1,2,3,4,5,6,7,8", "inf,v,2,yes,mid,{}", "-7,w,-7,no,mid,{}", "é,ü,,,,{}",
    "\x00",
]  # fmt: skip
