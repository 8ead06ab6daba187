# SPDX-License-Identifier: Apache-2.0
"""`FixedOrder`: the ids of each step, listed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import integer_array


@dataclass(frozen=True, init=False, eq=False, repr=False)
class FixedOrder:
    """A list of who takes part in each step.

    Parameters
    ----------
    ids : array_like of int, one-dimensional
        Without ``offsets``: one id (of a record, a batch or a user) a step, >= 0, or -1 for a
        virtual step without participants. With ``offsets``: the ids of all steps one after
        the other, >= 0. An id listed twice in one step participates twice. Where the sum of a
        user's contributions to a step is clipped as a whole, list the user once.
    offsets : array_like of int, one-dimensional, optional
        The ids of step t (from 1) are ``ids[offsets[t-1]:offsets[t]]``; none is a virtual step. Of
        length T + 1, from 0 to ``len(ids)``, never decreasing (the ``indptr`` of a CSR matrix whose
        rows are steps).

    Attributes
    ----------
    ids, offsets : ndarray of int64, read-only
        Always the second form, whichever was given.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, or no id takes part.

    Notes
    -----
    Two orders are equal if the same ids take part in the same steps, listed in the same order.

    Examples
    --------
    >>> order = FixedOrder([1, 2, 3, 1, -1, 4])
    >>> order.steps, order.most_uses(), order.ids.tolist(), order.offsets.tolist()
    (6, 2, [1, 2, 3, 1, 4], [0, 1, 2, 3, 4, 4, 5])
    >>> order == FixedOrder.from_steps([[1], [2], [3], [1], [], [4]])
    True
    """

    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def __init__(self, ids: ArrayLike, offsets: ArrayLike | None = None) -> None:
        flat = integer_array("ids", ids, least=-1 if offsets is None else 0)
        if offsets is None:
            if not flat.size:
                raise ValueError("ids must hold at least one step, got none")
            taken = flat >= 0
            bounds = np.concatenate([[0], np.cumsum(taken)]).astype(np.int64)
            flat = flat[taken]
        else:
            bounds = integer_array("offsets", offsets)
            _check_offsets(bounds, flat.size)
        if not flat.size:
            raise ValueError("ids must hold at least one id >= 0, got virtual steps only")
        for array in (flat, bounds):
            array.flags.writeable = False
        object.__setattr__(self, "ids", flat)
        object.__setattr__(self, "offsets", bounds)

    @classmethod
    def from_steps(cls, steps: Iterable[Iterable[int]]) -> FixedOrder:
        """Make an order from the ids of each step.

        Parameters
        ----------
        steps : iterable of iterables of int
            The ids of each step, >= 0; an empty one is a virtual step.

        Examples
        --------
        >>> FixedOrder.from_steps([[0, 1], [2], []])
        FixedOrder(3 steps, 3 uses)
        """
        listed = [list(step) for step in steps]
        return cls(
            [i for step in listed for i in step],
            np.cumsum([0, *map(len, listed)]),
        )

    @property
    def steps(self) -> int:
        """Number of steps T of the whole run, virtual ones of the order included."""
        return self.offsets.size - 1

    def step_of_uses(self) -> NDArray[np.int64]:
        """Return the step (from 0) of each entry of `ids`.

        Examples
        --------
        >>> FixedOrder([5, -1, 7]).step_of_uses().tolist()
        [0, 2]
        """
        return np.repeat(np.arange(self.steps), np.diff(self.offsets))

    def most_uses(self) -> int:
        """Return the largest number of participations of one id."""
        return self._most_uses

    @cached_property
    def _most_uses(self) -> int:
        return int(np.unique(self.ids, return_counts=True)[1].max())

    def least_separation(self) -> int:
        """Return the fewest steps between two participations of one id; all steps if none has two.

        Examples
        --------
        >>> FixedOrder([5, 7, 7, -1, 5]).least_separation()
        1
        """
        return self._least_separation

    @cached_property
    def _least_separation(self) -> int:
        by_id = np.argsort(self.ids, kind="stable")  # of one id the steps stay in their order
        gaps = np.diff(self.step_of_uses()[by_id])[np.diff(self.ids[by_id]) == 0]
        return max(1, int(gaps.min())) if gaps.size else self.steps

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary that `participation_from_dict` reads.

        Examples
        --------
        >>> FixedOrder([5, -1, 7]).to_dict()
        {'kind': 'FixedOrder', 'ids': [5, 7], 'offsets': [0, 1, 1, 2]}
        """
        return {
            "kind": "FixedOrder",
            "ids": self.ids.tolist(),
            "offsets": self.offsets.tolist(),
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FixedOrder):
            return NotImplemented
        return np.array_equal(self.ids, other.ids) and np.array_equal(self.offsets, other.offsets)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        digest = hashlib.blake2b(digest_size=8)
        digest.update(self.offsets.data)
        digest.update(self.ids.data)
        return int.from_bytes(digest.digest(), "big")

    def __repr__(self) -> str:
        return f"FixedOrder({self.steps} steps, {self.ids.size} uses)"

    def __reduce__(self) -> tuple[Any, ...]:
        return FixedOrder, (self.ids, self.offsets)


def _check_offsets(offsets: NDArray[np.int64], uses: int) -> None:
    if offsets.size < 2:
        raise ValueError(f"offsets must have T + 1 values for T >= 1 steps, got {offsets.size}")
    if offsets[0] != 0 or offsets[-1] != uses:
        raise ValueError(
            f"offsets must go from 0 to the {uses} ids, got {offsets[0]} to {offsets[-1]}"
        )
    if not bool(np.all(offsets[1:] >= offsets[:-1])):
        raise ValueError("offsets must never decrease, got some that do")
