# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints, what it refuses, and that Ctrl-C leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json
from noise_oracle import noise_of_sums
from processes import child

import dpftrl_fast
from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.cli.output import rounded_up
from dpftrl_fast.fitting.model_file import load_model
from dpftrl_fast.mechanisms import ToeplitzMechanism, Tree, mechanism_from_dict
from dpftrl_fast.reference.stream import key_from_seed

SCHEMA: dict[str, Any] = {
    "rows": 40,
    "target": {"name": "y", "bounds": [-2, 2]},
    "columns": {"a": {"bounds": [-1, 1]}, "c": {"categories": ["u", "v"]}},
}


def write(tmp_path: Path, rows: int = 40, name: str = "t.csv", seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    text = ["a,c,y"]
    for _ in range(rows):
        a, c = rng.uniform(-1, 1), "uv"[rng.integers(2)]
        text.append(f"{a:.6f},{c},{a + (c == 'v'):.6f}")
    (tmp_path / name).write_text("\n".join(text) + "\n", encoding="utf-8")
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    return tmp_path / name


def fit_arguments(tmp_path: Path, **change: object) -> list[object]:
    options: dict[str, object] = {
        "schema": tmp_path / "s.json",
        "out": tmp_path / "m",
        "batch-size": 4,
        "delta": 1e-3,
        **change,
    }
    return ["fit", tmp_path / "t.csv", *(x for k, v in options.items() for x in (f"--{k}", v))]


def test_fit_prints_its_guarantee_and_writes_a_model(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, 30, "test.csv", seed=1)
    options = {"test-public": tmp_path / "test.csv", "mechanism": "tree", "epochs": 1}
    output = run(*fit_arguments(tmp_path, **options)).stdout
    words = (
        "epsilon",
        "one record replaced by zero",
        "replace-one",
        "delta",
        "sigma",
        "zeta",
        "3.4942  ",
    )
    for word in (*words, "R^2, tail average", "learning_curve.png", "10 steps"):
        assert word in output
    assert "ridge" not in output  # nothing without privacy unless it is asked for
    assert sorted(os.listdir(tmp_path / "m")) == ["learning_curve.png", "model.json", "model.npz"]
    assert set(load_model(tmp_path / "m").facts["public_test"]) == {
        "tail average",
        "average",
        "last",
    }


def test_fit_as_json(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, 30, "test.csv", seed=1)
    options = fit_arguments(
        tmp_path, **{"test-public": tmp_path / "test.csv", "noise-seed": 5, "epochs": 1}
    )
    facts = run_json(*options, "--these-rows-are-public")
    assert facts["epsilon"] <= 1.0
    chosen = PrivacyPlan.from_dict(load_model(tmp_path / "m").facts["plan"])
    assert facts["sensitivity_squared"] == chosen.sensitivity_squared
    assert facts["sensitivity_squared"] < accounting.sensitivity_squared(
        accounting.SinglePass(10), bound="released"
    )
    assert facts["marks"] == ["reproducible, not private"]
    assert facts["metric"] == "R^2" and "non-private ridge" in facts["scores"]
    assert "non-private ridge" not in load_model(tmp_path / "m").facts["public_test"]


def test_fit_says_that_a_seeded_run_is_not_private(tmp_path: Path) -> None:
    write(tmp_path)
    assert "not private" in run(*fit_arguments(tmp_path, **{"noise-seed": 5})).stderr


def test_a_large_delta_is_warned_about(tmp_path: Path) -> None:
    write(tmp_path)
    assert "well below 1/rows" in run(*fit_arguments(tmp_path, delta=0.1)).stderr


def test_options_change_the_declared_facts(tmp_path: Path) -> None:
    write(tmp_path)
    facts = run_json(*fit_arguments(tmp_path, target="a", rows=100, **{"noise-multiplier": 3}))
    assert (
        facts["plan"]["noise_multiplier"] == 3.0 and facts["plan"]["participation"]["steps"] == 25
    )
    assert facts["schema"]["target"]["name"] == "a" and facts["schema"]["rows"] == 100


@pytest.mark.parametrize("rate", [1e150, 1e300])
def test_a_model_that_diverged_is_saved_all_the_same(tmp_path: Path, rate: float) -> None:
    write(tmp_path)
    write(tmp_path, 30, "test.csv", seed=1)
    options = {"test-public": tmp_path / "test.csv", "learning-rate": rate}
    facts = run_json(*fit_arguments(tmp_path, **options))  # the budget is spent: nothing is lost
    assert facts["scores"]["last"] is None or facts["scores"]["last"] < -1e100
    load_model(tmp_path / "m")


def test_validate_only_looks(tmp_path: Path) -> None:
    write(tmp_path)
    output = run(*fit_arguments(tmp_path), "--validate").stdout
    assert "NOT private" in output and not (tmp_path / "m").exists()
    report = run_json(*fit_arguments(tmp_path), "--validate")
    assert report["rows_in_file"] == 40 and report["rows_invalid"] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": "nan"}, "epsilon must be a finite number > 0, got nan"),
        ({"epsilon": 1, "noise-multiplier": 1}, "exactly one of epsilon and noise_multiplier"),
        ({"delta": 2}, "delta must be a finite number > 0 and < 1, got 2.0"),
        ({"noise-multiplier": 0.01}, "noise_multiplier must be large enough for an epsilon"),
        ({"batch-size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"loss": "hinge"}, "loss of a regression task must be one of 'squared', 'huber', "),
        ({"noise-seed": -1}, "noise_seed must be an integer >= 0"),
        ({"momentum": 1}, "momentum"),
        ({"rows": 39}, "expected at most 39 rows"),
        ({"target": "c"}, "declared in the schema with its bounds"),
        ({"schema": "nowhere.json"}, "nowhere.json"),
        ({"test-public": "nowhere.csv"}, "no such file"),
        ({"delimiter": "ab"}, "one ASCII character"),
    ],
)
def test_a_users_mistake_is_one_line(tmp_path: Path, change: dict[str, object], words: str) -> None:
    write(tmp_path)
    result = run(*fit_arguments(tmp_path, **change), code=2)
    assert words in result.stderr and result.stderr.startswith("error: ")
    assert "Traceback" not in result.output
    assert not (tmp_path / "m").exists()


def test_a_yardstick_needs_test_rows_and_a_numeric_target(tmp_path: Path) -> None:
    write(tmp_path)
    result = run(*fit_arguments(tmp_path), "--these-rows-are-public", code=2)
    assert "--these-rows-are-public needs --test-public and a numeric target" in result.stderr
    assert result.stdout == "" and not (tmp_path / "m").exists()


def test_version() -> None:
    assert run("--version").stdout == f"dpftrl-fast {dpftrl_fast.__version__}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "got an empty file"), ("a,c,y\n", "got a header and no row"),
     ("a,c\n1,u\n", "expected one column 'y'")],
)  # fmt: skip
def test_files_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    write(tmp_path).write_text(text, encoding="utf-8")
    assert words in run(*fit_arguments(tmp_path), code=2).stderr


