# SPDX-License-Identifier: Apache-2.0
"""Checks of the entries of a schema: what stands in a file is plain data of unknown kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


class SchemaError(ValueError):
    """A schema that cannot be used; the message says which entry and why."""


def mapping(data: Any, where: str) -> Mapping[str, Any]:
    """Return a mapping whose keys are names."""
    if not isinstance(data, Mapping):
        raise SchemaError(f"{where} must be a mapping, got {type(data).__name__}")
    for key in data:
        if not isinstance(key, str) or not key:
            raise SchemaError(f"names in {where} must be text (quote them in YAML), got {key!r}")
    return data


def known_keys(data: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Refuse keys that mean nothing here."""
    for key in data:
        if key not in known:
            raise SchemaError(f"unknown entry {key!r} in {where}; known: {', '.join(known)}")


def number(value: Any, where: str) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = " (in YAML write 1.0e-6, not 1e-6)" if isinstance(value, str) else ""
        raise SchemaError(f"{where} must be a finite number, got {value!r}{hint}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SchemaError(f"{where} must be a finite number, got {value!r}")
    return number


def positive(value: Any, where: str) -> float:
    """Return a finite number > 0."""
    result = number(value, where)
    if not result > 0:
        raise SchemaError(f"{where} must be > 0, got {result}")
    return result


def count(value: Any, where: str) -> int:
    """Return a declared number of something, at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not value >= 1:
        raise SchemaError(f"{where} must be a declared whole number >= 1, got {value!r}")
    return value
