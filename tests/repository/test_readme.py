# SPDX-License-Identifier: Apache-2.0
"""Every Python block of the README runs, and every command line of it exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
IDS = ["accountant", "counter", "scikit-learn", "pytorch", "federated", "jax"]
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
SHELL = re.findall(r"^dpftrl-fast .*$", README, flags=re.MULTILINE)
LINES = 155


def test_the_readme_has_examples() -> None:
    assert len(PYTHON) == len(IDS)
    assert len(SHELL) >= 3


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LINES


# torch says so of hooks on layers whose inputs need no gradient, which is as it should be.
@pytest.mark.parametrize("block", PYTHON, ids=IDS)
def test_python_block(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "import jax" in block:
        pytest.importorskip("optax")
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("line", SHELL)
def test_command_line_exists(line: str) -> None:
    from typer.testing import CliRunner

    from dpftrl_fast.cli.app import app

    words = shlex.split(line, comments=True)[1:]
    path = words[: 2 if words[0] in ("schema", "experiment") else 1]
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    for word in words:
        if word.startswith("--"):
            assert word in re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_relative_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README) + re.findall(r'src="([^"]+)"', README)
    assert len(links) > 20
    for target in links:
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
