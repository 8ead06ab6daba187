# SPDX-License-Identifier: Apache-2.0
"""The first steps of a pattern of participation, and patterns that continue one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpftrl_fast.accounting.participation.fixed_order import FixedOrder
from dpftrl_fast.accounting.participation.patterns import (
    FixedEpochs,
    MinSeparation,
    Participation,
    check_participation,
)


def first_steps(pattern: Participation, t: int) -> Participation:
    """Return a pattern of few steps that allows all that the first `t` steps of one allow.

    Parameters
    ----------
    pattern : participation
        Of at least `t` steps.
    t : int
        1 or more.

    Returns
    -------
    participation
        Of `t` steps; of epochs, all that have begun, at their full length. The order itself where
        nobody takes part in its first steps.

    Examples
    --------
    >>> from dpftrl_fast.accounting import SinglePass
    >>> first_steps(SinglePass(100), 30), first_steps(FixedEpochs(100, 10), 101)
    (SinglePass(steps=30), FixedEpochs(steps_per_epoch=100, epochs=2, reshuffle=True))
    """
    if isinstance(pattern, FixedEpochs):
        return replace(pattern, epochs=-(-t // pattern.steps_per_epoch))
    if isinstance(pattern, FixedOrder):
        uses = int(pattern.offsets[t])
        return FixedOrder(pattern.ids[:uses], pattern.offsets[: t + 1]) if uses else pattern
    return replace(pattern, steps=t)


def check_continues(pattern: Participation, longer: Participation) -> None:
    """Refuse a pattern that does not allow all that another allowed in its steps, and more steps.

    Raises
    ------
    TypeError, ValueError
        If `longer` is of another kind, has fewer steps, or is stricter.

    Examples
    --------
    >>> check_continues(MinSeparation(100, 2, 10), MinSeparation(300, 6, 10))
    """
    if type(check_participation(longer)) is not type(pattern):
        raise TypeError(
            f"participation must be a longer {type(pattern).__name__}, got {type(longer).__name__}"
        )
    if longer.steps < pattern.steps:
        raise ValueError(
            f"participation must have at least the {pattern.steps} steps of the plan, got "
            f"{longer.steps}"
        )
    if not _allows(pattern, longer):
        raise ValueError(
            f"participation must allow in its first {pattern.steps} steps what {pattern!r} allows, "
            f"got {longer!r}"
        )


def _allows(pattern: Participation, longer: Participation) -> bool:
    if isinstance(pattern, FixedEpochs) and isinstance(longer, FixedEpochs):
        same = (pattern.steps_per_epoch, pattern.reshuffle)
        return (longer.steps_per_epoch, longer.reshuffle) == same
    if isinstance(pattern, MinSeparation) and isinstance(longer, MinSeparation):
        return (
            longer.max_participations >= pattern.most_participations
            and longer.min_separation <= pattern.min_separation
        )
    if isinstance(pattern, FixedOrder) and isinstance(longer, FixedOrder):
        return np.array_equal(longer.ids[: pattern.ids.size], pattern.ids) and np.array_equal(
            longer.offsets[: pattern.offsets.size], pattern.offsets
        )
    return True
