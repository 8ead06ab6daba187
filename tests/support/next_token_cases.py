# SPDX-License-Identifier: Apache-2.0
"""Sequences of tokens and clients for the tests of the federated experiment."""

from __future__ import annotations

import numpy as np

from dpftrl_fast.experiments.federated.network import BEGIN, END, UNKNOWN, Sizes
from dpftrl_fast.experiments.federated.text import Clients

SIZES = Sizes(104, 8, 8, 8)


def sequences(rows, vocabulary=104, seed=0):
    """Sentences of 1 to 20 words."""
    rng = np.random.default_rng(seed)
    found = np.zeros((rows, 21), np.int32)
    for row in found:
        length = rng.integers(1, 21)
        row[0] = BEGIN
        row[1 : length + 1] = rng.integers(UNKNOWN, vocabulary, length)
        if length < 20:
            row[length + 1] = END
    return found


def some_clients(count=40, seed=0):
    rng = np.random.default_rng(seed)
    examples = tuple(sequences(int(rng.integers(1, 40)), seed=1 + k) for k in range(count))
    return Clients(tuple(f"c{k}" for k in range(count)), examples, sequences(50, seed=999), 104)
