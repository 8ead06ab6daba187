# SPDX-License-Identifier: Apache-2.0
"""States of `Guard` and `Ledger`, and the checks of a state that is loaded.

A state is flat: strings, integers and int64 arrays. `numpy.savez` keeps it without pickle, JSON
does once its arrays are lists; states from both are accepted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import shown
from dpftrl_fast.accounting.participation import Participation
from dpftrl_fast.accounting.participation.fixed_order import FixedOrder
from dpftrl_fast.mechanisms import Layout

_VERSION = 1
_MAX_INT64 = 2**63 - 1


def declaration(participation: Participation, layout: Layout, **more: Any) -> str:
    """Return the declaration of a run in JSON; a long order by its SHA-256.

    Examples
    --------
    >>> from dpftrl_fast.accounting.participation import SinglePass
    >>> from dpftrl_fast.mechanisms import Tree
    >>> declaration(SinglePass(3), Tree().layout(3))
    '{"participation": {"kind": "SinglePass", "steps": 3}, "trees": [[3, false, 1]]}'
    """
    if isinstance(participation, FixedOrder):
        digest = hashlib.sha256()
        for array in (participation.offsets, participation.ids):
            digest.update(array.astype("<i8", copy=False).data)
        pattern: dict[str, Any] = {
            "kind": "FixedOrder",
            "steps": participation.steps,
            "sha256": digest.hexdigest(),
        }
    else:
        pattern = participation.to_dict()
    return json.dumps({"participation": pattern, **layout.declaration(), **more})


def header(kind: str, declared: str) -> dict[str, Any]:
    """Return the entries that identify a state."""
    return {"format": f"dpftrl_fast.{kind}", "version": _VERSION, "declaration": declared}


def check_header(
    state: Any, kind: str, declared: str, names: Callable[[Mapping[str, Any]], tuple[str, ...]]
) -> None:
    """Raise unless ``state`` is of this kind, version and declaration and has exactly its names."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state must be a mapping, got {type(state).__name__}")
    expected = header(kind, declared)
    if set(state) != (keys := {*expected, *names(state)}):
        raise ValueError(f"state must have the keys {sorted(keys)}, got {sorted(map(str, state))}")
    for name, value in expected.items():
        came = _scalar(state[name])
        if type(came) is not type(value) or came != value:
            raise ValueError(f"state must have {name} {value!r}, got {shown(came)}")


def guard_state(state: Any) -> Any:
    """Return the state of a `Guard` from that of a `Ledger` of the same run; others as they are."""
    if not isinstance(state, Mapping) or _scalar(state.get("format")) != "dpftrl_fast.Ledger":
        return state
    try:
        declared = json.loads(_scalar(state["declaration"]))
        ours = {name: declared[name] for name in ("participation", "trees")}
    except (KeyError, TypeError, ValueError, RecursionError):
        return state  # which is refused when it is loaded
    kept = {name: state[name] for name in state if name not in ("values", "node_counts")}
    return {**kept, "format": "dpftrl_fast.Guard", "declaration": json.dumps(ours)}


def integer_from(state: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """Return an entry that must be an integer in [low, high]."""
    value = _scalar(state[name])
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"state's {name} must be an integer, got {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"state's {name} must be in [{low}, {high}], got {shown(value)}")
    return value


def integers_from(
    state: Mapping[str, Any], name: str, shape: tuple[int, ...] | None = None, *, low: int
) -> NDArray[np.int64]:
    """Return a copy of an entry that must be an array of integers >= ``low``.

    ``shape`` None means one-dimensional, of any length.
    """
    expected = f"state's {name} must be an array of integers >= {low}"
    try:
        array = np.asarray(state[name])
    except ValueError:
        raise ValueError(f"{expected}, got a ragged one") from None
    if array.size == 0:
        array = np.zeros((0,) if shape is None else (0, *shape[1:]), np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{expected}, got dtype {array.dtype}")
    if (array.ndim != 1) if shape is None else (array.shape != shape):
        raise ValueError(f"{expected} of shape {shape or '(n,)'}, got shape {array.shape}")
    if array.size and not low <= int(array.min()) <= int(array.max()) <= _MAX_INT64:
        raise ValueError(f"{expected}, got {array.min()} to {array.max()}")
    return np.array(array, np.int64, order="C")


def _scalar(value: Any) -> Any:
    return (
        value.item() if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0 else value
    )
