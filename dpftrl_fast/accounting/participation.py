# SPDX-License-Identifier: Apache-2.0
"""Who takes part when: the public description of a run that the sensitivity is computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from dpftrl_fast.accounting._checks import positive_int

__all__ = ["Participation", "SinglePass", "participation_from_dict"]


@dataclass(frozen=True)
class SinglePass:
    """Every record (or user) is used in at most one of ``steps`` steps.

    Parameters
    ----------
    steps : int
        Number of steps T >= 1 of the whole run, over all trees. It is declared and public: a stream
        that ends early still has the sensitivity of the declared T.

    Raises
    ------
    TypeError, ValueError
        If ``steps`` is not an integer >= 1.

    Examples
    --------
    >>> SinglePass(1600)
    SinglePass(steps=1600)
    """

    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", positive_int("steps", self.steps))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary that :func:`participation_from_dict` reads.

        Examples
        --------
        >>> SinglePass(3).to_dict()
        {'kind': 'SinglePass', 'steps': 3}
        """
        return {"kind": "SinglePass", "steps": self.steps}


Participation: TypeAlias = SinglePass


def participation_from_dict(d: Mapping[str, Any]) -> Participation:
    """Read back what ``to_dict`` of a participation pattern wrote.

    Parameters
    ----------
    d : mapping
        With the key ``kind`` (the name of the pattern's class) and exactly that pattern's fields.

    Raises
    ------
    TypeError, ValueError
        If ``d`` is not a mapping, its kind is unknown, or a key is missing or unknown.

    Examples
    --------
    >>> participation_from_dict({"kind": "SinglePass", "steps": 3})
    SinglePass(steps=3)
    """
    if not isinstance(d, Mapping):
        raise TypeError(f"participation must be a mapping, got {type(d).__name__}")
    if d.get("kind") != "SinglePass":
        raise ValueError(f"participation kind must be 'SinglePass', got {d.get('kind')!r}")
    if set(d) != {"kind", "steps"}:
        keys = sorted(map(str, d))
        raise ValueError(f"participation must have exactly the keys 'kind' and 'steps', got {keys}")
    return SinglePass(d["steps"])
