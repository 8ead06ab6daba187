# SPDX-License-Identifier: Apache-2.0
"""The file of a privacy budget: its terms, and a line for each fit, on disk before its first step.

Each line is a hash of 32 hexadecimal digits over the line before and its own text, a space, and the
text, which is JSON. The first line holds the terms, every other one a charge: its label, and the
figures of its Gaussian mechanisms, from which all epsilons follow. Lines are only ever appended,
under a system lock on the file; a change or removal in the middle is detected. A crash can leave
part of a line at the end. It is cut off: its charge had not returned, so nothing was released.

The lines of an older copy of a file are right, too. A process remembers the last line that it has
seen of each budget, and refuses a file that lacks it; another process cannot tell.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dpftrl_fast._validate import choice, positive, probability
from dpftrl_fast.accounting.curve.gaussian import sensitivity
from dpftrl_fast.accounting.sensitivity.delta_floor import Touched
from dpftrl_fast.accounting.statement.statement import GaussianMechanism, Guarantee, Neighbours
from dpftrl_fast.files import naming_path
from dpftrl_fast.run.sealed_files import sync_folder

_FORMAT = "dpftrl_fast.PrivacyBudget"
_VERSION = 1
_HASH = 32
_LABEL = 200  # characters

# By the name of a budget: how many lines this process has seen, and the hash of the last.
_seen: dict[str, tuple[int, str]] = {}


@dataclass(frozen=True)
class Terms:
    """The terms of a budget, which its file keeps; `name` tells one file from another."""

    epsilon: float
    delta: float
    neighbours: Neighbours
    name: str = ""

    def __post_init__(self) -> None:
        choice("neighbours", self.neighbours, ("zero-out", "replace-one"))
        object.__setattr__(self, "epsilon", positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", probability("delta", self.delta))


class Charge(NamedTuple):
    """The share of one fit: its label, made of public facts, and its guarantee."""

    label: str
    guarantee: Guarantee


class Locked:
    """A budget's file while this process has the lock on it."""

    def __init__(self, path: Path, handle: int) -> None:
        content = b""
        while part := os.read(handle, 1 << 20):
            content += part
        whole = content[: content.rfind(b"\n") + 1]
        self.path, self._handle, self._end, self._hash = path, handle, len(whole), ""
        self._read = self._end
        self._hashes: list[str] = []
        self.terms: Terms | None = None
        self.charges: list[Charge] = []
        for number, line in enumerate(whole.split(b"\n")[:-1]):
            try:
                entry = self._checked(line)
                if number == 0:
                    self.terms = _terms(entry)
                else:
                    self.charges.append(_charge(entry))
            except (ValueError, TypeError, KeyError, RecursionError):
                raise ValueError(
                    f"{str(path)!r} is damaged or not the file of a budget: line {number + 1} does "
                    "not fit"
                ) from None
        if content and self.terms is None:
            raise ValueError(f"{str(path)!r} is not the file of a budget: its first line is cut")
        self._refuse_older_copy()
        self.remember()

    def remember(self) -> None:
        """Let this process refuse the file from now on if it lacks one of these lines."""
        if self.terms is not None:
            _seen[self.terms.name] = (len(self._hashes), self._hashes[-1])

    def _refuse_older_copy(self) -> None:
        if self.terms is None or self.terms.name not in _seen:
            return
        lines, last = _seen[self.terms.name]
        if len(self._hashes) < lines or self._hashes[lines - 1] != last:
            raise ValueError(
                f"{str(self.path)!r} must hold the {lines - 1} charges that this process has seen "
                f"in this budget, got {len(self.charges)}, some of them missing: an older copy has "
                "taken its place, which has forgotten fits. Restore the newest file"
            )

    def begin(self, terms: Terms) -> Terms:
        """Write the terms into an empty file, and return them with its name."""
        named = replace(terms, name=secrets.token_hex(16))
        self._append({"format": _FORMAT, "version": _VERSION, **asdict(named)})
        sync_folder(self.path.absolute().parent)
        return named

    def has(self, label: str) -> bool:
        """Return whether there is a charge with this label."""
        return any(charge.label == label[:_LABEL] for charge in self.charges)

    def append(self, charge: Charge) -> None:
        """Write a charge; it is durable when this returns."""
        self._append({"label": charge.label[:_LABEL], **guarantee_to_dict(charge.guarantee)})

    def _append(self, entry: dict[str, Any]) -> None:
        text = json.dumps(entry, allow_nan=False).encode()
        digest = _hash(self._hash, text)
        line = digest.encode() + b" " + text + b"\n"
        with naming_path(self.path):
            self._cut(self._end)
            if (written := os.write(self._handle, line)) != len(line):
                raise OSError(
                    f"{str(self.path)!r}: expected to write {len(line)} bytes, the system took "
                    f"{written}"
                )
            os.fsync(self._handle)
        self._end, self._hash = self._end + len(line), digest
        self._hashes.append(digest)

    def undo(self) -> None:
        """Take back all that was written since the file was locked, as far as the system can."""
        with suppress(OSError):
            self._cut(self._read)

    def _cut(self, end: int) -> None:
        os.ftruncate(self._handle, end)
        os.lseek(self._handle, end, os.SEEK_SET)

    def _checked(self, line: bytes) -> Any:
        found, _, text = line.partition(b" ")
        expected = _hash(self._hash, text)
        if found != expected.encode():
            raise ValueError("another hash")
        self._hash = expected
        self._hashes.append(expected)
        return json.loads(text)


