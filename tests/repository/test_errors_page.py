# SPDX-License-Identifier: Apache-2.0
"""docs/start/errors.md: each message that it quotes is in the sources."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "start" / "errors.md").read_text(encoding="utf-8")
QUOTED = [
    match.group(1)
    for line in PAGE.splitlines()
    if (match := re.match(r"\| `([^`]+(?: `[^`]+)?)` \|", line))
]
HOLE = "\x00"


def text_of(node: ast.expr) -> str:
    """Text of a string expression, with a hole for each part that is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return HOLE


@cache
def messages() -> frozenset[str]:
    found = set()
    for path in (ROOT / "dpftrl_fast").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp)):
                text = text_of(node)
                if re.search(r"[a-z]{2}", text):
                    found.add(" ".join(text.split(" ")))
    return frozenset(found)


def is_quoted(message: str, quoted: str) -> bool:
    """Whether the parts of `quoted` between its dots stand in `message`, in this order."""
    place = 0
    for part in quoted.split("..."):
        place = message.find(part.strip(), place)
        if place < 0:
            return False
        place += len(part.strip())
    return True


def test_the_page_is_read() -> None:
    assert len(QUOTED) > 30
    assert len(messages()) > 1000


@pytest.mark.parametrize("quoted", QUOTED)
def test_the_message_is_in_the_sources(quoted: str) -> None:
    assert any(is_quoted(message, quoted) for message in messages())


def test_a_message_that_nothing_raises_is_noticed() -> None:
    assert not any(is_quoted(m, "delta must be above the roof ...") for m in messages())
    assert not any(is_quoted(m, "delta must ... steps are taken") for m in messages())
