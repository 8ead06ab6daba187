# SPDX-License-Identifier: Apache-2.0
"""Help of the command line, at a width of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
import typer.testing

from dpftrl_fast.cli.app import app

GROUPS = [[], ["schema"], ["budget"], ["experiment"]]


def help_of(words: list[str]) -> str:
    result = typer.testing.CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    return result.output


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[list[str], Any]]:
    for name, command in group.commands.items():
        yield [*before, name], command
        yield from commands(command, (*before, name)) if hasattr(command, "commands") else ()


ALL = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_a_summary_is_a_whole_line(group: list[str]) -> None:
    text = help_of(group)
    lines = text[text.index("Commands:\n") :].splitlines()[1:]
    names = [words[-1] for words, _ in ALL if words[:-1] == group]
    assert [line.split()[0] for line in lines] == names  # none takes a second line
    for line in lines:
        assert len(line) <= 80 and "..." not in line and line.endswith(".")
        summary = line.split(maxsplit=1)[1]
        assert re.match(r"[A-Z][a-z]+ ", summary)


def test_every_group_is_tested() -> None:
    assert [words for words, command in ALL if hasattr(command, "commands")] == GROUPS[1:]


@pytest.mark.parametrize(("words", "command"), ALL, ids=[" ".join(words) for words, _ in ALL])
def test_every_option_is_explained(words: list[str], command: Any) -> None:
    assert help_of(words).splitlines()[0].startswith("Usage: ")
    for parameter in command.params:
        text = getattr(parameter, "help", None) or ""
        assert (len(text.split()) >= 2 and text.endswith(".")) or parameter.name == "help", (
            parameter
        )
