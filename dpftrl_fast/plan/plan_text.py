# SPDX-License-Identifier: Apache-2.0
"""The participation of a plan in words."""

from __future__ import annotations

from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
)


def participation_words(participation: Participation) -> str:
    """Describe the number of steps and the participation.

    Examples
    --------
    >>> participation_words(FixedEpochs(100, 5))
    '500 steps, 5 epochs of 100 fixed batches, in one order between restarts of the noise'
    >>> participation_words(MinSeparation(64, 100, 8))
    '64 steps, each record (or user) in at most 8 of them, 8 or more apart (100 declared)'
    """
    steps = f"{participation.steps} step" + "s" * (participation.steps != 1)
    who = "each record (or user)"
    if isinstance(participation, FixedEpochs):
        order = (
            "in one order between restarts of the noise"
            if participation.reshuffle
            else "in one order"
        )
        batches = f"{participation.steps_per_epoch} fixed batches"
        return f"{steps}, {participation.epochs} epochs of {batches}, {order}"
    if isinstance(participation, FixedOrder):
        uses = participation.most_uses()
        return f"{steps} in a listed order, {who} used at most {uses} times"
    if isinstance(participation, MinSeparation):
        most = participation.most_participations
        declared = participation.max_participations
        clamped = f" ({declared} declared)" if most < declared else ""
        apart = f"{participation.min_separation} or more apart"
        return f"{steps}, {who} in at most {most} of them, {apart}{clamped}"
    return f"{steps}, {who} in at most one of them"
