# SPDX-License-Identifier: Apache-2.0
"""The leaves in which the identities of two runs differ, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

_MOST, _SHOWN = 4, 60
_LIST = 8  # entries of a list that is looked into: a longer one may be one of users

_ABSENT = object()


def differences(saved: dict[str, Any], given: dict[str, Any]) -> str:
    """Return what differs between the identity in a folder and that of a run, leaf by leaf.

    Examples
    --------
    >>> differences({"plan": {"sigma": 4.0}, "goal": 2}, {"plan": {"sigma": 5.0}, "goal": 2})
    'plan.sigma: the folder has 4.0, this run 5.0'
    """
    found = list(islice(_leaves("", saved, given), _MOST + 1))
    more = len(found) > _MOST
    return "; ".join(found[:_MOST]) + ("; and more" if more else "")


def _leaves(path: str, saved: Any, given: Any) -> Iterator[str]:
    if isinstance(saved, dict) and isinstance(given, dict):
        dot = f"{path}." if path else ""
        for name in sorted({*saved, *given}):
            yield from _leaves(f"{dot}{name}", saved.get(name, _ABSENT), given.get(name, _ABSENT))
    elif isinstance(saved, list) and isinstance(given, list) and len(saved) == len(given) <= _LIST:
        for place, (old, new) in enumerate(zip(saved, given, strict=True)):
            yield from _leaves(f"{path}[{place}]", old, new)
    elif _differ(saved, given):
        if isinstance(saved, list) and isinstance(given, list) and _LIST < len(saved) == len(given):
            yield f"{path}: lists of {len(saved)} entries, which differ"
        else:
            yield f"{path}: the folder has {_text(saved)}, this run {_text(given)}"


def _differ(saved: Any, given: Any) -> bool:
    """Return whether two values have other JSON: 1, 1.0 and true are three values."""
    if saved is _ABSENT or given is _ABSENT:
        return True
    return json.dumps(saved, sort_keys=True) != json.dumps(given, sort_keys=True)


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "no such entry"
    if isinstance(value, list) and len(value) > _LIST:
        return f"a list of {len(value)} entries"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.."