def test_a_schema_without_bounds_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    columns = {**SCHEMA["columns"], "a": {}}
    (tmp_path / "s.json").write_text(json.dumps({**SCHEMA, "columns": columns}), "utf-8")
    assert "must declare public bounds" in run(*fit_arguments(tmp_path), code=2).stderr


def test_test_rows_without_a_metric_are_found_before_the_first_step(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "test.csv").write_text("a,c,y\n1,u,1\n0,u,1\n", encoding="utf-8")
    result = run(*fit_arguments(tmp_path, **{"test-public": tmp_path / "test.csv"}), code=2)
    assert "targets that differ" in result.stderr and "steps" not in result.stdout


def test_a_model_is_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path)
    run(*fit_arguments(tmp_path))
    before = (tmp_path / "m/model.npz").read_bytes()
    assert "--force" in run(*fit_arguments(tmp_path), code=2).stderr
    assert (tmp_path / "m/model.npz").read_bytes() == before
    run(*fit_arguments(tmp_path), "--force")
    assert (tmp_path / "m/model.npz").read_bytes() != before


@pytest.mark.parametrize("chosen", [[], ["--mechanism", "tree"]])
def test_sum_writes_private_running_sums(chosen: list[str], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x\n1\n50\nbad\n-3\n2\n", encoding="utf-8")
    options = ["sum", tmp_path / "t.csv", "--column", "x", "--bounds", 0, 10, "--rows", 7, *chosen,
               "--every", 2, "--delta", 1e-6, "--out", tmp_path / "s.csv"]  # fmt: skip
    facts = run_json(*options, "--noise-seed", 1)
    mechanism = mechanism_from_dict(facts["mechanism"])
    assert isinstance(mechanism, Tree if chosen else ToeplitzMechanism)
    plan = PrivacyPlan(
        10, facts["noise_multiplier"], accounting.SinglePass(4), mechanism, bound="released"
    )
    noise = noise_of_sums(plan, 1, key_from_seed(1))[:, 0]
    table = np.genfromtxt(tmp_path / "s.csv", delimiter=",", names=True)
    assert table["row"].tolist() == [2, 4, 6, 7]
    # 1 + 10, then 0 + 0, then 2, then an empty slot
    expected = np.array([11, 11, 13, 13]) + noise
    rounding = plan.noise_spec.grid("float64") / 2
    np.testing.assert_allclose(table["private_sum"], expected, atol=rounding + 2e-5)
    assert facts["private_sum"] == table["private_sum"][-1]
    assert facts["epsilon_replace_one"] > facts["epsilon"]
    assert facts["sensitivity_squared"] == plan.sensitivity_squared
    assert facts["epsilon"] == plan.epsilon(1e-6)
    assert "--force" in run(*options, code=2).stderr
    result = run(*options, "--force")
    assert "one record replaced by zero" in result.stdout and result.stderr == ""
    assert "one record replaced by another" in result.stdout
    covered = "the running sums only" if chosen else "all steps together"
    assert covered in result.stdout and plan.layout.describe()[:20] in result.stdout
    if not chosen:
        return
    options[options.index("--delta") + 1] = 0.5
    assert "well below 1/rows" in run(*options, "--force").stderr
    (tmp_path / "file").write_text("", encoding="utf-8")
    options[-1] = tmp_path / "file" / "s.csv"
    result = run(*options, code=2)
    assert "expected a folder" in result.stderr and result.stdout == ""


def test_sum_refuses_more_rows_than_declared(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x\n1\n2\n3\n", encoding="utf-8")
    result = run("sum", tmp_path / "t.csv", "--column", "x", "--bounds", 0, 1, "--rows", 2,
                 "--out", tmp_path / "s.csv", code=2)  # fmt: skip
    assert "expected at most 2 rows" in result.stderr and not (tmp_path / "s.csv").exists()


def test_epsilon_and_calibrate_agree_with_the_plan() -> None:
    facts = run_json("epsilon", "--noise-multiplier", 2.33, "--steps", 1600)
    plan = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600))
    assert facts["epsilon"] == plan.epsilon(1e-6) and facts["sensitivity_squared"] == 11
    assert facts["epsilon_rdp"] == pytest.approx(7.83, abs=0.01)
    found = run_json("calibrate", "--epsilon", 1, "--rows", 267_346, "--batch-size", 256)
    assert found["steps"] == 1045 and found["epsilon"] <= 1.0
    assert found["noise_multiplier"] == pytest.approx(14.0117, abs=1e-3)
    assert facts["epsilon_rdp"] >= accounting.epsilon(2.33, 11, 1e-6, "rdp")
    assert "7.8252" in run("epsilon", "--noise-multiplier", 2.33, "--steps", 1600).stdout
    assert "7.3418" in run("epsilon", "--noise-multiplier", 2.33, "--steps", 1600).stdout
    assert "exactly one" in run("calibrate", "--epsilon", 1, code=2).stderr
    assert ">= 1" in run("calibrate", "--epsilon", 1, "--rows", 0, code=2).stderr


