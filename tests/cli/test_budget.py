# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast budget`` and ``fit --budget``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json

from dpftrl_fast import PrivacyBudget
from dpftrl_fast.accounting import compose
from dpftrl_fast.cli import fit_run
from dpftrl_fast.fitting.model_file import load_model

SCHEMA = {
    "rows": 40,
    "target": {"name": "y", "bounds": [-2, 2]},
    "columns": {"a": {"bounds": [-1, 1]}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = ["a,y", *(f"{a:.4f},{a:.4f}" for a in rng.uniform(-1, 1, 40))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def fit(folder: Path, *more: object, out: str = "m", epsilon: float = 0.5) -> list[object]:
    return [
        *("fit", folder / "t.csv", "--schema", folder / "s.json", "--out", folder / out),
        *("--batch-size", 4, "--epsilon", epsilon, "--budget", folder / "b", *more),
    ]


def test_fits_are_charged_until_the_budget_is_spent(folder: Path) -> None:
    made = run_json("budget", "new", folder / "b", "--epsilon", 0.8)
    assert made == {"epsilon": 0.8, "delta": 1e-6, "neighbours": "zero-out", "spent": 0.0,
                    "remaining": 0.8, "fits": []}  # fmt: skip
    first = run_json(*fit(folder))["budget"]
    plan = load_model(folder / "m").plan
    assert first["spent"] == plan.epsilon(1e-6) and 0 < first["remaining"] < 0.8
    text = run(*fit(folder, "--method", "least-squares", out="m2")).stdout
    assert "Budget" in text and "of 0.8 spent at delta 1e-06, in 2 fits (zero-out)" in text
    assert "replace-one" in text and "one further fit may have epsilon" in text
    refused = run(*fit(folder, out="m3"), code=2)
    assert "all fits together must have at most the budget, epsilon 0.8" in refused.stderr
    assert not (folder / "m3").exists()
    shown = run_json("budget", "show", folder / "b")
    plans = [plan, load_model(folder / "m2").plan]
    assert shown["spent"] == compose(plans).epsilon(1e-6) <= 0.8
    assert [row["label"] for row in shown["fits"]] == [
        "fit ftrl, 40 records, epsilon 0.5, batch size 4, epochs 64",
        "fit least-squares, 40 records, epsilon 0.5, batch size 4, epochs 1",
    ]
    assert "fit least-squares" in run("budget", "show", folder / "b").stdout


def test_a_fit_is_charged_before_its_rows_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("budget", "new", folder / "b", "--epsilon", 1, "--neighbours", "replace-one")
    seen: list[int] = []

    def fails(*arguments: Any, **options: Any) -> None:
        seen.append(len(PrivacyBudget.open(folder / "b").table()))
        raise ValueError("the file ends in the middle")

    monkeypatch.setattr(fit_run, "fit", fails)
    run(*fit(folder, epsilon=0.2), code=2)
    run(*fit(folder, epsilon=0.9), code=2)  # refused before: seen is as it was
    assert seen == [1] and len(PrivacyBudget.open(folder / "b").table()) == 1
    assert PrivacyBudget.open(folder / "b").neighbours == "replace-one"


def test_wrong_calls(folder: Path) -> None:
    assert "no such file" in run(*fit(folder), code=2).stderr
    assert "no such file" in run("budget", "show", folder / "b", code=2).stderr
    run("budget", "new", folder / "b", "--epsilon", 1)
    before = (folder / "b").read_bytes()
    assert "never overwritten" in run("budget", "new", folder / "b", "--epsilon", 2, code=2).stderr
    assert "--noise-seed is not" in run(*fit(folder, "--noise-seed", 1), code=2).stderr
    other = run("budget", "show", folder / "t.csv", code=2).stderr
    assert "damaged or not the file of a budget: line 1" in other and "0." not in other
    assert "epsilon must be" in run("budget", "new", folder / "c", "--epsilon", -1, code=2).stderr
    assert (folder / "b").read_bytes() == before and not (folder / "c").exists()
    assert "budget" not in run_json(*[word for word in fit(folder) if word != "--budget"][:-1])


def sums(folder: Path, *more: object, epsilon: float = 0.3) -> list[object]:
    return [
        *("sum", folder / "t.csv", "--column", "a", "--bounds", -1, 1, "--rows", 40),
        *("--every", 10, "--epsilon", epsilon, "--out", folder / "sums.csv"),
        *("--budget", folder / "b", *more),
    ]


def test_sums_are_charged_before_their_rows_are_read(folder: Path) -> None:
    run("budget", "new", folder / "b", "--epsilon", 0.5)
    found = run_json(*sums(folder))
    assert found["budget"]["spent"] == found["epsilon"] <= 0.3
    (row,) = run_json("budget", "show", folder / "b")["fits"]
    assert row["label"] == "sum of 'a', 40 records, epsilon 0.3, 4 steps"
    refused = run(*sums(folder, "--force", epsilon=0.45), code=2)
    assert "all fits together must have at most the budget" in refused.stderr
    assert "--noise-seed is not" in run(*sums(folder, "--force", "--noise-seed", 1), code=2).stderr
    (folder / "t.csv").write_text("a,y\n" + "1,1\n" * 41)  # more rows than declared
    run(*sums(folder, "--force", epsilon=0.1), code=2)
    assert len(PrivacyBudget.open(folder / "b").table()) == 2  # it had begun
    (folder / "t.csv").write_text("a,y\n" + "1,1\n" * 40)
    assert "Budget" in run(*sums(folder, "--force", epsilon=0.1)).stdout
