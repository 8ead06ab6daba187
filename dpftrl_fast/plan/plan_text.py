# SPDX-License-Identifier: Apache-2.0
"""The participation and the trees of a plan in words."""

from __future__ import annotations

from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
)
from dpftrl_fast.mechanisms.tree_layout import Trees

_LISTED = 6


def participation_words(participation: Participation) -> str:
    """Say how many steps there are, and who takes part when.

    Examples
    --------
    >>> participation_words(FixedEpochs(100, 5))
    '500 steps, 5 epochs of 100 fixed batches, dealt afresh at restarts'
    >>> participation_words(MinSeparation(64, 100, 8))
    '64 steps, each record (or user) in at most 8 of them, 8 or more apart (100 declared)'
    """
    steps, who = f"{participation.steps} steps", "each record (or user)"
    if isinstance(participation, FixedEpochs):
        order = "dealt afresh at restarts" if participation.reshuffle else "in one order"
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


def trees_words(trees: Trees) -> str:
    """Say when the tree restarts, and what is completed.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms.tree_layout import resolve_trees
    >>> trees_words(resolve_trees(1600, restart_every=500, complete=True))
    'a new tree every 500 steps, completed before it'
    >>> trees_words(resolve_trees(10, tree_lengths=[5, 3, 2], complete=[True, False, True]))
    '3 trees of 5, 3, 2 steps, 2 of them completed'
    """
    first, last = trees.runs[0], trees.runs[-1]
    if trees.count == 1:
        return "one tree" + (", completed" if first.completed else "")
    before = trees.run_of(trees.count - 2)  # of the last tree but one
    completed = sum(run.count for run in trees.runs if run.completed)
    lengths = {run.steps for run in trees.runs[:-1]} | {before.steps}
    if len(lengths) == 1 and last.steps <= first.steps:
        words = f"a new tree every {first.steps} steps"
        if completed == trees.count - 1 and not last.completed:
            return f"{words}, completed before it"
        if completed == trees.count:
            return f"{words}, each completed"
    else:
        words = f"{trees.count} trees of {_lengths(trees)} steps"
    return words + (f", {completed} of them completed" if completed else "")


def _lengths(trees: Trees) -> str:
    shown = [trees.run_of(i).steps for i in range(min(trees.count, _LISTED))]
    return ", ".join(map(str, shown)) + (", .." if trees.count > _LISTED else "")
