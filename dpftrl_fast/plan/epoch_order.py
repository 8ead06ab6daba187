# SPDX-License-Identifier: Apache-2.0
"""Fixed order of the batches of a run in epochs, as its plan declares it."""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import flag
from dpftrl_fast.accounting import FixedEpochs
from dpftrl_fast.mechanisms import Layout
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

Ints = NDArray[np.int64]


def steps_per_epoch(units: int, batch_size: int, drop_last: bool = False) -> int:
    """Return the number of batches of an epoch; ValueError if there is none.

    Examples
    --------
    >>> steps_per_epoch(10, 4), steps_per_epoch(10, 4, drop_last=True)
    (3, 2)
    """
    steps = units // batch_size if flag("drop_last", drop_last) else -(-units // batch_size)
    if steps < 1:
        raise ValueError(f"expected data for one batch of {batch_size}, got {units} examples")
    return steps


def epochs_with_new_order(layout: Layout, steps_per_epoch: int, epochs: int) -> list[int]:
    """Return the epochs, but the first, whose first step is the first one of a tree.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import Tree
    >>> epochs_with_new_order(Tree(restart_every=6).layout(12), 3, 4)
    [2]
    """
    return [e for e in range(1, epochs) if layout.locate(e * steps_per_epoch + 1)[1] == 1]


class EpochBatches:
    """Units (rows, users) of the batch of each step: public, the same whatever the data are.

    Within an epoch the units are cut into batches, and later epochs have the same batches until one
    begins a new order.

    Parameters
    ----------
    units, batch_size : int
    permutation : callable, optional
        Returns order number 0, 1, 2, ... of the units; without it they are taken as they come.
    new_orders : sequence of int
        Epochs, counted from 0, that begin with the next order; ascending, none of them 0.
    drop_last : bool
        Leave out the last batch of an epoch if it has fewer units.

    Examples
    --------
    >>> order = EpochBatches(5, 2)
    >>> [order.batch(step) for step in (1, 2, 3)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """

    def __init__(
        self,
        units: int,
        batch_size: int,
        permutation: Callable[[int], Ints] | None = None,
        new_orders: Sequence[int] = (),
        *,
        drop_last: bool = False,
    ) -> None:
        self.units, self.batch_size, self.drop_last = units, batch_size, drop_last
        self.steps_per_epoch = steps_per_epoch(units, batch_size, drop_last)
        self._permutation, self._new_orders = permutation, new_orders
        self._kept: tuple[int, Ints | None] = (-1, None)

    @property
    def smallest_batch(self) -> int:
        """Units of the smallest batch."""
        last = self.units - (self.steps_per_epoch - 1) * self.batch_size
        return min(self.batch_size, last)

    def batch(self, step: int) -> slice | Ints:
        """Return the units of a step, from 1: a slice where they are taken as they come."""
        start = (step - 1) % self.steps_per_epoch * self.batch_size
        part = slice(start, min(start + self.batch_size, self.units))
        order = self.order(step)
        return part if order is None else order[part]

    def order(self, step: int) -> Ints | None:
        """Return all units in the order of the epoch of a step; None as they come."""
        if self._permutation is None:
            return None
        epoch = (step - 1) // self.steps_per_epoch
        number = bisect.bisect_right(self._new_orders, epoch)
        if number != self._kept[0]:
            self._kept = number, self._permutation(number).astype(np.int64)
        return self._kept[1]


class EpochOrder(EpochBatches):
    """Fixed order of a run of a plan, drawn from a public seed.

    Where the plan starts a new tree together with an epoch and declares it
    (``FixedEpochs(reshuffle=True)``), a new permutation assigns the examples to batches.

    Parameters
    ----------
    examples, batch_size : int
    plan : PrivacyPlan
        Its steps must be whole epochs.
    seed : int or None
        Of the permutations; None takes the examples as they come.
    drop_last : bool
        Leave out the last batch of an epoch if it has fewer examples.

    Raises
    ------
    ValueError
        If there is not one batch, or the plan is for other epochs.

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.FixedEpochs(2, 2, reshuffle=False))
    >>> order = EpochOrder(3, 2, plan, None)
    >>> [order.ids(step).tolist() for step in (1, 2, 3, 4)]
    [[0, 1], [2], [0, 1], [2]]
    """

    def __init__(
        self,
        examples: int,
        batch_size: int,
        plan: PrivacyPlan,
        seed: int | None,
        drop_last: bool = False,
    ) -> None:
        pattern = plan.participation
        own = steps_per_epoch(examples, batch_size, drop_last)
        declared = pattern.steps_per_epoch if isinstance(pattern, FixedEpochs) else own
        if declared != own or plan.steps % own:
            raise ValueError(
                f"the plan must be for epochs of {own} steps ({examples} examples in batches of "
                f"{batch_size}), got {pattern!r}"
            )
        new_orders: list[int] = []
        if seed is not None and isinstance(pattern, FixedEpochs) and pattern.reshuffle:
            new_orders = epochs_with_new_order(plan.layout, own, pattern.epochs)
        permutation = None if seed is None else self._drawn
        super().__init__(examples, batch_size, permutation, new_orders, drop_last=drop_last)
        self.plan, self.seed = plan, seed

    def _drawn(self, number: int) -> Ints:
        assert self.seed is not None
        sequence = np.random.SeedSequence(self.seed, spawn_key=(number,))
        return np.random.Generator(np.random.PCG64(sequence)).permutation(self.units)

    def ids(self, step: int) -> Ints:
        """Return the examples of a step, from 1; ValueError if the run has no such step."""
        if not 1 <= step <= self.plan.steps:
            raise ValueError(f"step must be in 1 .. {self.plan.steps}, got {step}")
        found = self.batch(step)
        if isinstance(found, slice):
            return np.arange(found.start, found.stop, dtype=np.int64)
        return found.copy()

    def fingerprint(self) -> str:
        """Return a hash of all that decides the order: the plan, the counts and the seed."""
        decides = {
            "plan": self.plan.to_dict(),
            "examples": self.units,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "seed": self.seed,
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def deal_hash(self, step: int) -> str:
        """Return a hash of the order of a step's epoch.

        It differs if another version of NumPy draws other permutations.
        """
        order = self.order(step)
        whole = np.arange(self.units, dtype=np.int64) if order is None else order
        return hashlib.sha256(whole.astype("<i8").tobytes()).hexdigest()
