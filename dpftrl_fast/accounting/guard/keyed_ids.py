# SPDX-License-Identifier: Apache-2.0
"""Ids of users under a keyed hash: without the key they list nobody."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.guard.ids import ID_BITS, canonical_id

Ints = NDArray[np.int64]

#: Bytes of a key.
KEY_SIZE = 32

_USER, _CHECK, _DERIVED = b"dpftrl/user/v1", b"dpftrl/check/v1", b"dpftrl/key/v1"


def user_key_or_none(name: str, key: Any) -> bytes | None:
    """Return a caller's key for ids of users, None if none is given.

    Raises
    ------
    TypeError, ValueError
        If it is not 32 bytes.
    """
    if key is None:
        return None
    if not isinstance(key, bytes):
        raise TypeError(f"{name} must be {KEY_SIZE} secret bytes, got {type(key).__name__}")
    if len(key) != KEY_SIZE:
        raise ValueError(f"{name} must be {KEY_SIZE} secret bytes, got {len(key)}")
    return key


def derived_key(*secrets: bytes | None) -> bytes:
    """Return the key for ids that follows from secrets of at most 64 bytes, all of them needed."""
    key = hashlib.blake2b(digest_size=KEY_SIZE, person=_DERIVED).digest()
    for secret in secrets:
        if secret is not None:
            key = hashlib.blake2b(key, key=secret, digest_size=KEY_SIZE, person=_DERIVED).digest()
    return key


class KeyedIds:
    """The integers in [0, 2^63) that stand for users under one key.

    An id is the first 63 bits of a BLAKE2b of the user's canonical form. Whoever has ids and not
    the key learns nothing about a user from them; whoever has both can test a guess. Two users with
    one id (probability below n^2 2^-64 among n users) count as one, who takes part less often.

    Parameters
    ----------
    key : bytes, optional
        32 secret bytes; default fresh ones.

    Attributes
    ----------
    key : bytes
        **A secret.**

    Examples
    --------
    >>> one, other = KeyedIds(bytes(32)), KeyedIds(b"k" * 32)
    >>> one.of("7") == one.of(7), one.of("7") == one.of("007"), one.of("7") == other.of("7")
    (True, False, False)
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.key = key = secrets.token_bytes(KEY_SIZE) if key is None else key
        self._hash = hashlib.blake2b(key=key, digest_size=8, person=_USER)

    def of(self, label: object) -> int:
        """Return the id of a user; errors are those of `canonical_id`."""
        return int.from_bytes(self._digest(canonical_id(label)), "big") >> (64 - ID_BITS)

    def of_texts(self, texts: Iterable[str]) -> Ints:
        """Return the ids of users by their canonical forms."""
        digests = b"".join(map(self._digest, texts))
        return (np.frombuffer(digests, ">u8") >> np.uint64(64 - ID_BITS)).astype(np.int64)

    def of_numbers(self, numbers: Ints) -> Ints:
        """Return the ids of users who stand in a table as numbers; a negative one stays.

        Those of integers in [0, 2^63) are as `of` has them.
        """
        distinct, place = np.unique(numbers, return_inverse=True)
        users = distinct >= 0
        found = distinct.copy()
        found[users] = self.of_texts(map(str, distinct[users].tolist()))
        return np.asarray(found[place.reshape(numbers.shape)])

    def _digest(self, text: str) -> bytes:
        digest = self._hash.copy()
        digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.digest()

    @property
    def check_value(self) -> str:
        """A text that only this key has, and that reveals nothing of it: kept beside ids."""
        return hashlib.blake2b(key=self.key, digest_size=16, person=_CHECK).hexdigest()

    def fits(self, check_value: object) -> bool:
        """Return whether a `check_value` is of this key."""
        return isinstance(check_value, str) and hmac.compare_digest(
            check_value.encode(), self.check_value.encode()
        )

    def __repr__(self) -> str:
        return "KeyedIds()"

    def __reduce__(self) -> Any:
        raise TypeError("KeyedIds hold a secret key and are not pickled")
