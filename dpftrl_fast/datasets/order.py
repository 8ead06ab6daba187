# SPDX-License-Identifier: Apache-2.0
"""Published permutations, which need no library to be made again."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


def hashed_order(name: str, n: int) -> npt.NDArray[np.int64]:
    """Return the numbers 0, .., n - 1 in the order of the SHA-256 digests of ``name/number``.

    Parameters
    ----------
    name : str
        Of the data set.
    n : int
        Rows.

    Returns
    -------
    (n,) array of int64
        Digests are compared byte by byte.

    Examples
    --------
    >>> hashed_order("nycflights13", 5).tolist()
    [1, 4, 2, 0, 3]
    """
    digests = b"".join(hashlib.sha256(f"{name}/{i}".encode()).digest() for i in range(n))
    words = np.frombuffer(digests, dtype=">u8").reshape(n, 4)
    # lexsort's last key is the first word: the digests in byte order
    return np.lexsort([words[:, 3], words[:, 2], words[:, 1], words[:, 0]]).astype(np.int64)
