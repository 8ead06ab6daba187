# SPDX-License-Identifier: Apache-2.0
"""A file that is not there is named with its option; a reader that is gone ends the output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

PROGRAM = "from dpftrl_fast.cli import main; main()"
SUM = ["--column", "c", "--bounds", 0, 1, "--rows", 3, "--out", "o.csv"]


@pytest.mark.parametrize(
    ("arguments", "option", "remedy"),
    [
        (["epsilon", "--plan", "nope"], "--plan", "plan .. --out FILE"),
        (["epsilon", "--noise-multiplier", 4, "--order", "nope"], "--order", "check the name"),
        (["plan", "--epsilon", 1, "--order", "nope"], "--order", "check the name"),
        (["fit", "t.csv", "--schema", "nope.yaml", "--out", "m"], "--schema", "schema draft DATA"),
        (["schema", "check", "nope.yaml"], "SCHEMA", "schema draft DATA"),
        (["schema", "draft", "nope.csv"], "DATA", "check the name"),
        (["predict", "nope", "t.csv", "--out", "f.csv"], "MODEL", "fit .. --out FOLDER"),
        (["sum", "nope.csv", *SUM], "DATA", "check the name"),
        (["sum", "t.csv", *SUM, "--budget", "nope"], "--budget", "budget new FILE"),
        (["budget", "show", "nope"], "FILE", "budget new FILE"),
        (["audit", "t.csv", "--schema", "nope.yaml"], "--schema", "schema draft DATA"),
    ],
)
def test_a_file_that_is_not_there(
    arguments: list[object],
    option: str,
    remedy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("c\n1\n0\n1\n", encoding="utf-8")
    result = run(*arguments, code=2)
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {option}: no such file or folder: 'nope")
    assert remedy in line and "Errno" not in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["plan", "--help"],
        ["epsilon", "--noise-multiplier", "3", "--steps", "30"],
        ["plan", "--epsilon", "1", "--steps", "30"],
        ["plan", "--epsilon", "1", "--steps", "30", "--json"],
    ],
)
def test_a_reader_that_is_gone_ends_the_command_without_a_word(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writer)
    assert done.returncode == 1 and done.stderr == b""
