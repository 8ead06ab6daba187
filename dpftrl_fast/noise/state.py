# SPDX-License-Identifier: Apache-2.0
"""State of a `TreeNoise`: its identity, its position, and optionally its key and vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from dpftrl_fast._validate import integer
from dpftrl_fast.noise.arguments import MAX_STEPS

_HEADER = {"format": "dpftrl_fast.TreeNoise", "version": 1}
_REST = ("t", "earlier_trees", "last_returned", "reproducible", "node_used", "key", "vectors")
_MAX_TREES = 2**24


@dataclass(frozen=True)
class Position:
    """Position of a tree noise: all of its state but the key and the vectors."""

    t: int
    ends: list[int]
    """Step at which each earlier tree was carried."""
    last_tree: int
    """Tree of the noise last returned; -1 before the first step."""
    last_t: int
    reproducible: bool
    node_used: bool


def state_of(identity: Mapping[str, Any], position: Position, key: bytes | None) -> dict[str, Any]:
    """Return the state as numbers, strings and lists that JSON can hold, without vectors."""
    returned = position.last_tree >= 0
    return {
        **_HEADER,
        **identity,
        "t": position.t,
        "earlier_trees": [[end, len(list(run))] for end, run in groupby(position.ends)],
        "last_returned": [position.last_tree, position.last_t] if returned else None,
        "reproducible": position.reproducible,
        "node_used": position.node_used,
        "key": None if key is None else key.hex(),
        "vectors": [],
    }


def position_from_state(
    state: Mapping[str, Any], identity: Mapping[str, Any]
) -> tuple[Position, bytes | None]:
    """Read a state of `state_of`, for an object of this identity.

    Raises
    ------
    TypeError, ValueError
        If the state is of another version or another tree, or broken.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state must be a mapping, got {type(state).__name__}")
    if missing := [name for name in (*_HEADER, *identity, *_REST) if name not in state]:
        raise ValueError(f"state lacks {', '.join(missing)}")
    for name, expected in (*_HEADER.items(), *identity.items()):
        if state[name] != expected:
            raise ValueError(f"state has {name} {state[name]!r}, but this object has {expected!r}")
    ends: list[int] = []
    for pair in _list("earlier_trees", state["earlier_trees"]):
        end, count = _pair("earlier_trees", pair)
        integer("the steps of an earlier tree", end, 1, MAX_STEPS)
        ends += [end] * integer("a count of trees", count, 1, _MAX_TREES - len(ends))
    if _list("vectors", state["vectors"]) and state["key"] is None:
        raise ValueError("state must have no vectors when it has no key")
    last = state["last_returned"]
    last_tree, last_t = (-1, 0) if last is None else _pair("last_returned", last)
    for name in ("reproducible", "node_used"):
        if not isinstance(state[name], bool):
            raise TypeError(f"state's {name} must be a bool, got {state[name]!r}")
    position = Position(
        t=integer("t", state["t"], 0, MAX_STEPS),
        ends=ends,
        last_tree=integer("the tree of last_returned", last_tree, -1, _MAX_TREES),
        last_t=integer("the step of last_returned", last_t, 0, MAX_STEPS),
        reproducible=state["reproducible"],
        node_used=state["node_used"],
    )
    return position, None if state["key"] is None else _key_from_hex(state["key"])


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"state's {name} must be a list, got {type(value).__name__}")
    return list(value)


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    pair = _list(name, value)
    if len(pair) != 2:
        raise ValueError(f"state's {name} must hold pairs of integers, got {len(pair)} values")
    return pair[0], pair[1]


def _key_from_hex(text: Any) -> bytes:
    try:
        key = bytes.fromhex(text)
    except (TypeError, ValueError):
        key = b""
    if len(key) != 32:
        raise ValueError("state's key must be None or 64 hexadecimal digits")
    return key
