# SPDX-License-Identifier: Apache-2.0
"""State of a source of noise: its identity, its position, and optionally its key and vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from dpftrl_fast._validate import equal, hex_bytes, integer, optional, shown
from dpftrl_fast.noise.arguments import MAX_STEPS

_VERSION = 1
_MAX_TREES = 2**24
_OTHER_STREAM = (
    ": finish that run with the release of dpftrl_fast that saved it, or begin a new one"
)


@dataclass(frozen=True)
class StateFormat:
    """Names in the states of one class of sources.

    Parameters
    ----------
    name : str
        Value of the key "format".
    block : {"tree", "block"}
        Word for a stretch of steps with noise of its own.
    has_nodes : bool
        Whether the state says that single nodes were read.
    """

    name: str
    block: str
    has_nodes: bool = False

    @property
    def header(self) -> dict[str, Any]:
        """Format and version of a state."""
        return {"format": self.name, "version": _VERSION}

    @property
    def earlier(self) -> str:
        """Key of the blocks before the present one."""
        return f"earlier_{self.block}s"

    @property
    def rest(self) -> list[str]:
        """Keys beside the header and the identity."""
        nodes = ["node_used"] * self.has_nodes
        return ["t", self.earlier, "last_returned", "reproducible", *nodes, "key", "vectors"]


@dataclass(frozen=True)
class Position:
    """Position of a source: all of its state but the key and the vectors."""

    t: int
    ends: list[int]
    """Step at which each earlier block was left."""
    last_tree: int
    """Block of the noise last returned; -1 before the first step."""
    last_t: int
    reproducible: bool
    node_used: bool = False


def state_of(
    form: StateFormat, identity: Mapping[str, Any], position: Position, key: bytes | None
) -> dict[str, Any]:
    """Return the state as numbers, strings and lists that JSON can hold, without vectors."""
    returned = position.last_tree >= 0
    return {
        **form.header,
        **identity,
        "t": position.t,
        form.earlier: [[end, len(list(run))] for end, run in groupby(position.ends)],
        "last_returned": [position.last_tree, position.last_t] if returned else None,
        "reproducible": position.reproducible,
        **({"node_used": position.node_used} if form.has_nodes else {}),
        "key": None if key is None else key.hex(),
        "vectors": [],
    }


def position_from_state(
    form: StateFormat, state: Mapping[str, Any], identity: Mapping[str, Any]
) -> tuple[Position, bytes | None]:
    """Read a state of `state_of`, for an object of this identity.

    Raises
    ------
    TypeError, ValueError
        If the state is of another version or another source, or broken.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state must be a mapping, got {type(state).__name__}")
    if missing := [name for name in (*form.header, *identity, *form.rest) if name not in state]:
        raise ValueError(f"state lacks {', '.join(missing)}")
    for name, expected in (*form.header.items(), *identity.items()):
        if not equal(state[name], expected):
            came = shown(state[name])
            advice = _OTHER_STREAM if name == "stream_version" else ""
            raise ValueError(f"state has {name} {came}, but this object has {expected!r}{advice}")
    ends: list[int] = []
    for pair in _list(form.earlier, state[form.earlier]):
        end, count = _pair(form.earlier, pair)
        integer(f"the steps of an earlier {form.block}", end, 1, MAX_STEPS)
        ends += [end] * integer(f"a count of {form.block}s", count, 1, _MAX_TREES - len(ends))
    if _list("vectors", state["vectors"]) and state["key"] is None:
        raise ValueError("state must have no vectors when it has no key")
    last = state["last_returned"]
    last_tree, last_t = (-1, 0) if last is None else _pair("last_returned", last)
    for name in ("reproducible", *["node_used"] * form.has_nodes):
        if not isinstance(state[name], bool):
            raise TypeError(f"state's {name} must be a bool, got {shown(state[name])}")
    position = Position(
        t=integer("t", state["t"], 0, MAX_STEPS),
        ends=ends,
        last_tree=integer(f"the {form.block} of last_returned", last_tree, -1, _MAX_TREES),
        last_t=integer("the step of last_returned", last_t, 0, MAX_STEPS),
        reproducible=state["reproducible"],
        node_used=form.has_nodes and state["node_used"],
    )
    return position, optional(hex_bytes, "state's key", state["key"], 32)


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"state's {name} must be a list, got {type(value).__name__}")
    return list(value)


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    pair = _list(name, value)
    if len(pair) != 2:
        raise ValueError(f"state's {name} must hold pairs of integers, got {len(pair)} values")
    return pair[0], pair[1]
