# SPDX-License-Identifier: Apache-2.0
"""Fenced blocks of the pages in docs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the blocks of one language of a page, such as "frameworks/keras"."""
    return [block for _, block in _found(page, language)]


def programs(page: str) -> list[object]:
    """Return the Python blocks of a page as parameters of a test, by their heading."""
    return [
        pytest.param(block, id=f"{heading} {i}")
        for i, (heading, block) in enumerate(_found(page, "python"))
    ]


def _found(page: str, language: str) -> list[tuple[str, str]]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    fence = re.compile(rf"^```{language}\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
    found = []
    for block in fence.finditer(text):
        heading = re.findall(r"^#+ (.*)$", text[: block.start()], re.MULTILINE)[-1]
        found.append((heading, block.group(1)))
    assert found, f"{page} has no {language} blocks"
    return found
