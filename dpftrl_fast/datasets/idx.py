# SPDX-License-Identifier: Apache-2.0
"""The IDX format of the MNIST family, compressed by gzip.

IDX is a header (two zero bytes, a byte for the type, a byte for the number of dimensions, the
dimensions as big-endian 32-bit integers) and the numbers in C order.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from typing import IO

import numpy as np
import numpy.typing as npt

_UNSIGNED_BYTES = 8
_LARGEST = 1 << 30  # bytes of a file; the largest of EMNIST has 638 million


def read_idx(file: IO[bytes], name: str, dimensions: int) -> npt.NDArray[np.uint8]:
    """Read an array of unsigned bytes.

    Parameters
    ----------
    file : binary file
        The compressed file.
    name : str
        What it is called in messages.
    dimensions : int
        How many the array must have.

    Returns
    -------
    array of uint8

    Raises
    ------
    ValueError
        If it is not what it should be.

    Examples
    --------
    >>> import io
    >>> content = bytes([0, 0, 8, 1, 0, 0, 0, 2]) + bytes([7, 9])
    >>> read_idx(io.BytesIO(gzip.compress(content)), "labels", 1).tolist()
    [7, 9]
    """
    size = 4 + 4 * dimensions
    try:
        with gzip.open(file) as unpacked:
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
