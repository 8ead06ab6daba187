# SPDX-License-Identifier: Apache-2.0
"""Training of a client on the model that it is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.experiments.federated.network import NextToken, Packed, Sizes
from dpftrl_fast.experiments.federated.text import Clients

Floats = NDArray[np.float32]

BATCH_SIZE = 16


class Population:
    """The clients of a data set and a network, trained for one epoch over examples, in order.

    The first `most_examples` of a client are used.
    """

    def __init__(self, clients: Clients, sizes: Sizes, most_examples: int) -> None:
        if clients.vocabulary != sizes.vocabulary:
            raise ValueError(
                f"expected a vocabulary of {sizes.vocabulary}, got {clients.vocabulary}"
            )
        if not clients.examples:
            raise ValueError("expected clients, got none")
        self.sizes = sizes
        self._batches = [_batches(examples[:most_examples]) for examples in clients.examples]
        self._test = _batches(clients.test)
        places = (len(b.inputs) for part in [*self._batches, self._test] for b in part)
        self._network = NextToken(sizes, max(places))
        self._gradient = np.empty(sizes.parameters, np.float32)

    def __len__(self) -> int:
        return len(self._batches)

    def update(self, client: int, theta: Floats, learning_rate: float) -> Floats:
        """Return a client's update: its model after training minus `theta`, which it was sent.

        Each step uses the mean gradient of `BATCH_SIZE` examples. The update is not finite where
        training diverged.
        """
        own, gradient, rate = theta.copy(), self._gradient, np.float32(learning_rate)
        with np.errstate(over="ignore", invalid="ignore"):
            for batch in self._batches[client]:
                self._network.gradient(own, batch, gradient)
                gradient *= rate
                own -= gradient
        own -= theta
        return own

    def accuracy(self, theta: Floats) -> float:
        """Return the share of words of the test examples that the model predicts.

        Words outside of the vocabulary and ends do not count.
        """
        right = counted = 0
        for batch in self._test:
            more, of = self._network.accuracy(theta, batch)
            right, counted = right + more, counted + of
        return right / max(counted, 1)


def _batches(examples: NDArray[Any]) -> list[Packed]:
    starts = range(0, len(examples), BATCH_SIZE)
    return [Packed.of(examples[start : start + BATCH_SIZE]) for start in starts]
