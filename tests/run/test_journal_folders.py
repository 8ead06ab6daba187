# SPDX-License-Identifier: Apache-2.0
"""Folders of runs: owners, copies, foreign and secret ones, and the files in them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from journal_cases import IDENTITY, KEY, begun, digests
from processes import child

from dpftrl_fast.run.differences import differences
from dpftrl_fast.run.journal import RunJournal
from dpftrl_fast.run.run_file import _check
from dpftrl_fast.run.sealed_files import read_sealed, write_sealed


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that the system has: only a failing machine does."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def test_two_openers(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 1)
    with RunJournal(folder, IDENTITY):
        with pytest.raises(RuntimeError, match="in use by another run of this process"):
            RunJournal(folder, IDENTITY)
        code = (
            "import sys; from dpftrl_fast.run.journal import RunJournal\n"
            "try: RunJournal(sys.argv[1], {})\n"
            "except RuntimeError as error: print(error)"
        )
        out = subprocess.run(
            [sys.executable, "-c", code, folder],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "in use by another run in another process" in out.stdout
    RunJournal(folder, IDENTITY).close()


def test_an_owner_that_nothing_refers_to_lets_go(tmp_path: Path) -> None:
    """As in a notebook, where a cell is run again without a call of close."""
    folder = begun(tmp_path / "run", 1)
    journal = RunJournal(folder, IDENTITY)
    cycle = [journal]
    cycle.append(cycle)  # type: ignore[arg-type]  # only a collection finds it
    del cycle
    with pytest.raises(RuntimeError, match="in use by another run of this process: close that"):
        RunJournal(folder, IDENTITY)
    assert journal.last == 1
    del journal
    with RunJournal(folder, IDENTITY) as journal:
        assert journal.last == 1
        with pytest.raises(RuntimeError, match="in use by another run of this process"):
            RunJournal(folder, IDENTITY)
    journal.close()
    RunJournal(folder, IDENTITY).close()


@pytest.mark.parametrize("there", ["still", "no longer", "and recovered"])
def test_another_process_that_had_the_folder_meanwhile_is_noticed(
    tmp_path: Path, there: str
) -> None:
    """Reading the file "lock" in this process lets go of it: the system's rule for such locks."""
    folder = begun(tmp_path / "run", 2)
    code = (
        "import sys; from dpftrl_fast.run.journal import RunJournal\n"
        f"journal = RunJournal(sys.argv[1], {IDENTITY})\n"
        "journal.resume()\n"
        "if sys.argv[2] == 'and recovered': journal.recover({'key': b'fresh'})\n"
        "known = [*journal._log._digests, bytes(32)]\n"
        "if sys.argv[2] == 'no longer':\n"
        "    for i in (1, 2, 3): journal.write_ahead(i, known[i - 1])\n"
        "if sys.argv[2] != 'still': journal.close()\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        for i, digest in enumerate(digests(journal, 2), 1):
            journal.write_ahead(i, digest)
        shutil.copytree(folder, tmp_path / "backup")
        with child(
            [sys.executable, "-c", code, folder, there],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdout is not None and other.stdin is not None
            assert other.stdout.readline() == "ready\n"
            words = "in use by another" if there == "still" else "another process has had"
            with pytest.raises((RuntimeError, OSError), match=words):
                journal.write_ahead(3, digests(journal, 3)[2])
            with pytest.raises((RuntimeError, OSError), match=words):
                journal.checkpoint({})
            other.stdin.close()
            assert other.wait(timeout=60) == 0


def test_a_copy_of_the_folder_lets_the_run_go_on(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 1)
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        journal.write_ahead(1, digests(journal, 1)[0])
        shutil.copytree(folder, tmp_path / "backup")
        assert journal.write_ahead(2, digests(journal, 2)[1])


def test_a_forked_process_may_not_go_on_and_does_not_keep_the_folder(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 1)
    journal = RunJournal(folder, IDENTITY)
    journal.resume()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            journal.write_ahead(1, bytes(32))
        except RuntimeError as error:
            status = 0 if "was forked from" in str(error) else 2
        finally:
            signal.pause() if status == 0 else os._exit(status)
    try:
        journal.close()
        RunJournal(folder, IDENTITY).close()  # the child still lives
    finally:
        time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)


def test_a_copy_is_refused_unless_a_fork_is_allowed_and_is_marked_for_good(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 3)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with pytest.raises(ValueError, match=r"allow_fork=True .* voids the guarantee"):
        RunJournal(copy, IDENTITY)
    with RunJournal(copy, IDENTITY, allow_fork=True) as journal:
        assert journal.forked and "guarantee is void" in repr(journal)
        assert journal.resume() is not None and journal.last == 3
    with RunJournal(copy, IDENTITY) as journal:
        assert journal.forked
    folder.rename(tmp_path / "renamed")  # no copy
    with RunJournal(tmp_path / "renamed", IDENTITY) as journal:
        assert not journal.forked


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 1)
    said = 'differ in order; order: the folder has "abc", this run "abd"$'
    with pytest.raises(ValueError, match=said):
        RunJournal(folder, {**IDENTITY, "order": "abd"})
    said = "differ in more, plan; more: the folder has no such entry, this run 1; plan: .* run 0$"
    with pytest.raises(ValueError, match=said):
        RunJournal(folder, {"more": 1, "plan": 0, "order": "abc"})
    with pytest.raises(TypeError, match="identity must be a mapping, got int"):
        RunJournal(folder, 3)  # type: ignore[arg-type]
    RunJournal(folder, dict(reversed(IDENTITY.items()))).close()


