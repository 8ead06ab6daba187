# SPDX-License-Identifier: Apache-2.0
"""The one canonical form of user ids, and the integers that stand for them."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpftrl_fast.accounting.guard.ids import canonical_id, hashed_id, refuse_id_dtype, user_id


@pytest.mark.parametrize("type_", [int, float, str, np.uint8, np.int64, np.float16, np.float32])
def test_an_integer_is_one_user_in_every_type(type_: Any) -> None:
    assert canonical_id(type_(7)) == ("7" if type_ is not float else canonical_id(7.0))
    assert user_id(type_(7)) == 7


def test_ids_are_integers_below_2_to_the_63() -> None:
    wide = [
        -1,
        -(2**63),
        2**63,
        2**64 - 1,
        2**70,
        1 - 2**127,
        "a",
        "07",
        "7.0",
        "-0",
        " 7",
        "\u0667",
    ]
    found = [user_id(label) for label in wide]
    assert len({*found}) == len(wide) and all(0 <= one < 2**63 for one in found)
    assert user_id("-1") == user_id(-1) and user_id(str(2**70)) == user_id(2**70)
    assert user_id(str(2**63 - 1)) == user_id(np.int64(2**63 - 1)) == 2**63 - 1
    assert user_id(-0.0) == user_id(0) == 0
    assert hashed_id("7") != 7 and hashed_id("\ud800") != hashed_id("\ud801")


@pytest.mark.parametrize(
    "wrong",
    [
        *(True, np.True_, None, b"7", 7j, Decimal(7), Fraction(7), np.longdouble(7), (7,)),
        *(np.datetime64(7, "s"), np.timedelta64(7, "s"), np.array([7]), np.bytes_(b"7")),
    ],
)
def test_other_types_are_no_ids(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^a user must be an integer or a text, got \w+$"):
        user_id(wrong)


def repr_of(value: object) -> str:
    # Python writes no integer of more than 4300 digits.
    return "huge" if isinstance(value, int) and value > 2**128 else repr(value)


@pytest.mark.parametrize(
    "wrong",
    [
        *("", 0.5, np.nan, np.inf, -np.inf, 2.0**53, -(2.0**53), np.float32(2**24)),
        *(np.float16(2**11), 2**127, -(2**127), 10**5000),
    ],
    ids=repr_of,
)
def test_other_values_are_refused_without_showing_them(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^a user's n") as caught:
        user_id(wrong)
    assert not any(digit in str(caught.value) for digit in ("0", "4", "5", "8"))


def test_floats_below_the_bound_are_their_integers() -> None:
    for kind, bits in ((np.float16, 11), (np.float32, 24), (np.float64, 53)):
        assert user_id(kind(2**bits - 1)) == 2**bits - 1


def test_dtypes() -> None:
    for good in ("i1", "u8", "f2", "f4", "f8", "O", "U3"):
        refuse_id_dtype("ids", np.dtype(good))
    for bad in ("?", "c8", "g", "S1", "V4", "M8[s]", "m8[s]"):
        if np.dtype(bad) == np.dtype("f8"):  # where an extended float is none
            continue
        with pytest.raises(TypeError, match=r"^ids must be integers or text"):
            refuse_id_dtype("ids", np.dtype(bad))
