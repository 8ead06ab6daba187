# SPDX-License-Identifier: Apache-2.0
"""The whole mechanism again, noise stream included, in plain Python and NumPy: what to audit with.

It follows ``docs/stream.md`` from top to bottom, imports nothing of the package, and agrees with
the C++ core to the last bit. Three parts:

- the stream: `key_from_seed`, `chacha_blocks`, `box_muller`, `normals`; and the same one value at a
  time, `chacha_block`, `box_muller_python`, `normals_python`;
- the tree: `live_nodes`, `TreeNoise`; and in lists and loops, `TreeNoisePython`;
- what the tree should give: `variance_factor` and `covariance`, exact.

Values meet only IEEE ``+ - * sqrt``. NumPy makes each operation in a pass of its own, so none is
fused, and Python floats beside an array take the array's dtype (all of them here are exact in it).
"""

from __future__ import annotations

import hashlib
import math
import operator
import secrets
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "STREAM_VERSION",
    "TreeNoise",
    "TreeNoisePython",
    "box_muller",
    "box_muller_python",
    "chacha_block",
    "chacha_blocks",
    "covariance",
    "key_from_seed",
    "live_nodes",
    "normals",
    "normals_python",
    "variance_factor",
]

Array: TypeAlias = npt.NDArray[Any]

STREAM_VERSION = 1
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
LAYOUT = {FLOAT32: (256, 1), FLOAT64: (128, 3)}  # normals in a superblock, kind
EXTENSION_KIND = 2

# ------------------------------------------------------------------------------------- checks


def _check(good: bool, expected: str, got: object) -> None:
    if not good:
        raise ValueError(f"{expected}, got {got}")


