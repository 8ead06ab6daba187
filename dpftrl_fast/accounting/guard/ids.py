# SPDX-License-Identifier: Apache-2.0
"""User ids: one canonical form for all parts of the package, and the integer that guards count.

Two labels of one user must not pass for two users, whatever types they have. Integers and text have
one form each; types in which one value has several (times in two units, extended floats, decimals,
complex numbers, bytes beside text) are refused.
"""

from __future__ import annotations

import hashlib
import re
import sys
from typing import Any

import numpy as np

#: Ids are integers in [0, 2^ID_BITS).
ID_BITS = 63

_LABEL = b"dpftrl_fast/client/v1\x00"
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,38}")  # as `str` writes those below 2^127
_BEYOND = 1 << 127
_ALLOWED = "integers or text"


def canonical_id(label: object) -> str:
    """Return the canonical form of a user's label: a text.

    Parameters
    ----------
    label : int, str, float or UUID
        Python's or NumPy's. An integer stands for the text of its digits, so that 7 and "7" are one
        user, a UUID for its text. A float must be whole, and small enough that no other integer
        rounds to it (below 2^53 in float64, 2^24 in float32, 2^11 in float16). Text is compared as
        spelt.

    Raises
    ------
    TypeError
        For any other type; the message names the type only.
    ValueError
        For an empty text, a float that is not such a number, and an integer beyond 127 bits. The
        message shows no value.

    Examples
    --------
    >>> canonical_id(7), canonical_id("7"), canonical_id(np.float32(7)), canonical_id("007")
    ('7', '7', '7', '007')
    """
    # Whoever has a UUID has imported its module, which not every import of the package needs.
    if "uuid" in sys.modules and isinstance(label, sys.modules["uuid"].UUID):
        return str(label)
    if isinstance(label, str):
        if not label:
            raise ValueError("a user's name must not be empty, got ''")
        return str.__str__(label)
    kind = type(label)
    if not _is_id_type(kind):
        raise TypeError(f"a user must be an integer or a text, got {kind.__name__}")
    if isinstance(label, (float, np.floating)) and not _is_exact(label):
        raise ValueError("a user's number must be a whole one that its float type holds exactly")
    number = int(label)  # type: ignore[call-overload]
    if not -_BEYOND < number < _BEYOND:
        raise ValueError("a user's number must have at most 127 bits, got a larger one")
    return str(number)


def user_id(label: object) -> int:
    """Return the integer in [0, 2^63) that stands for a user in the accounting.

    An integer in [0, 2^63), also one written as text, stands for itself. Any other canonical form
    stands for the first 63 bits of its SHA-256 with a domain label. Two users with the same integer
    (probability below n^2 2^-64 among n users) count as one, who then takes part less often than
    allowed, never more.

    Raises
    ------
    TypeError, ValueError
        As `canonical_id`.

    Examples
    --------
    >>> user_id(7), user_id("7"), user_id("Nurse") == user_id("Juliet")
    (7, 7, False)
    """
    text = canonical_id(label)
    if _INTEGER.fullmatch(text) and 0 <= (number := int(text)) < 1 << ID_BITS:
        return number
    return hashed_id(text)


def hashed_id(text: str) -> int:
    """Return the integer that stands for a text, whatever it says.

    Examples
    --------
    >>> hashed_id("7") == 7
    False
    """
    # A lone surrogate stands for a byte that is not UTF-8, where a reader decodes it so.
    digest = hashlib.sha256(_LABEL + text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - ID_BITS)


def refuse_id_dtype(name: str, dtype: Any) -> None:
    """Refuse an array of labels by its dtype (NumPy's or pandas'), a public fact.

    An array of objects passes: its labels are looked at one by one.

    Raises
    ------
    TypeError
        If the dtype is not of integers, text, floats of at most 64 bits, or objects.

    Examples
    --------
    >>> refuse_id_dtype("groups", np.dtype("int8"))
    >>> refuse_id_dtype("groups", np.dtype("datetime64[s]"))
    Traceback (most recent call last):
    ...
    TypeError: groups must be integers or text, in which a user has one form, got dtype \
datetime64[s]; convert them to text before, always in the same way
    """
    categories = getattr(dtype, "categories", None)
    found = dtype if categories is None else categories.dtype
    kind = getattr(found, "type", None)
    if not ((isinstance(kind, type) and issubclass(kind, (np.object_, str))) or _is_id_type(kind)):
        raise TypeError(
            f"{name} must be {_ALLOWED}, in which a user has one form, got dtype {found}; convert "
            "them to text before, always in the same way"
        )


def _is_exact(number: Any) -> bool:
    """Return whether a float is an integer to which no other one rounds."""
    bound = 2.0 ** (np.finfo(type(number)).nmant + 1)
    return bool(abs(number) < bound and number == np.floor(number))


def _is_id_type(kind: Any) -> bool:
    """Return whether a type is of numbers that can be ids."""
    if not isinstance(kind, type) or issubclass(kind, (bool, np.bool_, np.timedelta64)):
        return False  # integers for Python or NumPy
    if issubclass(kind, np.floating):
        return bool(np.finfo(kind).nmant <= np.finfo(np.float64).nmant)
    return issubclass(kind, (int, float, np.integer))
