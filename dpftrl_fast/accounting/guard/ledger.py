# SPDX-License-Identifier: Apache-2.0
"""`Ledger`: a guard that states the epsilon of its run, and can count realised values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import flag, positive, probability
from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.accounting.guard.id_table import grown
from dpftrl_fast.accounting.guard.state import declaration, integers_from
from dpftrl_fast.accounting.participation import Participation
from dpftrl_fast.accounting.statement.statement import (
    GaussianMechanism,
    Guarantee,
    Neighbours,
    PrivacyStatement,
)
from dpftrl_fast.mechanisms.choices import PlanBound, Variant, check_plan_bound, check_variant
from dpftrl_fast.mechanisms.tree_layout import Complete

Ints = NDArray[np.int64]

_CHUNK = 1 << 16
_REALISED = ("values", "node_counts")


class Ledger(Guard, PrivacyStatement):
    """A :class:`Guard` that also states the epsilon of the run.

    The figure to publish is the declared one: :meth:`epsilon_spent` without ``realised``, the same
    number before, during and after the run. With ``realised=True`` the ledger also counts the
    squared sensitivity of each id's participations so far. These realised figures
    (:meth:`values`, :meth:`sensitivity_squared`, ``epsilon_spent(..., realised=True)``) depend on
    who took part: internal, NOT PRIVATE, not to be published or acted upon in the run. They are at
    most the declared ones.

    Parameters
    ----------
    participation, restart_every, tree_lengths, complete
        The declaration, as for :class:`Guard`.
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma), finite and > 0.
    bound : {"exact", "released"}
        Whether the declared figure is stated for all nodes or only for the prefixes. The realised
        values count all nodes, and are cut at the declared zeta where that is smaller.
    variant : {"honaker", "vanilla"}
        How prefixes are put together; it matters under ``bound="released"`` only.
    realised : bool
        Count realised values. It costs 8 bytes an id, and 8 more for each level of the tallest
        tree, beyond the 24 bytes that :class:`Guard` keeps.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Notes
    -----
    A participation at leaf t of a tree lies under one node of each level. Under those that can be
    read (last leaf at most the end of the tree) one participation more adds (c + 1)^2 - c^2 =
    2c + 1, where c participations of the same id were there before; c is kept for the nodes above
    the last one only, since a later one under another node finds it empty. So a participation costs
    O(log T).

    Reading a figure changes no state.

    Examples
    --------
    >>> from dpftrl_fast.accounting.participation import MinSeparation
    >>> ledger = Ledger(MinSeparation(5, 2, 3), noise_multiplier=2.0, realised=True)
    >>> for step in [[1], [2], [3], [1], [4]]:
    ...     ledger.record(step)
    >>> ledger.sensitivity_squared()
    8
    >>> [column.tolist() for column in ledger.values()]
    [[1, 2, 3, 4], [8, 3, 3, 1]]
    """

    _KIND: ClassVar[str] = "Ledger"

    def __init__(
        self,
        participation: Participation,
        noise_multiplier: float,
        *,
        restart_every: int | None = None,
        tree_lengths: Sequence[int] | None = None,
        complete: Complete = False,
        bound: PlanBound = "exact",
        variant: Variant = "honaker",
        realised: bool = False,
    ) -> None:
        super().__init__(
            participation,
            restart_every=restart_every,
            tree_lengths=tree_lengths,
            complete=complete,
        )
        self._noise_multiplier = positive("noise_multiplier", noise_multiplier)
        check_plan_bound(bound)
        check_variant(variant)
        self._bound: PlanBound = bound
        self._variant: Variant = variant
        self._statement: PrivacyStatement | None = None  # the plan's, where there is one
        self._realised = flag("realised", realised)
        self._levels: Ints = np.arange(self._trees.tallest.bit_length())
        self._values: Ints = np.zeros(0, np.int64)  # by place: zeta so far
        # By place and level: participations under the node above the last one.
        self._counts: Ints = np.zeros((0, self._levels.size), np.int64)
        self._largest = 0

    @classmethod
    def of(cls, plan: Any, *, realised: bool = False) -> Ledger:
        """Return the ledger of a plan, which states the declared figure: as ``plan.ledger()``."""
        ledger = Ledger(
            plan.participation,
            plan.noise_multiplier,
            restart_every=plan.restart_every,
            tree_lengths=plan.tree_lengths,
            complete=plan.complete,
            bound=plan.bound,
            variant=plan.variant,
            realised=realised,
        )
        ledger._statement = plan
        return ledger

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of a node's noise in units of the clip norm (sigma)."""
        return self._noise_multiplier

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee that was declared."""
        return self._computed if self._statement is None else self._statement.guarantee

    @cached_property
    def _computed(self) -> Guarantee:
        return Guarantee.of(
            self._noise_multiplier,
            self._pattern,
            self._trees,
            bound=self._bound,
            variant=self._variant,
        )

    def record(self, ids: ArrayLike) -> None:
        """Admit the next step: another name of :meth:`Guard.admit`.

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
        """Return the epsilon of the run at ``delta``, never understated: :meth:`epsilon`.

        Parameters
        ----------
        delta, neighbours
            As for :meth:`epsilon`.
        realised : bool
            False: the declared figure, which holds for the whole run and is the one to print. True:
            that of the largest realised value so far, which is internal and not private.

        Raises
        ------
        ValueError
            As :meth:`epsilon`; also if realised values are asked for and not counted.

        Examples
        --------
        >>> from dpftrl_fast.accounting.participation import SinglePass
        >>> ledger = Ledger(SinglePass(1600), noise_multiplier=2.33, realised=True)
        >>> round(ledger.epsilon_spent(1e-6), 3), ledger.epsilon_spent(1e-6, realised=True)
        (7.342, 0.0)
        """
        if not realised:
            return self.epsilon(delta, neighbours=neighbours)
        zeta = self.sensitivity_squared()
        if zeta == 0:
            probability("delta", delta)
            return 0.0
        nodes = self.guarantee.touched
        spent = Guarantee((GaussianMechanism(self._noise_multiplier, zeta, nodes),))
        return spent.epsilon(delta, neighbours=neighbours)

    def sensitivity_squared(self) -> int | float:
        """Return the largest realised value of an id so far: internal, not private.

        Returns
        -------
        int or float
            In units of the clip norm squared; 0 while nobody took part. A float only where it is
            cut at a declared zeta that is one.
        """
        self._check_realised()
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
        self._check_realised()
        with self._lock:
            order = np.argsort(self._table.ids)
            values = self._values[: order.size][order]
            return self._table.ids[order], np.minimum(values, self._cut(self._largest))

    def _cut(self, value: int) -> int | float:
        if self._bound == "exact" or value == 0:
            return value
        return min(value, self.guarantee.mechanisms[0].sensitivity_squared)

    def _check_realised(self) -> None:
        if not self._realised:
            raise ValueError(
                "realised values are counted only by a ledger that is made with realised=True"
            )

    def _declaration(self) -> str:
        return declaration(
            self._pattern,
            self._trees,
            noise_multiplier=self._noise_multiplier,
            bound=self._bound,
            variant=self._variant,
        )

    def _record(self, step: int, ids: Ints, times: Ints, places: Ints, last: Ints) -> Ints:
        places = super()._record(step, ids, times, places, last)
        if not self._realised:
            return places
        self._values = grown(self._values, len(self._table))
        self._counts = grown(self._counts, len(self._table))
        tree, t = self._trees.locate(step)
        leaf = t - 1
        # Leaf of the participation before; -1, under no node, if it was in an earlier tree.
        before = np.maximum(last - (step - t), 0) - 1
        end = self._trees.run_of(tree).end
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
        entries, n = super()._entries(), len(self._table)
        if self._realised:
            entries["values"] = self._values[:n].copy()
            entries["node_counts"] = self._counts[:n].copy()
        return entries

    def _names(self, state: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the keys of a state: a ledger that counts nothing also reads one with counts."""
        counted = self._realised or not {*_REALISED}.isdisjoint(state)
        return (*super()._names(state), *(_REALISED if counted else ()))

    def _load(self, state: Mapping[str, Any]) -> None:
        if not self._realised:
            return super()._load(state)
        n = integers_from(state, "ids", low=0).size
        values = integers_from(state, "values", (n,), low=1)
        counts = integers_from(state, "node_counts", (n, self._levels.size), low=1)
        if not bool(np.all(counts[:, 1:] >= counts[:, :-1])):
            raise ValueError("state's node_counts must never fall with the level, got some that do")
        super()._load(state)
        self._values, self._counts = values, counts
        self._largest = int(values.max(initial=0))
