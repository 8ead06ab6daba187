# SPDX-License-Identifier: Apache-2.0
"""The noise stream (docs/guarantees/stream.md): keys, blocks of ChaCha, and normals of them.

Values meet only IEEE ``+ - * sqrt``. NumPy makes each operation in a separate pass, so none is
fused, and Python floats beside an array take its dtype (all of them here are exact in it).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from dpftrl_fast.reference._checks import (
    FLOAT32,
    FLOAT64,
    LAYOUT,
    Array,
    check,
    float_dtype,
    integer,
)

STREAM_VERSION = 2
EXTENSION_KINDS = {FLOAT32: 2, FLOAT64: 5}
RARE = 1 << 18  # the distance from an end of the 32-bit words within which a radius word is rare

# ---------------------------------------------------------------------------- keys and blocks


def key_from_seed(seed: SupportsIndex | bytes) -> bytes:
    """Return the 256-bit key of a seed: SHA-256 of a label and the seed (an int >= 0, or bytes).

    A small seed can be guessed and gives no privacy: seeds are for tests.

    Examples
    --------
    >>> key_from_seed(0).hex()[:16]
    '9584c621a56474a4'
    """
    if isinstance(seed, bytes):
        canonical = b"b" + seed
    else:
        number = integer("a seed that is not bytes", seed, 0)
        canonical = b"i" + number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")
    return hashlib.sha256(b"dpftrl_fast/seed/v1\x00" + canonical).digest()


def initial_words(key: Any, rounds: int) -> list[int]:
    """Return words 0 to 11 of the state: four constants and the key."""
    check(isinstance(key, bytes) and len(key) == 32, "key must be 32 bytes", type(key).__name__)
    check(rounds in (8, 12, 20), "rounds must be 8, 12 or 20", rounds)
    return list(struct.unpack("<12I", b"expand 32-byte k" + key))


def chacha_block(key: bytes, counter: Sequence[int], rounds: int = 12) -> list[int]:
    """Return one block of ChaCha (RFC 8439, section 2.3): sixteen 32-bit words.

    Parameters
    ----------
    key : bytes of length 32
    counter : four ints below 2^32, words 12 to 15 of the state
    rounds : 8, 12 or 20

    Examples
    --------
    >>> [f"{word:08x}" for word in chacha_block(bytes(32), (0, 0, 0, 0), 20)[:2]]
    ['ade0b876', '903df1a0']
    """
    start = [*initial_words(key, rounds), *counter]
    x = list(start)

    def quarter_round(a: int, b: int, c: int, d: int) -> None:
        for by_d, by_b in ((16, 12), (8, 7)):
            x[a] = (x[a] + x[b]) & 0xFFFFFFFF
            word = x[d] ^ x[a]
            x[d] = (word << by_d | word >> (32 - by_d)) & 0xFFFFFFFF
            x[c] = (x[c] + x[d]) & 0xFFFFFFFF
            word = x[b] ^ x[c]
            x[b] = (word << by_b | word >> (32 - by_b)) & 0xFFFFFFFF

    for _ in range(rounds // 2):
        for i in range(4):  # columns
            quarter_round(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):  # diagonals
            quarter_round(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return [(word + first) & 0xFFFFFFFF for word, first in zip(x, start, strict=True)]


def chacha_blocks(key: bytes, numbers: Array, counter: Sequence[int], rounds: int = 12) -> Array:
    """Return many blocks at once: word j of block i stands at ``[j, i]``.

    Parameters
    ----------
    key : bytes of length 32
    numbers : uint32 array of shape (n,), word 12 of the state
    counter : three ints below 2^32, words 13 to 15
    rounds : 8, 12 or 20

    Returns
    -------
    uint32 array of shape (16, n).
    """
    start = np.empty((16, numbers.size), np.uint32)
    start[:12] = np.array(initial_words(key, rounds), np.uint32)[:, None]
    start[12] = numbers
    start[13:] = np.array(counter, np.uint32)[:, None]
    a, b, c, d = start.reshape(4, 4, -1).copy()  # the rows of the state; four columns at once

    def rotate(x: Array, by: int) -> None:
        high = x << by
        x >>= 32 - by
        x |= high

    def quarter_rounds() -> None:
        nonlocal a, b, c, d
        for by_d, by_b in ((16, 12), (8, 7)):
            a += b
            d ^= a
            rotate(d, by_d)
            c += d
            b ^= c
            rotate(b, by_b)

    for _ in range(rounds // 2):
        quarter_rounds()
        b, c, d = b[[1, 2, 3, 0]], c[[2, 3, 0, 1]], d[[3, 0, 1, 2]]  # diagonals become columns
        quarter_rounds()
        b, c, d = b[[3, 0, 1, 2]], c[[2, 3, 0, 1]], d[[1, 2, 3, 0]]
    return np.concatenate((a, b, c, d)) + start


def node_counter(
    purpose: int, kind: int, tree: int, level: int, index: int
) -> tuple[int, int, int]:
    """Return words 13 to 15: purpose, tree and node."""
    if level < 0 or index < 0 or level >= 48 or (2 * index + 1) << level >= 1 << 48:
        raise IndexError(
            "node must have level >= 0, index >= 0 and (2 index + 1) 2^level < 2^48, "
            f"got level {level}, index {index}"
        )
    check(0 <= tree < 1 << 32, "tree must be in 0 .. 2^32 - 1", tree)
    check(0 <= purpose < 256, "purpose must be in 0 .. 255", purpose)
    node, domain = (2 * index + 1) << level, 256 * purpose + kind
    return node & 0xFFFFFFFF, node >> 32 | (tree >> 16) << 16, tree & 0xFFFF | domain << 16


def superblocks_of(start: int, size: int, per: int) -> range:
    """Return the numbers of the superblocks of ``per`` normals that hold the coordinates."""
    end = integer("start", start, 0) + integer("size", size, 1)
    # A superblock is 16 blocks, and the number of a block has 32 bits.
    check(end <= per << 28, f"coordinates must be below {per << 28}", f"{start} .. {end - 1}")
    return range(start // per, (end - 1) // per + 1)


# -------------------------------------------------------------------------- words to normals


def _table(text: str) -> list[tuple[float, ...]]:
    return [tuple(map(float.fromhex, row.split())) for row in text.split(";")]


# K of -2 ln(1 + f) / f; C of the cosine; S of the sine; 2 ln 2. Lowest power first.
POLYNOMIALS = {
    FLOAT32: _table("""
        -0x1.0p+1 0x1.fffe2p-1 -0x1.55b59ap-1 0x1.f14438p-2 -0x1.1413aep-1 -0x1.a0caaap-2
        -0x1.41f272p+1 -0x1.b21bap+1 -0x1.70e9fp+1;
        0x1.0p+0 -0x1.3bd392p-2 0x1.03af5cp-6 -0x1.4e5ed6p-12;
        0x1.921fb6p-1 -0x1.4abbbap-4 0x1.465e92p-9 -0x1.2d9302p-15;
        0x1.62e43p+0"""),
    FLOAT64: _table("""
        -0x1.0p+1 0x1.fffffffffff3p-1 -0x1.555555556402bp-1 0x1.fffffff2da2p-2
        -0x1.99999cb6ba1e7p-2 0x1.5554e1fb7b118p-2 -0x1.249d6709bfe6bp-2 0x1.fe7da056270cp-3
        -0x1.da4e7efe2967cp-3 0x1.c42b8fec7054ap-4 -0x1.acf2c0e303719p-1 -0x1.c713550e291c7p+1
        -0x1.0a1f737700f48p+4 -0x1.c714c333f4925p+5 -0x1.33aa8446b2d01p+7 -0x1.3f47268e19677p+8
        -0x1.f67849474dc85p+8 -0x1.218d8c6ae5d4bp+9 -0x1.cf32b587663dp+8 -0x1.ccbb87662b9cp+7
        -0x1.b3312f555a3edp+5;
        0x1.0p+0 -0x1.3bd3cc9be45dep-2 0x1.03c1f081b5aacp-6 -0x1.55d3c7e3c90fdp-12
        0x1.e1f50683565a9p-19 -0x1.a6d1ec795faf9p-26 0x1.f9cc4154b7f1bp-34
        -0x1.b264cc8f5a8a1p-42;
        0x1.921fb54442d18p-1 -0x1.4abbce625be41p-4 0x1.466bc677587p-9 -0x1.32d2cce2d5418p-15
        0x1.50782fca4376cp-22 -0x1.e30063a95bdb2p-30 0x1.e3eed8c16e6f1p-38;
        0x1.62e42fefa39efp+0"""),
}


def is_rare(words: Array, dtype: np.dtype[Any]) -> Array:
    """Return which 32-bit radius words (float64: high halves of them) need the extension."""
    rare: Array = words < RARE
    if dtype == FLOAT64:
        rare |= words >= (1 << 32) - RARE
    return rare


def rare_radius(U: int, V: int) -> tuple[float, int]:
    """Return f and lz of a rare radius word of float64 with its extension."""
    X = U << 64 | V
    if U < 1 << 63:  # a large radius
        lz = 128 - X.bit_length()
        N = X << lz >> 64 if X else 1 << 63
        return float(N - (1 << 64)) * 2.0**-64, lz
    C = (1 << 128) - X
    s = 128 - C.bit_length()
    return -float(C << s >> 65) * 2.0 ** -(63 + s), 0


def box_muller(
    radius: Array, angle: Array, dtype: npt.DTypeLike, extension: Array | None = None
) -> tuple[Array, Array]:
    """Make pairs of normals from random words.

    Parameters
    ----------
    radius : uint64 array, the U of docs/guarantees/stream.md
    angle : uint32 array for float32, uint64 array for float64, of that shape: the A
    dtype : float32 or float64
    extension : uint64 array of that shape, optional
        The V, for float64; it counts where the radius word is rare. Without it no word is taken
        for rare, as in version 1 of the stream.

    Returns
    -------
    first, second : arrays of that dtype and shape.

    Examples
    --------
    >>> U, A = np.array([1 << 63], np.uint64), np.array([0], np.uint32)
    >>> first, second = box_muller(U, A, "float32")
    >>> float(first[0]), float(second[0])  # sqrt(2 ln 2) times cos 0 and sin 0
    (1.1774100065231323, 0.0)
    """
    dtype = float_dtype(dtype)
    K, C, S, (two_ln_2,) = POLYNOMIALS[dtype]
    # U & ~(U >> 1) keeps the leading bit and clears the next one, so that rounding to a double
    # cannot carry into a new leading bit. Its exponent is 64 - lz; frexp has 0 for U = 0.
    lz = 64 - np.frexp((radius & ~(radius >> 1)).astype(np.float64))[1]
    N = (radius | (radius == 0)) << np.minimum(lz, 63).astype(np.uint64)
    if dtype == FLOAT32:
        f = (N >> 32).astype(np.uint32).view(np.int32).astype(dtype) * 2.0**-32
        x = (angle & 0x1FFFFFFF).astype(dtype) * 2.0**-29
        bits = angle >> 29
    else:
        f = N.view(np.int64).astype(dtype) * 2.0**-64
        if extension is not None:
            for at in zip(*np.nonzero(is_rare(radius >> 32, dtype)), strict=True):
                f[at], lz[at] = rare_radius(int(radius[at]), int(extension[at]))
        x = (angle << 3 >> 12 | 0x3FF << 52).view(dtype) - 1.0
        bits = angle >> 61

    def horner(coefficients: Sequence[float], at: Array) -> Array:
        total = np.full_like(at, coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total *= at
            total += coefficient
        return total

    g = f * f
    even, odd = horner(K[0::2], g), horner(K[1::2], g)
    r = np.sqrt(lz.astype(dtype) * two_ln_2 + f * (even + f * odd))
    y = x * x
    c = r * horner(C, y)
    s = r * (x * horner(S, y))
    swap = (bits & 1).astype(bool)
    first, second = np.where(swap, s, c), np.where(swap, c, s)
    np.negative(first, out=first, where=(bits & 4).astype(bool))
    np.negative(second, out=second, where=(bits & 2).astype(bool))
    return first, second


def normals(
    key: bytes,
    *,
    tree: int,
    level: int,
    index: int,
    start: int,
    size: int,
    dtype: npt.DTypeLike = "float32",
    rounds: int = 12,
    purpose: int = 0,
    version: int = STREAM_VERSION,
) -> Array:
    """Return z of one node at the coordinates ``start .. start + size - 1``, unscaled.

    Only the superblocks that hold these coordinates are made.

    Parameters
    ----------
    key : bytes of length 32
    tree, level, index : int
        The node; level 0 holds the leaves.
    start, size : int
        The range of global coordinates.
    dtype : float32 or float64
        Two streams, neither the other one rounded.
    rounds : 8, 12 or 20
    purpose : int
        0 for tree noise; see docs/guarantees/stream.md.
    version : 1 or 2
        Of the stream. In version 1, no radius word of float64 was rare.

    Returns
    -------
    array of shape (size,) and the given dtype.

    Examples
    --------
    >>> node = {"tree": 0, "level": 3, "index": 5}
    >>> whole = normals(key_from_seed(1), **node, start=0, size=1000)
    >>> bool(np.array_equal(normals(key_from_seed(1), **node, start=300, size=50), whole[300:350]))
    True
    """
    dtype = float_dtype(dtype)
    per, kind = LAYOUT[dtype]
    counter = node_counter(purpose, kind, tree, level, index)
    extension = node_counter(purpose, EXTENSION_KINDS[dtype], tree, level, index)
    check(version in (1, 2), "version must be 1 or 2", version)
    superblocks = superblocks_of(start, size, per)
    out = np.empty(size, dtype)
    at_once = 128  # superblocks: the work stays in cache
    for S in superblocks[::at_once]:
        count = min(at_once, superblocks.stop - S)
        numbers = np.arange(16 * S, 16 * (S + count), dtype=np.uint64).astype(np.uint32)
        W = chacha_blocks(key, numbers, counter, rounds)  # W[j, i], where the page has W[i][j]
        V: Array | None = None
        if dtype == FLOAT32:
            U, A = W[:8].astype(np.uint64) << 32, W[8:]
            for j, i in np.argwhere(is_rare(W[:8], dtype)):
                U[j, i] += chacha_block(key, (int(numbers[i]), *extension), rounds)[j]
        else:
            words = W[:, 0::2] + (W[:, 1::2].astype(np.uint64) << 32)
            U, A = words[:8], words[8:]
            if version > 1:
                V = np.zeros_like(U)
                for j, i in np.argwhere(is_rare(W[:8, 1::2], dtype)):
                    low, high = (
                        chacha_block(key, (int(number), *extension), rounds)[j]
                        for number in numbers[2 * i : 2 * i + 2]
                    )
                    V[j, i] = high << 32 | low
        rows = np.concatenate(box_muller(U, A, dtype, V)).reshape(16, count, -1)  # row, S, lane
        z = rows.transpose(1, 0, 2).reshape(-1)
        low, high = max(start, S * per), min(start + size, (S + count) * per)
        out[low - start : high - start] = z[low - S * per : high - S * per]
    return out
