# SPDX-License-Identifier: Apache-2.0
"""Types of a mechanism and of its layout: the interface for plans, accounting and noise.

A new mechanism is a class with the methods of `Mechanism`, a layout with those of `Layout`, and
the functions that are registered for the type of the layout:

- `accounting.sensitivity.squared.squared_of` (and `squared_by_id_of`): its sensitivity,
- `accounting.sensitivity.delta_floor.touched`: the shifts of its noise vectors by one id,
- `mechanisms.run_error.per_step_std` and `std_at`: its error, at every step and at single ones,
- `mechanisms.window_error.window_variance` and `window_variances`: that of windows,
- `plan.planned_noise.source_of`: the class of its noise source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import shown

L = TypeVar("L", bound="Layout")


class Layout(Protocol):
    """The steps of a run under a mechanism: consecutive blocks, each with independent noise.

    A tree is a block. Steps and the steps of a block count from 1, blocks from 0.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import Tree
    >>> layout = Tree(restart_every=32).layout(70)
    >>> layout.steps, layout.count, layout.locate(40)
    (70, 3, (1, 8))
    >>> layout.describe()
    'a new tree every 32 steps, honaker'
    """

    @property
    def steps(self) -> int:
        """Real steps of all blocks together."""

    @property
    def count(self) -> int:
        """Number of blocks."""

    @property
    def least_std(self) -> float:
        """Lower bound of the standard deviation of any running sum's noise, for unit noise."""

    @property
    def largest_std(self) -> float:
        """Standard deviation that no running sum's noise exceeds, for unit noise."""

    @property
    def noise_limits(self) -> tuple[int, int]:
        """Bounds of the noise of any running sum, for unit noise vectors.

        The first bounds its variance; the second bounds its absolute value, in multiples of the
        largest value of the noise stream.
        """

    @property
    def released_spreads(self) -> bool:
        """True if "released" spreads a shift over more noise vectors than "exact" counts."""

    def locate(self, step: int) -> tuple[int, int]:
        """Return the block of a step and the step's number in it; IndexError if there is none."""

    def steps_before(self, block: int) -> int:
        """Return the real steps of the blocks before a block; of all, for ``block = count``."""

    def blocks_of(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block of each of an array of steps, which count from 0 here."""

    def blocks(self: L) -> Iterator[tuple[L, int]]:
        """Yield each kind of block as a layout of one block, with the number of such blocks."""

    def between(self: L, first: int, last: int) -> L:
        """Return the layout of steps first..last as a separate run with fresh noise."""

    def begins(self: L, longer: L) -> bool:
        """Return whether the first steps of a longer layout are these blocks, with this noise."""

    def describe(self) -> str:
        """Return the layout in words, for `PrivacyPlan.describe`."""

    def declaration(self) -> dict[str, Any]:
        """Return the blocks as JSON-able data: part of the declaration of a guard."""

    def noise_declaration(self) -> dict[str, Any]:
        """Return the further options of the noise, for the declaration of a ledger."""


@runtime_checkable
class Mechanism(Protocol):
    """A frozen description of the correlated noise of a run, of any number of steps or of one.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import BufferedToeplitz, Tree
    >>> mechanisms = Tree(restart_every=100), BufferedToeplitz([0.9], [0.3])
    >>> [isinstance(one, Mechanism) and one.any_length for one in mechanisms]
    [True, True]
    >>> [one.layout(1000).count for one in mechanisms]
    [10, 1]
    """

    @property
    def any_length(self) -> bool:
        """True if it can lay out any number of steps."""

    def layout(self, steps: int) -> Layout:
        """Lay out the steps of a run; ValueError if the mechanism does not fit them."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data with the key "kind", for :func:`mechanism_from_dict`."""


_KINDS: dict[str, Callable[[Mapping[str, Any]], Mechanism]] = {}


def register_kind(kind: str, from_dict: Callable[[Mapping[str, Any]], Mechanism]) -> None:
    """Let :func:`mechanism_from_dict` read dictionaries of this kind."""
    _KINDS[kind] = from_dict


def mechanism_from_dict(d: Mapping[str, Any]) -> Mechanism:
    """Read back a mechanism from the dictionary that its ``to_dict`` returned.

    Raises
    ------
    TypeError, ValueError
        If ``d`` is not a mapping, its "kind" is unknown, or its other keys are not those of the
        kind.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import Tree
    >>> mechanism_from_dict(Tree(restart_every=100).to_dict()) == Tree(restart_every=100)
    True
    """
    if not isinstance(d, Mapping):
        raise TypeError(f"mechanism must be a mapping, got {type(d).__name__}")
    kind = d.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"mechanism kind must be one of {list(_KINDS)}, got {shown(kind)}")
    return _KINDS[kind](d)


def check_mechanism(mechanism: Any) -> Mechanism:
    """Return `mechanism` if it is one, else raise TypeError."""
    if isinstance(mechanism, type) or not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"mechanism must be a mechanism such as Tree(), got {type(mechanism).__name__}"
        )
    return mechanism
