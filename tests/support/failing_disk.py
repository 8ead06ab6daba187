# SPDX-License-Identifier: Apache-2.0
"""A disk on which the n-th call that changes a folder fails, once or from then on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BY_PATH = ("open", "replace", "mkdir", "unlink", "chmod")
BY_HANDLE = ("write", "fsync", "ftruncate")


class Disk:
    """Counts the calls that change a folder; `failed` names those that failed.

    Parameters
    ----------
    folder : Path
        Calls elsewhere are not counted.
    call : int
        Number of the call that fails, from 1; 0 for none.
    error : int
        Its errno.
    lasting : bool
        Whether all later calls fail, too.
    half : bool
        Whether half of the bytes are written before a write fails.
    """

    def __init__(self, folder: Path, call: int, error: int, lasting: bool, half: bool) -> None:
        self._folder, self._call, self._error = str(folder), call, error
        self._lasting, self._half = lasting, half
        self._handles: set[int] = set()
        self.calls = 0
        self.failed: list[str] = []

    def fails(self, name: str) -> bool:
        self.calls += 1
        here = self.calls == self._call or (self._lasting and 0 < self._call < self.calls)
        if here:
            self.failed.append(name)
        return here

    def refuse(self, *path: str) -> None:
        raise OSError(self._error, os.strerror(self._error), *path)

    def by_path(self, name: str, real: Any) -> Any:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            inside = str(path).startswith(self._folder)
            reads = name == "open" and not args[0] & (os.O_WRONLY | os.O_RDWR)
            if inside and not reads and self.fails(name):
                self.refuse(str(path))
            found = real(path, *args, **kwargs)
            if name == "open" and inside:
                self._handles.add(found)
            elif name == "open":
                self._handles.discard(found)
            return found

        return call

    def by_handle(self, name: str, real: Any) -> Any:
        def call(handle: int, *args: Any) -> Any:
            if handle in self._handles and self.fails(name):
                if name == "write" and self._half:
                    return real(handle, args[0][: len(args[0]) // 2])
                self.refuse()
            return real(handle, *args) if name != "fsync" else None

        return call

    def fdopen(self, real: Any) -> Any:
        def call(handle: int, *args: Any, **kwargs: Any) -> Any:
            file = real(handle, *args, **kwargs)
            return _File(file, self) if handle in self._handles else file

        return call


class _File:
    """A file whose writes are counted, for NumPy and zipfile."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: Any) -> int:
        if self._disk.fails("file.write"):
            if self._disk._half:
                self._file.write(memoryview(data).cast("B")[: memoryview(data).nbytes // 2])
            self._disk.refuse()
        return int(self._file.write(data))

    def __enter__(self) -> Any:
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def failing(
    folder: Path, call: int, error: int, *, lasting: bool = False, half: bool = False
) -> Iterator[Disk]:
    """Let the n-th call that changes the folder fail while the block runs; no fsync waits."""
    disk = Disk(folder, call, error, lasting, half)
    with pytest.MonkeyPatch.context() as patch:
        for name in BY_PATH:
            patch.setattr(os, name, disk.by_path(name, getattr(os, name)))
        for name in BY_HANDLE:
            patch.setattr(os, name, disk.by_handle(name, getattr(os, name)))
        patch.setattr(os, "fdopen", disk.fdopen(os.fdopen))
        yield disk