def _integer(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    _check(operator.index(value) >= least, f"{name} must be >= {least}", value)
    return operator.index(value)


def _dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    _check(np.dtype(dtype) in LAYOUT, "dtype must be float32 or float64", dtype)
    return np.dtype(dtype)


# ---------------------------------------------------------------------------- keys and blocks


def key_from_seed(seed: SupportsIndex | bytes) -> bytes:
    """Return the 256-bit key of a seed: SHA-256 of a label and the seed (an int >= 0, or bytes).

    A small seed can be guessed, so noise made from one protects nobody: seeds are for tests.

    Examples
    --------
    >>> key_from_seed(0).hex()[:16]
    '9584c621a56474a4'
    """
    if isinstance(seed, bytes):
        canonical = b"b" + seed
    else:
        number = _integer("a seed that is not bytes", seed, 0)
        canonical = b"i" + number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")
    return hashlib.sha256(b"dpftrl_fast/seed/v1\x00" + canonical).digest()


def _initial_words(key: Any, rounds: int) -> list[int]:
    """Words 0 to 11 of the state: four constants and the key."""
    _check(isinstance(key, bytes) and len(key) == 32, "key must be 32 bytes", type(key).__name__)
    _check(rounds in (8, 12, 20), "rounds must be 8, 12 or 20", rounds)
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
    start = [*_initial_words(key, rounds), *counter]
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
    start[:12] = np.array(_initial_words(key, rounds), np.uint32)[:, None]
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


def _counter(purpose: int, kind: int, tree: int, level: int, index: int) -> tuple[int, int, int]:
    """Words 13 to 15: which use, which tree, which node."""
    if level < 0 or index < 0 or level >= 48 or (2 * index + 1) << level >= 1 << 48:
        raise IndexError(
            "node must have level >= 0, index >= 0 and (2 index + 1) 2^level < 2^48, "
            f"got level {level}, index {index}"
        )
    _check(0 <= tree < 1 << 32, "tree must be in 0 .. 2^32 - 1", tree)
    _check(0 <= purpose < 256, "purpose must be in 0 .. 255", purpose)
    node, domain = (2 * index + 1) << level, 256 * purpose + kind
    return node & 0xFFFFFFFF, node >> 32 | (tree >> 16) << 16, tree & 0xFFFF | domain << 16


def _superblocks(start: int, size: int, per: int) -> range:
    """Numbers of the superblocks, ``per`` normals each, that hold the coordinates."""
    end = _integer("start", start, 0) + _integer("size", size, 1)
    # A superblock is 16 blocks, and the number of a block has 32 bits.
    _check(end <= per << 28, f"coordinates must be below {per << 28}", f"{start} .. {end - 1}")
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


def box_muller(radius: Array, angle: Array, dtype: npt.DTypeLike) -> tuple[Array, Array]:
    """Make pairs of normals from random words.

    Parameters
    ----------
    radius : uint64 array, the U of docs/stream.md
    angle : uint32 array for float32, uint64 array for float64, of that shape: the A
    dtype : float32 or float64

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
    dtype = _dtype(dtype)
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
        0 for tree noise; see docs/stream.md.

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
    dtype = _dtype(dtype)
    per, kind = LAYOUT[dtype]
    counter = _counter(purpose, kind, tree, level, index)
    extension = _counter(purpose, EXTENSION_KIND, tree, level, index)
    superblocks = _superblocks(start, size, per)
    out = np.empty(size, dtype)
    at_once = 128  # superblocks: the work stays in cache
    for S in superblocks[::at_once]:
        count = min(at_once, superblocks.stop - S)
        numbers = np.arange(16 * S, 16 * (S + count), dtype=np.uint64).astype(np.uint32)
        W = chacha_blocks(key, numbers, counter, rounds)  # W[j, i], where the page has W[i][j]
        if dtype == FLOAT32:
            U, A = W[:8].astype(np.uint64) << 32, W[8:]
            for j, i in np.argwhere(W[:8] < 1 << 18):
                U[j, i] += chacha_block(key, (int(numbers[i]), *extension), rounds)[j]
        else:
            words = W[:, 0::2] + (W[:, 1::2].astype(np.uint64) << 32)
            U, A = words[:8], words[8:]
        rows = np.concatenate(box_muller(U, A, dtype)).reshape(16, count, -1)  # row, S, lane
        z = rows.transpose(1, 0, 2).reshape(-1)
        low, high = max(start, S * per), min(start + size, (S + count) * per)
        out[low - start : high - start] = z[low - S * per : high - S * per]
    return out


# -------------------------------------------------------------- the same, one value at a time


def _round32(x: float) -> float:
    """Round a double to float32.

    A double has 53 >= 2 * 24 + 2 bits. So ``+ - * sqrt`` of float32 values, made in double and
    rounded once more, is the correctly rounded float32 result: this after each operation is float32
    arithmetic.
    """
    value: float = struct.unpack("f", struct.pack("f", x))[0]
    return value


def _rounding(dtype: np.dtype[Any]) -> Callable[[float], float]:
    return _round32 if dtype == FLOAT32 else float


def box_muller_python(U: int, A: int, dtype: npt.DTypeLike) -> tuple[float, float]:
    """Make one pair of normals: `box_muller` on Python numbers."""
    dtype = _dtype(dtype)
    to = _rounding(dtype)
    K, C, S, (two_ln_2,) = POLYNOMIALS[dtype]
    lz = 64 - U.bit_length()
    N = U << lz if U else 1 << 63
    if dtype == FLOAT32:
        f = to((N >> 32) - (1 << 32)) * 2.0**-32
        x = to(A % (1 << 29)) * 2.0**-29
        bits = A >> 29
    else:
        f = to(N - (1 << 64)) * 2.0**-64
        x = (A % (1 << 61) >> 9) * 2.0**-52
        bits = A >> 61

    def horner(coefficients: Sequence[float], at: float) -> float:
        total = coefficients[-1]
        for coefficient in coefficients[-2::-1]:
            total = to(to(total * at) + coefficient)
        return total

    g = to(f * f)
    even, odd = horner(K[0::2], g), horner(K[1::2], g)
    r = to(math.sqrt(to(to(lz * two_ln_2) + to(f * to(even + to(f * odd))))))
    y = to(x * x)
    c = to(r * horner(C, y))
    s = to(r * to(x * horner(S, y)))
    first, second = (s, c) if bits & 1 else (c, s)
    return -first if bits & 4 else first, -second if bits & 2 else second


def normals_python(
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
) -> list[float]:
    """Return the values of `normals` as a list, made by plain loops; same parameters."""
    dtype = _dtype(dtype)
    per, kind = LAYOUT[dtype]
    counter = _counter(purpose, kind, tree, level, index)
    extension = _counter(purpose, EXTENSION_KIND, tree, level, index)
    superblocks = _superblocks(start, size, per)
    lanes = per // 16
    out: list[float] = []
    for S in superblocks:
        W = [chacha_block(key, (16 * S + i, *counter), rounds) for i in range(16)]
        z = [0.0] * per
        for j in range(8):
            for i in range(lanes):
                if dtype == FLOAT32:
                    U, A = W[i][j] << 32, W[i][j + 8]
                    if W[i][j] < 1 << 18:
                        U += chacha_block(key, (16 * S + i, *extension), rounds)[j]
                else:
                    U = W[2 * i][j] + (W[2 * i + 1][j] << 32)
                    A = W[2 * i][j + 8] + (W[2 * i + 1][j + 8] << 32)
                z[j * lanes + i], z[(j + 8) * lanes + i] = box_muller_python(U, A, dtype)
        out += z
    skipped = start - superblocks.start * per
    return out[skipped : skipped + size]


# ------------------------------------------------------------------------------------ the tree


def live_nodes(t: int) -> list[tuple[int, int]]:
    """Return the (level, index) of the nodes that make up the leaves 1 .. t, high levels first.

    Node (level l, index k) covers the leaves k 2^l + 1 .. (k + 1) 2^l.

    Examples
    --------
    >>> live_nodes(13)
    [(3, 0), (2, 2), (0, 12)]
    """
    levels = reversed(range(_integer("t", t, 0).bit_length()))
    return [(level, (t >> level) - 1) for level in levels if t >> level & 1]


def _honaker_weight(level: int) -> float:
    return 1 / (2 - 2.0**-level)


def _is_honaker(variant: str) -> bool:
    _check(variant in ("vanilla", "honaker"), "variant must be 'vanilla' or 'honaker'", variant)
    return variant == "honaker"


class TreeNoise:
    """Tree noise with the bits of `dpftrl_fast.TreeNoise`, by the plain definition.

    Every sum is made afresh from the live nodes. Between steps the live nodes' own vectors are
    kept, which saves work and changes no sum.

    Parameters
    ----------
    size : int
        Number of coordinates.
    std : float
        Standard deviation of a node, rounded to the dtype; > 0.
    seed : int or bytes, optional
        See `key_from_seed`. Without seed and key, the operating system makes the key.
    key : bytes of length 32, optional
        The key itself. It is a secret: whoever has it can take the noise away.
    variant : "honaker" or "vanilla"
    dtype : "float32" or "float64"
    rounds : 8, 12 or 20
    offset : int
        Global coordinate of the first element.
    purpose : int
        0 for tree noise; see docs/stream.md.

    Examples
    --------
    >>> noise = TreeNoise(3, 1.0, seed=1, variant="vanilla")
    >>> first, change = noise.step(), noise.residual()
    >>> bool(np.array_equal(change, noise.prefix(2) - first))
    True
    """

    def __init__(
        self,
        size: int,
        std: float,
        *,
        seed: SupportsIndex | bytes | None = None,
        key: bytes | None = None,
        variant: str = "honaker",
        dtype: npt.DTypeLike = "float32",
        rounds: int = 12,
        offset: int = 0,
        purpose: int = 0,
    ) -> None:
        self._size, self._offset = _integer("size", size, 1), _integer("offset", offset, 0)
        self._dtype, self._honaker = _dtype(dtype), _is_honaker(variant)
        _superblocks(self._offset, self._size, LAYOUT[self._dtype][0])
        fits = std <= float(np.finfo(self._dtype).max) and self._dtype.type(std) > 0
        _check(bool(fits), f"std must be a finite number > 0 in {self._dtype}", std)
        _check(seed is None or key is None, "at most one of seed and key is needed", "both")
        if key is None:
            key = secrets.token_bytes(32) if seed is None else key_from_seed(seed)
        _initial_words(key, rounds)
        self._std = self._dtype.type(std)
        self._key, self._rounds, self._purpose = key, rounds, purpose
        self._tree = self._t = 0
        self._carry: Array | None = None
        self._returned: Array | None = None
        self._kept: dict[tuple[int, int], Array] = {}

    @property
    def t(self) -> int:
        """Steps taken in the present tree."""
        return self._t

    @property
    def tree(self) -> int:
        """Number of the present tree: 0, and one more after each restart."""
        return self._tree

    def node(self, level: int, index: int) -> Array:
        """Return v(level, index) of the present tree: its normals times std."""
        z = normals(
            self._key,
            tree=self._tree,
            level=level,
            index=index,
            start=self._offset,
            size=self._size,
            dtype=self._dtype,
            rounds=self._rounds,
            purpose=self._purpose,
        )
        z *= self._std
        return z

    def step(self) -> Array:
        """Take one step and return carry + b_t."""
        self._returned = self._advance()
        return self._returned.copy()

    def residual(self) -> Array:
        """Take one step; return its carry + b_t minus the one of the last `step` or `residual`.

        That one is remembered across restarts; steps of `advance_to` do not count. The first
        residual of all is carry + b_t itself.
        """
        last, self._returned = self._returned, self._advance()
        return self._returned.copy() if last is None else self._returned - last

    def prefix(self, t: int) -> Array:
        """Return b_t of the present tree for any t >= 1, without the carry; takes no step."""
        return self._sum(None, self._live(_integer("t", t, 1)))

    def advance_to(self, t: int) -> None:
        """Take the steps up to t without making their noise."""
        self._t = _integer("t", t, self._t)

    def restart(self, complete: bool = False) -> None:
        """Start a new tree; the noise of the old one's last step is carried from here on.

        With ``complete`` the old tree first advances to the next power of two with zero gradients
        (none if t is a power of two), and the noise there is carried.
        """
        _check(self._t > 0, "restart needs at least one step of the present tree", "t = 0")
        end = 1 << (self._t - 1).bit_length() if complete else self._t
        self._carry = self._sum(self._carry, self._live(end))
        self._tree, self._t, self._kept = self._tree + 1, 0, {}

    def _advance(self) -> Array:
        self._kept = self._live(self._t + 1)
        self._t += 1
        return self._sum(self._carry, self._kept)

    def _live(self, t: int) -> dict[tuple[int, int], Array]:
        return {node: self._subtree(*node) for node in live_nodes(t)}

    def _subtree(self, level: int, index: int) -> Array:
        """Return what a live node brings: v(l, k), or r(l, k) of Honaker."""
        if (level, index) in self._kept:
            return self._kept[level, index]
        v = self.node(level, index)
        if not self._honaker or level == 0:
            return v
        left, right = self._subtree(level - 1, 2 * index), self._subtree(level - 1, 2 * index + 1)
        return v + (left + right) * 0.5

    def _sum(self, start: Array | None, live: dict[tuple[int, int], Array]) -> Array:
        """Return ((start + term) + term) ..., the terms from high level to low."""
        for (level, _), value in live.items():
            term = value * self._dtype.type(_honaker_weight(level)) if self._honaker else value
            start = term.copy() if start is None else start + term
        assert start is not None
        return start


class TreeNoisePython:
    """The steps of one tree in lists and loops: the same values, and a plain-Python baseline.

    A stack holds what the live nodes bring, high level first, as a binary counter does. Parameters
    as for `TreeNoise`.
    """

    def __init__(
        self,
        size: int,
        std: float,
        *,
        seed: SupportsIndex | bytes,
        variant: str = "honaker",
        dtype: npt.DTypeLike = "float32",
        rounds: int = 12,
        offset: int = 0,
    ) -> None:
        self._honaker, self._to = _is_honaker(variant), _rounding(_dtype(dtype))
        self._key, self._std = key_from_seed(seed), self._to(std)
        self._range: dict[str, Any] = {
            "start": offset,
            "size": size,
            "dtype": dtype,
            "rounds": rounds,
        }
        self._t = 0
        self._stack: list[tuple[int, list[float]]] = []

    def step(self) -> list[float]:
        """Take one step and return b_t."""
        to = self._to
        self._t += 1
        top = (self._t & -self._t).bit_length() - 1  # the node that leaf t completes
        value = self._node(0 if self._honaker else top)
        for level in range(1, top + 1):
            _, left = self._stack.pop()
            if self._honaker:
                triples = zip(self._node(level), left, value, strict=True)
                value = [to(v + to(to(a + b) * 0.5)) for v, a, b in triples]
        self._stack.append((top, value))
        total = None
        for level, term in self._stack:
            if self._honaker:
                weight = to(_honaker_weight(level))
                term = [to(r * weight) for r in term]
            total = term if total is None else [to(a + b) for a, b in zip(total, term, strict=True)]
        return list(total or ())

    def _node(self, level: int) -> list[float]:
        index = (self._t >> level) - 1
        z = normals_python(self._key, tree=0, level=level, index=index, **self._range)
        return [self._to(a * self._std) for a in z]


# ------------------------------------------------------------------------- what it should give


def _variance(level: int, honaker: bool) -> Fraction:
    return 1 / (2 - Fraction(1, 1 << level)) if honaker else Fraction(1)


def variance_factor(t: int, variant: str = "honaker") -> Fraction:
    """Return Var(b_t) / std^2, exactly.

    Vanilla: the number of set bits of t. Honaker: the sum of 1 / (2 - 2^-l) over its set bits l.

    Examples
    --------
    >>> round(float(variance_factor(25)), 2), round(float(variance_factor(32)), 2)
    (2.05, 0.51)
    """
    honaker = _is_honaker(variant)
    return sum((_variance(level, honaker) for level, _ in live_nodes(t)), Fraction(0))


def covariance(steps: int, variant: str = "honaker") -> list[list[Fraction]]:
    """Return the exact covariance matrix of (b_1, .., b_steps) for std = 1.

    Live nodes of two steps share noise only where one node holds the other. Vanilla: where they are
    the same, 1. Honaker: r(l, k) holds 2^-(l-m) of an r(m, j) below it, whose variance is 2 - 2^-m;
    times both weights that is 2^-(l-m) / (2 - 2^-l).

    Examples
    --------
    >>> [str(entry) for entry in covariance(4)[3]]
    ['1/7', '2/7', '3/7', '4/7']
    """
    honaker = _is_honaker(variant)

    def shared(a: tuple[int, int], b: tuple[int, int]) -> Fraction:
        (low, inner), (high, outer) = sorted((a, b))
        if inner >> (high - low) != outer or (low != high and not honaker):
            return Fraction(0)
        return _variance(high, honaker) / (1 << (high - low))

    live = [live_nodes(t) for t in range(1, steps + 1)]
    return [[sum((shared(a, b) for a in s for b in t), Fraction(0)) for t in live] for s in live]
