# SPDX-License-Identifier: Apache-2.0
"""A lock on a folder: one owner at a time, until it is released, collected or its process ends."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from functools import partial
from pathlib import Path

LOCK = "lock"

# System locks belong to a process: two owners within one process are distinguished here. (A forked
# process does not inherit them, so that a surviving worker does not keep a dead run's folder.)
_held: set[tuple[int, int, int]] = set()
_turn = threading.RLock()  # a collection may release a lock while another is made


class FolderLock:
    """Holds a folder by a system lock on the file "lock" in it, which is created if missing.

    The system releases the lock when the process ends, however it ends. An owner that nothing
    refers to any more, as after a cell of a notebook was run again, has released it too.

    Raises
    ------
    RuntimeError
        If another owner holds the folder.
    OSError
        If the file cannot be made, or the system has no such locks.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import fcntl
        except ImportError:
            raise OSError("a run's folder needs POSIX file locks, this system has none") from None
        self._in_use = f"the folder {str(folder)!r} is in use by another run"
        with _turn:
            path = folder / LOCK
            # Opening and closing the file would release this process's lock on it, so the table is
            # read first.
            if path.exists() and _identity(os.stat(path)) in _held:
                gc.collect()
            if path.exists() and _identity(os.stat(path)) in _held:
                raise RuntimeError(f"{self._in_use} of this process: close that one first")
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            self._lock = partial(fcntl.lockf, handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                self._take()
            except BaseException:
                os.close(handle)
                raise
            identity = _identity(os.fstat(handle))
            _held.add(identity)
            self._release = weakref.finalize(self, _close, handle, identity)
            self._release.atexit = False
        self._process = os.getpid()

    def _take(self) -> None:
        try:
            self._lock()
        except (BlockingIOError, PermissionError):
            raise RuntimeError(f"{self._in_use} in another process") from None

    def hold(self) -> None:
        """Check that this process still holds the folder, and take a lost lock again.

        The lock is lost where any code of the process opens and closes the file, for instance to
        copy the folder. A forked process, or another owner, is a RuntimeError.
        """
        if self._process != os.getpid():
            raise RuntimeError(
                "this process was forked from the one that holds the run, which alone may continue"
            )
        self._take()

    def release(self) -> None:
        """Release the folder; a forked process closes only its copy of the handle."""
        self._release()


def _close(handle: int, identity: tuple[int, int, int]) -> None:
    with _turn:
        os.close(handle)
        _held.discard(identity)


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), status.st_dev, status.st_ino
