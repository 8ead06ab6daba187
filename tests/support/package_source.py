# SPDX-License-Identifier: Apache-2.0
"""The package's Python sources, parsed once: for the tests that read them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dpftrl_fast"


class Module(NamedTuple):
    """A module of the package: its dotted name below the package, in parts, and its tree."""

    name: tuple[str, ...]
    path: Path
    is_package: bool
    tree: ast.Module

    @property
    def folder(self) -> tuple[str, ...]:
        """The package (folder) that the module lies in, or is."""
        return self.name if self.is_package else self.name[:-1]

    def __str__(self) -> str:
        return ".".join(self.name) or "__init__"


def _files() -> Iterator[tuple[tuple[str, ...], Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield parts[:-1] if parts[-1] == "__init__" else parts, path


def names() -> list[tuple[str, ...]]:
    """The names of all modules, without reading them."""
    return [name for name, _ in _files()]


@cache
def modules() -> dict[tuple[str, ...], Module]:
    """All modules of the package by their names below it; () is the package itself."""
    found = {}
    for name, path in _files():
        is_package = path.name == "__init__.py"
        found[name] = Module(name, path, is_package, ast.parse(path.read_text("utf-8")))
    return found


def functions(tree: ast.AST) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All functions and methods below a node, by qualified name ("Class.method")."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node
            yield from ((f"{node.name}.{name}", inner) for name, inner in functions(node))
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{name}", inner) for name, inner in functions(node))
        else:
            yield from functions(node)


def called(node: ast.Call) -> str:
    """The last name of what is called: "g" for f.g(x)."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))
