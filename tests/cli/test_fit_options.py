# SPDX-License-Identifier: Apache-2.0
"""Options of ``dpftrl-fast fit``: ridge penalty, confidence intervals, weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json

from dpftrl_fast.fitting.model_file import load_model

COLUMNS = {"a": {"bounds": [0, 10]}, "b": {"bounds": [-1, 1]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, rng = tmp_path_factory.mktemp("fit"), np.random.default_rng(0)
    text = ["a,b,y,k,w"]
    for _ in range(3000):
        a, b, w = rng.uniform(0, 10), rng.uniform(-1, 1), rng.uniform(0, 2)
        y = 3 * a - 2 * b + rng.normal()
        text.append(f"{a},{b},{y},{'yes' if y > 15 else 'no'},{w}")
    (made / "t.csv").write_text("\n".join(text) + "\n")
    for name, target in (("y", {"bounds": [-5, 35]}), ("k", {"categories": ["no", "yes"]})):
        schema = {"rows": 3000, "target": {"name": name, **target}, "columns": COLUMNS}
        (made / f"{name}.json").write_text(json.dumps(schema))
    return made


def fit(folder: Path, schema: str, *more: object) -> list[object]:
    return ["fit", folder / "t.csv", "--schema", folder / f"{schema}.json",
            "--out", folder / "m", "--force", *more]  # fmt: skip


def test_confidence_intervals_are_printed_and_saved(folder: Path) -> None:
    words = fit(folder, "y", "--confidence-intervals", "--epsilon", 20, "--noise-seed", 1)
    printed = run(*words).stdout
    assert "Without a ridge" in printed and "95% interval" in printed
    facts = run_json(*words)
    assert facts["settings"]["method"] == "least-squares"
    found = facts["confidence_intervals"]
    assert found == load_model(folder / "m").facts["confidence_intervals"]
    assert [one["name"] for one in found["features"]] == ["a", "b", "intercept"]
    for one, truth in zip(found["features"], (3.0, -2.0, 15.0), strict=True):
        assert abs(one["estimate"] - truth) < 4 * one["standard_error"]
        assert one["low"] < one["estimate"] < one["high"]
        assert f"{one['estimate']:.4g}" in printed and f"{one['high']:.4g}" in printed
    # The noise of the sum of y x is larger for them, at the same epsilon.
    plain = run_json(*fit(folder, "y", "--method", "least-squares", "--epsilon", 20))
    assert "confidence_intervals" not in plain and plain["epsilon"] <= 20 >= facts["epsilon"]
    assert facts["plan"]["squares"] == 0.25 and plain["plan"].get("squares", 0.0) == 0.0


def test_intervals_that_noise_hides_are_announced(folder: Path) -> None:
    done = run(*fit(folder, "y", "--confidence-intervals", "--epsilon", 0.001))
    assert "warning: the noise is too large for confidence intervals" in done.stderr
    assert "inf" in done.stdout


def test_the_ridge_penalty(folder: Path) -> None:
    sizes = []
    for alpha in (0, 1e6):
        facts = run_json(*fit(folder, "y", "--alpha", alpha, "--noise-seed", 1, "--epsilon", 20))
        assert facts["settings"]["method"] == "least-squares"
        assert facts["settings"]["alpha"] == alpha
        *features, intercept = load_model(folder / "m").coefficients["last"]
        sizes.append((float(np.linalg.norm(features)), abs(float(intercept))))
    assert sizes[1][0] < 0.01 * sizes[0][0] and sizes[1][1] > 0.1 * sizes[0][1] > 0.0


def test_weights(folder: Path) -> None:
    facts = run_json(*fit(folder, "y", "--weight", "w", "--weight-bound", 2))
    assert facts["settings"]["method"] == "least-squares"
    assert facts["settings"]["sample_weight_bound"] == 2.0
    assert facts["schema"]["weight_column"] == "w"
    facts = run_json(*fit(folder, "k", "--weight", "w", "--class-weight", "yes=3",
                          "--class-weight", "no=0.5"))  # fmt: skip
    assert facts["settings"]["class_weight"] == {"yes": 3.0, "no": 0.5}
    assert run_json("predict", folder / "m", folder / "t.csv", "--out", folder / "p.csv", "--force")
    counts = run_json(*fit(folder, "k", "--weight", "w", "--validate"))
    assert counts["columns"]["w"] == {"missing": 0, "negative": 0}


@pytest.mark.parametrize(
    ("schema", "words", "message"),
    [
        ("y", ["--alpha", -1], "alpha must be"),
        ("y", ["--alpha", 1, "--method", "ftrl"], "--alpha needs --method least-squares"),
        ("y", ["--confidence-intervals", "--method", "ftrl"], "--confidence-intervals needs"),
        ("y", ["--weight-bound", 2, "--method", "ftrl"], "--weight-bound needs --method"),
        ("y", ["--weight-bound", 2], "needs a column of weights"),
        ("y", ["--weight-bound", 0, "--weight", "w"], "sample_weight_bound must be"),
        ("y", ["--weight", "y"], "another column than the target"),
        ("y", ["--weight", "z"], "expected one column 'z'"),
        ("k", ["--confidence-intervals"], "least squares needs a numeric target"),
        ("y", ["--class-weight", "yes=2"], "class_weight must be None for a numeric target"),
        ("k", ["--class-weight", "maybe=2"], "labels of ['no', 'yes'] as keys, got 'maybe'"),
        ("k", ["--class-weight", "yes=-2"], "class_weight must be"),
        ("k", ["--class-weight", "yes"], "--class-weight must be LABEL=WEIGHT, got 'yes'"),
        ("k", ["--class-weight", "yes=two"], "--class-weight must be LABEL=WEIGHT"),
        ("k", ["--class-weight", "yes=1", "--class-weight", "yes=2"], "'yes' twice"),
    ],
)
def test_wrong_options(folder: Path, schema: str, words: list[Any], message: str) -> None:
    assert message in run(*fit(folder, schema, *words), code=2).stderr
