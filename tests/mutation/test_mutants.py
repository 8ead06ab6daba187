# SPDX-License-Identifier: Apache-2.0
"""The list of mutants is not stale, and the runner applies, restores and resumes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tomllib")  # of Python 3.11

PATH = Path(__file__).with_name("run.py")
SPEC = importlib.util.spec_from_file_location("mutation_run", PATH)
assert SPEC is not None and SPEC.loader is not None
run: Any = importlib.util.module_from_spec(SPEC)
sys.modules["mutation_run"] = run
SPEC.loader.exec_module(run)

MUTANTS = run.load()
# A change of a line takes its mutants along. Some may wait for the next look at the list.
MOST_STALE = 0.05


def test_the_list_is_that_of_the_sources() -> None:
    stale = run.stale(MUTANTS)
    assert len(stale) <= MOST_STALE * len(MUTANTS), "\n".join(stale)
    assert len(MUTANTS) >= 200
    assert sum(mutant.cpp for mutant in MUTANTS) >= 20
    named = [mutant for mutant in MUTANTS if mutant.survives or mutant.equivalent]
    assert all(len(mutant.survives or mutant.equivalent) > 20 for mutant in named)
    assert len(named) <= 0.05 * len(MUTANTS)


def mutant(**change: Any) -> Any:
    fields = {"name": "one", "file": "a.py", "old": "x = 1", "new": "x = 2", "tests": ("t.py",)}
    return run.Mutant(**{**fields, **change})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    (tmp_path / "t.py").write_text("assert x\n")
    return tmp_path


def test_a_mutant_is_applied_where_its_text_is_once(root: Path) -> None:
    source = (root / "a.py").read_text()
    assert mutant().applied(source) == "x = 2\ny = 1\n"
    for change in ({"old": "= 1"}, {"old": "z"}, {"new": "x = 1"}):
        with pytest.raises(ValueError, match="must"):
            mutant(**change).applied(source)
    wrong = [mutant(), mutant(old="= 1"), mutant(file="b.py"), mutant(tests=("u.py",))]
    found = run.stale(wrong, root)
    assert len(found) == 3 and "occurs 2 times" in found[0] and "no test u.py" in found[2]


def test_only_what_changed_is_run_again(root: Path) -> None:
    results = run.Results(root / "results.jsonl")
    for name, outcome in (("one", "noticed"), ("two", "survived")):
        given = mutant(name=name)
        results.add({"name": name, "outcome": outcome, "failed": "", **given.digests(root)})
    again = run.Results(root / "results.jsonl")
    noticed, survived = mutant(), mutant(name="two")
    assert again.of(noticed, root)["outcome"] == "noticed"
    assert again.of(survived, root)["outcome"] == "survived"
    assert again.of(mutant(new="x = 3"), root) is None
    (root / "t.py").write_text("assert x == 1\n")  # a better test
    assert again.of(noticed, root) is not None and again.of(survived, root) is None
    (root / "a.py").write_text("x = 1\n")
    assert again.of(noticed, root) is None


def test_the_score_leaves_out_what_changes_nothing() -> None:
    outcomes = [
        (mutant(), {"outcome": "noticed", "failed": "t"}),
        (mutant(name="two"), {"outcome": "survived", "failed": ""}),
        (mutant(name="three", equivalent="the same"), {"outcome": "survived", "failed": ""}),
        (mutant(name="four"), None),
    ]
    assert run.score(outcomes) == (1, 2)
    text = run.table(outcomes)
    assert "score: 1 of 2, 50.0 %" in text and "- survived: two (a.py): no reason is given" in text
    assert "three" not in text and "not run yet: 1" in text


def test_a_list_with_a_mistake_is_refused(tmp_path: Path) -> None:
    def listed(**change: str) -> Path:
        fields = {"name": "one", "file": "a.py", "old": "x", "new": "y", **change}
        lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
        (tmp_path / "a.toml").write_text("\n".join(["[[mutant]]", *lines, 'tests = ["t.py"]', ""]))
        return tmp_path

    assert [m.name for m in run.load(listed())] == ["one"]
    with pytest.raises(ValueError, match="wrong fields"):
        run.load(listed(reason="none"))
    (tmp_path / "b.toml").write_text((listed() / "a.toml").read_text())
    with pytest.raises(ValueError, match="distinct"):
        run.load(tmp_path)
