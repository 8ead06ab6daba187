# SPDX-License-Identifier: Apache-2.0
"""Writing ahead: crashes at every point, replays, forks, damaged and foreign folders."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import journal_run
import numpy as np
import pytest

from dpftrl_fast import step_log
from dpftrl_fast.journal import Diverged, RunJournal
from dpftrl_fast.sealed_files import read_sealed, write_sealed

IDENTITY = {"plan": {"sigma": 1.5}, "order": "abc"}
KEY = b"k" * 32


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that the system has: only a failing machine does."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def digests(journal: RunJournal, n: int) -> list[bytes]:
    return [journal.digest(i, np.array([float(i)])) for i in range(1, n + 1)]


def begun(folder: Path, steps: int = 0, *, every: int = 10**9) -> Path:
    """A folder of a run that was killed after so many steps."""
    with RunJournal(folder, IDENTITY) as journal:
        journal.checkpoint({"step": 0, "key": KEY})
        for i, digest in enumerate(digests(journal, steps), 1):
            assert journal.write_ahead(i, digest)
            if i % every == 0:
                journal.checkpoint({"step": i, "key": KEY})
    return folder


# ---- The protocol ----


def test_a_run_goes_on_from_the_last_checkpoint_and_replays_the_rest(tmp_path: Path) -> None:
    begun(tmp_path / "run", 7, every=3)
    with RunJournal(tmp_path / "run", IDENTITY) as journal:
        assert journal.resume() == {"step": 6, "key": KEY}
        assert (journal.step, journal.last, journal.replaying) == (6, 7, True)
        seven, eight = digests(journal, 8)[6:]
        assert not journal.write_ahead(7, seven)
        assert not journal.replaying
        assert journal.write_ahead(8, eight)
        assert (journal.start, journal.abandoned, journal.forked) == (1, (), False)


def test_another_sum_for_a_step_that_was_written_ahead_is_refused(tmp_path: Path) -> None:
    begun(tmp_path / "run", 5, every=2)
    with RunJournal(tmp_path / "run", IDENTITY) as journal:
        journal.resume()
        for _ in range(2):  # and stays refused
            with pytest.raises(Diverged, match="step 5 was written ahead with another") as caught:
                journal.write_ahead(5, journal.digest(5, np.array([5.1])))
            assert (caught.value.step, caught.value.last, journal.step) == (5, 5, 4)
        assert not journal.write_ahead(5, digests(journal, 5)[4])


def test_a_restart_abandons_the_rest_and_begins_a_generation(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 9, every=4)
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        with pytest.raises(Diverged):
            journal.write_ahead(9, bytes(32))
        journal.restart({"step": 8, "key": b"fresh"})
        assert (journal.step, journal.last, journal.start) == (8, 8, 9)
        assert journal.abandoned == ((1, 9),)
        assert journal.write_ahead(9, bytes(32))
        assert journal.write_ahead(10, bytes(32))
        with pytest.raises(ValueError, match="steps written ahead after step 10, got none"):
            journal.restart({})
    with RunJournal(folder, IDENTITY) as journal:
        assert journal.resume() == {"step": 8, "key": b"fresh"}
        assert (journal.step, journal.last) == (8, 10)
        assert not journal.write_ahead(9, bytes(32))
        with pytest.raises(Diverged):
            journal.write_ahead(10, digests(journal, 10)[9])
        journal.restart({"step": 9, "key": b"fresher"})
        assert journal.abandoned == ((1, 9), (9, 10))
    assert sorted(p.name for p in folder.glob("steps-*")) == ["steps-2.log"]


def test_what_was_kept_for_a_step_comes_back_until_the_next_checkpoint(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        for i, digest in enumerate(digests(journal, 3), 1):
            assert journal.kept() is None
            journal.write_ahead(i, digest, {"sum": np.full(2, i)})
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        for i, digest in enumerate(digests(journal, 3), 1):
            kept = journal.kept()
            assert kept is not None and kept["sum"].tolist() == [i, i]
            assert not journal.write_ahead(i, digest)
            if i == 2:
                journal.checkpoint({})
                assert [p.name for p in folder.glob("kept-*")] == ["kept-0-3.npz"]
        assert journal.kept() is None


def test_a_checkpoint_during_a_replay_keeps_what_was_written_ahead(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 5)
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        journal.write_ahead(1, digests(journal, 1)[0])
        journal.checkpoint({"step": 1})
    with RunJournal(folder, IDENTITY) as journal:
        assert journal.resume() == {"step": 1}
        assert (journal.step, journal.last) == (1, 5)


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with RunJournal(folder, IDENTITY) as journal:
        one = journal.digest("x")
        with pytest.raises(RuntimeError, match="expected a checkpoint before the first step"):
            journal.write_ahead(1, one)
        assert journal.resume() is None
        journal.checkpoint({})
        with pytest.raises(RuntimeError, match="expected one call of resume, got another"):
            journal.resume()
        for step in (0, 2, True, 1.0):
            with pytest.raises(ValueError, match="step must be the next one, 1, got"):
                journal.write_ahead(step, one)  # type: ignore[arg-type]
        for digest in (b"short", bytearray(32), "x" * 32):
            with pytest.raises(ValueError, match="digest must be the 32 bytes"):
                journal.write_ahead(1, digest)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"state\['a'\]\[1\] must be .*, got set"):
            journal.checkpoint({"a": [1, set()]})
        with pytest.raises(TypeError, match="got dtype object"):
            journal.checkpoint({"a": np.array([None])})
        with pytest.raises(TypeError, match="got float"):
            journal.digest(1.0)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not pickled"):
            journal.__reduce__()
    with pytest.raises(RuntimeError, match="closed"):
        journal.checkpoint({})
    with RunJournal(folder, IDENTITY) as journal:
        for call in (lambda: journal.checkpoint({}), lambda: journal.write_ahead(1, one)):
            with pytest.raises(RuntimeError, match="expected a call of resume first"):
                call()


def test_digests_tell_dtype_shape_order_bits_and_run(tmp_path: Path) -> None:
    a = np.arange(4.0)
    with RunJournal(tmp_path / "a", {}) as one, RunJournal(tmp_path / "b", {}) as two:
        seen = {
            one.digest(a),
            one.digest(a.astype(np.float32)),
            one.digest(a.reshape(2, 2)),
            one.digest(a[:2], a[2:]),
            one.digest(a[::-1]),
            one.digest(-a[:1]),
            one.digest(a[:1]),
            one.digest("12"),
            one.digest(12),
            one.digest("1", "2"),
            one.digest(b"12"),
            one.digest(),
            two.digest(a),
        }
        assert len(seen) == 13
        assert one.digest(a[::2]) == one.digest(a[::2].copy())
        assert one.digest(np.zeros((2, 0))) != one.digest(np.zeros((0, 2)))


# ---- Crashes ----


def test_a_log_cut_at_every_byte_of_its_tail_goes_on(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 3, every=1)
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        wanted = digests(journal, 6)
        for i in (4, 5):
            journal.write_ahead(i, wanted[i - 1])
    log = folder / "steps-0.log"
    whole = log.read_bytes()
    assert len(whole) == 6 * 64
    for size in range(4 * 64, len(whole) + 1):
        log.write_bytes(whole[:size])
        with RunJournal(folder, IDENTITY) as journal:
            journal.resume()
            assert journal.last == size // 64 - 1
            for i in (4, 5, 6):
                assert journal.write_ahead(i, wanted[i - 1]) == (i > size // 64 - 1)
        # The hashes are chained and have no time in them: the same log as without a crash.
        assert log.read_bytes()[: len(whole)] == whole and log.stat().st_size == 7 * 64
    for size in range(4 * 64):  # durable records are gone: not a crash, but damage
        log.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="damaged"):
            RunJournal(folder, IDENTITY)


def test_a_record_of_zeros_that_never_reached_the_disk_is_cut_off(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 2)
    log = folder / "steps-0.log"
    whole = log.read_bytes()
    log.write_bytes(whole + bytes(64))
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        assert journal.last == 2
    assert log.read_bytes() == whole
    log.write_bytes(whole + bytes(128))
    with pytest.raises(ValueError, match="record of step 3 does not fit"):
        RunJournal(folder, IDENTITY)


@pytest.mark.parametrize("name", ["steps-0.log", "checkpoint.npz", "run.json"])
def test_every_flipped_bit_is_detected(tmp_path: Path, name: str) -> None:
    folder = begun(tmp_path / "run", 3, every=2)
    path = folder / name
    whole = path.read_bytes()
    for i in range(len(whole)):
        damaged = bytearray(whole)
        damaged[i] ^= 1 << (i % 8)
        path.write_bytes(damaged)
        if name == "run.json" and damaged[i : i + 1].isspace() and whole[i : i + 1].isspace():
            continue
        with pytest.raises(ValueError, match=r"damaged|must be of|must have version|another run"):
            RunJournal(folder, IDENTITY)
    path.write_bytes(whole)
    RunJournal(folder, IDENTITY).close()


def test_records_cannot_be_swapped_or_taken_from_another_run(tmp_path: Path) -> None:
    log = begun(tmp_path / "run", 4) / "steps-0.log"
    whole = log.read_bytes()
    r = [whole[i : i + 64] for i in range(0, len(whole), 64)]
    for records in ([r[0], r[2], r[1], r[3]], [r[0], r[1], r[3]], [r[0], r[1], r[1]]):
        log.write_bytes(b"".join(records))
        with pytest.raises(ValueError, match="does not fit"):
            RunJournal(log.parent, IDENTITY)
    other = begun(tmp_path / "other", 4)
    for name in ("steps-0.log", "checkpoint.npz"):
        log.write_bytes(whole)
        shutil.copyfile(other / name, log.parent / name)
        with pytest.raises(ValueError, match="does not fit"):
            RunJournal(log.parent, IDENTITY)


def killed_at(call: int, after: bool, job: Callable[[], None]) -> bool:
    """Run a job in a forked process that is killed at its n-th call that changes a disk.

    Returns whether it got as far.
    """
    child = os.fork()
    if child == 0:
        count = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call_it(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == call and not after:
                    os.kill(os.getpid(), signal.SIGKILL)
                here = count == call
                try:
                    return function(*args, **kwargs)
                finally:
                    if here:
                        os.kill(os.getpid(), signal.SIGKILL)

            return call_it

        status = 1
        try:
            for name in ("write", "fsync", "replace", "ftruncate", "unlink", "mkdir", "open"):
                setattr(os, name, counted(getattr(os, name)))
            job()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_call_of_the_system(tmp_path: Path, keep: bool, after: bool) -> None:
    steps, call = 3, 0
    wanted = journal_run.expected(steps)
    while True:
        call += 1
        folder, released = tmp_path / f"run{call}", tmp_path / f"released{call}"

        def job(folder: Path = folder, released: Path = released) -> None:
            journal_run.run(folder, released, steps, 2, keep)

        if not killed_at(call, after, job):
            break
        job()
        assert journal_run.releases(released) == {t: {v} for t, v in wanted.items()}
        names = {path.name for path in folder.iterdir()}
        assert names == {"lock", "run.json", "checkpoint.npz", "steps-0.log"}
    assert call > 40


def test_killed_at_random_times_and_again(tmp_path: Path) -> None:
    steps, kills = 300, 6
    chance = random.Random(5)
    folder, released = tmp_path / "run", tmp_path / "released"
    program = [sys.executable, journal_run.__file__, folder, released, str(steps), "7"]
    for i in range(kills + 1):
        with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            if i < kills:
                time.sleep(chance.uniform(0, 0.1))
                process.kill()
            process.wait()
        assert process.returncode in ((0,) if i == kills else (0, -signal.SIGKILL))
    assert journal_run.releases(released) == {
        t: {v} for t, v in journal_run.expected(steps).items()
    }


def test_killed_at_every_call_of_a_restart(tmp_path: Path) -> None:
    call = 0
    while True:
        call += 1
        folder = begun(tmp_path / f"run{call}", 5, every=2)

        def job(folder: Path = folder) -> None:
            with RunJournal(folder, IDENTITY) as journal:
                journal.resume()
                journal.restart({"step": 4, "key": b"fresh"})
                journal.write_ahead(5, bytes(32))

        killed = killed_at(call, True, job)
        with RunJournal(folder, IDENTITY) as journal:
            state = journal.resume()
            assert state is not None
            fresh = state["key"] == b"fresh"
            # Old key and old log, or new key and new log: never one with the other.
            assert journal.abandoned == (((1, 5),) if fresh else ())
            assert journal.start == (5 if fresh else 1)
            five = bytes(32) if fresh else digests(journal, 5)[4]
            assert journal.step == 4
            journal.write_ahead(5, five)
        if not killed:
            break
    assert fresh and call > 8


def test_a_full_disk_refuses_the_step_and_the_run_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begun(tmp_path / "run", 2)
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        wanted = digests(journal, 4)
        for i in (1, 2):
            journal.write_ahead(i, wanted[i - 1])
        real = os.write
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda handle, data: real(handle, data[:9]))
            with pytest.raises(OSError, match="expected to write 64 bytes, the system took 9"):
                journal.write_ahead(3, wanted[2])
        assert (journal.step, journal.last) == (2, 2)
        assert journal.write_ahead(3, wanted[2])

        def fails(handle: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(step_log.os, "fsync", fails)
            with pytest.raises(OSError, match="Input/output error"):
                journal.write_ahead(4, wanted[3])
        with pytest.raises(OSError, match="open the run anew"):
            journal.write_ahead(4, bytes(32))
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        assert journal.last in (3, 4)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files")
def test_the_disk_is_waited_for_before_anything_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record before `write_ahead` returns; a checkpoint before it replaces the one before."""
    calls: list[str] = []

    def name_of(handle: int) -> str:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        return "temporary" if path.name.startswith(".writing-") else path.name

    real_write, real_replace = os.write, os.replace

    def write(handle: int, data: bytes) -> int:
        calls.append(f"write {name_of(handle)}")
        return real_write(handle, data)

    def replace(source: Any, target: Any) -> None:
        calls.append(f"replace {Path(target).name}")
        real_replace(source, target)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", lambda handle: calls.append(f"sync {name_of(handle)}"))
    with RunJournal(tmp_path / "run", IDENTITY) as journal:
        assert calls == ["sync " + tmp_path.name, "sync temporary", "replace run.json", "sync run"]
        calls.clear()
        journal.checkpoint({})
        log = ["write steps-0.log", "sync steps-0.log", "sync run", "sync steps-0.log"]
        kept = ["sync temporary", "replace checkpoint.npz", "sync run"]
        assert calls == [*log, *kept]
        calls.clear()
        journal.write_ahead(1, bytes(32))
        assert calls == ["write steps-0.log", "sync steps-0.log"]
        calls.clear()
        journal.write_ahead(2, bytes(32), keep={"a": 1})
        first = ["sync temporary", "replace kept-0-2.npz", "sync run"]
        assert calls == [*first, "write steps-0.log", "sync steps-0.log"]
        calls.clear()
        journal.checkpoint({})
        assert calls == kept


# ---- Folders ----


def test_two_openers(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 1)
    with RunJournal(folder, IDENTITY):
        with pytest.raises(RuntimeError, match="in use by another run of this process"):
            RunJournal(folder, IDENTITY)
        code = (
            "import sys; from dpftrl_fast.journal import RunJournal\n"
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
    with pytest.raises(ValueError, match='differ in order; its order is "abc", got "abd"'):
        RunJournal(folder, {**IDENTITY, "order": "abd"})
    with pytest.raises(ValueError, match="differ in more, plan; its more is null, got 1"):
        RunJournal(folder, {"more": 1, "plan": 0, "order": "abc"})
    with pytest.raises(TypeError, match="identity must be a mapping, got int"):
        RunJournal(folder, 3)  # type: ignore[arg-type]
    RunJournal(folder, dict(reversed(IDENTITY.items()))).close()


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
    (folder / "run.json").write_text(text.replace('"version": 1', '"version": 2'))
    with pytest.raises(ValueError, match="must have version 1, got 2"):
        RunJournal(folder, IDENTITY)
    (folder / "run.json").write_text(text)
    (folder / "steps-0.log").unlink()
    with pytest.raises(ValueError, match="is missing: the folder is damaged"):
        RunJournal(folder, IDENTITY)


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
