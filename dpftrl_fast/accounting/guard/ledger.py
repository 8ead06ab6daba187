# SPDX-License-Identifier: Apache-2.0
"""`Ledger`: a guard that also counts what each id really used, as the run goes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import positive, probability
from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.accounting.guard.id_table import grown
from dpftrl_fast.accounting.guard.state import declaration, integers_from
from dpftrl_fast.accounting.participation import Participation
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, check_plan_bound
from dpftrl_fast.accounting.statement.guarantee import Guarantee, Neighbours
from dpftrl_fast.mechanisms import Mechanism, Tree

Ints = NDArray[np.int64]

_CHUNK = 1 << 16


class Ledger(Guard):
    """Refuses what :class:`Guard` refuses, and counts the squared sensitivity of what it admits.

    What may be published is the declared figure: :meth:`epsilon_spent` as it is called without
    ``realised``, the same number before, during and after the run. The realised figures
    (:meth:`values`, :meth:`sensitivity_squared`, ``epsilon_spent(..., realised=True)``) follow from
    who took part: internal, NOT PRIVATE, not to be published or acted upon in the run. They are at
    most the declared ones.

    Parameters
    ----------
    participation
        What was declared, as for :class:`Guard`.
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma), finite and > 0.
    mechanism : Tree
        The declared mechanism, as for :class:`Guard`.
    bound : {"exact", "released"}
        What the declared figure is stated for: all nodes, or only the prefixes. The realised values
        count all nodes, and where the declared zeta is smaller they are cut at it.

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above.

    Notes
    -----
    A use at leaf t of a tree lies under one node of each level. Under those that can be read (last
    leaf at most the end of the tree) one use more adds (c + 1)^2 - c^2 = 2c + 1, where c uses of
    the same id were there before; c is kept for the nodes above the last use only, since whoever
    comes later under another node finds it empty. So a use costs O(log T), and an id 8 bytes for
    each level of the tallest tree beyond what :class:`Guard` keeps.

    Getting a figure changes no state.

    Examples
    --------
    >>> from dpftrl_fast.accounting.participation import MinSeparation
    >>> ledger = Ledger(MinSeparation(5, 2, 3), noise_multiplier=2.0)
    >>> for step in [[1], [2], [3], [1], [4]]:
    ...     ledger.record(step)
    >>> ledger.sensitivity_squared()
    8
    >>> [column.tolist() for column in ledger.values()]
    [[1, 2, 3, 4], [8, 3, 3, 1]]
    """

    _KIND: ClassVar[str] = "Ledger"
    _NAMES: ClassVar[tuple[str, ...]] = (*Guard._NAMES, "values", "node_counts")

    def __init__(
        self,
        participation: Participation,
        noise_multiplier: float,
        mechanism: Mechanism = Tree(),
        *,
        bound: PlanBound = "exact",
    ) -> None:
        super().__init__(participation, mechanism)
        self._noise_multiplier = positive("noise_multiplier", noise_multiplier)
        self._bound: PlanBound = check_plan_bound(bound)
        self._levels: Ints = np.arange(self._layout.tallest.bit_length())
        self._values: Ints = np.zeros(0, np.int64)  # by place: zeta so far
        # By place and level: uses under the node above the last use.
        self._counts: Ints = np.zeros((0, self._levels.size), np.int64)
        self._largest = 0

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of a node's noise in units of the clip norm (sigma)."""
        return self._noise_multiplier

    @cached_property
    def guarantee(self) -> Guarantee:
        """What was declared, from which epsilon and delta of the run are stated."""
        return Guarantee.of(
            self._noise_multiplier,
            self._pattern,
            self._layout,
            bound=self._bound,
        )

    def record(self, ids: ArrayLike) -> None:
        """Admit the next step as :meth:`Guard.admit` does, and count it; `admit` does the same.

        Parameters
        ----------
        ids : array_like of int, one-dimensional
            All who take part (0 <= id < 2^63), in any order; empty for a step with nobody.

        Raises
        ------
        TypeError, ValueError
            As :meth:`Guard.admit`; nothing is changed then.
        """
        self.admit(ids)

    def epsilon_spent(
        self, delta: float, *, neighbours: Neighbours = "zero-out", realised: bool = False
    ) -> float:
        """Return the epsilon of the run at ``delta``, never understated.

        Parameters
        ----------
        delta : float
            0 < delta < 1, above the floor of the noise stream.
        neighbours : {"zero-out", "replace-one"}
            One record's (or user's) gradients replaced by zero, or by another's.
        realised : bool
            False: the declared figure, which holds for the whole run and is the one to print. True:
            that of the largest realised value so far, which is internal and not private.

        Raises
        ------
        TypeError, ValueError
            For anything that is not described above.

        Examples
        --------
        >>> from dpftrl_fast.accounting.participation import SinglePass
        >>> ledger = Ledger(SinglePass(1600), noise_multiplier=2.33)
        >>> round(ledger.epsilon_spent(1e-6), 3), ledger.epsilon_spent(1e-6, realised=True)
        (7.342, 0.0)
        """
        declared = self.guarantee
        if not realised:
            return declared.epsilon(delta, neighbours)
        zeta = self.sensitivity_squared()
        if zeta == 0:
            probability("delta", delta)
            return 0.0
        return Guarantee(self._noise_multiplier, zeta, declared.touched).epsilon(delta, neighbours)

    def sensitivity_squared(self) -> int | float:
        """Return the largest realised value of an id so far: internal, not private.

        Returns
        -------
        int or float
            In units of the clip norm squared; 0 while nobody took part. A float only where it is
            cut at a declared zeta that is one.
        """
        with self._lock:
            return self._cut(self._largest)

    def values(self) -> tuple[Ints, NDArray[Any]]:
        """Return the realised value of each id: internal, not private.

        Returns
        -------
        ids : ndarray of int64, shape (n,)
            Those that took part, ascending.
        values : ndarray of int64 or float64, shape (n,)
            Squared sensitivity of the run to each id, in units of the clip norm squared; float64
            only where values are cut at a declared zeta that is a float.
        """
        with self._lock:
            order = np.argsort(self._table.ids)
            values = self._values[: order.size][order]
            return self._table.ids[order], np.minimum(values, self._cut(self._largest))

    def _cut(self, value: int) -> int | float:
        if self._bound == "exact" or value == 0:
            return value
        return min(value, self.guarantee.sensitivity_squared)

    def _declaration(self) -> str:
        return declaration(
            self._pattern,
            self._layout,
            noise_multiplier=self._noise_multiplier,
            bound=self._bound,
            **self._layout.noise_declaration(),
        )

    def _record(self, step: int, ids: Ints, times: Ints, places: Ints, last: Ints) -> Ints:
        places = super()._record(step, ids, times, places, last)
        self._values = grown(self._values, len(self._table))
        self._counts = grown(self._counts, len(self._table))
        tree, t = self._layout.locate(step)
        leaf = t - 1
        # Leaf of the use before, -1 (which lies under no node) if it was in an earlier tree.
        before = np.maximum(last - (step - t), 0) - 1
        end = self._layout.run_of(tree).end
        nodes = leaf >> self._levels
        readable = (nodes + 1) << self._levels <= end
        for i in range(0, places.size, _CHUNK):
            at = places[i : i + _CHUNK]
            more = times[i : i + _CHUNK, np.newaxis]
            same = before[i : i + _CHUNK, np.newaxis] >> self._levels == nodes
            counts = np.where(same, self._counts[at], 0)
            self._values[at] += np.sum(more * (2 * counts + more), axis=1, where=readable)
            self._counts[at] = counts + more
            self._largest = max(self._largest, int(self._values[at].max()))
        return places

    def _entries(self) -> dict[str, Any]:
        n = len(self._table)
        return {
            **super()._entries(),
            "values": self._values[:n].copy(),
            "node_counts": self._counts[:n].copy(),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        n = integers_from(state, "ids", low=0).size
        values = integers_from(state, "values", (n,), low=1)
        counts = integers_from(state, "node_counts", (n, self._levels.size), low=1)
        if not bool(np.all(counts[:, 1:] >= counts[:, :-1])):
            raise ValueError("state's node_counts must never fall with the level, got some that do")
        super()._load(state)
        self._values, self._counts = values, counts
        self._largest = int(values.max(initial=0))
