# SPDX-License-Identifier: Apache-2.0
"""From an estimator's public parameters to its privacy plan, and to the order of its batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from dpftrl_fast.accounting import FixedEpochs, Participation, SinglePass, Trees, plan_schedule
from dpftrl_fast.plan import PrivacyPlan

__all__ = ["BatchOrder", "make_plan", "participation_of"]

Ints = NDArray[np.int64]


def participation_of(units: int, batch_size: int, epochs: int, shuffle: bool) -> Participation:
    """Return who takes part when, for so many rows (or users) in batches of a fixed size.

    Examples
    --------
    >>> participation_of(10, 4, 1, False), participation_of(10, 4, 2, False)
    (SinglePass(steps=3), FixedEpochs(steps_per_epoch=3, epochs=2, reshuffle=False))
    """
    steps = -(-units // batch_size)
    if epochs == 1:
        return SinglePass(steps)
    return FixedEpochs(steps, epochs, reshuffle=shuffle)


def make_plan(parameters: Mapping[str, Any], participation: Participation) -> PrivacyPlan:
    """Return the plan of a run, calibrated to `epsilon` or with the given `noise_multiplier`.

    ``restart_every="auto"`` is one tree for a single pass, and the best row of
    `dpftrl_fast.accounting.plan_schedule` for several: by the noise in the running sums, smoothed
    by the momentum if there is one. With a given noise multiplier the rows are ranked for epsilon
    1, and the row's restarts are taken.

    Parameters
    ----------
    parameters : mapping
        Checked: epsilon, delta, noise_multiplier, clip_norm, variant, restart_every, complete, and
        momentum where there is one.
    participation : participation
        Who takes part when.

    Raises
    ------
    ValueError
        If no noise keeps the budget.

    Examples
    --------
    >>> plan = make_plan(
    ...     {"epsilon": 1.0, "delta": 1e-6, "noise_multiplier": None, "clip_norm": 0.3,
    ...      "variant": "honaker", "restart_every": "auto", "complete": "auto"},
    ...     SinglePass(100),
    ... )
    >>> plan.restart_every, plan.complete, plan.epsilon(1e-6) <= 1.0
    (None, False, True)
    """
    every, complete = parameters["restart_every"], parameters["complete"]
    if every == "auto" and isinstance(participation, SinglePass):
        every = None
    if every == "auto":
        momentum = parameters.get("momentum", 0.0)
        best = plan_schedule(
            parameters["epsilon"] or 1.0,
            parameters["delta"],
            participation=participation,
            complete=(False, True) if complete == "auto" else complete,
            variants=parameters["variant"],
            momentum=momentum,
            bound="released",
            rank_by="smoothed" if momentum > 0.0 else "rms",
        ).best
        every, complete = best.restart_every, best.complete
    fields: dict[str, Any] = {
        "clip_norm": parameters["clip_norm"],
        "participation": participation,
        "restart_every": every,
        "complete": False if complete == "auto" else complete,
        "variant": parameters["variant"],
        "bound": "released",
    }
    if parameters["epsilon"] is None:
        plan = PrivacyPlan(noise_multiplier=parameters["noise_multiplier"], **fields)
        plan.epsilon(parameters["delta"])  # a delta at which nothing can be stated is refused here
        return plan
    return PrivacyPlan.calibrate(epsilon=parameters["epsilon"], delta=parameters["delta"], **fields)


@dataclass(frozen=True)
class BatchOrder:
    """Which units are in the batch of each step: public, the same whatever the data are.

    Without `shuffle` the batches are cut from the units as they come, in every epoch alike. With it
    a permutation deals the units to the batches; where a new tree starts with an epoch, a new
    permutation does. Within a tree the order is fixed, as `FixedEpochs` declares.

    Parameters
    ----------
    units : int
        Rows, or users.
    batch_size : int
        Units of a batch; the last one of an epoch may have fewer.
    epochs : int
    trees : Trees or None
        Of the plan; None for a single epoch, where they do not matter.
    shuffle : bool
    random_state : None, int or numpy.random.RandomState
        For the permutations.

    Examples
    --------
    >>> from dpftrl_fast.accounting import resolve_trees
    >>> order = BatchOrder(5, 2, 1, resolve_trees(3), False, None)
    >>> [*order]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """

    units: int
    batch_size: int
    epochs: int
    trees: Trees | None
    shuffle: bool
    random_state: Any

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return -(-self.units // self.batch_size)

    def __iter__(self) -> Iterator[slice | Ints]:
        """Yield the units of every step: a slice where they are in order."""
        generator = check_random_state(self.random_state) if self.shuffle else None
        deal: Ints | None = None
        step = 0
        for epoch in range(self.epochs):
            new_tree = self.trees is not None and self.trees.locate(step + 1)[1] == 1
            if generator is not None and (epoch == 0 or new_tree):
                deal = generator.permutation(self.units).astype(np.int64)
            for start in range(0, self.units, self.batch_size):
                part = slice(start, min(start + self.batch_size, self.units))
                yield part if deal is None else deal[part]
                step += 1
