# SPDX-License-Identifier: Apache-2.0
"""Epsilon of the charges of a budget, and the refusal of one more."""

from __future__ import annotations

from collections.abc import Sequence

from dpftrl_fast.accounting.curve.rounding import short_up, text_down
from dpftrl_fast.accounting.statement.statement import Guarantee, compose
from dpftrl_fast.run.budget_file import Charge, Terms
from dpftrl_fast.run.budget_share import share
from dpftrl_fast.run.budget_text import rounded


class BudgetExceeded(ValueError):
    """A fit was refused, since all fits together would have a larger epsilon than the budget.

    Attributes
    ----------
    spent, asked, together : float
        Epsilon of the fits so far, of this fit alone, and of all of them, at the budget's delta and
        for its neighbours.
    left : float
        `epsilon` that one further fit may have.
    budget, delta : float
        The terms.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyBudget, PrivacyPlan, accounting
    >>> plan = PrivacyPlan.calibrate(
    ...     epsilon=0.8, delta=1e-6, clip_norm=1.0, participation=accounting.SinglePass(100)
    ... )
    >>> budget = PrivacyBudget(1.0, 1e-6)
    >>> budget.spend(plan, label="Monday")
    >>> try:
    ...     budget.spend(plan, label="Tuesday")
    ... except BudgetExceeded as refusal:
    ...     print(f"together {refusal.together:.2f}, left {refusal.left:.2f}")
    together 1.16, left 0.56
    """

    def __init__(
        self, spent: float, asked: float, together: float, left: float, budget: float, delta: float
    ) -> None:
        self.spent, self.asked, self.together = spent, asked, together
        self.left, self.budget, self.delta = left, budget, delta
        super().__init__(spent, asked, together, left, budget, delta)

    def __str__(self) -> str:
        """Return the figures in words."""
        left = "nothing is left"
        if self.left > 0:
            left = f"one further fit may have epsilon {text_down(self.left)}"
        return (
            f"all fits together must have at most the budget, epsilon {short_up(self.budget)} at "
            f"delta {self.delta!r}, got {rounded(self.together)}: {rounded(self.spent)} is spent, "
            f"and this fit has epsilon {rounded(self.asked)}. It is not charged; {left}"
        )


def composed(charges: Sequence[Charge]) -> Guarantee:
    """Return the guarantee of at least one charge."""
    return compose([one.guarantee for one in charges])


def epsilon_of(charges: Sequence[Charge], terms: Terms) -> float:
    """Return epsilon of charges together; infinity where none can be stated at this delta."""
    if not charges:
        return 0.0
    try:
        return composed(charges).epsilon(terms.delta, neighbours=terms.neighbours)
    except ValueError:
        return float("inf")


def share_of(charges: Sequence[Charge], terms: Terms, fits: int) -> float:
    """Return the epsilon of each of so many further fits that use up the rest."""
    return share(
        composed(charges) if charges else None,
        fits,
        epsilon=terms.epsilon,
        delta=terms.delta,
        neighbours=terms.neighbours,
    )


def refuse_excess(terms: Terms, charges: Sequence[Charge], part: Guarantee) -> None:
    """Raise BudgetExceeded if charges and one more fit have a larger epsilon than the terms."""
    asked = Charge("", part)
    together = epsilon_of([*charges, asked], terms)
    if not together <= terms.epsilon:
        raise BudgetExceeded(
            epsilon_of(charges, terms),
            epsilon_of([asked], terms),
            together,
            share_of(charges, terms, 1),
            terms.epsilon,
            terms.delta,
        )
