# SPDX-License-Identifier: Apache-2.0
"""The pages in docs/: links, width, the list of public names, and examples that run."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from public_names import listed

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OTHERS = ("README.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
# Those that the site makes are of other files.
IN_DOCS = [page for page in sorted(DOCS.rglob("*.md")) if page.parts[-3:-2] != ("generated",)]
PAGES = [*IN_DOCS, *(ROOT / name for name in OTHERS)]
# Pages of the site only, beside README.md, the index of the same pages on GitHub.
FRONT = {"README.md", "index.md", "guide.md"}
WIDTH = 100
# Words of the house's own, and "restart" where a recovery is meant.
REPLACED = re.compile(
    r"\b(lest|goes? on where|(raw|bare) sums?|of one's own|cannot be had|spare_restarts=)\b"
)
# Not a name to call.
NOT_LISTED = {"__version__"}


def anchors(page: Path) -> set[str]:
    """Headings of a page, as GitHub names them in links."""
    found = set()
    for line in without_code(page.read_text(encoding="utf-8")).splitlines():
        if line.startswith("#"):
            title = line.lstrip("#").strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = without_code(page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_to_other_sites_are_well_formed(page: Path) -> None:
    """Whether they answer is for `sphinx-build -b linkcheck`, which needs a network."""
    text = without_code(page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([a-z]+:[^)\s]+)\)|<(https?:[^>]*)>", text):
        address = urlsplit("".join(target))
        assert address.scheme in ("https", "mailto"), target
        if address.scheme == "https":
            assert re.fullmatch(r"[\w-]+(\.[\w-]+)+", address.netloc), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_prose_wraps(page: Path) -> None:
    for line in without_code(page.read_text(encoding="utf-8")).splitlines():
        may_be_long = line.startswith(("|", "![", "    ", "       ")) or "](" in line
        assert len(line) <= WIDTH or may_be_long, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_standard_terms(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    words = re.findall(r"[A-Za-z]+", re.sub(r"`[^`\n]*::[^`\n]*`", "", text))  # no names of tests
    assert [m.group() for m in REPLACED.finditer(text)] == []
    assert sum(word.lower() == "what" for word in words) <= 1 + 1.5 * len(words) / 1000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_an_epsilon_is_printed_with_its_replace_one(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", without_code(text), flags=re.MULTILINE)
    for block in [*fenced, *indented]:
        if re.search(r"print\(.*epsilon", block):
            assert "replace-one" in block or "describe(" in block, block


def test_every_example_states_both_epsilons() -> None:
    for path in [*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").rglob("*_app.py")]:
        text = path.read_text(encoding="utf-8")
        if re.search(r"epsilon(_spent)?\(", text):
            assert "replace-one" in text or "describe(" in text, path.name


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in IN_DOCS:
        name = page.relative_to(DOCS).as_posix()
        assert name in FRONT or f"({name})" in index, name


def exists(path: str) -> bool:
    places = [ROOT, ROOT / "dpftrl_fast"]
    if "/" not in path:  # in the folder of another file, which the sentence names
        return any(any((ROOT / top).rglob(path)) for top in ("dpftrl_fast", "tests", "csrc"))
    return any(any(place.glob(path)) for place in places)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_paths_of_sources_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`([\w*./-]+\.(?:py|cpp|hpp))`", text):
        assert exists(path), path


def test_folders_of_the_architecture_page_exist() -> None:
    text = (DOCS / "internals" / "architecture.md").read_text(encoding="utf-8")
    folders = re.findall(r"`([\w.-]+(?:/[\w.-]+)*/)`", text)
    assert len(folders) > 30
    for folder in folders:
        assert exists(folder) or (ROOT / folder).exists() or exists(f"{folder}*"), folder


# ---- Public names ----


def test_the_list_is_read() -> None:
    names = listed()
    assert "epsilon" in names["dpftrl_fast.accounting"]
    assert {"DPFTRL", "ResidualNoise"} <= names["dpftrl_fast.torch"]


@pytest.mark.parametrize("module", sorted(listed()))
def test_public_names_exist_and_are_listed(module: str) -> None:
    for part, optional in (
        (".torch", "torch"),
        ("linear_model", "sklearn"),
        ("preprocessing", "sklearn"),
        ("flower", "flwr"),
        (".jax", "jax"),
        (".optax", "optax"),
    ):
        if part in module:
            pytest.importorskip(optional)
    public = importlib.import_module(module)
    for name in listed()[module]:
        if not hasattr(public, name):  # a folder that is public as a whole
            importlib.import_module(f"{module}.{name}")
    if module != "dpftrl_fast.fitting.model_file":
        missing = set(getattr(public, "__all__", ())) - listed()[module] - NOT_LISTED
        assert missing == set()
