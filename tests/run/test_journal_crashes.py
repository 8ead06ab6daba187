# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed at every point, and damaged logs and disks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import journal_kills
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


def test_a_record_of_before_a_recovery_is_none_of_after_it(tmp_path: Path) -> None:
    """Same run, same step: only the records before it, from the header on, tell them apart."""
    folder = begun(tmp_path / "run", 6)
    before = (folder / "steps-0.log").read_bytes()
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        journal.recover({"step": 0})
        journal.write_ahead(1, journal.digest("another sum"))
        journal.write_ahead(2, journal.digest("another sum"))
    log = folder / "steps-1.log"
    after = log.read_bytes()
    for at in (1, 2):  # the header is at 0
        record = slice(64 * at, 64 * (at + 1))
        log.write_bytes(after[: record.start] + before[record] + after[record.stop :])
        with pytest.raises(ValueError, match=f"the record of step {at} does not fit"):
            RunJournal(folder, IDENTITY)
    log.write_bytes(after)
    RunJournal(folder, IDENTITY).close()


@pytest.mark.parametrize("job", ["run", "run keep", "random", "restart"])
def test_killed_at_every_call_of_the_system_and_at_random_times(tmp_path: Path, job: str) -> None:
    program = [sys.executable, "-W", "error", journal_kills.__file__, str(tmp_path), *job.split()]
    with child(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = process.communicate()[0]
    assert process.returncode == 0, said
    assert said == "all held\n"


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
