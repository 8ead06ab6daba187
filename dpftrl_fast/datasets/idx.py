# SPDX-License-Identifier: Apache-2.0
"""The IDX format of the MNIST family, compressed by gzip.

IDX is a header (two zero bytes, a byte for the type, a byte for the number of dimensions, the
dimensions as big-endian 32-bit integers) and the numbers in C order.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_UNSIGNED_BYTES = 8
_LARGEST = 1 << 30  # bytes of a file; the largest of EMNIST has 638 million


class ImageSet(NamedTuple):
    """Training and test images, and the numbers of their classes from 0."""

    images: Bytes
    labels: Bytes
    test_images: Bytes
    test_labels: Bytes


def read_labelled(
    content: Callable[[str], bytes], names: Sequence[str], classes: range
) -> tuple[Bytes, Bytes]:
    """Return images, shape (n, rows, columns), and as many labels of `classes`.

    `content` returns the compressed content of a file, and `names` are those of the two files.
    """
    images, labels = (content(name) for name in names)
    found = read_idx(images, names[0], 3), read_idx(labels, names[1], 1)
    if len(found[0]) != len(found[1]):
        raise ValueError(
            f"expected as many labels as images, got {len(found[1])} for {len(found[0])} in "
            f"{names[0]!r}"
        )
    low, high = int(found[1].min()), int(found[1].max())
    if not (low in classes and high in classes):
        raise ValueError(
            f"expected labels {classes[0]} to {classes[-1]} in {names[1]!r}, got {low} to {high}"
        )
    return found


def read_idx(compressed: bytes, name: str, dimensions: int) -> Bytes:
    """Read an array of unsigned bytes of so many dimensions; ValueError if the file is invalid.

    Examples
    --------
    >>> content = bytes([0, 0, 8, 1, 0, 0, 0, 2]) + bytes([7, 9])
    >>> read_idx(gzip.compress(content), "labels", 1).tolist()
    [7, 9]
    """
    size = 4 + 4 * dimensions
    try:
        with gzip.open(io.BytesIO(compressed)) as unpacked:
            header = unpacked.read(size)
            if len(header) < size or header[:4] != bytes([0, 0, _UNSIGNED_BYTES, dimensions]):
                raise ValueError(
                    f"expected unsigned bytes in {dimensions} dimensions in {name!r}, got a file "
                    f"that begins with {header[:4].hex()}"
                )
            shape = struct.unpack(f">{dimensions}I", header[4:])
            count = math.prod(shape)
            if count > _LARGEST:
                raise ValueError(f"expected at most {_LARGEST} bytes in {name!r}, got {count}")
            if count == 0:
                raise ValueError(f"expected numbers in {name!r}, got the shape {shape}")
            content = unpacked.read(count + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"expected a whole gzip file, {name!r}: {error}") from None
    if len(content) != count:
        more = "more" if len(content) > count else str(len(content))
        raise ValueError(f"expected {count} numbers in {name!r}, got {more}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
