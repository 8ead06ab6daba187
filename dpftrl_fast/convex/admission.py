# SPDX-License-Identifier: Apache-2.0
"""Admission of a step of a run: its participants, and a record of it that is written ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

#: Takes the number of a step and all inputs of its sum. What it raises refuses the step.
WriteAhead: TypeAlias = Callable[[int, Sequence[NDArray[Any]]], None]


class Admission:
    """Admits the steps of a run before anything of them is made.

    Parameters
    ----------
    plan : PrivacyPlan
        Its guard checks the participants of a run that has ids.

    Attributes
    ----------
    write_ahead : callable, optional
        Called once the participants of a step are found to be allowed, and before they count as
        having taken part: a refusal by either changes nothing.

    Examples
    --------
    >>> from dpftrl_fast.accounting import SinglePass
    >>> admission = Admission(PrivacyPlan(1.0, 1.0, SinglePass(2)))
    >>> admission.admit(1, [7, 8])
    >>> admission.admit(2, [8])
    Traceback (most recent call last):
    ...
    ValueError: those who take part in step 2 must be such as SinglePass(steps=2) allows, each \
once, got another: one who took part in an earlier step, for instance
    """

    def __init__(self, plan: PrivacyPlan) -> None:
        self._plan = plan
        self._guard: Guard | None = None
        self.write_ahead: WriteAhead | None = None

    def admit(self, step: int, ids: ArrayLike | None, *sums: NDArray[Any]) -> None:
        """Admit the next step, with ids in every step of a run or in none.

        Parameters
        ----------
        step : int
            From 1.
        ids : (m,) array_like of int, optional
            Who takes part.
        *sums : ndarray
            The sums of the step, for `write_ahead`.

        Raises
        ------
        ValueError
            For participants that the plan does not allow. The message shows no id, which may be a
            user's label.
        """
        guard, ahead = self._guard, self.write_ahead
        if step == 1 and ids is not None:
            guard = self._plan.guard()
        if (guard is None) != (ids is None):
            raise ValueError("ids must be given for all steps of a run or for none, got a mixture")
        if guard is not None and ids is not None:
            try:
                guard.check(ids)
            except ValueError:
                raise ValueError(
                    f"those who take part in step {step} must be such as "
                    f"{self._plan.participation!r} allows, each once, got another: one who took "
                    "part in an earlier step, for instance"
                ) from None
        if ahead is not None:
            ahead(step, sums if ids is None else (np.asarray(ids), *sums))
        if guard is not None and ids is not None:
            guard.admit(ids)
        self._guard = guard

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state of the guard, which is secret; None for a run without ids so far."""
        return None if self._guard is None else self._guard.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Resume from a state of `state_dict`, of a run with the same plan."""
        guard = None
        if state is not None:
            guard = self._plan.guard()
            guard.load_state_dict(state)
        self._guard = guard
