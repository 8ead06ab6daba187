# SPDX-License-Identifier: Apache-2.0
"""`TrainingLedger`: the ledger of a training run, with its delta."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dpftrl_fast._validate import probability
from dpftrl_fast.accounting import FixedEpochs, Ledger
from dpftrl_fast.accounting.statement.guarantee import Neighbours
from dpftrl_fast.plan.privacy_plan import PrivacyPlan


class TrainingLedger(Ledger):
    """The `dpftrl_fast.accounting.Ledger` of a plan that knows the delta of the run.

    Parameters
    ----------
    plan : PrivacyPlan
    delta : float
        At which epsilon is stated, 0 < delta < 1.

    Attributes
    ----------
    stated : callable or None
        What states the epsilon of the run instead, by its delta: `TrainingRun.epsilon`, since a run
        in a folder may owe more than its plan.

    Raises
    ------
    TypeError, ValueError
        If nothing can be stated at that delta.

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> plan = PrivacyPlan(1.0, 10.0, accounting.FixedEpochs(2, 5), restart_every=2)
    >>> ledger = TrainingLedger(plan, 1e-6)
    >>> ledger.record([1, 2])
    >>> round(ledger.epsilon_spent(), 3), round(ledger.epsilon_so_far(), 3)
    (1.368, 0.575)
    """

    def __init__(self, plan: PrivacyPlan, delta: float) -> None:
        super().__init__(
            plan.participation,
            plan.noise_multiplier,
            restart_every=plan.restart_every,
            tree_lengths=plan.tree_lengths,
            complete=plan.complete,
            bound=plan.bound,
            variant=plan.variant,
        )
        self.plan = plan
        self.delta = probability("delta", delta)
        self.stated: Callable[..., float] | None = None
        self._after: dict[int, float] = {}
        # A delta at which nothing can be stated is refused here.
        self._declared = plan.epsilon(self.delta)

    def epsilon_spent(
        self,
        delta: float | None = None,
        *,
        neighbours: Neighbours = "zero-out",
        realised: bool = False,
    ) -> float:
        """Return the epsilon of the declared run, as `Ledger.epsilon_spent`; at its delta if None.

        Raises
        ------
        TypeError, ValueError
            As `Ledger.epsilon_spent`, and as `stated`.
        """
        at = self.delta if delta is None else delta
        if self.stated is not None and not realised:
            return self.stated(at, neighbours=neighbours)
        return super().epsilon_spent(at, neighbours=neighbours, realised=realised)

    def epsilon_so_far(self) -> float:
        """Return the epsilon of a run that was declared to end with the present epoch.

        For a progress bar. It follows from the number of steps taken only, grows to
        `epsilon_spent`, and is 0 before the first step. It is the guarantee of the run only if it
        was settled in advance that it ends there; otherwise that is `epsilon_spent`. So it is where
        that is more than the plan's, for restarts that happened or are spare.
        """
        pattern, plan = self.participation, self.plan
        whole = self.epsilon_spent()
        if whole > self._declared:
            return whole
        if self.steps_taken == 0:
            return 0.0
        if not isinstance(pattern, FixedEpochs) or plan.tree_lengths is not None:
            return whole
        if isinstance(plan.complete, tuple):  # a choice for each tree of the whole run
            return whole
        epochs = -(-self.steps_taken // pattern.steps_per_epoch)
        if epochs not in self._after:
            begun = replace(pattern, epochs=epochs)
            self._after[epochs] = min(whole, replace(plan, participation=begun).epsilon(self.delta))
        return self._after[epochs]
