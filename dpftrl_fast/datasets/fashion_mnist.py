# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST: images of clothes, 28 x 28 grey levels, ten classes (Xiao et al. 2017, MIT).

Four files in the IDX format, compressed by gzip: those of the Debian package
``dataset-fashion-mnist``, or the same from elsewhere.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dpftrl_fast.datasets.idx import ImageSet, read_labelled

#: Folder of the Debian package.
FASHION_MNIST_FOLDER = Path("/usr/share/datasets/fashion-mnist")


class FashionMNIST(ImageSet):
    """Images as rows of grey levels 0 to 255, and the numbers of their classes, 0 to 9."""


def fashion_mnist(folder: str | Path | None = None) -> FashionMNIST:
    """Read Fashion-MNIST.

    Parameters
    ----------
    folder : str or Path, optional
        Folder of the four files; default that of the Debian package.

    Returns
    -------
    FashionMNIST
        60,000 and 10,000 rows of 784 bytes, and their labels (or those of the given files).

    Raises
    ------
    FileNotFoundError
        If a file is missing.
    ValueError
        If a file is invalid.
    """
    folder = FASHION_MNIST_FOLDER if folder is None else Path(folder)
    found = []
    for part in ("train", "t10k"):
        names = [f"{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
        images, labels = read_labelled(partial(_content, folder), names, range(10))
        found += [images.reshape(len(images), -1), labels]
    if found[0].shape[1] != found[2].shape[1]:
        raise ValueError(
            f"expected images of one size in {str(folder)!r}, got {found[0].shape[1]} and "
            f"{found[2].shape[1]} pixels"
        )
    return FashionMNIST(*found)


def _content(folder: Path, name: str) -> bytes:
    path = folder / name
    if not path.exists():
        raise FileNotFoundError(
            f"expected {str(path)!r}, not found: apt-get install dataset-fashion-mnist"
        )
    return path.read_bytes()
