# SPDX-License-Identifier: Apache-2.0
"""The log of a run's steps: one record a step, on disk before anything of the step leaves.

The file is a header and records of 64 bytes each, so that a record never lies across two sectors of
a disk. A record is the step (8 bytes, little-endian), the keyed hash of what was summed in it (32),
and a keyed hash (24) over the one of the record before, the step and the hash: no record can be
changed, taken out or moved unnoticed. What a crash can leave after the last whole record, part of
one or a record of zeros that never reached the disk, is cut off when the file is opened: `append`
had not returned, so nothing of that step had left.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ["DIGEST_SIZE", "StepLog", "create_log"]

DIGEST_SIZE = 32

_RECORD = 64
_MAC = 24
_MAGIC = b"dpftrl_fast.log1"


def create_log(path: Path, generation: int, secret: bytes) -> None:
    """Write an empty log, durable but for its name in the folder; an older file is replaced."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, _header(generation, secret))
        os.fsync(handle)
    finally:
        os.close(handle)


class StepLog:
    """The log of one generation of a run, opened to go on.

    Parameters
    ----------
    path : Path
        What `create_log` made.
    generation : int
        Of the run; `create_log` was given the same.
    first : int
        Step of the first record.
    secret : bytes
        Key of the hashes.

    Attributes
    ----------
    last : int
        The step last written, ``first - 1`` before any.

    Raises
    ------
    OSError
        If the file cannot be read and written.
    ValueError
        If the header or a whole record is not what was written.
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
        self._cut()

    @property
    def last(self) -> int:
        """The step last written."""
        return self._first + len(self._digests) - 1

    def digest(self, step: int) -> bytes:
        """Return the hash that a step was written with."""
        return self._digests[step - self._first]

    def append(self, digest: bytes) -> None:
        """Write the next step's record; it is durable when this returns.

        Raises
        ------
        OSError
            If it cannot be written. The step is then not in the log; if even that cannot be made
            sure of, the log takes no further record until it is opened anew.
        """
        if self._broken:
            raise OSError(
                f"{str(self._path)!r} could not be written earlier, and what it holds is not "
                "known: open the run anew"
            )
        record = self._record(self.last + 1, digest)
        self._broken = True
        try:
            if (written := os.write(self._handle, record)) != _RECORD:
                raise OSError(f"expected to write {_RECORD} bytes, the system took {written}")
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
        end = (1 + len(self._digests)) * _RECORD
        os.ftruncate(self._handle, end)
        os.lseek(self._handle, end, os.SEEK_SET)
        os.fsync(self._handle)

    def _record(self, step: int, digest: bytes) -> bytes:
        body = step.to_bytes(8, "little") + digest
        return body + _mac(self._secret, self._mac + body)


def _header(generation: int, secret: bytes) -> bytes:
    body = _MAGIC + generation.to_bytes(8, "little") + bytes(_RECORD - _MAC - len(_MAGIC) - 8)
    return body + _mac(secret, body)


def _mac(secret: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=secret, digest_size=_MAC, person=b"dpftrl-log").digest()
