# SPDX-License-Identifier: Apache-2.0
"""`Ledger`: a guard that states the epsilon of its run, and can count realised values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import flag, positive, probability
from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.accounting.guard.realised import RealisedValues, realised_values
from dpftrl_fast.accounting.guard.state import declaration, integers_from
from dpftrl_fast.accounting.participation import Participation
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, check_plan_bound
from dpftrl_fast.accounting.statement.statement import (
    GaussianMechanism,
    Guarantee,
    Neighbours,
    PrivacyStatement,
)
from dpftrl_fast.mechanisms import Mechanism, Tree

Ints = NDArray[np.int64]

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
    participation
        The declaration, as for :class:`Guard`.
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma), finite and > 0.
    mechanism : Tree
        The declared mechanism, as for :class:`Guard`.
    bound : {"exact", "released"}
        Whether the declared figure is stated for all nodes or only for the prefixes. The realised
        values count all nodes, and are cut at the declared zeta where that is smaller.
    realised : bool
        Count realised values. It costs 8 bytes an id, and 8 more for each level of the tallest
        tree, beyond the 24 bytes that :class:`Guard` keeps.

    Notes
    -----
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
        mechanism: Mechanism = Tree(),
        *,
        bound: PlanBound = "exact",
        realised: bool = False,
    ) -> None:
        super().__init__(participation, mechanism)
        self._noise_multiplier = positive("noise_multiplier", noise_multiplier)
        self._bound: PlanBound = check_plan_bound(bound)
        self._statement: PrivacyStatement | None = None  # the plan's, where there is one
        self._realised: RealisedValues | None = None
        if flag("realised", realised):
            self._realised = realised_values(self._layout)

    @classmethod
    def of(cls, plan: Any, *, realised: bool = False) -> Ledger:
        """Return the ledger of a plan, which states the declared figure: as ``plan.ledger()``."""
        ledger = Ledger(
            plan.participation,
            plan.noise_multiplier,
            plan.mechanism,
            bound=plan.bound,
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
        return Guarantee.of(self._noise_multiplier, self._pattern, self._layout, bound=self._bound)

    def record(self, ids: ArrayLike) -> None:
        """Admit the next step: another name of :meth:`Guard.admit`."""
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
        if not flag("realised", realised):
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
        with self._lock:
            return self._cut(self._counted().largest)

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
            counted, order = self._counted(), np.argsort(self._table.ids)
            values = counted.values(order.size)[order]
            return self._table.ids[order], np.minimum(values, self._cut(counted.largest))

    def _cut(self, value: int) -> int | float:
        if self._bound == "exact" or value == 0:
            return value
        return min(value, self.guarantee.mechanisms[0].sensitivity_squared)

    def _counted(self) -> RealisedValues:
        if self._realised is None:
            raise ValueError(
                "realised values are counted only by a ledger that is made with realised=True"
            )
        return self._realised

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
        if self._realised is not None:
            self._realised.record(step, times, places, last, len(self._table))
        return places

    def _entries(self) -> dict[str, Any]:
        entries = super()._entries()
        if self._realised is not None:
            entries.update(self._realised.entries(len(self._table)))
        return entries

    def _names(self, state: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the keys of a state: a ledger that counts nothing also reads one with counts."""
        counted = self._realised is not None or not {*_REALISED}.isdisjoint(state)
        return (*super()._names(state), *(_REALISED if counted else ()))

    def _load(self, state: Mapping[str, Any]) -> None:
        if self._realised is None:
            return super()._load(state)
        read = self._realised.read(state, integers_from(state, "ids", low=0).size)
        super()._load(state)
        self._realised = read
