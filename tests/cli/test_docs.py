# SPDX-License-Identifier: Apache-2.0
"""docs/runs/cli.md says what the command line does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.testing

from dpftrl_fast.cli.app import app
from dpftrl_fast.datasets import flights_schema
from dpftrl_fast.tables import cells
from dpftrl_fast.tables.schema import Schema

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "runs" / "cli.md").read_text(
    encoding="utf-8"
)


def test_the_schema_in_the_docs_is_a_schema(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    (tmp_path / "s.yaml").write_text(block, encoding="utf-8")
    schema = Schema.load(tmp_path / "s.yaml")
    assert schema.target == flights_schema(1).target and schema.n_features == 1 + 3 + 12 + 1


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} ")
        else:
            yield before + name, command


def test_every_command_and_option_of_the_docs_exists() -> None:
    found = dict(commands(typer.main.get_command(app)))
    assert {"fit", "epsilon", "calibrate", "plan", "schema draft"} < set(found)
    everywhere = {"--help"}
    for name, command in found.items():
        assert f"`{name.split()[0]}" in TEXT
        options = {x for p in command.params for x in (*p.opts, *p.secondary_opts)}
        assert "--json" in options, name
        everywhere |= options
        shown = typer.testing.CliRunner().invoke(app, [*name.split(), "--help"])
        assert shown.exit_code == 0 and "Usage" in shown.output
    assert set(re.findall(r"--[a-z][a-z0-9-]*[a-z0-9]", TEXT)) - everywhere == set()


def test_the_ranked_table_in_the_docs_is_what_plan_prints() -> None:
    command, rows = re.findall(r"```\n\$ dpftrl-fast (plan .*)\n(.*?)```", TEXT, flags=re.DOTALL)[0]
    output = typer.testing.CliRunner().invoke(app, command.split()).output
    printed = [line.rstrip() for line in output.splitlines()]
    for line in rows.splitlines():
        assert line == " ..." or line in printed


def test_cells_that_are_missing_numbers_are_listed() -> None:
    listed = next(line for line in TEXT.splitlines() if line.startswith("- Cells `NA`"))
    spelled = {word.casefold() for word in re.findall(r"`([^`]+)`", listed)}
    assert {word.casefold() for word in cells.NO_NUMBER if word} == spelled


def test_words_for_one_and_zero_are_listed() -> None:
    listed = re.search(r"The words (true .*?) are the\s+numbers 1 and 0", TEXT, flags=re.DOTALL)
    assert listed is not None
    assert {*re.findall(r"true|false", listed[1], re.IGNORECASE)} == {*cells.BOOLS}
