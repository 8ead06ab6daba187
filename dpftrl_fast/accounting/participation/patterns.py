# SPDX-License-Identifier: Apache-2.0
"""Participation patterns: the public description of a run that determines its sensitivity.

A *participation* is one contribution of one id (of a record, a batch or a user) to one step, of at
most the clip norm. Every pattern counts real steps only, over all trees of the run; the steps with
zero gradients that complete a tree do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from dpftrl_fast._validate import MAX_STREAM, flag, integer, shown, step_count
from dpftrl_fast.accounting.participation.fixed_order import FixedOrder


class _Pattern:
    """Base of the patterns whose fields are numbers."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary that `participation_from_dict` reads.

        Examples
        --------
        >>> SinglePass(3).to_dict()
        {'kind': 'SinglePass', 'steps': 3}
        """
        return {"kind": type(self).__name__, **self.__dict__}


@dataclass(frozen=True)
class SinglePass(_Pattern):
    """Every record (or user) is used in at most one of ``steps`` steps.

    Parameters
    ----------
    steps : int
        Number of steps T of the whole run, over all trees, 1 to 2^46 (with trees, 2^40). It is
        declared and public: a stream that ends early still has the sensitivity of the declared T.

    Raises
    ------
    TypeError, ValueError
        If ``steps`` is not such an integer.

    Examples
    --------
    >>> SinglePass(1600)
    SinglePass(steps=1600)
    """

    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", integer("steps", self.steps, 1, MAX_STREAM))

    @classmethod
    def unbounded(cls) -> SinglePass:
        """Return the single pass of a stream without a declared end: 2^46 steps.

        A step a microsecond takes two years to get there. Only Toeplitz mechanisms have so many:
        see `BufferedToeplitz.unbounded`.

        Examples
        --------
        >>> SinglePass.unbounded() == SinglePass(2**46)
        True
        """
        return cls(MAX_STREAM)

    def most_uses(self) -> int:
        """Return the largest number of participations of one id: 1."""
        return 1

    def least_separation(self) -> int:
        """Return the fewest steps between two participations of one id: the whole run."""
        return self.steps


@dataclass(frozen=True)
class FixedEpochs(_Pattern):
    """The same batches in the same order, epoch after epoch.

    The batch of step t (from 1) is the one at place (t - 1) mod ``steps_per_epoch``, and every
    record (or user) is in one batch.

    Parameters
    ----------
    steps_per_epoch : int
        Batches of an epoch, >= 1.
    epochs : int
        Passes over the data, >= 1; ``steps_per_epoch * epochs`` is at most 2^40.
    reshuffle : bool
        Whether records may be assigned to places anew at each restart of the tree. If so, the
        sensitivity is the sum over trees of each one's maximum over the places. False declares one
        order for the whole run: the maximum over the places of the sum over trees.

    Examples
    --------
    >>> FixedEpochs(steps_per_epoch=100, epochs=100).steps
    10000
    """

    steps_per_epoch: int
    epochs: int
    reshuffle: bool = True

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "steps_per_epoch", step_count("steps_per_epoch", self.steps_per_epoch))
        set_field(self, "epochs", step_count("epochs", self.epochs))
        step_count("steps_per_epoch * epochs", self.steps)
        set_field(self, "reshuffle", flag("reshuffle", self.reshuffle))

    @property
    def steps(self) -> int:
        """Number of steps T of the whole run."""
        return self.steps_per_epoch * self.epochs

    def most_uses(self) -> int:
        """Return the largest number of participations of one id: one an epoch."""
        return self.epochs

    def least_separation(self) -> int:
        """Return the fewest steps between two participations of one id: an epoch."""
        return self.steps_per_epoch


@dataclass(frozen=True)
class MinSeparation(_Pattern):
    """Any order with a minimum separation and a maximum number of participations of each id.

    Parameters
    ----------
    steps : int
        Number of steps T of the whole run, over all trees, 1 to 2^40.
    max_participations : int
        Largest number of participations of one id (E), 1 to 2^40. More than fit into the steps are
        clamped, see `most_participations`.
    min_separation : int
        Two participations i < j of one id have j - i >= ``min_separation`` (b), 1 to 2^40; 1 allows
        every step. The paper's xi, and TensorFlow Privacy's, is b - 1. Steps on both sides of a
        restart count; steps that complete a tree do not.

    Raises
    ------
    TypeError, ValueError
        If a field is not such an integer.

    Examples
    --------
    >>> MinSeparation(steps=64, max_participations=4, min_separation=8).most_uses()
    4
    >>> MinSeparation(steps=64, max_participations=100, min_separation=32)
    MinSeparation(steps=64, max_participations=100 (2 fit), min_separation=32)
    """

    steps: int
    max_participations: int
    min_separation: int

    def __post_init__(self) -> None:
        for name in ("steps", "max_participations", "min_separation"):
            object.__setattr__(self, name, step_count(name, getattr(self, name)))

    @property
    def most_participations(self) -> int:
        """Participations that fit: min(``max_participations``, ceil(steps/separation))."""
        return min(self.max_participations, -(-self.steps // self.min_separation))

    def most_uses(self) -> int:
        """Return the largest number of participations of one id that fit."""
        return self.most_participations

    def least_separation(self) -> int:
        """Return the fewest steps between two participations of one id."""
        return self.min_separation

    def __repr__(self) -> str:
        clamped = self.most_participations < self.max_participations
        fit = f" ({self.most_participations} fit)" if clamped else ""
        return (
            f"MinSeparation(steps={self.steps}, max_participations={self.max_participations}{fit}, "
            f"min_separation={self.min_separation})"
        )


Participation: TypeAlias = SinglePass | FixedEpochs | FixedOrder | MinSeparation
"""Any pattern of participation.

Examples
--------
>>> pattern = FixedEpochs(steps_per_epoch=100, epochs=5)
>>> isinstance(pattern, Participation), pattern.steps
(True, 500)
>>> isinstance(pattern, MinSeparation)
False
"""

_KINDS: dict[str, type[Participation]] = {
    kind.__name__: kind for kind in (SinglePass, FixedEpochs, FixedOrder, MinSeparation)
}


def check_participation(participation: Any) -> Participation:
    """Return ``participation`` if it is one of the patterns, else raise TypeError."""
    if isinstance(participation, Participation):
        return participation
    raise TypeError(
        f"participation must be one of {list(_KINDS)}, such as SinglePass(steps=1000), got "
        f"{type(participation).__name__}"
    )


def participation_from_dict(d: Mapping[str, Any]) -> Participation:
    """Read a participation pattern from the dictionary that its ``to_dict`` returned.

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
    name = d.get("kind")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"participation kind must be one of {list(_KINDS)}, got {shown(name)}")
    names = [field.name for field in fields(kind)]
    expected = ["kind", *names]
    if set(d) != set(expected):
        came = sorted(map(str, d))
        raise ValueError(f"a {name} must have exactly the keys {expected}, got {came}")
    return kind(**{name: d[name] for name in names})
