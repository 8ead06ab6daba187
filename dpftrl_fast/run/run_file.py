# SPDX-License-Identifier: Apache-2.0
"""The file that identifies the run of a folder, and detects a copied folder."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpftrl_fast._core import STREAM_VERSION
from dpftrl_fast._validate import equal, flag, shown
from dpftrl_fast.plan.plan_file import other_mechanism
from dpftrl_fast.run.differences import differences
from dpftrl_fast.run.folder_lock import LOCK
from dpftrl_fast.run.sealed_files import TEMPORARY, sync_folder, write_secret

_FORMAT = "dpftrl_fast.RunJournal"
_VERSION = 2  # 1 held no version of the stream, which was 1
_NAME = "run.json"


def claim_folder(folder: Path) -> None:
    """Make the folder of a run, or check that it can be one.

    A file in its place is a FileExistsError, other files in it are a ValueError, and a run's folder
    that others can read or enter is a PermissionError.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"expected a folder, {str(folder)!r} is a file")
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        sync_folder(folder.parent)
        return
    names = {path.name for path in folder.iterdir()} - {LOCK}
    names = {name for name in names if not name.startswith(TEMPORARY)}
    if not names:
        folder.chmod(0o700)
    elif _NAME not in names:
        raise ValueError(
            f"expected an empty folder or one of a run, {str(folder)!r} has no {_NAME}, but "
            f"{min(names)!r}"
        )
    elif (mode := stat.S_IMODE(folder.stat().st_mode)) & 0o077:
        raise PermissionError(
            f"a run's folder is a secret and must have mode 0700, {str(folder)!r} has {mode:04o}: "
            "everyone who could read it has the noise key"
        )


@dataclass(frozen=True)
class RunFile:
    """The content of ``run.json``.

    `secret` keys all hashes in the folder. `inode` is the file's number in its file system, which a
    copy does not have. `forked` records that a copy was ever accepted. `identity` is JSON.
    """

    secret: bytes = field(repr=False)
    inode: int
    forked: bool
    identity: str

    @classmethod
    def open(cls, folder: Path, identity: Mapping[str, Any], *, allow_fork: bool) -> RunFile:
        """Read the file of the folder, or make one; the caller holds the folder.

        A file of another format, version or run, a damaged one and a copy are a ValueError.
        """
        fork = flag("allow_fork", allow_fork)
        declared = _canonical(identity)
        for left in folder.glob(f"{TEMPORARY}*"):
            left.unlink(missing_ok=True)
        path = folder / _NAME
        if not path.exists():
            run = cls(secrets.token_bytes(32), 0, False, declared)
            return run._written(path)
        run = _parsed(path)
        if run.identity != declared:
            _refuse_other(run.identity, declared)
        if run.inode == path.stat().st_ino:
            return run
        if not fork:
            raise ValueError(
                f"{str(folder)!r} was copied, or moved from where the run began: two runs that "
                "resume from it add the same noise to different sums. allow_fork=True accepts it "
                "and voids the guarantee, unless the other copy is never used again"
            )
        return replace(run, forked=True)._written(path)

    def _written(self, path: Path) -> RunFile:
        """Write the file with its own inode; return the content."""
        run = self

        def content(inode: int) -> bytes:
            nonlocal run
            run = replace(self, inode=inode)
            return run._content()

        write_secret(path, content)
        return run

    def _content(self) -> bytes:
        fields = {
            "format": _FORMAT,
            "version": _VERSION,
            "stream_version": STREAM_VERSION,
            "secret": self.secret.hex(),
            "inode": self.inode,
            "forked": self.forked,
            "identity": json.loads(self.identity),
        }
        return json.dumps({**fields, "check": _check(fields)}, indent=2).encode()


def _parsed(path: Path) -> RunFile:
    try:
        fields = json.loads(path.read_bytes())
        _canonical({"fields": fields})  # without infinities, and not too deep
        if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} must be of a run's journal: {error}") from None
    version = fields.get("version")
    if not (equal(version, _VERSION) or equal(version, 1)):
        raise ValueError(f"{str(path)!r} must have version {_VERSION}, got {shown(version)}")
    check = fields.pop("check", None)
    if check != _check(fields):
        raise ValueError(f"{str(path)!r} is damaged: its check does not fit")
    stream = fields.get("stream_version") if version == _VERSION else 1
    if not equal(stream, STREAM_VERSION):
        raise ValueError(
            f"{str(path)!r} has stream_version {shown(stream)}, but this release has "
            f"{STREAM_VERSION}: finish that run with the release of dpftrl_fast that began it, or "
            "begin a new one"
        )
    # The check is no seal: whoever can write the file can make one.
    secret, inode, forked, identity = (
        fields.get(name) for name in ("secret", "inode", "forked", "identity")
    )
    if not (
        isinstance(secret, str)
        and re.fullmatch("[0-9a-f]{64}", secret)
        and type(inode) is int
        and type(forked) is bool
        and isinstance(identity, dict)
    ):
        raise ValueError(f"{str(path)!r} is damaged: its fields are not those of a run")
    return RunFile(bytes.fromhex(secret), inode, forked, _canonical(identity))


def _check(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(fields).encode()).hexdigest()


def _canonical(value: Mapping[str, Any]) -> str:
    if not isinstance(value, Mapping):
        raise TypeError(f"identity must be a mapping, got {type(value).__name__}")
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _refuse_other(had: str, came: str) -> None:
    old, new = json.loads(had), json.loads(came)
    names = [
        name
        for name in sorted({*old, *new})
        if differences(*({name: of[name]} if name in of else {} for of in (old, new)))
    ]
    advice = other_mechanism(old.get("plan"), new.get("plan"))
    raise ValueError(
        f"the folder is of another run: they differ in {', '.join(names)}; "
        f"{differences(old, new)}{advice and '; '}{advice}"
    )
