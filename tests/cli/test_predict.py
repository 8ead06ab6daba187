# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast predict``, rows from the standard input, and folders of Parquet files."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import typer.testing
from command_line import run, run_json

from dpftrl_fast.cli.app import app
from dpftrl_fast.fitting.model_file import load_model

SCHEMA: dict[str, Any] = {
    "rows": 60,
    "target": {"name": "y", "bounds": [-2, 2]},
    "columns": {"a": {"bounds": [-1, 1]}, "c": {"categories": ["u", "v"]}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with rows, schemas for numbers and labels, and models of them."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"a": rng.uniform(-1, 1, 60), "c": rng.choice(["u", "v"], 60)})
    rows["y"] = rows["a"] + (rows["c"] == "v")
    rows["k"] = np.where(rows["y"] > 0.5, "yes", "no")
    rows["who"] = [f"p{i % 8}" for i in range(60)]
    rows.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "parts").mkdir()
    for part, start in (("b", 20), ("a", 0), ("c", 45)):
        stop = {0: 20, 20: 45, 45: 60}[start]
        rows[start:stop].to_parquet(tmp_path / "parts" / f"{part}.parquet", index=False)
    (tmp_path / "parts" / "_SUCCESS").write_text("", "utf-8")
    for name, target in (("y", SCHEMA["target"]), ("k", {"categories": ["no", "yes"]})):
        schema = {**SCHEMA, "target": {**target, "name": name}}
        (tmp_path / f"{name}.json").write_text(json.dumps(schema), "utf-8")
        run(*fit_words(tmp_path, name))
    return tmp_path


def fit_words(folder: Path, name: str, **change: Any) -> list[object]:
    options = {"schema": folder / f"{name}.json", "out": folder / name, "noise_seed": 1, **change}
    data = options.pop("data", folder / "t.csv")
    words: list[object] = ["fit", data, "--batch-size", 8, "--delta", 1e-3]
    for key, value in options.items():
        words += [f"--{key.replace('_', '-')}", *([] if value is True else [value])]
    return words


def piped(text: str, *words: object, code: int = 0) -> Any:
    result = typer.testing.CliRunner().invoke(app, [str(w) for w in words], input=text)
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize("name", ["y", "k"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_predictions_are_those_of_the_model(folder: Path, name: str, suffix: str) -> None:
    out = folder / f"out{suffix}"
    facts = run_json("predict", folder / name, folder / "t.csv", "--out", out)
    found = pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out)
    assert facts == {"rows": 60, "columns": [*found.columns], "out": str(out)}
    expected = load_model(folder / name).table(folder / "t.csv")
    assert (
        [*found.columns]
        == [*expected]
        == (["prediction"] if name == "y" else ["prediction", "probability_no", "probability_yes"])
    )
    for column in found:
        if found[column].dtype.kind == "f":
            np.testing.assert_array_equal(found[column], expected[column])
        else:
            assert found[column].tolist() == expected[column]


def test_options_and_refusals(folder: Path) -> None:
    out = folder / "out.csv"
    words: list[object] = ["predict", folder / "y", folder / "t.csv", "--out", out]
    assert "wrote 60 predictions" in run(*words, "--kind", "last").stdout
    last = load_model(folder / "y").predict(folder / "t.csv", kind="last")
    np.testing.assert_array_equal(pd.read_csv(out)["prediction"], last)
    assert "exists; --force" in run(*words, code=2).stderr
    assert "reproducible, not private" in run(*words, "--force").stderr
    words[-1] = folder / "out.txt"
    assert "must end in .csv or .parquet" in run(*words, code=2).stderr
    words[-1] = "-"
    assert "--json needs a file" in run(*words, "--json", code=2).stderr
    words[1] = folder / "nowhere"
    assert "no such file" in run(*words, code=2).stderr


def test_a_bad_row_keeps_its_place(folder: Path) -> None:
    (folder / "new.csv").write_text("c,a\nu,0.5\nu,Smith\nv,0.5\n", "utf-8")
    for name, empty in (("y", '""'), ("k", ",,")):
        result = run("predict", folder / name, folder / "new.csv", "--out", "-")
        lines = result.stdout.splitlines()
        assert len(lines) == 4 and lines[2] == empty and "Smith" not in result.output
    assert not [name for name in os.listdir(folder) if name.startswith("out")]


def test_from_pipe_to_pipe(folder: Path) -> None:
    text = (folder / "t.csv").read_text("utf-8")
    result = piped(text, "predict", folder / "k", "-", "--out", "-")
    found = pd.read_csv(io.StringIO(result.stdout))
    assert found["prediction"].tolist() == load_model(folder / "k").predict_labels(folder / "t.csv")
    assert piped("", "predict", folder / "k", "-", "--out", "-", code=2).stderr.startswith("error")


# ---- Rows of a fit ----


@pytest.mark.parametrize("method", ["ftrl", "least-squares"])
def test_a_fit_of_the_standard_input_is_that_of_the_file(folder: Path, method: str) -> None:
    text = (folder / "t.csv").read_text("utf-8")
    run(*fit_words(folder, "y", out=folder / "file", method=method, epochs=1))
    piped(text, *fit_words(folder, "y", out=folder / "pipe", method=method, data="-"))
    one, two = (load_model(folder / name) for name in ("file", "pipe"))
    np.testing.assert_array_equal(one.coefficients["last"], two.coefficients["last"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": 2}, "read once, got --epochs"),
        ({"group_column": "who", "users": 9}, "read once, got --group-column"),
        ({"test_public": "-"}, "--test-public must be a file"),
    ],
)
def test_the_standard_input_is_read_once(folder: Path, change: Any, words: str) -> None:
    given = fit_words(folder, "y", out=folder / "new", data="-", **change)
    assert words in piped("a,c,y\n1,u,1\n", *given, code=2).stderr
    assert not (folder / "new").exists()


@pytest.mark.parametrize("options", [{}, {"epochs": 2}, {"group_column": "who", "users": 9}])
def test_a_fit_of_a_folder_is_that_of_one_file(folder: Path, options: Any) -> None:
    run(*fit_words(folder, "y", out=folder / "file", **options))
    run(*fit_words(folder, "y", out=folder / "folder", data=folder / "parts", **options))
    one, two = (load_model(folder / name) for name in ("file", "folder"))
    np.testing.assert_array_equal(one.coefficients["last"], two.coefficients["last"])
    found = run("predict", folder / "folder", folder / "parts", "--out", "-").stdout
    assert len(found.splitlines()) == 61


def test_folders_that_are_refused(folder: Path) -> None:
    words = fit_words(folder, "y", out=folder / "new", data=folder / "parts")
    part = folder / "parts" / "b.parquet"
    rows = pd.read_parquet(part)
    rows.assign(a=rows["a"].astype(np.float32)).to_parquet(part, index=False)
    result = run(*words, code=2)
    assert "same columns and types" in result.stderr and "b.parquet" in result.stderr
    pq.write_table(pq.read_table(folder / "parts" / "a.parquet").slice(0, 10), part)
    schema = {**SCHEMA, "rows": 44}
    (folder / "y.json").write_text(json.dumps(schema), "utf-8")
    assert "at most 44 rows" in run(*words, code=2).stderr
    (folder / "empty").mkdir()
    words[1] = folder / "empty"
    assert "got none" in run(*words, code=2).stderr
    assert not (folder / "new").exists()
