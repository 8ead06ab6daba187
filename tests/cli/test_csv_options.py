# SPDX-License-Identifier: Apache-2.0
"""Options of CSV files in ``fit``, ``predict``, ``schema draft`` and ``audit``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json

from dpftrl_fast.fitting.model_file import load_model
from dpftrl_fast.tables.schema import Schema

SCHEMA: dict[str, Any] = {
    "rows": 30,
    "target": {"name": "y", "bounds": [-2000, 2000]},
    "columns": {"größe": {"bounds": [-1, 1]}, "c": {"categories": ["ä", "b"]}},
}
#: European text, and the options that read it.
OPTIONS = ["--delimiter", ";", "--encoding", "cp1252", "--decimal", ",", "--thousands", "."]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the same rows in plain and in European text."""
    rng = np.random.default_rng(0)
    plain, european = ["größe,c,y"], ["größe;c;y"]
    for _ in range(30):
        x, c, y = rng.uniform(-1, 1), "äb"[rng.integers(2)], rng.uniform(-2000, 2000)
        plain.append(f"{x:.4f},{c},{y:.2f}")
        marks = f"{y:,.2f}".translate({ord("."): ",", ord(","): "."})
        european.append(f"{x:.4f};{c};{marks}".replace(".", ",", 1))
    (tmp_path / "p.csv").write_text("\n".join(plain) + "\n", "utf-8")
    (tmp_path / "e.csv").write_text("\n".join(european) + "\n", "cp1252")
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA), "utf-8")
    return tmp_path


def fit(folder: Path, name: str, *more: object) -> None:
    options = ["--schema", folder / "s.json", "--out", folder / name, "--noise-seed", 1]
    test = ["--test-public", folder / f"{name}.csv", "--batch-size", 8, "--epochs", 2]
    run("fit", folder / f"{name}.csv", *options, *test, "--delta", 1e-3, *more)


def test_fits_and_predictions_are_those_of_plain_text(folder: Path) -> None:
    fit(folder, "p")
    fit(folder, "e", *OPTIONS)
    plain, european = load_model(folder / "p"), load_model(folder / "e")
    assert np.array_equal(plain.coefficients["tail"], european.coefficients["tail"])
    assert plain.facts["public_test"] == european.facts["public_test"]
    run("predict", folder / "p", folder / "p.csv", "--out", folder / "one.csv")
    run("predict", folder / "e", folder / "e.csv", "--out", folder / "two.csv", *OPTIONS)
    assert (folder / "one.csv").read_bytes() == (folder / "two.csv").read_bytes()
    given = {"delimiter": ";", "encoding": "cp1252", "decimal": ",", "thousands": "."}
    found = european.predict(folder / "e.csv", **given)
    assert np.isfinite(found).all() and np.array_equal(found, plain.predict(folder / "p.csv"))
    with pytest.raises(ValueError, match="decimal must be None for a data frame"):
        plain.predict({}, decimal=",")


def test_validation_names_the_options(folder: Path) -> None:
    arguments = ["fit", folder / "e.csv", "--schema", folder / "s.json", "--validate"]
    assert "--encoding" in run(*arguments, *OPTIONS[:2], code=2).stderr
    report = run_json(*arguments, *OPTIONS[:4])
    hints = {f["hint"] for f in report["findings"]}
    assert {"--decimal ','", "--thousands '.' --decimal ','"} <= hints
    report = run_json(*arguments, *OPTIONS)
    assert report["rows_invalid"] == 0 and report["findings"] == []


def test_drafts(folder: Path) -> None:
    public = "--these-rows-are-public"
    plain = run("schema", "draft", folder / "p.csv", public).stdout
    assert run("schema", "draft", folder / "e.csv", public, *OPTIONS).stdout == plain
    out = folder / "d.yaml"
    run("schema", "draft", folder / "e.csv", public, *OPTIONS, "--out", out)
    assert Schema.load(out).columns[0].name == "größe"


def test_an_audit_reads_the_same_rows(folder: Path) -> None:
    pytest.importorskip("sklearn")
    rest = ["--schema", folder / "s.json", "--runs", 1, "--coin-seed", 1, "--batch-size", 10]
    rest += ["--confidence", 1 - 1e-8]  # a false alarm once in 10^8
    assert "--encoding" in run("audit", folder / "e.csv", *rest, code=2).stderr
    facts = run_json("audit", folder / "e.csv", *rest, *OPTIONS)
    assert facts["private"] is False


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("encoding", "nowhere", "encoding must be a text encoding of Python"),
        ("decimal", "5", "decimal must be one character"),
        ("thousands", ".", "decimal and thousands must differ"),
        ("delimiter", r"\n", "delimiter must be one ASCII character"),
    ],
)
@pytest.mark.parametrize("command", ["fit", "sum", "predict", "schema"])
def test_options_that_are_refused(
    folder: Path, command: str, option: str, value: str, words: str
) -> None:
    if command == "predict":
        fit(folder, "p")
    arguments: dict[str, list[object]] = {
        "fit": ["fit", folder / "p.csv", "--schema", folder / "s.json", "--out", folder / "m"],
        "sum": ["sum", folder / "p.csv", "--column", "y", "--bounds", 0, 1, "--rows", 30, "--out",
                folder / "m"],
        "predict": ["predict", folder / "p", folder / "p.csv", "--out", folder / "m.csv"],
        "schema": ["schema", "draft", folder / "p.csv"],
    }  # fmt: skip
    result = run(*arguments[command], f"--{option}", value, code=2)
    assert words in result.stderr and len(result.stderr.splitlines()) == 1
    assert not (folder / "m").exists()
