# SPDX-License-Identifier: Apache-2.0
"""A plan as a dictionary of plain data, and as a JSON file.

Version 2 has these keys, all of them, besides `format` and `version`:

    clip_norm, noise_multiplier   numbers
    participation                 the pattern's `to_dict`
    restart_every                 integer or null
    tree_lengths                  list of integers or null
    complete                      false, true, "all" or a list of booleans
    variant, bound                strings

Version 3 is for mechanisms other than a tree: it has the key `mechanism`, the mechanism's
`to_dict`, in place of the tree's four fields. A tree is always written as version 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpftrl_fast._validate import equal, shown
from dpftrl_fast.accounting.participation import participation_from_dict
from dpftrl_fast.files import write_files
from dpftrl_fast.mechanisms import mechanism_from_dict

_FORMAT = "dpftrl_fast.PrivacyPlan"
_BEFORE = ("clip_norm", "noise_multiplier", "participation")
_TREE = ("restart_every", "tree_lengths", "complete", "variant")
_SHOWN = 200  # characters of a mechanism in an error
_FIELDS = {2: (*_BEFORE, *_TREE, "bound"), 3: (*_BEFORE, "mechanism", "bound")}


def fields_to_dict(plan: Any) -> dict[str, Any]:
    """Return a plan's fields as data that JSON can hold."""
    mechanism = plan.mechanism.to_dict()
    version = 2 if mechanism["kind"] == "tree" else 3
    fields = {
        "clip_norm": plan.clip_norm,
        "noise_multiplier": plan.noise_multiplier,
        "participation": plan.participation.to_dict(),
        "mechanism": mechanism,
        "bound": plan.bound,
        **mechanism,
    }
    return {
        "format": _FORMAT,
        "version": version,
        **{name: fields[name] for name in _FIELDS[version]},
    }


def fields_from_dict(d: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan; missing and unknown keys and other versions are refused."""
    if not isinstance(d, Mapping):
        raise TypeError(f"a plan must be a mapping, got {type(d).__name__}")
    if not equal(d.get("format"), _FORMAT):
        raise ValueError(f"format must be {_FORMAT!r}, got {shown(d.get('format'))}")
    version = d.get("version")
    if type(version) is not int or version not in (2, 3):
        raise ValueError(f"version must be 2 or 3, got {shown(version)}")
    names = _FIELDS[version]
    expected = {"format", "version", *names}
    if unknown := sorted(map(str, set(d) - expected)):
        raise ValueError(f"a plan must have the keys {sorted(expected)}, got also {unknown}")
    if missing := sorted(expected - set(d)):
        raise ValueError(f"a plan must have the keys {sorted(expected)}, got none of {missing}")
    fields = {name: d[name] for name in names}
    tree = {"kind": "tree", **{name: fields.pop(name, None) for name in _TREE}}
    mechanism = fields.get("mechanism", tree)
    return {
        **fields,
        "participation": participation_from_dict(fields["participation"]),
        "mechanism": mechanism_from_dict(mechanism),
    }


def other_mechanism(saved: Any, own: Any) -> str:
    """Return what to do about two plans, as dictionaries, of different mechanisms; else ""."""
    try:
        had, has = (fields_from_dict(d)["mechanism"] for d in (saved, own))
    except (TypeError, ValueError):
        return ""
    if had == has:
        return ""
    text = repr(had)
    value = f"mechanism={text}" if len(text) <= _SHOWN else "the mechanism"
    return f"the saved noise is of another mechanism: give {value} of the saved plan, or that plan"


def write_json(path: str | Path, d: Mapping[str, Any]) -> None:
    """Write a dictionary to a file, whole or not at all."""
    path = Path(path)
    text = json.dumps(d, indent=2, allow_nan=False)
    write_files(path.parent, {path.name: (text + "\n").encode()})


def read_json(path: str | Path) -> Any:
    """Read a file of :func:`write_json`; ValueError if it is not JSON."""
    content = Path(path).read_bytes()
    try:
        return json.loads(content.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} must be a JSON file of a plan, got {error}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"the number {name}")
