# SPDX-License-Identifier: Apache-2.0
"""One owner at a time for a folder, until it lets go or its process ends."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

LOCK = "lock"

# Locks of the system are a process's: two owners within one are told apart here. (They also do not
# pass to a forked process, so that a worker left behind does not keep a dead run's folder.)
_held: set[tuple[int, int, int]] = set()
_turn = threading.Lock()


class FolderLock:
    """Hold a folder by a lock of the system on the file "lock" in it, which is made if need be.

    The system releases the lock when the process ends, however it ends.

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
            # Opening and closing the file would release the lock that this process has on it, so
            # the look into the table comes first.
            if path.exists() and _identity(os.stat(path)) in _held:
                raise RuntimeError(f"{self._in_use} of this process")
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            self._lock = partial(fcntl.lockf, handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                self._take()
            except BaseException:
                os.close(handle)
                raise
            self._handle, self._identity = handle, _identity(os.fstat(handle))
            _held.add(self._identity)
        self._process = os.getpid()

    def _take(self) -> None:
        try:
            self._lock()
        except (BlockingIOError, PermissionError):
            raise RuntimeError(f"{self._in_use} in another process") from None

    def hold(self) -> None:
        """Make sure that this process still has the folder.

        It loses the lock where any part of it opens and closes the file, to copy the folder say;
        then it takes the lock again.

        Raises
        ------
        RuntimeError
            If this process is a forked one, or another one has the folder now.
        """
        if self._process != os.getpid():
            raise RuntimeError(
                "this process was forked from the one that has the run: only that one may go on"
            )
        self._take()

    def release(self) -> None:
        """Let go; in a forked process only the copy of the handle is closed."""
        with _turn:
            os.close(self._handle)
            _held.discard(self._identity)


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), status.st_dev, status.st_ino