@contextmanager
def locked(paths: Sequence[Path], *, read: bool = False) -> Iterator[list[Locked]]:
    """Lock the files of budgets, each file once, and read them.

    All processes lock several files in the same order, so that none waits for another's.

    Raises
    ------
    OSError
        If a file is missing, or the system has no such locks.
    ValueError
        If a file is damaged.
    """
    try:
        import fcntl
    except ImportError:
        raise OSError("a privacy budget needs POSIX file locks, this system has none") from None
    with ExitStack() as stack:
        opened: dict[tuple[int, int], tuple[Path, int]] = {}
        for path in paths:
            try:
                handle = os.open(path, os.O_RDONLY if read else os.O_RDWR)
            except FileNotFoundError:
                raise FileNotFoundError(
                    f"the file of a privacy budget, {str(path)!r}, is missing: without `path` it "
                    "goes with the process that made the budget, and other machines do not see it"
                ) from None
            stack.callback(os.close, handle)
            status = os.fstat(handle)
            opened.setdefault((status.st_dev, status.st_ino), (path, handle))
        found = []
        for _, (path, handle) in sorted(opened.items()):
            fcntl.flock(handle, fcntl.LOCK_SH if read else fcntl.LOCK_EX)
            # A process that was forked meanwhile has the handle too: closing would not unlock.
            stack.callback(fcntl.flock, handle, fcntl.LOCK_UN)
            if os.fstat(handle).st_nlink == 0:
                raise OSError(f"{str(path)!r} was replaced by another file: try again")
            found.append(Locked(path, handle))
        yield found


def opened_terms(path: Path, terms: Terms | None) -> Terms:
    """Return the terms of a budget's file; with `terms` a missing or empty file is made.

    Raises
    ------
    ValueError
        If the file has other terms than these, or is no file of a budget.
    """
    if terms is not None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    with locked([path], read=terms is None) as (file,):
        if file.terms is None:
            if terms is None:
                raise ValueError(f"{str(path)!r} is empty, expected the file of a budget")
            return file.begin(terms)
        found = file.terms
    if terms is not None:
        for name in ("epsilon", "delta", "neighbours"):
            own, given = getattr(found, name), getattr(terms, name)
            if own != given:
                raise ValueError(f"{name} must be that of {str(path)!r}, {own!r}, got {given!r}")
    return found


# ---- Lines ----


def _hash(before: str, text: bytes) -> str:
    return hashlib.blake2b(before.encode() + text, digest_size=_HASH // 2).hexdigest()


def _terms(entry: dict[str, Any]) -> Terms:
    if entry["format"] != _FORMAT or entry["version"] != _VERSION:
        raise ValueError("another format")
    return Terms(**{name: entry[name] for name in ("epsilon", "delta", "neighbours", "name")})


def _charge(entry: dict[str, Any]) -> Charge:
    return Charge(str(entry["label"]), guarantee_from_dict(entry))


def guarantee_to_dict(guarantee: Guarantee) -> dict[str, Any]:
    """Return the figures from which all epsilons of a guarantee follow, JSON-able."""
    other = None if guarantee.otherwise is None else _figures(guarantee.other)
    return {"mechanisms": _figures(guarantee), "otherwise": other}


def guarantee_from_dict(entry: dict[str, Any]) -> Guarantee:
    """Return the guarantee of `guarantee_to_dict`; other keys are not read."""
    other = entry["otherwise"]
    otherwise = None if other is None else partial(Guarantee, _mechanisms(other))
    return Guarantee(_mechanisms(entry["mechanisms"]), otherwise)


def _figures(guarantee: Guarantee) -> list[list[int | float]]:
    return [
        [
            float(one.noise_multiplier),
            sensitivity(one.sensitivity_squared),
            one.touched.nodes,
            one.touched.total,
            one.touched.largest,
        ]
        for one in guarantee.mechanisms
    ]


def _mechanisms(figures: Any) -> tuple[GaussianMechanism, ...]:
    return tuple(
        GaussianMechanism(positive("noise_multiplier", sigma), sensitivity(zeta), Touched(*nodes))
        for sigma, zeta, *nodes in figures
    )
