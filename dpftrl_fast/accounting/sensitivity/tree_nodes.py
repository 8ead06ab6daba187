# SPDX-License-Identifier: Apache-2.0
"""Nodes of the tree that one id shifts: the tree's part of the floor of delta."""

from __future__ import annotations

import numpy as np

from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
    check_participation,
)
from dpftrl_fast.accounting.sensitivity.delta_floor import Touched, touched
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, check_plan_bound
from dpftrl_fast.mechanisms import TreeLayout


@touched.register
def _(trees: TreeLayout, participation: Participation, bound: PlanBound = "exact") -> Touched:
    """Bound the shifts of the nodes by one id.

    Under "exact" a participation shifts the nodes above its leaf, one a level. Under "released"
    with Honaker's variant the shift is the shortest one that moves the prefixes as the
    participations do, which is spread over more nodes.
    """
    pattern = check_participation(participation)
    if trees.steps != pattern.steps:
        raise ValueError(f"trees must have the {pattern.steps} steps of the run, got {trees.steps}")
    check_plan_bound(bound)
    uses, under_a_node = _uses(pattern, trees)
    levels = trees.tallest.bit_length()
    existing = sum((2 * run.end - run.end.bit_count()) * run.count for run in trees.runs)
    if bound == "exact" or trees.variant == "vanilla":
        return Touched(min(uses * levels, existing), uses * levels, under_a_node)
    # The nodes right of the last step of a completed tree take up part of the shift, too. (A tree
    # that is complete as it is has none, and is counted all the same: more steps then never touch
    # less.)
    completed = [run for run in trees.runs if run.completed]
    longer = min(uses, sum(run.count for run in completed))
    widest = max((run.end for run in completed), default=0)
    return Touched(
        min(uses * levels**2 + longer * 2 * widest, existing),
        3 * uses * levels + longer * 4 * under_a_node * levels,
        2 * under_a_node,
    )


def _uses(pattern: Participation, trees: TreeLayout) -> tuple[int, int]:
    """Return the largest number of participations of one id in the run, and in one tree."""
    uses = pattern.most_uses()
    if isinstance(pattern, FixedEpochs):
        each = [-(-run.steps // pattern.steps_per_epoch) for run in trees.runs]
        if pattern.reshuffle:  # restarts inside of an epoch can bring an id more than once in it
            uses = sum(n * run.count for n, run in zip(each, trees.runs, strict=True))
        return uses, max(each)
    if isinstance(pattern, MinSeparation):
        return uses, min(uses, -(-trees.longest // pattern.min_separation))
    if isinstance(pattern, FixedOrder) and trees.count > 1:
        # One number for each pair of an id and a tree; both are at most the length of an array.
        places = np.unique(pattern.ids, return_inverse=True)[1].reshape(-1)
        pairs = places * trees.count + trees.blocks_of(pattern.step_of_uses())
        return uses, int(np.unique(pairs, return_counts=True)[1].max())
    return uses, uses
