# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10: pictures of things, 32 x 32 in three colours, ten classes (Krizhevsky 2009).

The binary version: six files of records of 3,073 bytes, the class and then 1,024 bytes each of red,
green and blue, by rows. (The version for Python is a pickle, which is a program, and is not read.)
Either the folder with the files or the official archive ``cifar-10-binary.tar.gz``.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_TEST = "test_batch.bin"
_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32
_LARGEST = 1 << 26  # bytes of a file; the official ones have 31 million

Bytes = npt.NDArray[np.uint8]


class CIFAR10(NamedTuple):
    """Pictures of shape (n, 3, 32, 32), levels 0 to 255, and the numbers of their classes."""

    images: Bytes
    labels: Bytes
    test_images: Bytes
    test_labels: Bytes


def cifar10(source: str | Path) -> CIFAR10:
    """Read CIFAR-10.

    Parameters
    ----------
    source : str or Path
        Folder with ``data_batch_1.bin`` to ``data_batch_5.bin`` and ``test_batch.bin``, or with the
        folder ``cifar-10-batches-bin`` of them, or with the archive; or the archive
        ``cifar-10-binary.tar.gz`` itself, which is read where it lies.

    Returns
    -------
    CIFAR10
        50,000 and 10,000 pictures, and their labels (or what the files hold).

    Raises
    ------
    FileNotFoundError
        If there is no such folder, archive or file.
    ValueError
        If a file is not what it should be.
    """
    path = Path(source)
    if path.is_dir():
        archive = path / "cifar-10-binary.tar.gz"
        inner = path / "cifar-10-batches-bin"
        folder = inner if inner.is_dir() else path
        if folder is path and archive.exists() and not (path / _TEST).exists():
            files = _from_archive(archive)
        else:
            files = _from_folder(folder)
    else:
        files = _from_archive(path)
    train = [_records(files[name], name) for name in _TRAIN]
    return CIFAR10(
        np.concatenate([images for images, _ in train]),
        np.concatenate([labels for _, labels in train]),
        *_records(files[_TEST], _TEST),
    )


def _from_folder(folder: Path) -> dict[str, bytes]:
    found = {}
    for name in (*_TRAIN, _TEST):
        path = folder / name
        if not path.exists():
            raise FileNotFoundError(f"expected {str(path)!r}, not found")
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"expected at most {_LARGEST} bytes in {str(path)!r}, got more")
        found[name] = path.read_bytes()
    return found


def _from_archive(path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if not (member.isfile() and name in (*_TRAIN, _TEST)):
                    continue
                if member.size > _LARGEST:
                    raise ValueError(f"expected at most {_LARGEST} bytes in {name!r}, got more")
                content = archive.extractfile(member)
                assert content is not None
                found[name] = content.read()
            while unpacked.read(_LARGEST):  # to the end, where the checksum is
                pass
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"expected a whole tar.gz archive, {str(path)!r}: {error}") from None
    if missing := [name for name in (*_TRAIN, _TEST) if name not in found]:
        raise FileNotFoundError(f"expected {', '.join(missing)} in {str(path)!r}, not found")
    return found


def _records(content: bytes, name: str) -> tuple[Bytes, Bytes]:
    if not content or len(content) % _RECORD:
        raise ValueError(f"expected records of {_RECORD} bytes in {name!r}, got {len(content)}")
    table = np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD)
    if not np.all(table[:, 0] < 10):
        raise ValueError(f"expected labels 0 to 9 in {name!r}, got {table[:, 0].max()}")
    return table[:, 1:].reshape(-1, *_SHAPE), table[:, 0].copy()
