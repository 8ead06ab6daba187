# SPDX-License-Identifier: Apache-2.0
"""`EpochOrder`: which examples are in the batch of each step, as the plan declares it."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting import FixedEpochs
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

Ints = NDArray[np.int64]


def steps_per_epoch(examples: int, batch_size: int, drop_last: bool) -> int:
    """Return the batches of an epoch; ValueError if there is none.

    Examples
    --------
    >>> steps_per_epoch(10, 4, False), steps_per_epoch(10, 4, True)
    (3, 2)
    """
    steps = examples // batch_size if drop_last else -(-examples // batch_size)
    if steps < 1:
        raise ValueError(f"expected data for one batch of {batch_size}, got {examples} examples")
    return steps


class EpochOrder:
    """The fixed order of a run: public, and a function of public things only.

    Within an epoch the examples are cut into batches; the next epoch has the same batches. With a
    seed a permutation deals the examples to batches, and where the plan starts a new tree together
    with an epoch and declares it (``FixedEpochs(reshuffle=True)``), a new one does.

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
        self.examples, self.batch_size, self.plan = examples, batch_size, plan
        self.seed, self.drop_last = seed, drop_last
        self.steps_per_epoch = steps_per_epoch(examples, batch_size, drop_last)
        pattern = plan.participation
        declared = self.steps_per_epoch
        if isinstance(pattern, FixedEpochs):
            declared = pattern.steps_per_epoch
        if declared != self.steps_per_epoch or plan.steps % self.steps_per_epoch:
            raise ValueError(
                f"the plan must be for epochs of {self.steps_per_epoch} steps ({examples} examples "
                f"in batches of {batch_size}), got {pattern!r}"
            )
        self._number, self._deal = -1, np.arange(examples, dtype=np.int64)

    @property
    def smallest_batch(self) -> int:
        """Examples of the smallest batch."""
        last = self.examples - (self.steps_per_epoch - 1) * self.batch_size
        return min(self.batch_size, last)

    def ids(self, step: int) -> Ints:
        """Return the examples of a step, from 1.

        Raises
        ------
        ValueError
            If the run has no such step.
        """
        if not 1 <= step <= self.plan.steps:
            raise ValueError(f"step must be in 1 .. {self.plan.steps}, got {step}")
        start = (step - 1) % self.steps_per_epoch * self.batch_size
        return self._deal_of(step)[start : start + self.batch_size].copy()

    def fingerprint(self) -> str:
        """Return a hash of all that decides the order: the plan, the counts and the seed."""
        decides = {
            "plan": self.plan.to_dict(),
            "examples": self.examples,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "seed": self.seed,
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def deal_hash(self, step: int) -> str:
        """Return a hash of the order of the epoch of a step.

        It tells when another version of NumPy permutes otherwise.
        """
        return hashlib.sha256(self._deal_of(step).astype("<i8").tobytes()).hexdigest()

    def _deal_of(self, step: int) -> Ints:
        """Return all examples in the order of the epoch of a step; the last one is kept."""
        epoch = (step - 1) // self.steps_per_epoch
        number = int(np.searchsorted(self._starts, epoch, side="right"))
        if self.seed is not None and number != self._number:
            sequence = np.random.SeedSequence(self.seed, spawn_key=(number,))
            generator = np.random.Generator(np.random.PCG64(sequence))
            self._deal = generator.permutation(self.examples).astype(np.int64)
            self._number = number
        return self._deal

    @cached_property
    def _starts(self) -> list[int]:
        """Epochs but the first that begin with a new permutation."""
        pattern, per_epoch = self.plan.participation, self.steps_per_epoch
        if not (isinstance(pattern, FixedEpochs) and pattern.reshuffle):
            return []
        layout = self.plan.layout
        return [e for e in range(1, pattern.epochs) if layout.locate(e * per_epoch + 1)[1] == 1]
