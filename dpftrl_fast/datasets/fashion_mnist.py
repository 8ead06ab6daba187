# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST: pictures of clothes, 28 x 28 grey levels, ten classes (Xiao et al. 2017, MIT).

Four files in the IDX format, compressed by gzip: those of the Debian package
``dataset-fashion-mnist``, or the same from elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpftrl_fast.datasets.idx import read_idx

#: Where the Debian package puts the files.
FASHION_MNIST_FOLDER = Path("/usr/share/datasets/fashion-mnist")

_CLASSES = 10

Bytes = npt.NDArray[np.uint8]


class FashionMNIST(NamedTuple):
    """Pictures as rows of grey levels 0 to 255, and the numbers of their classes, 0 to 9."""

    images: Bytes
    labels: Bytes
    test_images: Bytes
    test_labels: Bytes


def fashion_mnist(folder: str | Path | None = None) -> FashionMNIST:
    """Read Fashion-MNIST.

    Parameters
    ----------
    folder : str or Path, optional
        With the four files; by default where Debian's package puts them.

    Returns
    -------
    FashionMNIST
        60,000 and 10,000 rows of 784 bytes, and their labels (or what the files hold).

    Raises
    ------
    FileNotFoundError
        If a file is missing.
    ValueError
        If a file is not what it should be.
    """
    folder = FASHION_MNIST_FOLDER if folder is None else Path(folder)
    found: list[Bytes] = []
    for part in ("train", "t10k"):
        images = _read(folder / f"{part}-images-idx3-ubyte.gz", 3)
        labels = _read(folder / f"{part}-labels-idx1-ubyte.gz", 1)
        if len(images) != len(labels):
            raise ValueError(
                f"expected as many labels as pictures in {str(folder)!r}, got {len(labels)} for "
                f"{len(images)} of {part}"
            )
        if not np.all(labels < _CLASSES):
            raise ValueError(f"expected labels 0 to 9 in {str(folder)!r}, got {labels.max()}")
        found += [images.reshape(len(images), -1), labels]
    if found[0].shape[1] != found[2].shape[1]:
        raise ValueError(
            f"expected pictures of one size in {str(folder)!r}, got {found[0].shape[1]} and "
            f"{found[2].shape[1]} pixels"
        )
    return FashionMNIST(*found)


def _read(path: Path, dimensions: int) -> Bytes:
    if not path.exists():
        raise FileNotFoundError(
            f"expected {str(path)!r}, not found: apt-get install dataset-fashion-mnist"
        )
    with path.open("rb") as file:
        return read_idx(file, str(path), dimensions)
