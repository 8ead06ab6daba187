# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals of the columns of a table: their units, their errors, and who sees them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpftrl_fast.fitting import LeastSquaresSettings, fit
from dpftrl_fast.fitting.intervals import Intervals
from dpftrl_fast.fitting.model_file import load_model, save_model
from dpftrl_fast.tables import TableReader
from dpftrl_fast.tables.schema import Schema

ROWS = 4000
TRUE = np.array([3.0, -2.0, 5.0])
SCHEMA: dict[str, Any] = {
    "rows": 1,
    "target": {"name": "y", "bounds": [-20, 60]},
    "columns": {
        "a": {"bounds": [0, 10]},
        "b": {"bounds": [-1, 1], "divisor": 0.8, "offset": -0.5},
        "c": {"categories": ["v"]},
    },
}


def drawn(rows: int = ROWS) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    x = np.column_stack(
        [rng.uniform(0, 10, rows), rng.uniform(-1, 1, rows), rng.random(rows) < 0.4]
    )
    return x, x @ TRUE + 7.0 + 1.5 * rng.normal(size=rows)


def table(path: Path, x: Any, y: Any, weights: Any = None) -> TableReader:
    w = np.ones(len(x)) if weights is None else weights
    cells = zip(x, y, w, strict=True)
    text = [f"{a},{b},{'v' if c else 'u'},{value},{one}" for (a, b, c), value, one in cells]
    path.write_text("\n".join(["a,b,c,y,w", *text]) + "\n", encoding="utf-8")
    schema = Schema.from_dict({**SCHEMA, "rows": len(x) + 50})
    return TableReader(path, schema if weights is None else schema.with_weights("w"))


def intervals(path: Path, x: Any, y: Any, weights: Any = None, **options: Any) -> Intervals:
    settings = LeastSquaresSettings(intervals=True, **options)
    found = fit(table(path, x, y, weights), settings).intervals
    assert found is not None
    return found


def test_with_little_noise_they_are_those_of_ordinary_least_squares(tmp_path: Path) -> None:
    x, y = drawn(100_000)
    found = intervals(tmp_path / "t.csv", x, y, epsilon=None, noise_multiplier=0.25, noise_seed=1)
    # By hand, with columns moved to their offsets: 5 of a, -0.5 of b.
    design = np.column_stack([x - [5.0, -0.5, 0.0], np.ones(len(x))])
    theta, left, *_ = np.linalg.lstsq(design, y, rcond=None)
    variance = left[0] / (len(x) - 4)
    stderr = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    assert found.names == ("a", "b", "c=v", "intercept") and found.reliable
    assert np.all(np.abs(found.estimate - theta) < 0.6 * stderr)
    np.testing.assert_allclose(found.stderr, stderr, rtol=0.03)
    assert found.residual_std == pytest.approx(math.sqrt(variance), rel=0.01)
    width = np.diff(found.ends, axis=1)[:, 0]
    np.testing.assert_allclose(width, 2 * 1.959964 * found.stderr, rtol=1e-6)


def test_with_noise_errors_are_as_large_as_stated(tmp_path: Path) -> None:
    x, y = drawn()
    truth = np.array([*TRUE, 7.0 + 3.0 * 5.0 + 2.0 * 0.5])
    scores = []
    for seed in range(60):
        found = intervals(
            tmp_path / "t.csv", x, y, epsilon=None, noise_multiplier=1.0, noise_seed=seed
        )
        assert found.reliable
        scores.append((found.estimate - truth) / found.stderr)
    # The noise is most of the error; the draw of the errors of y is common to all.
    rms = np.sqrt(np.mean(np.square(scores), axis=0))
    assert np.all((rms > 0.7) & (rms < 1.35))
    assert np.all(rms / 0.5 > 1.35)  # errors stated as half of these would be noticed


def test_weights_of_the_bound_are_those_of_all_rows_alike(tmp_path: Path) -> None:
    x, y = drawn()
    options: dict[str, Any] = {"epsilon": None, "noise_multiplier": 1.0, "noise_seed": 3}
    plain = intervals(tmp_path / "a.csv", x, y, **options)
    same = intervals(
        tmp_path / "b.csv", x, y, np.full(ROWS, 4.0), sample_weight_bound=4.0, **options
    )
    np.testing.assert_allclose(same.estimate, plain.estimate, rtol=1e-6)
    np.testing.assert_allclose(same.stderr, plain.stderr, rtol=1e-4)
    assert same.residual_std == pytest.approx(2.0 * plain.residual_std, rel=1e-4)
    # Rows of weight 0 are not there.
    w = np.where(np.arange(ROWS) < ROWS // 2, 1.0, 0.0)
    half = intervals(tmp_path / "c.csv", x, y, w, **options)
    first = intervals(tmp_path / "d.csv", x[: ROWS // 2], y[: ROWS // 2], **options)
    np.testing.assert_allclose(half.estimate, first.estimate, rtol=1e-5)
    np.testing.assert_allclose(half.stderr, first.stderr, rtol=1e-4)


def test_too_much_noise_has_infinite_intervals(tmp_path: Path) -> None:
    x, y = drawn()
    found = intervals(tmp_path / "t.csv", x, y, epsilon=0.001)
    assert not found.reliable and np.all(np.isinf(found.ends)) and np.all(np.isnan(found.estimate))
    facts = found.to_dict()
    assert facts["reliable"] is False and facts["residual_std"] is None
    assert facts["features"][0] == {
        "name": "a", "estimate": None, "standard_error": None, "low": None, "high": None,
    }  # fmt: skip


def test_the_model_file_has_them(tmp_path: Path) -> None:
    x, y = drawn()
    settings = LeastSquaresSettings(intervals=True)
    result = fit(table(tmp_path / "t.csv", x, y), settings)
    save_model(tmp_path / "m", result)
    facts = load_model(tmp_path / "m").facts
    assert facts == json.loads((tmp_path / "m/model.json").read_text())
    assert result.intervals is not None
    assert facts["confidence_intervals"] == result.intervals.to_dict()
    plain = fit(table(tmp_path / "t.csv", x, y), LeastSquaresSettings())
    assert plain.intervals is None and "confidence_intervals" not in save_model(
        tmp_path / "p", plain
    )
