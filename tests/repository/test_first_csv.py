# SPDX-License-Identifier: Apache-2.0
"""docs/start/first_csv.md: all of its steps, in a new folder, end with the files that it names."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "start" / "first_csv.md"
BLOCKS = re.findall(
    r"^```(python|sh|yaml)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


def test_the_page_from_the_first_to_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from dpftrl_fast.cli.app import app

    monkeypatch.chdir(tmp_path)
    for kind, block in BLOCKS:
        if kind == "python":
            exec(compile(block, PAGE.name, "exec"), {})
        elif kind == "yaml":  # the draft, filled in
            assert "null, null" in Path("people.yaml").read_text()
            Path("people.yaml").write_text(block)
        else:
            for line in block.splitlines():
                result = CliRunner().invoke(app, shlex.split(line)[1:])
                assert result.exit_code == 0, result.output
    with open("predictions.csv", newline="") as file:
        predicted = [float(row["prediction"]) for row in csv.DictReader(file)]
    assert predicted == pytest.approx([1580, 1380], abs=60)
    assert "replace-one" in capsys.readouterr().out
