# SPDX-License-Identifier: Apache-2.0
"""Commands of the pages in docs/start: those without data run, the others exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dpftrl_fast import PrivacyPlan, SinglePass

START = Path(__file__).parents[2] / "docs" / "start"
WITHOUT_DATA = ("plan", "calibrate", "epsilon")
COMMANDS = sorted(
    {
        line
        for page in START.glob("*.md")
        if page.name != "first_csv.md"  # all of whose steps run in a test of their own
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        for line in block.replace("\\\n", " ").splitlines()
    }
)


def test_pages_have_commands() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("line", COMMANDS)
def test_the_command_runs_or_has_these_options(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("typer")
    monkeypatch.chdir(tmp_path)
    if "--plan" in line:
        PrivacyPlan(1.0, 4.0, SinglePass(8)).save("plan.json")
    from typer.testing import CliRunner

    from dpftrl_fast.cli.app import app

    program, *words = shlex.split(line, comments=True)
    assert program == "dpftrl-fast"
    if words[0] in WITHOUT_DATA:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert "replace-one" in result.output or words[0] == "plan"
        return
    text = re.sub(r"\x1b\[[0-9;]*m", "", CliRunner().invoke(app, [words[0], "--help"]).output)
    for word in words:
        assert not word.startswith("--") or word in text, word
