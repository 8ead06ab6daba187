# SPDX-License-Identifier: Apache-2.0
"""EMNIST: handwritten letters and digits, 28 x 28 grey levels (Cohen et al. 2017).

IDX files, compressed by gzip, from a folder or from the official archive ``gzip.zip``. The files
hold each picture by columns; it is turned, so that rows are rows as in MNIST.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpftrl_fast.datasets.idx import read_idx

#: The splits, and how many classes each has.
EMNIST_CLASSES: Mapping[str, int] = {
    "byclass": 62,
    "bymerge": 47,
    "balanced": 47,
    "letters": 26,
    "digits": 10,
    "mnist": 10,
}
_SIDE = 28
_LARGEST = 1 << 29  # bytes of a compressed file; the largest has 172 million

Bytes = npt.NDArray[np.uint8]


class EMNIST(NamedTuple):
    """Pictures as rows of grey levels 0 to 255, and the numbers of their classes from 0."""

    images: Bytes
    labels: Bytes
    test_images: Bytes
    test_labels: Bytes


def emnist(source: str | Path, split: str = "bymerge") -> EMNIST:
    """Read a split of EMNIST.

    Parameters
    ----------
    source : str or Path
        Folder with ``emnist-<split>-train-images-idx3-ubyte.gz`` and the three files like it (or
        with ``gzip.zip``, or a folder ``gzip`` of them), or the archive itself, which is read where
        it lies.
    split : str
        Of `EMNIST_CLASSES`. The paper's is "bymerge".

    Returns
    -------
    EMNIST
        Rows of 784 bytes, upright, and labels from 0 (those of "letters" are from 1 in the files).

    Raises
    ------
    FileNotFoundError
        If there is no such folder, archive or file.
    ValueError
        If a file is not what it should be, or there is no such split.
    """
    if split not in EMNIST_CLASSES:
        raise ValueError(f"split must be one of {', '.join(EMNIST_CLASSES)}, got {split!r}")
    path = Path(source)
    if path.is_dir() and (path / "gzip").is_dir():
        path = path / "gzip"
    elif path.is_dir() and (path / "gzip.zip").exists():
        path = path / "gzip.zip"
    found: list[Bytes] = []
    first = 1 if split == "letters" else 0
    for part in ("train", "test"):
        names = [
            f"emnist-{split}-{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")
        ]
        images, labels = (
            read_idx(io.BytesIO(_content(path, name)), name, dimensions)
            for name, dimensions in zip(names, (3, 1), strict=True)
        )
        if images.shape[1:] != (_SIDE, _SIDE):
            raise ValueError(
                f"expected pictures of {_SIDE} x {_SIDE} in {names[0]!r}, got "
                f"{images.shape[1]} x {images.shape[2]}"
            )
        if len(images) != len(labels):
            raise ValueError(
                f"expected as many labels as pictures, got {len(labels)} for {len(images)} in "
                f"{names[0]!r}"
            )
        last = first + EMNIST_CLASSES[split] - 1
        if not np.all((labels >= first) & (labels <= last)):
            raise ValueError(
                f"expected labels {first} to {last} in {names[1]!r}, got {labels.min()} to "
                f"{labels.max()}"
            )
        upright = np.ascontiguousarray(images.transpose(0, 2, 1))
        found += [upright.reshape(len(images), -1), (labels - first).astype(np.uint8)]
    return EMNIST(*found)


def _content(path: Path, name: str) -> bytes:
    if path.is_dir():
        file = path / name
        if not file.exists():
            raise FileNotFoundError(f"expected {str(file)!r}, not found")
        if file.stat().st_size > _LARGEST:
            raise ValueError(f"expected at most {_LARGEST} bytes in {str(file)!r}, got more")
        return file.read_bytes()
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if PurePosixPath(info.filename).name == name:
                    if info.file_size > _LARGEST:
                        raise ValueError(f"expected at most {_LARGEST} bytes in {name!r}, got more")
                    return archive.read(info)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise ValueError(f"expected a whole zip archive, {str(path)!r}: {error}") from None
    raise FileNotFoundError(f"expected {name!r} in {str(path)!r}, not found")
