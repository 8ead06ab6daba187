# SPDX-License-Identifier: Apache-2.0
"""Every command line of `dpftrl-fast` on any page names a command, and options that it has."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CODE = re.compile(
    r"^```\w*\n.*?^```"  # fenced
    r"|(?:^ {4}.*\n)+"  # indented
    r"|`dpftrl-fast[^`]*`",  # in a sentence
    flags=re.DOTALL | re.MULTILINE,
)
LINE = re.compile(r"(?:^[ `$]*|&& |[`])dpftrl-fast +([a-z].*?)(?:`|$|(?= [|&#>]))", re.MULTILINE)


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    return sorted(path for path in found if "generated" not in path.parts)


def command_lines(text: str) -> list[str]:
    """Return the words after `dpftrl-fast`, of each line in a piece of code."""
    lines = []
    for piece in CODE.findall(text):
        joined = re.sub(r"\\\n\s*", " ", piece)
        if not piece.startswith("```") and piece.startswith("`"):
            joined = joined.replace("\n", " ")
        lines += LINE.findall(joined)
    return lines


@cache
def group() -> Any:
    typer = pytest.importorskip("typer")
    from dpftrl_fast.cli.app import app

    return typer.main.get_command(app)


def check(line: str) -> None:
    """Refuse a line whose command or option does not exist."""
    command, words = group(), shlex.split(line.replace("...", ""), comments=True)
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            break
        name = words.pop(0)
        assert name in command.commands, line
        command = command.commands[name]
    options = {x for p in command.params for x in (*p.opts, *p.secondary_opts)} | {"--help"}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in options, (word, line)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_command_lines_exist(page: Path) -> None:
    for line in command_lines(page.read_text(encoding="utf-8")):
        check(line)


def test_lines_are_found_and_faults_are_seen() -> None:
    text = (ROOT / "docs" / "runs" / "cli.md").read_text(encoding="utf-8")
    assert len(command_lines(text)) > 15
    (wrapped,) = command_lines("a `dpftrl-fast plan\n--epsilon 8` b")
    assert wrapped.split() == ["plan", "--epsilon", "8"]
    for wrong in ("plam --epsilon 8", "plan --epsilom 8", "schema drafd"):
        with pytest.raises(AssertionError):
            check(wrong)
