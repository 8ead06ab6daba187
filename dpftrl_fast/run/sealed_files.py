# SPDX-License-Identifier: Apache-2.0
"""Secret states on disk: npz without pickle, sealed with a keyed hash, whole or absent.

The file is an ordinary npz: the arrays, and under "tree" the nested dictionaries around them as
JSON. The comment at the end of the zip file holds a keyed BLAKE2b of all bytes before it, which
detects flipped bits, a truncated file and a file moved from another place.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import MOST_BITS
from dpftrl_fast.files import naming_path

TEMPORARY = ".writing-"

_SEAL = 32
_CHUNK = 1 << 20
_KINDS = "biufcSU"


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with naming_path(folder):
            os.fsync(handle)
    finally:
        os.close(handle)


def write_secret(path: Path, content: Callable[[int], bytes]) -> None:
    """Write a file that only its owner can read: durable and whole when this returns, or absent.

    `content` is called with the inode of the file and returns the bytes. An older file is replaced.
    """
    with naming_path(path), _Replacing(path) as file:
        file.write(content(os.fstat(file.fileno()).st_ino))


def write_sealed(path: Path, state: Mapping[str, Any], secret: bytes, label: str) -> None:
    """Write a state as `write_secret` does, sealed with a key of at most 64 bytes and a label.

    The state consists of dictionaries (keys: strings or integers), lists, tuples, None, bool, int,
    float, str, bytes and ndarrays of numbers or fixed-width text. Anything else is a TypeError, and
    no file is then touched. After an OSError an older file is still there.
    """
    given: Any = state
    if not isinstance(given, Mapping):
        raise TypeError(f"a state must be a mapping, got {type(given).__name__}")
    arrays: list[NDArray[Any]] = []
    try:
        tree = json.dumps(_encoded(state, arrays, "")).encode()
    except RecursionError:
        raise TypeError(
            "a state must be nested less deeply, got one beyond Python's limit"
        ) from None
    members = {f"array{i}": array for i, array in enumerate(arrays)}
    with naming_path(path), _Replacing(path) as file:
        np.savez(file, tree=np.frombuffer(tree, np.uint8), **members)  # type: ignore[arg-type]
        with zipfile.ZipFile(file, "a") as archive:
            archive.comment = bytes(_SEAL)
        size = file.seek(0, os.SEEK_END)
        seal = _seal(file, size - _SEAL, secret, label)
        file.seek(size - _SEAL)
        file.write(seal)


def read_sealed(path: Path, secret: bytes, label: str) -> dict[Any, Any]:
    """Read a file of `write_sealed` with the same secret and label.

    A file that differs by any bit is a ValueError.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        body = size - _SEAL
        if body <= 0 or file.seek(body) != body or file.read() != _seal(file, body, secret, label):
            raise ValueError(f"{str(path)!r} is damaged or not of this run: its seal does not fit")
        file.seek(0)
        with np.load(file, allow_pickle=False) as members:
            tree = json.loads(members["tree"].tobytes())
            state = _decoded(tree, members)
    assert isinstance(state, dict)
    return state


class _Replacing:
    """A new file under a temporary name, moved into place when the block ends without an error."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> BinaryIO:
        handle, name = tempfile.mkstemp(prefix=TEMPORARY, dir=self._path.parent)
        self._temporary = Path(name)
        self._file = os.fdopen(handle, "w+b")
        return self._file

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            with self._file:
                if kind is None:
                    self._file.flush()
                    os.fsync(self._file.fileno())
            if kind is None:
                os.replace(self._temporary, self._path)
                sync_folder(self._path.parent)
        finally:
            self._temporary.unlink(missing_ok=True)


def _seal(file: BinaryIO, size: int, secret: bytes, label: str) -> bytes:
    """Keyed hash of a label and of the first bytes of a file."""
    name = label.encode()
    digest = hashlib.blake2b(key=secret, digest_size=_SEAL, person=b"dpftrl-seal")
    digest.update(len(name).to_bytes(8, "little") + name)
    file.seek(0)
    while size > 0:
        part = file.read(min(size, _CHUNK))
        if not part:
            break
        digest.update(part)
        size -= len(part)
    return digest.digest()


# ---- Nested plain data as JSON ----
#
# Scalars stand for themselves; every other value is an object with one key, its kind.


def _encoded(value: Any, arrays: list[NDArray[Any]], where: str) -> Any:
    if type(value) is int and value.bit_length() > MOST_BITS:
        raise TypeError(f"{where} must be an integer of at most {MOST_BITS} bits, got a larger one")
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Mapping):
        return {"dict": [_entry(k, v, arrays, where) for k, v in value.items()]}
    if type(value) in (list, tuple):
        return {
            type(value).__name__: [
                _encoded(item, arrays, f"{where}[{i}]") for i, item in enumerate(value)
            ]
        }
    if type(value) is bytes:
        return {"bytes": value.hex()}
    if type(value) is np.ndarray and value.dtype.kind in _KINDS:
        arrays.append(value)
        return {"array": len(arrays) - 1}
    came = f"dtype {value.dtype}" if type(value) is np.ndarray else type(value).__name__
    raise TypeError(
        f"{where} must be a dict, list, tuple, None, bool, int, float, str, bytes or an ndarray of "
        f"numbers, got {came}"
    )


def _entry(key: Any, value: Any, arrays: list[NDArray[Any]], where: str) -> list[Any]:
    if type(key) not in (str, int):
        name = where or "a state"
        raise TypeError(f"{name} must have str or int keys, got {type(key).__name__}")
    _encoded(key, arrays, f"a key of {where or 'a state'}")
    return [key, _encoded(value, arrays, f"{where}[{key!r}]" if where else str(key))]


def _decoded(value: Any, members: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "dict":
        return {key: _decoded(item, members) for key, item in content}
    if kind == "list":
        return [_decoded(item, members) for item in content]
    if kind == "tuple":
        return tuple(_decoded(item, members) for item in content)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "float":
        return float(content)
    return members[f"array{content}"]
