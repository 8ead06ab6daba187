# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed at every point, and damaged logs and disks."""

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
import pytest
from journal_cases import IDENTITY, begun, digests
from processes import child

from dpftrl_fast.run import sealed_files, step_log
from dpftrl_fast.run.journal import RunJournal


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that the system has: only a failing machine does."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


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
        with child(program, stdout=subprocess.PIPE) as process:
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
                journal.recover({"step": 4, "key": b"fresh"})
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
        with pytest.raises(OSError, match="open the run again"):
            journal.write_ahead(4, bytes(32))
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        assert journal.last in (3, 4)


def test_a_restart_that_could_not_be_written_is_not_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new state may be on the disk: a step in the log of the old one would be forgotten."""
    folder = begun(tmp_path / "run", 5, every=2)
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        with pytest.raises(TypeError, match="got set"):
            journal.recover({"key": set()})
        assert (journal.abandoned, journal.start, journal.last) == ((), 1, 5)
        real, calls = sealed_files.sync_folder, []

        def fails(path: Path) -> None:
            calls.append(path)
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(sealed_files, "sync_folder", fails)
            with pytest.raises(OSError, match="Input/output error"):
                journal.recover({"step": 4, "key": b"fresh"})
        assert len(calls) == 1 and sealed_files.sync_folder is real
        five = digests(journal, 5)[4]
        for call in (lambda: journal.write_ahead(5, five), lambda: journal.checkpoint({})):
            with pytest.raises(RuntimeError, match="may hold the state before or after it: open"):
                call()
    with RunJournal(folder, IDENTITY) as journal:
        assert journal.resume() == {"step": 4, "key": b"fresh"}
        assert journal.abandoned == ((1, 5),)


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
