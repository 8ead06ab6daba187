# SPDX-License-Identifier: Apache-2.0
"""Pages of the site that are made from other files: public names, examples, files of the root.

All of them go to docs/generated, before Sphinx looks for its pages. A file is written only where
its text is another: Sphinx reads again what is newer than its last build.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

from numpydoc.docscrape_sphinx import SphinxDocString
from public_names import Name, docstring, members, public_names

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
GENERATED = DOCS / "generated"
#: Files of the root that are pages of the site too.
PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"(\]\()([^)\s#]*)((?:#[^)\s]*)?\))")
#: A page as docstrings name it, so that `help()` shows where it lies in the repository.
PAGE = re.compile(r"(`{0,2})docs/((?:\w+/)*\w+)\.md\1(?!\w)")
FENCE = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)


class Pages:
    """The folder docs/generated: files that are not written again are removed at the end."""

    def __init__(self) -> None:
        self.written: set[Path] = set()

    def write(self, name: str, text: str) -> None:
        path = GENERATED / name
        self.written.add(path)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def remove_others(self) -> None:
        for folder in ("api", "examples", "project"):
            for path in (GENERATED / folder).rglob("*"):
                if path.is_file() and path not in self.written:
                    path.unlink()


def write_pages() -> None:
    """Write all pages that are made from other files."""
    pages = Pages()
    write_api(pages)
    write_examples(pages)
    for name in PROJECT:
        page = f"project/{Path(name).stem.lower()}.md"
        text = (ROOT / name).read_text(encoding="utf-8")
        pages.write(page, resolve_links(text, ROOT / name))
    pages.remove_others()


# ---- Links to files that are not below docs/ ----


def page_of(path: Path) -> str | None:
    """Return the page of the site, from its root, for a file or folder of the repository."""
    if path == ROOT / "README.md":
        return "/index.md"
    if path == ROOT / "examples":
        return "/generated/examples/index.md"
    if path.is_relative_to(ROOT / "examples"):
        part = path.relative_to(ROOT / "examples").parts[0]
        return f"/generated/examples/{part.removesuffix('.py')}.md"
    if path.parent == ROOT and path.name in PROJECT:
        return f"/generated/project/{path.stem.lower()}.md"
    if path == DOCS:
        return "/README.md"
    if path.is_relative_to(DOCS / "gallery"):
        return f"/generated/gallery/{path.stem if path.suffix else 'index'}.rst"
    if path.is_relative_to(DOCS) and path.is_file():
        return "/" + path.relative_to(DOCS).as_posix()
    return None


def resolve_links(text: str, source: Path) -> str:
    """Let the relative links of a page lead to pages of the site; others lose their link."""

    def replace(match: re.Match[str]) -> str:
        start, target, end = match.groups()
        if not target or re.match(r"\w+:", target):
            return match.group()
        path = (source.parent / target).resolve()
        within = path.is_relative_to(DOCS) and not path.is_relative_to(DOCS / "gallery")
        if within and source.is_relative_to(DOCS):
            return match.group()
        page = page_of(path)
        return f"{start}{page}{end}" if page else "]"

    parts, at = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(replace, text[at : fence.start()]), fence.group()]
        at = fence.end()
    return "".join([*parts, LINK.sub(replace, text[at:])])


def link_pages(text: str) -> str:
    """Turn the pages that a docstring names (docs/plan/budget.md) into links of the site."""

    def replace(match: re.Match[str]) -> str:
        page = match.group(2)
        return f":doc:`/{page}`" if (DOCS / f"{page}.md").is_file() else match.group()

    return PAGE.sub(replace, text)


# ---- Public names ----


def write_api(pages: Pages) -> None:
    """Write a page for each module and one for each of its names."""
    modules: dict[str, list[Name]] = {}
    for name in public_names():
        modules.setdefault(name.module, []).append(name)
        pages.write(f"api/{name.full}.rst", name_page(name))
    for module, names in modules.items():
        lines = [title(module), f".. module:: {module}", "", ".. list-table::", "   :widths: 1 2"]
        for name in names:
            text = link_pages(summary(docstring(name)))
            lines += ["", f"   * - :doc:`{name.name} <{name.full}>`", f"     - {text}"]
        entries = [f"   {name.full}" for name in names]
        lines += ["", ".. toctree::", "   :hidden:", "", *entries, ""]
        pages.write(f"api/{module}.rst", "\n".join(lines))


def name_page(name: Name) -> str:
    """Return the page of a public name."""
    lines = [title(name.name), f".. currentmodule:: {name.module}", ""]
    value = name.value
    if name.same_as:
        lines += [f"The same as :doc:`{name.same_as} <{name.same_as}>`."]
    elif isinstance(value, type):
        options = [f"   :members: {', '.join(members(value))}"] if members(value) else []
        lines += [f".. autoclass:: {name.name}", *options]
    elif isinstance(value, ModuleType):
        lines += [f".. automodule:: {name.full}", "   :members:"]
    elif inspect.isroutine(value):
        lines += [f".. autofunction:: {name.name}"]
    else:
        text = link_pages(str(SphinxDocString(docstring(name))))
        lines += [f".. data:: {name.name}", "", *("   " + line for line in text.splitlines())]
    return "\n".join([*lines, ""])


def summary(text: str) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join(text.partition("\n\n")[0].split())


def title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n"


# ---- Examples ----


def write_examples(pages: Pages) -> None:
    """Write a page with the source of each program in examples/, and their list."""
    entries = []
    for path in sorted((ROOT / "examples").iterdir()):
        files = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
        if not files or path.name.startswith((".", "_")):
            continue
        # Of a folder: the docstring of its package, or of its only file.
        purpose = summary(ast.get_docstring(ast.parse(files[0].read_text(encoding="utf-8"))) or "")
        blocks = [f"# `{path.name}`\n"]
        readme = path / "README.md"
        if readme.exists():
            blocks = [resolve_links(readme.read_text(encoding="utf-8"), readme)]
        for file in files:
            name = file.relative_to(ROOT)
            if file.name != "__init__.py":
                blocks += [f"```{{literalinclude}} /../{name}", f":caption: '`{name}`'"]
                blocks += [":language: python", ":start-after: Apache-2.0", "```", ""]
        pages.write(f"examples/{path.stem}.md", "\n".join(blocks))
        entries.append(f"| [{path.name}]({path.stem}.md) | {purpose} |")
    body = ["# Programs", "", "Each runs as it is, from a clone of the repository.", ""]
    body += ["| program | purpose |", "|---|---|", *entries, ""]
    body += ["```{toctree}", ":hidden:", ":glob:", "", "*", "```", ""]
    pages.write("examples/index.md", "\n".join(body))
