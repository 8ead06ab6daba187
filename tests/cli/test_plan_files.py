# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast epsilon --plan FILE``, and ``plan --sampling`` with a population."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run, run_json

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.mechanisms import Tree

ALL = ["plan", "--epsilon", 8, "--delta", 1e-5, "--steps-per-epoch", 20, "--epochs", 5]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    run(*ALL, "--max-vectors", 1, "--out", path, "--clip-norm", 0.3)
    return path


def test_epsilon_of_a_saved_plan(saved: Path) -> None:
    plan = PrivacyPlan.load(saved)
    assert not isinstance(plan.mechanism, Tree)
    facts = run_json("epsilon", "--plan", saved, "--delta", 1e-5)
    assert facts["epsilon"] == plan.epsilon(1e-5) and 7.9 < facts["epsilon"] <= 8
    assert facts["epsilon_replace_one"] == plan.epsilon(1e-5, neighbours="replace-one")
    assert (facts["steps"], facts["bound"]) == (100, "released")
    other = ["epsilon", "--plan", saved, "--noise-multiplier", 1.5, "--delta", 1e-5]
    facts = run_json(*other)
    assert facts["epsilon"] == plan.with_noise(1.5).epsilon(1e-5) != plan.epsilon(1e-5)
    assert facts["noise_multiplier"] == 1.5
    tree = ["epsilon", "--noise-multiplier", 5, "--steps-per-epoch", 20, "--epochs", 5]
    assert run_json(*tree)["sensitivity_squared"] != facts["sensitivity_squared"]
    text = " ".join(run(*other).stdout.split())
    assert "by zero)" in text and "by another)" in text and "a tree" not in text
    assert "all steps together" in text and 'mechanism a tree; "plan" ranks' in " ".join(
        run(*tree).stdout.split()
    )


@pytest.mark.parametrize(
    "option",
    [["--steps", 5], ["--batch-size", 1], ["--no-reshuffle"], ["--bound", "exact"],
     ["--complete", "none"], ["--restart-every", 5], ["--examples", 9]],
)  # fmt: skip
def test_a_plan_declares_the_whole_run(saved: Path, option: list[object]) -> None:
    result = run("epsilon", "--plan", saved, *option, code=2)
    name = str(option[0]).replace("--examples", "--rows").replace("--no-reshuffle", "--reshuffle")
    assert result.stderr == f"error: --plan declares the whole run, got {name} too\n"


def test_epsilon_needs_a_noise_or_a_plan(tmp_path: Path) -> None:
    result = run("epsilon", "--steps", 5, code=2)
    assert "one of --noise-multiplier and --plan must be given, got none" in result.stderr
    (tmp_path / "other.json").write_text('{"kind": "no plan"}', encoding="utf-8")
    assert run("epsilon", "--plan", tmp_path / "other.json", code=2).stderr.startswith("error: ")
    assert "nowhere.json" in run("epsilon", "--plan", "nowhere.json", code=2).stderr
    refused = run("epsilon", "--plan", tmp_path / "other.json", "--noise-multiplier", 0, code=2)
    assert refused.stdout == ""


USERS = ["plan", "--epsilon", 8, "--delta", 1e-5, "--steps", 200, "--max-participations", 2,
         "--min-separation", 80, "--max-vectors", 0, "--max-normals", 1]  # fmt: skip


def test_sampling_of_a_population_with_any_pattern() -> None:
    pytest.importorskip("dp_accounting", reason="needs the package dp-accounting")
    options = ["--sampling", "--population", 3000, "--batch-size", 30]
    row = next(x for x in run_json(*USERS, *options)["rows"] if x["needs_sampling"])
    assert row["noise_multiplier"] == acc.dpsgd_noise_multiplier(8, 1e-5, 0.01, 200)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sampling"], "--sampling needs --rows or --population, and --batch-size"),
        (["--population", 30, "--batch-size", 3], "--population needs --sampling"),
        (["--sampling", "--population", 30], "--population needs --batch-size"),
        (["--sampling", "--population", 30, "--batch-size", 31], "at most the population, 30"),
        (["--sampling", "--population", 0, "--batch-size", 1], "population must be an integer"),
    ],
)
def test_a_population_that_is_refused(options: list[object], words: str) -> None:
    assert words in run(*USERS, *options, code=2).stderr


def test_a_population_beside_rows_is_refused() -> None:
    rows = ["plan", "--epsilon", 8, "--rows", 40, "--batch-size", 4]
    text = run(*rows, "--sampling", "--population", 40, code=2).stderr
    assert "--population and --rows exclude each other" in text
