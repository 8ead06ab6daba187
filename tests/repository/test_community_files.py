# SPDX-License-Identifier: Apache-2.0
"""CITATION.cff and the templates of issues: the fields that GitHub needs, and the right version."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
FIELDS = {"textarea", "input", "dropdown", "checkboxes"}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_citation_has_the_version_of_the_package() -> None:
    cited = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    (version,) = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert str(cited["version"]) == version
    assert cited["references"][0]["year"] == 2021
    # Names of people stand in references only.
    assert all(set(author) == {"name"} for author in cited["authors"])


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_has_the_fields_that_it_needs(path: Path) -> None:
    form = read(path)
    if path.name == "config.yml":
        assert form == {"blank_issues_enabled": False}
        return
    assert form["name"] and form["description"]
    kinds = [element["type"] for element in form["body"]]
    assert set(kinds) <= {"markdown", *FIELDS} and FIELDS & set(kinds)
    ids = [element["id"] for element in form["body"] if element["type"] != "markdown"]
    assert len(set(ids)) == len(ids)
    for element in form["body"]:
        assert element["attributes"].get("label") or element["attributes"].get("value")


def test_forms_send_faults_of_privacy_elsewhere() -> None:
    assert {path.stem for path in FORMS} >= {"bug", "privacy_fault", "question"}
    assert "SECURITY.md" in (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text()
    assert "SECURITY.md" in (ROOT / ".github/ISSUE_TEMPLATE/privacy_fault.yml").read_text()
