# SPDX-License-Identifier: Apache-2.0
"""A second ChaCha in plain Python, the layout of `ChaCha`'s stream, and small helpers."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from dpftrl_fast._chacha import ChaCha

MASK32 = 0xFFFFFFFF
BLOCK, JUMP, END = 16, 2**84, 2**116  # in words
ROUNDS = (8, 12, 20)


def python_block(key: bytes, tail: bytes, rounds: int) -> list[int]:
    """One ChaCha block from 32 bytes of key and the 16 bytes of state words 12..15."""
    octets = b"expand 32-byte k" + key + tail
    start = [int.from_bytes(octets[i : i + 4], "little") for i in range(0, 64, 4)]
    x = list(start)
    for i in range(rounds):
        # Odd rounds run down the columns, even ones down the diagonals.
        turn = i % 2
        for column in range(4):
            a, b, c, d = (4 * row + (column + turn * row) % 4 for row in range(4))
            for p, q, r, shift in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[p] = (x[p] + x[q]) & MASK32
                mixed = x[r] ^ x[p]
                x[r] = (mixed << shift | mixed >> (32 - shift)) & MASK32
    return [(u + v) & MASK32 for u, v in zip(x, start, strict=True)]


def seed_key(canonical: bytes) -> bytes:
    return hashlib.sha256(b"dpftrl_fast/seed/v1\x00" + canonical).digest()


def tail_of_block(number: int) -> bytes:
    """State words 12..15: 32 bits of index, 48 of node, 32 of tree (high half first), domain."""
    index, node, tree = number % 2**32, (number >> 32) % 2**48, (number >> 80) % 2**32
    return (
        index.to_bytes(4, "little")
        + node.to_bytes(6, "little")
        + (tree >> 16).to_bytes(2, "little")
        + (tree & 0xFFFF).to_bytes(2, "little")
        + bytes([4, 255])
    )


def python_words(key: bytes, rounds: int, position: int, n: int) -> list[int]:
    first = position // BLOCK
    words: list[int] = []
    for number in range(first, (position + n) // BLOCK + 1):
        words += python_block(key, tail_of_block(number % 2**112), rounds)
    skip = position - first * BLOCK
    return words[skip : skip + n]


def python_draws64(key: bytes, rounds: int, position: int, n: int) -> list[int]:
    words = python_words(key, rounds, position, 2 * n)
    return [low | high << 32 for low, high in zip(words[::2], words[1::2], strict=True)]


def key_of(generator: ChaCha) -> bytes:
    return generator.state["state"]["key"].astype("<u4").tobytes()


def position_of(generator: ChaCha) -> int:
    return int(generator.state["state"]["position"])


def at(seed: int, position: int, rounds: int = 12) -> ChaCha:
    generator = ChaCha(seed, rounds=rounds)
    state = generator.state
    state["state"]["position"] = position
    generator.state = state
    return generator


def same_state(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return repr(a) == repr(b)


def as_words(octets: bytes) -> list[int]:
    return [int(word) for word in np.frombuffer(octets, dtype="<u4")]
