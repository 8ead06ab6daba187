# SPDX-License-Identifier: Apache-2.0
"""The order of an estimator's batches; its plan is made by `dpftrl_fast.plan.from_budget`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from dpftrl_fast.mechanisms import Layout

Ints = NDArray[np.int64]


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
    layout : Layout or None
        Of the plan; None for a single epoch, where it does not matter.
    shuffle : bool
    random_state : None, int or numpy.random.RandomState
        For the permutations.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import Tree
    >>> order = BatchOrder(5, 2, 1, Tree().layout(3), False, None)
    >>> [*order]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """

    units: int
    batch_size: int
    epochs: int
    layout: Layout | None
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
            new_tree = self.layout is not None and self.layout.locate(step + 1)[1] == 1
            if generator is not None and (epoch == 0 or new_tree):
                deal = generator.permutation(self.units).astype(np.int64)
            for start in range(0, self.units, self.batch_size):
                part = slice(start, min(start + self.batch_size, self.units))
                yield part if deal is None else deal[part]
                step += 1
