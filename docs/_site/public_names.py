# SPDX-License-Identifier: Apache-2.0
"""Public names, as docs/reference/api.md lists them, and the objects behind them."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).parents[1] / "reference" / "api.md"
PACKAGE = "dpftrl_fast"


def names_in_table(text: str) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each entry in the first columns of a page's tables."""
    module = ""
    for line in text.splitlines():
        heading = re.match(r"## `([\w.]+)`", line)
        if heading:
            module = heading.group(1)
        if not line.startswith("| `"):
            continue
        for code in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
            name = code.partition("(")[0]
            if name.startswith(f"{PACKAGE}."):
                module, _, name = name.rpartition(".")
            yield module, name


def listed() -> dict[str, set[str]]:
    """Return the public names by module."""
    found: dict[str, set[str]] = {}
    for module, name in names_in_table(PAGE.read_text(encoding="utf-8")):
        found.setdefault(module, set()).add(name)
    return found


def load(module: str, name: str) -> Any:
    """Import the object of a public name."""
    public = importlib.import_module(module)
    if not hasattr(public, name):  # a folder that is public as a whole
        importlib.import_module(f"{module}.{name}")
    return getattr(public, name)


@dataclass(frozen=True)
class Name:
    """A public name: its module, the object, and where it is documented."""

    module: str
    name: str
    value: Any
    same_as: str

    @property
    def full(self) -> str:
        """Return the dotted name."""
        return f"{self.module}.{self.name}"


@cache
def public_names() -> tuple[Name, ...]:
    """Return all public names, in the order of the page.

    `same_as` is the first name of the same class or function, or empty.
    """
    found: list[Name] = []
    for module, name in names_in_table(PAGE.read_text(encoding="utf-8")):
        value = load(module, name)
        named = [n for n in found if n.value is value and n.name == name]
        found.append(Name(module, name, value, named[0].full if named else ""))
    return tuple(found)


def members(value: type) -> list[str]:
    """Return the public methods and properties of a class that this package defines."""
    found: dict[str, None] = {}
    for base in value.__mro__:
        if base.__module__.startswith(PACKAGE):
            for name, member in vars(base).items():
                made = re.fullmatch(r"set_\w+_request", name)  # by scikit-learn
                if not (name.startswith("_") or made) and is_documented(member):
                    found.setdefault(name)
    return list(found)


def is_documented(member: Any) -> bool:
    if isinstance(member, (classmethod, staticmethod)):
        member = member.__func__
    kinds = (inspect.isroutine, inspect.isdatadescriptor, lambda m: hasattr(m, "func"))
    return any(kind(member) for kind in kinds) and bool(getattr(member, "__doc__", None))


def docstring(name: Name) -> str:
    """Return the docstring of a name; of data, the string that stands after its assignment."""
    value = name.value
    if isinstance(value, (type, ModuleType)) or inspect.isroutine(value):
        return inspect.cleandoc(value.__doc__ or "")
    return data_docstring(name.module, name.name)[1]


def data_docstring(module: str, name: str) -> tuple[str, str]:
    """Return the module that assigns a name, and the string after the assignment."""
    path = Path(importlib.import_module(module).__file__ or "")
    top = ast.parse(path.read_text(encoding="utf-8")).body
    # Names that are loaded at their first use are imported under `if TYPE_CHECKING`.
    body = [inner for node in top for inner in (node.body if isinstance(node, ast.If) else [node])]
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.ImportFrom) and any(a.name == name for a in node.names):
            return data_docstring(node.module or "", name)
        targets = [*getattr(node, "targets", []), getattr(node, "target", None)]
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                return module, inspect.cleandoc(text.value)
    return module, ""
