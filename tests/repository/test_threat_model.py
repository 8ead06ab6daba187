# SPDX-License-Identifier: Apache-2.0
"""The threat model names a test for each of its lines, and these tests exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees" / "threat_model.md"
SECURITY = ROOT / "SECURITY.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def lines() -> list[str]:
    """Rows of the tables of attacks, without their headings."""
    _, _, attacks = PAGE.read_text(encoding="utf-8").partition("## Defended")
    rows = [line for line in attacks.splitlines() if line.startswith("| ")]
    return [row for row in rows if not row.startswith("| attack |")]


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_line_names_a_test_that_exists() -> None:
    rows = lines()
    assert len(rows) > 30
    for row in rows:
        *_, last = (cell.strip() for cell in row.strip("|").split("|"))
        match = NAMED.fullmatch(last)
        assert match, row
        path, name = ROOT / match[1], match[2]
        assert path.is_file(), row
        assert name in functions_of(path), row


def test_the_low_order_bits_have_their_line() -> None:
    assert [row for row in lines() if row.startswith("| low-order bits of released sums |")]


def test_every_kind_of_adversary_is_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for who in ("the adversary", "operator", "checkpoint", "client", "co-tenant"):
        assert who in text, who


def test_security_says_how_to_report_and_for_which_versions() -> None:
    text = SECURITY.read_text(encoding="utf-8")
    for title in ("## Report a fault", "## Supported versions", "## Kinds of faults"):
        assert title in text
    version = re.search(
        r'^version = "(\d+\.\d+)', (ROOT / "pyproject.toml").read_text("utf-8"), re.M
    )
    assert version is not None and f"| {version[1]}" in text