def test_every_leaf_that_differs_is_named() -> None:
    plan = {
        "noise_multiplier": 4.0,
        "mechanism": {"kind": "Tree", "trees": [1, 2]},
        "users": [0] * 9,
    }
    other = json.loads(json.dumps(plan).replace("4.0", "5.0").replace("[1, 2]", "[1, 3]"))
    assert differences({"plan": plan}, {"plan": other}) == (
        "plan.mechanism.trees[1]: the folder has 2, this run 3; "
        "plan.noise_multiplier: the folder has 4.0, this run 5.0"
    )
    other["users"] = [0] * 8 + [77]  # may be a list of users: none is shown
    assert differences(plan, other).endswith("; users: lists of 9 entries, which differ")
    many = {str(i): i for i in range(9)}
    assert differences(many, {name: 99 for name in many}).endswith(
        "3: the folder has 3, this run 99; and more"
    )
    assert differences({"a": 1}, {"a": True}) == "a: the folder has 1, this run true"
    assert differences({"a": None}, {}) == "a: the folder has null, this run no such entry"
    assert len(differences({"a": "x" * 999}, {"a": [1] * 999})) < 130
    assert differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}) == ""


def test_foreign_folders_files_and_versions(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="is a file"):
        RunJournal(tmp_path / "file", IDENTITY)
    with pytest.raises(OSError, match="file"):
        RunJournal(tmp_path / "file" / "run", IDENTITY)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"has no run\.json, but 'thesis.tex'"):
        RunJournal(foreign, IDENTITY)
    assert [p.name for p in foreign.iterdir()] == ["thesis.tex"]
    (foreign / "run.json").write_text("{}")
    foreign.chmod(0o700)
    with pytest.raises(ValueError, match=r"its format is not 'dpftrl_fast\.RunJournal'"):
        RunJournal(foreign, IDENTITY)
    folder = begun(tmp_path / "run", 1)
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"version": 2', '"version": 3'))
    with pytest.raises(ValueError, match="must have version 2, got 3"):
        RunJournal(folder, IDENTITY)
    (folder / "run.json").write_text(text)
    (folder / "steps-0.log").unlink()
    with pytest.raises(ValueError, match="is missing: the folder is damaged"):
        RunJournal(folder, IDENTITY)


