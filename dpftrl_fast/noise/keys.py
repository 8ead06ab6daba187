# SPDX-License-Identifier: Apache-2.0
"""Secret 256-bit keys: from the operating system, from a seed, from a parent key."""

from __future__ import annotations

import hashlib
import secrets
import threading
from typing import Any, TypeAlias

import numpy as np
from numpy.random.bit_generator import ISeedSequence, ISpawnableSeedSequence
from numpy.typing import DTypeLike, NDArray

from dpftrl_fast._validate import integer

Seed: TypeAlias = "int | np.integer[Any] | bytes | None"

_SEED_LABEL = b"dpftrl_fast/seed/v1\x00"
_SPAWN_LABEL = b"dpftrl_fast/spawn/v1\x00"
_WORDS_LABEL = b"dpftrl_fast/words/v1\x00"


def key_of_seed(seed: Seed, *, name: str = "seed") -> bytes:
    """Return the 256-bit key of a seed.

    SHA-256 of a label and the seed's canonical bytes: ``b"b"`` and the bytes, or ``b"i"`` and the
    shortest big-endian form of the integer (one byte for 0). So the keys of seeds 0 and 1 are
    unrelated; but whoever guesses the seed has the key.

    Parameters
    ----------
    seed : None, int or bytes
        None takes 32 bytes from the operating system. An integer must be at least 0.
    name : str
        Name of the argument in an error.

    Returns
    -------
    bytes
        32 bytes; the cipher reads them as eight little-endian words.

    Raises
    ------
    TypeError
        If the seed is of another type: a float, a bool, a list.
    ValueError
        If the seed is a negative integer.

    Examples
    --------
    >>> key_of_seed(7) == key_of_seed(7), key_of_seed(None) == key_of_seed(None)
    (True, False)
    """
    if seed is None:
        return secrets.token_bytes(32)
    if isinstance(seed, bytes):
        return _hash(_SEED_LABEL, b"b", seed)
    number = integer(name, seed)
    if number < 0:  # the value is a secret and is not shown
        raise ValueError(f"{name} must be an integer >= 0, got a negative one")
    return _hash(_SEED_LABEL, b"i", number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big"))


def checked_key(key: bytes) -> bytes:
    """Return `key` when it is 32 bytes; errors do not show it."""
    if not isinstance(key, bytes):
        raise TypeError(f"key must be bytes, got {type(key).__name__}")
    if len(key) != 32:
        raise ValueError(f"key must be 32 bytes, got {len(key)}")
    return key


def key_of_seed_sequence(sequence: ISeedSequence) -> bytes:
    """Return a `KeySequence`'s own key, or one hashed from 256 bits of another seed sequence."""
    if isinstance(sequence, KeySequence):
        return sequence._key
    words = np.asarray(sequence.generate_state(8, np.uint32))
    return _hash(_SEED_LABEL, b"q", words.astype("<u4").tobytes())


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


class KeySequence(ISpawnableSeedSequence):
    """A secret 256-bit key that makes child keys: the ``seed_seq`` of a `ChaCha`.

    The counterpart of `numpy.random.SeedSequence` for a cipher's key. The key of child i is SHA-256
    of a label, the parent's key and i (8 bytes, little-endian), so the key of a parent or a sibling
    cannot be recovered from a child's. The repr does not show the key; pickles and copies contain
    it and are secret.

    Parameters
    ----------
    seed : None, int or bytes, optional
        As for `key_of_seed`.

    Examples
    --------
    >>> [child.spawn_key for child in KeySequence(7).spawn(2)]
    [(0,), (1,)]
    """

    def __init__(self, seed: Seed = None) -> None:
        self._set(key_of_seed(seed), (), 0)

    def _set(self, key: bytes, spawn_key: tuple[int, ...], n_children_spawned: int) -> None:
        self._key = key
        self._spawn_key = spawn_key
        self._n_children_spawned = n_children_spawned
        self._lock = threading.Lock()

    @property
    def spawn_key(self) -> tuple[int, ...]:
        """The path from the root: (2, 0) is the first child of the root's third child."""
        return self._spawn_key

    @property
    def n_children_spawned(self) -> int:
        """Number of children made so far."""
        return self._n_children_spawned

    def generate_state(
        self, n_words: int, dtype: DTypeLike = np.uint32
    ) -> NDArray[np.uint32 | np.uint64]:
        """Return words derived from the key (SHAKE-256), for seeding some other generator.

        Parameters
        ----------
        n_words : int
            How many words, at least 0.
        dtype : numpy.uint32 or numpy.uint64, optional
            The type of a word.

        Returns
        -------
        numpy.ndarray
            The words, shape (n_words,). The key cannot be recovered from them.
        """
        word = np.dtype(dtype)
        if word not in (np.uint32, np.uint64):
            raise ValueError(f"dtype must be uint32 or uint64, got {word}")
        size = integer("n_words", n_words, 0) * word.itemsize
        data = hashlib.shake_256(_WORDS_LABEL + self._key).digest(size)
        return np.frombuffer(data, dtype=word.newbyteorder("<")).astype(word)

    def spawn(self, n_children: int) -> list[KeySequence]:
        """Return the next children, which this object has never returned before.

        Parameters
        ----------
        n_children : int
            How many, at least 0.

        Returns
        -------
        list of KeySequence
            The children.
        """
        count = integer("n_children", n_children, 0)
        with self._lock:
            first = self._n_children_spawned
            self._n_children_spawned += count
        return [self._child(i) for i in range(first, first + count)]

    def _child(self, i: int) -> KeySequence:
        key = _hash(_SPAWN_LABEL, self._key, i.to_bytes(8, "little"))
        return _restore(key, (*self._spawn_key, i), 0)

    def __repr__(self) -> str:
        return (
            f"KeySequence(spawn_key={self._spawn_key}, "
            f"n_children_spawned={self._n_children_spawned})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._key, self._spawn_key, self._n_children_spawned)


def _restore(key: bytes, spawn_key: tuple[int, ...], n_children_spawned: int) -> KeySequence:
    sequence = KeySequence.__new__(KeySequence)
    sequence._set(key, spawn_key, n_children_spawned)
    return sequence
