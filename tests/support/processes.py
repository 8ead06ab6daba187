# SPDX-License-Identifier: Apache-2.0
"""Child processes of tests: they take SIGINT as from a terminal, and none outlives its test."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def _default_sigint() -> None:
    # A shell starts background commands with SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def child(program: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a program in a process group of its own, which is killed at the end of the block."""
    process = subprocess.Popen(
        list(map(str, program)), start_new_session=True, preexec_fn=_default_sigint, **options
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def children() -> set[int]:
    """Processes whose parent is this one."""
    return {
        int(pid)
        for task in Path("/proc/self/task").glob("*/children")
        for pid in task.read_text().split()
    }


def ended(pids: set[int], seconds: float = 5.0) -> bool:
    """Whether the processes end within some seconds."""
    limit = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True