@pytest.mark.parametrize("other", [1, "2", 3, None])
def test_a_run_of_another_stream_is_refused(tmp_path: Path, other: object) -> None:
    """Its caller may keep no more than a key: a step that is repeated would have other noise."""
    path = begun(tmp_path / "run", 1) / "run.json"
    fields = json.loads(path.read_bytes()) | {"stream_version": other}
    del fields["check"]
    path.write_text(json.dumps(fields | {"check": _check(fields)}))
    with pytest.raises(ValueError, match=r"has stream_version .* finish that run with"):
        RunJournal(tmp_path / "run", IDENTITY)


@pytest.mark.parametrize("left", ["log", "later log", "kept"])
def test_a_run_whose_checkpoint_is_gone_does_not_begin_again(tmp_path: Path, left: str) -> None:
    """It would have a fresh key, and no account of the steps whose releases are out."""
    folder = begun(tmp_path / "run", 2)
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        digest = journal.digest(3)
        journal.write_ahead(1, digests(journal, 1)[0])
        journal.write_ahead(2, digests(journal, 2)[1])
        journal.write_ahead(3, digest, {"sum": 1})
    log = folder / "steps-0.log"
    (folder / "checkpoint.npz").unlink()
    if left != "kept":
        (folder / "kept-0-3.npz").unlink()
    if left == "later log":
        log.rename(folder / "steps-1.log")
    if left == "kept":
        log.unlink()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match="the checkpoint is missing beside"):
        RunJournal(folder, IDENTITY)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    for path in folder.glob("*-*"):
        path.unlink()
    with RunJournal(folder, IDENTITY) as journal:  # as a run that was killed at its beginning
        assert journal.resume() is None


def test_a_key_is_in_no_repr(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    with RunJournal(tmp_path / "run", IDENTITY) as journal:
        secret = journal._run.secret
        for text in (repr(journal), repr(journal._run)):
            assert repr(secret) not in text and secret.hex() not in text


def test_the_folder_is_a_secret(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    folder = begun(tmp_path / "run", 2, every=1)
    assert folder.stat().st_mode & 0o777 == 0o700
    begun(tmp_path / "deep" / "er")
    assert (tmp_path / "deep" / "er").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    folder.chmod(0o750)
    with pytest.raises(PermissionError, match=r"must have mode 0700, .* has 0750"):
        RunJournal(folder, IDENTITY)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_folder(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 1)
    folder.chmod(0o500)
    try:
        with RunJournal(folder, IDENTITY) as journal:
            journal.resume()
            with pytest.raises(PermissionError):
                journal.checkpoint({})
    finally:
        folder.chmod(0o700)


def test_states_come_back_as_they_were(tmp_path: Path) -> None:
    state = {
        "a": {0: [1, 2.5, None, True, "x", b"y", (1, (2,))], -1: {}},
        "floats": [float("inf"), -0.0, 0.1, 5e-324],
        "arrays": [
            np.arange(6, dtype=np.float32).reshape(2, 3).T,
            np.array(3, np.uint8),
            np.zeros((0, 4)),
            np.array([True, False]),
            np.array(["ab", "c"]),
        ],
        "array0": np.array([1j]),
        "file": 1,
    }
    write_sealed(tmp_path / "x", state, KEY, "label")
    back = read_sealed(tmp_path / "x", KEY, "label")
    assert repr(back) == repr(state)
    for old, new in zip(state["arrays"], back["arrays"], strict=True):  # type: ignore[call-overload]
        assert old.dtype == new.dtype and old.shape == new.shape
    for secret, label in ((b"l" * 32, "label"), (KEY, "other")):
        with pytest.raises(ValueError, match="seal does not fit"):
            read_sealed(tmp_path / "x", secret, label)
    whole = (tmp_path / "x").read_bytes()
    for size in (0, 1, 31, 32, 33, len(whole) - 1):
        (tmp_path / "x").write_bytes(whole[:size])
        with pytest.raises(ValueError, match="seal does not fit"):
            read_sealed(tmp_path / "x", KEY, "label")
