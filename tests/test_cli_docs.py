# SPDX-License-Identifier: Apache-2.0
"""docs/cli.md says what the command line does."""

from __future__ import annotations

import re
from pathlib import Path

import typer.testing

from dpftrl_fast.cli.app import app
from dpftrl_fast.datasets import flights_schema
from dpftrl_fast.schema import Schema
from dpftrl_fast.tables import cells

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "cli.md").read_text(encoding="utf-8")


def test_the_schema_in_the_docs_is_a_schema(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    (tmp_path / "s.yaml").write_text(block, encoding="utf-8")
    schema = Schema.load(tmp_path / "s.yaml")
    assert schema.target == flights_schema(1).target and schema.n_features == 1 + 3 + 12 + 1


def test_every_command_and_option_of_the_docs_exists() -> None:
    help_of = {
        name: typer.testing.CliRunner().invoke(app, [*name.split(), "--help"]).output
        for name in ("fit", "sum", "epsilon", "calibrate", "schema draft", "schema check", "demo",
                     "bench", "info")
    }  # fmt: skip
    for name, text in help_of.items():
        assert "Usage" in text, name
        assert f"`{name.split()[0]}" in TEXT
        assert "--json" in text
    everywhere = " ".join(help_of.values())
    options = set(re.findall(r"--[a-z][a-z-]+", TEXT)) - {"--help"}
    assert {option for option in options if option not in everywhere} == set()


def test_cells_that_are_missing_numbers_are_listed() -> None:
    listed = next(line for line in TEXT.splitlines() if line.startswith("- Cells `NA`"))
    spelled = {word.casefold() for word in re.findall(r"`([^`]+)`", listed)}
    assert {word.casefold() for word in cells._NO_NUMBER if word} == spelled
