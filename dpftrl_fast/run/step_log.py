# SPDX-License-Identifier: Apache-2.0
"""The log of a run's steps: one record a step, on disk before anything of the step is released.

The file is a header and records of 64 bytes each, so that a record never lies across two sectors of
a disk. A record is the step (8 bytes, little-endian), the keyed hash of its sum (32), and a keyed
hash (24) over the one of the record before, the step and the hash: every change, removal or move of
a record is detected. A crash can leave part of a record, or a record of zeros, after the last whole
one. That is cut off when the file is opened: `append` had not returned, so nothing of that step was
released.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.files import naming_path

DIGEST_SIZE = 32

_RECORD = 64
#: Bytes of a log without steps.
EMPTY_SIZE = _RECORD
_MAC = 24
_MAGIC = b"dpftrl_fast.log1"


class Diverged(RuntimeError):
    """A step that was written ahead was repeated with another sum.

    Parameters
    ----------
    step, last : int
        See below.
    advice : str, optional
        Sentence that says what to do, in the words of the caller's own interface.

    Attributes
    ----------
    step : int
        The step.
    last : int
        The last step written ahead: `step` to `last` may have been released with other sums.

    Examples
    --------
    >>> import tempfile
    >>> from dpftrl_fast.run import RunJournal
    >>> folder = tempfile.mkdtemp()
    >>> with RunJournal(folder, {"plan": "P"}) as journal:
    ...     _ = journal.resume(), journal.checkpoint({"sum": np.zeros(2)})
    ...     _ = journal.write_ahead(1, journal.digest(np.array([1.0, 2.0])))
    >>> with RunJournal(folder, {"plan": "P"}) as journal:  # after a crash, with another batch
    ...     _ = journal.resume()
    ...     try:
    ...         journal.write_ahead(1, journal.digest(np.array([1.0, 3.0])))
    ...     except Diverged as error:
    ...         print(error.step, error.last)
    1 1
    """

    def __init__(self, step: int, last: int, advice: str | None = None) -> None:
        self.step, self.last = step, last
        if advice is None:
            advice = (
                "Repeat the step exactly (same data, order, threads and device), or recover with "
                f"fresh noise and account for steps {step} to {last} a second time"
            )
        super().__init__(
            f"step {step} was written ahead with another sum or other ids, and steps up to {last} "
            f"may have been released: the same noise must not be added to this sum. {advice}"
        )


def step_digest(secret: bytes, *parts: int | str | bytes | NDArray[Any]) -> bytes:
    """Return the keyed hash of a step's sum (HMAC-SHA-256, 32 bytes).

    Each part is hashed with its kind and length, arrays with their dtype and shape, bit for bit.
    """
    digest = hmac.new(secret, b"dpftrl_fast/sum/v1\x00", "sha256")
    for part in parts:
        if isinstance(part, np.ndarray):
            if part.dtype.hasobject:
                raise TypeError(f"expected an array of numbers, got dtype {part.dtype}")
            kind, data = f"{part.dtype.str}{part.shape}", np.ascontiguousarray(part)
            body = memoryview(data.reshape(-1).view(np.uint8).data)
        elif type(part) in (int, str, bytes):
            kind = type(part).__name__
            body = memoryview(part if isinstance(part, bytes) else str(part).encode())
        else:
            raise TypeError(f"expected int, str, bytes or ndarray, got {type(part).__name__}")
        digest.update(f"{kind}:{body.nbytes};".encode())
        digest.update(body)
    return digest.digest()


def create_log(path: Path, generation: int, secret: bytes) -> None:
    """Write an empty log, durable but for its name in the folder; an older file is replaced."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with naming_path(path):
            _write(handle, _header(generation, secret), path)
            os.fsync(handle)
    finally:
        os.close(handle)


class StepLog:
    """The log of one generation of a run, opened to continue it; a damaged one is a ValueError.

    `path`, `generation` and `secret` are those of `create_log`; `first` is the step of the first
    record.
    """

    def __init__(self, path: Path, generation: int, first: int, secret: bytes) -> None:
        self._path, self._secret, self._first = path, secret, first
        self._digests: list[bytes] = []
        self._broken = False
        content = path.read_bytes()
        header = _header(generation, secret)
        if content[:_RECORD] != header:
            raise ValueError(
                f"{str(path)!r} is damaged or not of this run: its header does not fit"
            )
        self._mac = header[-_MAC:]
        whole = len(content) // _RECORD
        for i in range(1, whole):
            record = content[i * _RECORD : (i + 1) * _RECORD]
            step, digest = first + i - 1, record[8:-_MAC]
            if record == self._record(step, digest):
                self._digests.append(digest)
                self._mac = record[-_MAC:]
            elif record == bytes(_RECORD) and i == whole - 1:
                break
            else:
                raise ValueError(
                    f"{str(path)!r} is damaged: the record of step {step} does not fit"
                )
        self._handle = os.open(path, os.O_WRONLY)
        try:
            self._cut()
        except BaseException:
            os.close(self._handle)
            raise

    @property
    def last(self) -> int:
        """The step last written, ``first - 1`` before any."""
        return self._first + len(self._digests) - 1

    def check(self, step: int, digest: bytes) -> None:
        """Raise `Diverged` if a step was written with another hash than this."""
        if self._digests[step - self._first] != digest:
            raise Diverged(step, self.last)

    def check_untouched(self) -> None:
        """Raise OSError if another process has changed the file."""
        if self._broken:
            raise OSError(
                f"{str(self._path)!r} could not be written earlier, and its content is not known: "
                "open the run again"
            )
        found = os.fstat(self._handle)
        if found.st_size != self._end or found.st_nlink == 0:
            raise OSError(
                f"{str(self._path)!r} must have the {self._end} bytes that this run left, got "
                f"{found.st_size}, or another file in its place: another process has had the folder"
            )

    def append(self, digest: bytes) -> None:
        """Write the next step's record; it is durable when this returns.

        After an OSError the step is not in the log; if that is not certain, the log takes no
        record until it is opened again.
        """
        self.check_untouched()
        record = self._record(self.last + 1, digest)
        self._broken = True
        with naming_path(self._path):
            try:
                _write(self._handle, record, self._path)
            except OSError:
                self._cut()
                self._broken = False
                raise
            os.fsync(self._handle)
        self._digests.append(digest)
        self._mac = record[-_MAC:]
        self._broken = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _cut(self) -> None:
        """End the file after the last whole record."""
        with naming_path(self._path):
            os.ftruncate(self._handle, self._end)
            os.lseek(self._handle, self._end, os.SEEK_SET)
            os.fsync(self._handle)

    @property
    def _end(self) -> int:
        return (1 + len(self._digests)) * _RECORD

    def _record(self, step: int, digest: bytes) -> bytes:
        body = step.to_bytes(8, "little") + digest
        return body + _mac(self._secret, self._mac + body)


def _write(handle: int, record: bytes, path: Path) -> None:
    if (written := os.write(handle, record)) != _RECORD:
        raise OSError(
            f"{str(path)!r}: expected to write {_RECORD} bytes, the system took {written}"
        )


def _header(generation: int, secret: bytes) -> bytes:
    body = _MAGIC + generation.to_bytes(8, "little") + bytes(_RECORD - _MAC - len(_MAGIC) - 8)
    return body + _mac(secret, body)


def _mac(secret: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=secret, digest_size=_MAC, person=b"dpftrl-log").digest()
