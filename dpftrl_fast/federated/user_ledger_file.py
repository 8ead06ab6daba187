# SPDX-License-Identifier: Apache-2.0
"""The file of a ledger of users: its terms, then blocks that are only ever appended.

The first line is JSON: the terms, a random name, the key of the hashes (unless the caller keeps
it), and a keyed hash of all that. Each block after it is

    kind (1 byte), length (8, little-endian), keyed hash (16), body, keyed hash (16)

where the first hash is over the hash before the block, kind and length, the second one over that
and the body: a change, a removal or a move in the middle is detected. A crash can leave part of a
block at the end. It is cut off before the next one is written: its append had not returned, so
nothing was released after it.

The end of an older copy of a file is right, too. An object remembers the last hash that it has
read, and refuses a file that lacks it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from dpftrl_fast.accounting.guard.keyed_ids import KEY_SIZE, KeyedIds
from dpftrl_fast.federated.user_ledger_book import UserTerms
from dpftrl_fast.files import naming_path
from dpftrl_fast.run.sealed_files import TEMPORARY, sync_folder

_FORMAT, _VERSION = "dpftrl_fast.UserLedger", 1
_NAME = "users.log"
_MAC, _MOST_LINE = 16, 1 << 16
_HEAD = 1 + 8 + _MAC
_PERSON = b"dpftrl/ledger/v1"


class Block(NamedTuple):
    """An entry: its kind, a number below 256, and its content."""

    kind: int
    body: bytes


class LedgerFile:
    """The file in a ledger's folder, which is made if it is missing: **a secret**.

    Raises
    ------
    ValueError
        If the file has other terms, another key, or is damaged.
    OSError
        If it cannot be read and written, or others can read the folder.
    """

    def __init__(self, folder: Path, terms: UserTerms, key: bytes | None) -> None:
        self._path = folder / _NAME
        self._handle = -1
        _make(folder)
        if not self._path.exists():
            _create(self._path, terms, key)
        with self._locked():
            line = self._read(0, _MOST_LINE)
            line = line[: line.find(b"\n") + 1]
            facts = self._facts(line)
            kept, mac = facts.pop("key"), facts.pop("mac")
            if kept is None and key is None:
                raise ValueError(f"key must be that of {self._shown}, which was made with one")
            if kept is not None and key is not None:
                raise ValueError(
                    f"key must be None for {self._shown}, which keeps its own, got one"
                )
            self.key = bytes.fromhex(kept) if key is None else key
            if not KeyedIds(self.key).fits(facts["check"]):
                raise ValueError(f"key must be that of {self._shown}, got another")
            own = None if kept is None else self.key.hex()
            expected = _hash(self.key, _text(facts)).hex()
            if line != _text({**facts, "key": own, "mac": expected}) + b"\n":
                raise self._damaged("its first line does not fit")
            for name, given in asdict(terms).items():
                if facts[name] != given:
                    raise ValueError(
                        f"{name} must be that of {self._shown}, {facts[name]!r}, got {given!r}"
                    )
            self.name = str(facts["name"])
            self._end, self._mac, self._behind = len(line), bytes.fromhex(mac), line[-_MAC:]

    @contextmanager
    def turn(self) -> Iterator[list[Block]]:
        """Hold the lock of the file, and yield the blocks that were not read before."""
        with self._locked():
            yield self._unread()

    def append(self, block: Block) -> None:
        """Write a block within a turn; it is durable when this returns.

        Raises
        ------
        OSError
            If it cannot be written. It is then not in the file.
        """
        head = bytes([block.kind]) + len(block.body).to_bytes(8, "little")
        head += _hash(self.key, self._mac, head)
        mac = _hash(self.key, head, block.body)
        with naming_path(self._path):
            os.ftruncate(self._handle, self._end)
        try:
            self._write(head + block.body + mac, self._end)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._handle, self._end)
            raise OSError(error.errno, f"{error.strerror}: {self._shown}") from error
        self._end += _HEAD + len(block.body) + _MAC
        self._mac = self._behind = mac

    def _facts(self, line: bytes) -> dict[str, Any]:
        try:
            facts = json.loads(line)
            known = facts["format"] == _FORMAT and facts["version"] == _VERSION
        except (ValueError, TypeError, KeyError, RecursionError):
            known = False
        expected = {"format", "version", "epsilon", "delta", "neighbours", "name", "check", "mac"}
        if not known or set(facts) != expected | {"key"} or type(facts["mac"]) is not str:
            raise ValueError(f"{self._shown} is not the file of a ledger of version {_VERSION}")
        return dict(facts)

    # ---- Blocks ----

    def _unread(self) -> list[Block]:
        size = os.fstat(self._handle).st_size
        if size < self._end or self._read(self._end - _MAC, _MAC) != self._behind:
            raise ValueError(
                f"{self._shown} must hold all that this ledger has read before: an older copy has "
                "taken its place, which has forgotten users. Restore the newest file"
            )
        content = self._read(self._end, size - self._end)
        blocks, at, last = [], 0, self._mac
        while len(content) - at >= _HEAD and any(content[at : at + _HEAD]):
            head, body = content[at : at + _HEAD], at + _HEAD
            if not hmac.compare_digest(head[-_MAC:], _hash(self.key, last, head[:-_MAC])):
                raise self._damaged(f"the block at byte {self._end + at} does not fit")
            end = body + int.from_bytes(head[1:9], "little")
            if len(content) < end + _MAC:
                break
            mac = _hash(self.key, head, content[body:end])
            if not hmac.compare_digest(content[end : end + _MAC], mac):
                raise self._damaged(f"the block at byte {self._end + at} does not fit")
            blocks.append(Block(head[0], content[body:end]))
            at, last = end + _MAC, mac
        if blocks:
            os.fsync(self._handle)  # the process that wrote them may have been killed before
            self._end, self._mac, self._behind = self._end + at, last, last
        return blocks

    # ---- The system's file ----

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            import fcntl
        except ImportError:
            raise OSError(
                "a ledger's folder needs POSIX file locks, this system has none"
            ) from None
        try:
            handle = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            raise FileNotFoundError(f"{self._shown}, the file of a ledger, is missing") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_nlink == 0:
                raise OSError(f"{self._shown} was replaced by another file: try again")
            self._handle = handle
            yield
        finally:
            self._handle = -1
            # A process that was forked meanwhile has the handle too: closing would not unlock.
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def _read(self, start: int, size: int) -> bytes:
        parts = []
        while size > 0 and (part := os.pread(self._handle, min(size, 1 << 24), start)):
            parts.append(part)
            start, size = start + len(part), size - len(part)
        return b"".join(parts)

    def _write(self, content: bytes, at: int) -> None:
        left = memoryview(content)
        while left:
            written = os.pwrite(self._handle, left, at)
            at, left = at + written, left[written:]
        os.fsync(self._handle)

    @property
    def _shown(self) -> str:
        return repr(str(self._path))

    def _damaged(self, detail: str) -> ValueError:
        return ValueError(f"{self._shown} is damaged: {detail}")


def _create(path: Path, terms: UserTerms, key: bytes | None) -> None:
    """Write the first line of a new file, which appears whole; an existing one stays."""
    own = secrets.token_bytes(KEY_SIZE) if key is None else key
    facts = {
        "format": _FORMAT,
        "version": _VERSION,
        **asdict(terms),
        "name": secrets.token_hex(16),
        "check": KeyedIds(own).check_value,
    }
    mac = _hash(own, _text(facts)).hex()
    line = _text({**facts, "key": own.hex() if key is None else None, "mac": mac}) + b"\n"
    handle, name = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    try:
        with naming_path(path), os.fdopen(handle, "wb") as file:
            file.write(line)
            file.flush()
            os.fsync(handle)
        with suppress(FileExistsError):  # another process was faster
            os.link(name, path)
    finally:
        os.unlink(name)
    sync_folder(path.parent)


def _text(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts).encode()


def _hash(key: bytes, *parts: bytes) -> bytes:
    digest = hashlib.blake2b(key=key, digest_size=_MAC, person=_PERSON)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _make(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"expected a folder, {str(folder)!r} is a file")
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another process has made it
            folder.mkdir(mode=0o700)
        sync_folder(folder.parent)
    names = {path.name for path in folder.iterdir() if not path.name.startswith(TEMPORARY)}
    if names - {_NAME}:
        raise ValueError(
            f"expected an empty folder or one of a ledger, {str(folder)!r} has {min(names)!r}"
        )
    if not names:
        folder.chmod(0o700)
    elif (mode := stat.S_IMODE(folder.stat().st_mode)) & 0o077:
        raise PermissionError(
            f"a ledger's folder is a secret and must have mode 0700, {str(folder)!r} has {mode:04o}"
        )
