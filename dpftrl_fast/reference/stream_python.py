# SPDX-License-Identifier: Apache-2.0
"""The noise stream one value at a time: Python numbers, lists and loops."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpftrl_fast.reference._checks import FLOAT32, FLOAT64, LAYOUT, check, float_dtype
from dpftrl_fast.reference.stream import (
    EXTENSION_KINDS,
    POLYNOMIALS,
    RARE,
    STREAM_VERSION,
    chacha_block,
    node_counter,
    rare_radius,
    superblocks_of,
)


def _round32(x: float) -> float:
    """Round a double to float32.

    A double has 53 >= 2 * 24 + 2 bits. So ``+ - * sqrt`` of float32 values, made in double and
    rounded once more, is the correctly rounded float32 result: this after each operation is float32
    arithmetic.
    """
    value: float = struct.unpack("f", struct.pack("f", x))[0]
    return value


def rounding(dtype: np.dtype[Any]) -> Callable[[float], float]:
    """Return the function that rounds a Python float to `dtype`."""
    return _round32 if dtype == FLOAT32 else float


def is_rare_python(word: int, dtype: np.dtype[Any]) -> bool:
    """Return whether a radius word of 32 bits (float64: its high half) needs the extension."""
    return word < RARE or (dtype == FLOAT64 and word >= (1 << 32) - RARE)


def box_muller_python(
    U: int, A: int, dtype: npt.DTypeLike, V: int | None = None
) -> tuple[float, float]:
    """Make one pair of normals: `box_muller` on Python numbers."""
    dtype = float_dtype(dtype)
    to = rounding(dtype)
    K, C, S, (two_ln_2,) = POLYNOMIALS[dtype]
    lz = 64 - U.bit_length()
    N = U << lz if U else 1 << 63
    if dtype == FLOAT32:
        f = to((N >> 32) - (1 << 32)) * 2.0**-32
        x = to(A % (1 << 29)) * 2.0**-29
        bits = A >> 29
    else:
        f = to(N - (1 << 64)) * 2.0**-64
        if V is not None and is_rare_python(U >> 32, dtype):
            f, lz = rare_radius(U, V)
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
    version: int = STREAM_VERSION,
) -> list[float]:
    """Return the values of `normals` as a list, made by plain loops; same parameters."""
    dtype = float_dtype(dtype)
    per, kind = LAYOUT[dtype]
    counter = node_counter(purpose, kind, tree, level, index)
    extension = node_counter(purpose, EXTENSION_KINDS[dtype], tree, level, index)
    check(version in (1, 2), "version must be 1 or 2", version)
    superblocks = superblocks_of(start, size, per)
    lanes = per // 16
    out: list[float] = []
    for S in superblocks:
        W = [chacha_block(key, (16 * S + i, *counter), rounds) for i in range(16)]
        z = [0.0] * per
        for j in range(8):
            for i in range(lanes):
                V = None
                if dtype == FLOAT32:
                    U, A = W[i][j] << 32, W[i][j + 8]
                    if is_rare_python(W[i][j], dtype):
                        U += chacha_block(key, (16 * S + i, *extension), rounds)[j]
                else:
                    U = W[2 * i][j] + (W[2 * i + 1][j] << 32)
                    A = W[2 * i][j + 8] + (W[2 * i + 1][j + 8] << 32)
                    if version > 1 and is_rare_python(W[2 * i + 1][j], dtype):
                        E = [
                            chacha_block(key, (16 * S + 2 * i + half, *extension), rounds)
                            for half in (0, 1)
                        ]
                        V = E[0][j] + (E[1][j] << 32)
                z[j * lanes + i], z[(j + 8) * lanes + i] = box_muller_python(U, A, dtype, V)
        out += z
    skipped = start - superblocks.start * per
    return out[skipped : skipped + size]
