# SPDX-License-Identifier: Apache-2.0
"""`PlanEnds`: the guarantee of a plan's first steps, and the same plan with a later end."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from dataclasses import replace
from typing import TypeVar

from dpftrl_fast._validate import integer
from dpftrl_fast.accounting.participation import Participation
from dpftrl_fast.accounting.participation.prefixes import check_continues, first_steps
from dpftrl_fast.accounting.sensitivity.squared import PlanBound
from dpftrl_fast.accounting.statement.statement import Guarantee, Neighbours, PrivacyStatement
from dpftrl_fast.mechanisms import Layout

P = TypeVar("P", bound="PlanEnds")


class PlanEnds(PrivacyStatement):
    """Base of `PrivacyPlan`: its ends, earlier and later ones."""

    noise_multiplier: float
    participation: Participation
    bound: PlanBound

    @property
    def steps(self) -> int:
        """Declared number of steps, over all blocks."""
        return self.participation.steps

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The mechanism, laid out over the declared steps."""

    def guarantee_at(self, t: int) -> Guarantee:
        """Return the guarantee of the outputs of the first `t` steps alone.

        Parameters
        ----------
        t : int
            1 to the declared number of steps.

        See Also
        --------
        epsilon_at : the same as an epsilon, and when it may be stated.

        Examples
        --------
        >>> from dpftrl_fast import PrivacyPlan, accounting
        >>> plan = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600))
        >>> round(plan.guarantee_at(100).mu, 3), round(plan.mu, 3)
        (1.136, 1.423)
        """
        last = integer("t", t, 1, self.steps)
        pattern = first_steps(self.participation, last)
        if pattern.steps == self.steps:
            return self.guarantee
        layout = self.layout.between(1, pattern.steps)
        return Guarantee.of(self.noise_multiplier, pattern, layout, bound=self.bound)

    def epsilon_at(self, t: int, delta: float, *, neighbours: Neighbours = "zero-out") -> float:
        """Return the epsilon of the outputs of the first `t` steps, for an end that is public.

        It holds where `t` follows from public facts, such as a date. If you stop because of what
        was released, or choose `t` after looking at it, state :meth:`epsilon`, that of the whole
        plan: it covers every end, however chosen.

        Parameters
        ----------
        t : int
            1 to the declared number of steps.
        delta : float
            0 < delta < 1.
        neighbours : {"zero-out", "replace-one"}
            As for :meth:`epsilon`.

        Returns
        -------
        float
            At most that of the whole plan. Epochs count whole from their first step on.

        Examples
        --------
        >>> from dpftrl_fast import PrivacyPlan, accounting
        >>> plan = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600))
        >>> round(plan.epsilon_at(100, 1e-6), 3), round(plan.epsilon(1e-6), 3)
        (5.651, 7.342)
        """
        first = self.guarantee_at(t).epsilon(delta, neighbours=neighbours)
        with contextlib.suppress(ValueError):  # the whole plan may state none at this delta
            return min(first, self.epsilon(delta, neighbours=neighbours))
        return first

    def extended(self: P, participation: Participation) -> P:
        """Return this plan with a later end: the same noise in the steps that it has now.

        A state of this plan's noise can be loaded by the noise of the new one, which continues
        the stream. The epsilon of the new plan covers all of its steps, those before included; that
        of this plan covers no further step. If the decision to continue depends on what was
        released, state that of the longest plan that could have come of it.

        Parameters
        ----------
        participation : participation
            A longer pattern of the same kind, which allows what the present one allows.

        Raises
        ------
        TypeError, ValueError
            If the pattern is not such a one, or the mechanism would lay out the present steps with
            other noise: a block would end elsewhere, or the last tree not be completed.

        Examples
        --------
        >>> from dpftrl_fast import PrivacyPlan, accounting
        >>> plan = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600))
        >>> longer = plan.extended(accounting.SinglePass(3200))
        >>> round(plan.epsilon(1e-6), 3), round(longer.epsilon(1e-6), 3)
        (7.342, 7.726)
        """
        check_continues(self.participation, participation)
        longer = replace(self, participation=participation)  # type: ignore[type-var]  # a plan is a dataclass
        if not self.layout.begins(longer.layout):
            raise ValueError(
                f"participation must leave the noise of the present {self.steps} steps as it is "
                f"({self.layout.describe()}), got one with {longer.steps} steps "
                f"({longer.layout.describe()}): the last tree is completed, or a block would end "
                "elsewhere"
            )
        return longer
