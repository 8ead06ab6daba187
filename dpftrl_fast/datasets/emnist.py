# SPDX-License-Identifier: Apache-2.0
"""EMNIST: handwritten letters and digits, 28 x 28 grey levels (Cohen et al. 2017).

IDX files, compressed by gzip, from a folder or from the official archive ``gzip.zip``. The files
hold each image by columns; it is transposed, so that rows are rows as in MNIST.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from dpftrl_fast._validate import choice
from dpftrl_fast.datasets.idx import ImageSet, read_labelled
from dpftrl_fast.datasets.packages import file_content, file_in_zip

#: The splits, and the number of classes of each.
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


class EMNIST(ImageSet):
    """Images as rows of grey levels 0 to 255, and the numbers of their classes from 0."""


def emnist(source: str | Path, split: str = "bymerge") -> EMNIST:
    """Read a split of EMNIST.

    Parameters
    ----------
    source : str or Path
        Folder with ``emnist-<split>-train-images-idx3-ubyte.gz`` and the three files like it (or
        with ``gzip.zip``, or a folder ``gzip`` of them), or the archive itself, which is read in
        place.
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
        If a file is invalid, or there is no such split.
    """
    choice("split", split, tuple(EMNIST_CLASSES))
    path = Path(source)
    if path.is_dir() and (path / "gzip").is_dir():
        path = path / "gzip"
    elif path.is_dir() and (path / "gzip.zip").exists():
        path = path / "gzip.zip"
    first = 1 if split == "letters" else 0
    classes = range(first, first + EMNIST_CLASSES[split])
    found = []
    for part in ("train", "test"):
        names = [
            f"emnist-{split}-{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")
        ]
        images, labels = read_labelled(partial(_content, path), names, classes)
        if images.shape[1:] != (_SIDE, _SIDE):
            raise ValueError(
                f"expected images of {_SIDE} x {_SIDE} in {names[0]!r}, got "
                f"{images.shape[1]} x {images.shape[2]}"
            )
        upright = np.ascontiguousarray(images.transpose(0, 2, 1))
        found += [upright.reshape(len(images), -1), (labels - first).astype(np.uint8)]
    return EMNIST(*found)


def _content(path: Path, name: str) -> bytes:
    if path.is_dir():
        return file_content(path / name, _LARGEST)
    return file_in_zip(path, name, _LARGEST)
