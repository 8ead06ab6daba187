# SPDX-License-Identifier: Apache-2.0
"""Kills runs of `journal_run` at every call that changes a disk, and checks what is left of them.

A program of its own: the jobs run in forked processes, and a fork of a process of the tests costs
many times as much. Usage: python journal_kills.py FOLDER (run [keep] | random | restart)
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import journal_run
from journal_cases import IDENTITY, begun, digests

from dpftrl_fast.run.journal import RunJournal


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


def kill_at_every_call(folder: Path, keep: bool, after: bool) -> None:
    steps, call = 3, 0
    wanted = journal_run.expected(steps)
    while True:
        call += 1
        run, released = folder / f"run{after}{call}", folder / f"released{after}{call}"

        def job(run: Path = run, released: Path = released) -> None:
            journal_run.run(run, released, steps, 2, keep)

        if not killed_at(call, after, job):
            break
        job()
        assert journal_run.releases(released) == {t: {v} for t, v in wanted.items()}
        names = {path.name for path in run.iterdir()}
        assert names == {"lock", "run.json", "checkpoint.npz", "steps-0.log"}
    assert call > 40


def kill_at_random_times(folder: Path) -> None:
    steps, kills = 300, 6
    chance = random.Random(5)
    run, released = folder / "run", folder / "released"
    for i in range(kills + 1):
        process = os.fork()
        if process == 0:
            status = 1
            try:
                journal_run.run(run, released, steps, 7)
                status = 0
            finally:
                os._exit(status)
        if i < kills:
            time.sleep(chance.uniform(0, 0.1))
            os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert status in ((0,) if i == kills else (0, -signal.SIGKILL))
    wanted = journal_run.expected(steps)
    assert journal_run.releases(released) == {t: {v} for t, v in wanted.items()}


def kill_at_every_call_of_a_restart(folder: Path) -> None:
    call = 0
    while True:
        call += 1
        run = begun(folder / f"run{call}", 5, every=2)

        def job(run: Path = run) -> None:
            with RunJournal(run, IDENTITY) as journal:
                journal.resume()
                journal.recover({"step": 4, "key": b"fresh"})
                journal.write_ahead(5, bytes(32))

        killed = killed_at(call, True, job)
        with RunJournal(run, IDENTITY) as journal:
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


def main(folder: Path, job: str, *options: str) -> None:
    # A killed process loses nothing that the system has: only a failing machine does.
    os.fsync = lambda handle: None
    if job == "run":
        for after in (False, True):
            kill_at_every_call(folder, "keep" in options, after)
    elif job == "random":
        kill_at_random_times(folder)
    else:
        kill_at_every_call_of_a_restart(folder)
    print("all held")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
