# SPDX-License-Identifier: Apache-2.0
"""`TrainingLedger`: the ledger of a training run, with its delta."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dpftrl_fast._validate import probability
from dpftrl_fast.accounting import FixedEpochs, Ledger
from dpftrl_fast.accounting.statement.statement import Neighbours, PrivacyStatement
from dpftrl_fast.plan.from_budget import stated_epsilon
from dpftrl_fast.plan.privacy_plan import PrivacyPlan


class TrainingLedger(Ledger):
    """The `dpftrl_fast.accounting.Ledger` of a plan that knows the delta of the run.

    Parameters
    ----------
    plan : PrivacyPlan
    delta : float
        At which epsilon is stated, 0 < delta < 1.
    realised : bool
        Count the realised values of ids, as `dpftrl_fast.accounting.Ledger` does.

    Attributes
    ----------
    target_delta : float
        At which epsilon is stated.

    Raises
    ------
    TypeError, ValueError
        If no epsilon can be stated at that delta.

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> from dpftrl_fast.mechanisms import Tree
    >>> plan = PrivacyPlan(1.0, 10.0, accounting.FixedEpochs(2, 5), Tree(restart_every=2))
    >>> ledger = TrainingLedger(plan, 1e-6)
    >>> ledger.record([1, 2])
    >>> round(ledger.epsilon_spent(), 3), round(ledger.epsilon_so_far(), 3)
    (1.368, 0.575)
    """

    def __init__(self, plan: PrivacyPlan, delta: float, *, realised: bool = False) -> None:
        super().__init__(
            plan.participation,
            plan.noise_multiplier,
            plan.mechanism,
            bound=plan.bound,
            realised=realised,
        )
        self._statement = self.plan = plan
        self.target_delta = probability("delta", delta)
        self._after: dict[int, float] = {}
        # A delta at which nothing can be stated is refused here.
        self._declared = stated_epsilon(plan, self.target_delta)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as `Ledger.state_dict`, with tensors for arrays.

        ``torch.load(weights_only=True)`` reads it. It holds ids, which are secret.
        """
        state = super().state_dict()
        return {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in state.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of :meth:`state_dict`, or from one with arrays of `Ledger`."""
        given: Any = state
        if isinstance(given, Mapping):
            given = {
                name: value.cpu().numpy() if type(value) is torch.Tensor else value
                for name, value in given.items()
            }
        super().load_state_dict(given)

    def state_by(self, run: PrivacyStatement) -> None:
        """State the guarantee of a run from now on, which may have recoveries beyond the plan."""
        self._statement = run

    def epsilon_spent(
        self,
        delta: float | None = None,
        *,
        neighbours: Neighbours = "zero-out",
        realised: bool = False,
    ) -> float:
        """Return the epsilon of the declared run, as `Ledger.epsilon_spent`.

        Parameters
        ----------
        delta : float, optional
            Default `target_delta`.
        neighbours, realised
            As for `Ledger.epsilon_spent`.
        """
        at = self.target_delta if delta is None else delta
        return super().epsilon_spent(at, neighbours=neighbours, realised=realised)

    def epsilon_so_far(self) -> float:
        """Return the epsilon of a run that was declared to end with the present epoch.

        For a progress bar. It follows from the number of steps taken only, grows to
        `epsilon_spent`, and is 0 before the first step. It is not the guarantee of a run that you
        stop early: that is `epsilon_spent`, unless the earlier end was declared in advance. Where
        recoveries raise the epsilon above the plan's, it is `epsilon_spent` from the start.
        """
        pattern, plan = self.participation, self.plan
        whole = self.epsilon_spent()
        if whole > self._declared:
            return whole
        if self.steps_taken == 0:
            return 0.0
        if not isinstance(pattern, FixedEpochs):
            return whole
        epochs = -(-self.steps_taken // pattern.steps_per_epoch)
        if epochs not in self._after:
            try:
                begun = replace(plan, participation=replace(pattern, epochs=epochs))
            except ValueError:  # the mechanism does not fit so few steps
                return whole
            self._after[epochs] = min(whole, begun.epsilon(self.target_delta))
        return self._after[epochs]
