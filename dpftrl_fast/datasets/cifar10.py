# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10: images of objects, 32 x 32 in three colours, ten classes (Krizhevsky 2009).

The binary version: six files of records of 3,073 bytes, the class and then 1,024 bytes each of red,
green and blue, by rows. (The version for Python is a pickle, which is a program, and is not read.)
Either the folder with the files or the official archive ``cifar-10-binary.tar.gz``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpftrl_fast.datasets.idx import Bytes, ImageSet
from dpftrl_fast.datasets.packages import file_content, files_in_tar

_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_TEST = "test_batch.bin"
_FILES = (*_TRAIN, _TEST)
_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32
_LARGEST = 1 << 26  # bytes of a file; the official ones have 31 million


class CIFAR10(ImageSet):
    """Images of shape (n, 3, 32, 32), levels 0 to 255, and the numbers of their classes."""


def cifar10(source: str | Path) -> CIFAR10:
    """Read CIFAR-10.

    Parameters
    ----------
    source : str or Path
        Folder with ``data_batch_1.bin`` to ``data_batch_5.bin`` and ``test_batch.bin``, or with the
        folder ``cifar-10-batches-bin`` of them, or with the archive; or the archive
        ``cifar-10-binary.tar.gz`` itself, which is read in place.

    Returns
    -------
    CIFAR10
        50,000 and 10,000 images, and their labels (or those of the given files).

    Raises
    ------
    FileNotFoundError
        If there is no such folder, archive or file.
    ValueError
        If a file is invalid.
    """
    path = Path(source)
    if path.is_dir():
        archive = path / "cifar-10-binary.tar.gz"
        inner = path / "cifar-10-batches-bin"
        folder = inner if inner.is_dir() else path
        if folder is path and archive.exists() and not (path / _TEST).exists():
            files = _from_archive(archive)
        else:
            files = {name: file_content(folder / name, _LARGEST) for name in _FILES}
    else:
        files = _from_archive(path)
    train = [_records(files[name], name) for name in _TRAIN]
    return CIFAR10(
        np.concatenate([images for images, _ in train]),
        np.concatenate([labels for _, labels in train]),
        *_records(files[_TEST], _TEST),
    )


def _from_archive(path: Path) -> dict[str, bytes]:
    found = files_in_tar(path, lambda name: name.name in _FILES, _LARGEST)
    if missing := [name for name in _FILES if name not in found]:
        raise FileNotFoundError(f"expected {', '.join(missing)} in {str(path)!r}, not found")
    return found


def _records(content: bytes, name: str) -> tuple[Bytes, Bytes]:
    if not content or len(content) % _RECORD:
        raise ValueError(f"expected records of {_RECORD} bytes in {name!r}, got {len(content)}")
    table = np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD)
    if not np.all(table[:, 0] < 10):
        raise ValueError(f"expected labels 0 to 9 in {name!r}, got {table[:, 0].max()}")
    return table[:, 1:].reshape(-1, *_SHAPE), table[:, 0].copy()