def test_privacy_losses_are_printed_rounded_up() -> None:
    assert rounded_up(1.0) == "1.0000"
    assert rounded_up(0.99991) == "1.0000"
    assert rounded_up(1.00001) == "1.0001"
    assert float(rounded_up(2.122857138803269)) >= 2.122857138803269


def test_schema_draft_and_check(tmp_path: Path) -> None:
    write(tmp_path)
    assert "null" in run("schema", "draft", tmp_path / "t.csv").stdout
    out = tmp_path / "draft.yaml"
    run("schema", "draft", tmp_path / "t.csv", "--out", out, "--these-rows-are-public")
    assert run_json("schema", "check", out)["features"] == 4
    assert "rows" in run("schema", "check", out).stdout
    assert "--force" in run("schema", "draft", tmp_path / "t.csv", "--out", out, code=2).stderr
    run("schema", "draft", tmp_path / "t.csv", "--out", out, "--force")
    assert "filled in from public knowledge" in run("schema", "check", out, code=2).stderr


def test_info_and_bench(tmp_path: Path) -> None:
    assert run_json("info")["build"]["version"]
    assert "numpy" in run("info").stdout
    rows = run_json("bench", "--size", 1000)["rows"]
    assert rows[0]["ratio"] == 1.0 and {"numpy PCG64"} < {row["name"] for row in rows}
    assert "ns a normal" in run("bench", "--size", 1000).stdout


def python(*arguments: str) -> AbstractContextManager[subprocess.Popen[Any]]:
    """Start a child that does not outlive the block."""
    pipe = subprocess.PIPE
    return child([sys.executable, "-u", *arguments], stdout=pipe, stderr=pipe, text=True)


CLI = "from dpftrl_fast.cli import main; main()"


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.parametrize("existing", [False, True])
def test_ctrl_c_leaves_no_half_written_model(tmp_path: Path, existing: bool) -> None:
    write(tmp_path)
    if existing:
        run(*fit_arguments(tmp_path))
    before = {p.name: p.read_bytes() for p in (tmp_path / "m").glob("*")}
    # far more slots than rows: the steps take minutes
    change = {"rows": 10**8, "batch-size": 1, "delta": 1e-9, "learning-rate": 1}
    options = fit_arguments(tmp_path, **change)
    with python("-c", CLI, *map(str, options), "--force") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("steps"):
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "interrupted: no half-written file is left"
    after = {p.name: p.read_bytes() for p in (tmp_path / "m").glob("*")}
    assert after == before and (tmp_path / "m").exists() == existing


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named(missing: str) -> None:
    with python("-c", f"import sys; sys.modules[{missing!r}] = None; {CLI}", "info") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "pip install 'dpftrl-fast[cli]'" in errors and "Traceback" not in errors
