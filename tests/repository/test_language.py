# SPDX-License-Identifier: Apache-2.0
"""Plain technical English in docstrings: verb-first summaries, no question words for nouns."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from package_source import Module, modules

FIRST_WORDS = re.compile(r"\W*(What|Which|How|Where|Who|Whose|When|Say|Says|From)\b")
WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
# Expressions of the house's own, and the field's word for each.
REPLACED = {
    r"\blest\b": "so that ... not",
    r"\bgoes? on\b": "resume, continue",
    r"\b(raw|bare) sums?\b": "un-noised sum",
    r"\bof one's own\b": "custom",
    r"\bcannot be had\b": "is not supported",
}


def docstrings(module: Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield f"{module}:{getattr(node, 'name', '')}", text


@cache
def all_docstrings() -> list[tuple[str, str]]:
    found = [pair for module in modules().values() for pair in docstrings(module)]
    assert len(found) > 1000
    return found


def test_no_docstring_begins_with_a_question_word() -> None:
    assert [where for where, text in all_docstrings() if FIRST_WORDS.match(text)] == []


def test_what_is_rare() -> None:
    words = [word.lower() for _, text in all_docstrings() for word in WORD.findall(text)]
    assert words.count("what") / len(words) * 1000 <= 1.5


@pytest.mark.parametrize("pattern", REPLACED)
def test_the_standard_term_is_used(pattern: str) -> None:
    found = [where for where, text in all_docstrings() if re.search(pattern, text)]
    assert found == [], f"write: {REPLACED[pattern]}"


def test_the_first_word_is_seen() -> None:
    assert FIRST_WORDS.match("What a run does.") and FIRST_WORDS.match('"Where" it is.')
    assert not FIRST_WORDS.match("Whatever comes.") and not FIRST_WORDS.match(
        "Return what is left."
    )
