# SPDX-License-Identifier: Apache-2.0
"""Every public name has a page of the site, with an example that runs."""

from __future__ import annotations

import doctest
import importlib
import re
from types import FunctionType, ModuleType

import pytest
from public_names import PACKAGE, Name, data_docstring, docstring, listed, load, members

NAMES = [(module, name) for module, names in sorted(listed().items()) for name in sorted(names)]
# Packages that the import of a module needs.
NEEDS = {
    "torch": "opacus",
    "linear_model": "sklearn",
    "preprocessing": "sklearn",
    "flower": "flwr",
    ".jax": "jax",
    ".optax": "optax",
}
COMPILED = (f"{PACKAGE}._core", f"{PACKAGE}._chacha")


def public(module: str, name: str) -> Name:
    for part, package in NEEDS.items():
        if part in module:
            pytest.importorskip(package)
    return Name(module, name, load(module, name), "")


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_public_name_has_an_example(module: str, name: str) -> None:
    text = docstring(public(module, name))
    examples = text.partition("Examples\n--------\n")[2]
    assert ">>> " in examples


def test_examples_of_data_and_compiled_names_run() -> None:
    """Those of functions and classes in Python are run by test_docstrings.py."""
    ran = set()
    for module, name in NAMES:
        one = public(module, name)
        compiled = getattr(one.value, "__module__", "") in COMPILED
        if isinstance(one.value, (type, FunctionType, ModuleType)) and not compiled:
            continue
        place = module if compiled else data_docstring(module, name)[0]
        namespace = dict(vars(importlib.import_module(place)))
        test = doctest.DocTestParser().get_doctest(docstring(one), namespace, name, None, None)
        said: list[str] = []
        result = doctest.DocTestRunner().run(test, out=said.append)
        assert result.attempted and not result.failed, (name, "".join(said))
        ran.add(name)
    assert {"build_info", "ChaCha", "STREAM_VERSION", "Participation", "secagg_mods"} <= ran


def test_members_are_those_of_this_package() -> None:
    from dpftrl_fast import PrivacyPlan
    from dpftrl_fast.run import BudgetExceeded

    assert {"calibrate", "epsilon", "delta_floor", "noise"} <= set(members(PrivacyPlan))
    assert members(BudgetExceeded) == []  # nothing of ValueError
    assert not any(name.startswith("_") for name in members(PrivacyPlan))


def test_the_site_has_a_page_for_every_name() -> None:
    pytest.importorskip("numpydoc")
    for package in NEEDS.values():
        pytest.importorskip(package)
    from public_names import public_names
    from site_pages import Pages, name_page, write_api

    class Kept(Pages):
        def __init__(self) -> None:
            self.texts: dict[str, str] = {}

        def write(self, name: str, text: str) -> None:
            self.texts[name] = text

    kept = Kept()
    write_api(kept)
    assert {f"api/{module}.{name}.rst" for module, name in NAMES} <= set(kept.texts)
    assert {f"api/{module}.rst" for module in listed()} <= set(kept.texts)
    for one in public_names():
        assert one.same_as or f":: {one.name}" in name_page(one) or one.full in name_page(one)


def test_a_page_that_a_docstring_names_is_a_link_of_the_site() -> None:
    pytest.importorskip("numpydoc")
    from site_pages import ROOT, link_pages

    assert link_pages("see docs/plan/budget.md.") == "see :doc:`/plan/budget`."
    assert link_pages("(see ``docs/runs/cli.md``)") == "(see :doc:`/runs/cli`)"
    assert link_pages("docs/plan/none.md, old_docs/x.md") == "docs/plan/none.md, old_docs/x.md"
    named = [
        page
        for path in (ROOT / PACKAGE).rglob("*.py")
        for page in re.findall(r"docs/[\w/]+\.md", path.read_text(encoding="utf-8"))
    ]
    assert len(named) > 50
    for page in named:
        assert (ROOT / page).is_file(), page
        assert link_pages(page).startswith(":doc:`/"), page
