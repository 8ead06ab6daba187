# SPDX-License-Identifier: Apache-2.0
"""`CompiledPieces`: the pieces of a vector as compiled loops take them, by address, on threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpftrl_fast.kernels.threads import run_on_threads
from dpftrl_fast.torch.flat.views import FlatViews

_SHARE = 2**20  # coordinates that are worth a thread


class CompiledPieces:
    """Positions of the pieces in a flat vector and in the tensors, for at most `threads` threads.

    Attributes
    ----------
    table : ndarray of int64, shape (k, 3)
        Start, stop and parameter group of each piece.
    tensor : ndarray of int64, shape (k,)
        Index of its tensor.
    sizes : list of int
        Coordinates of each tensor.
    """

    def __init__(self, flat: FlatViews, threads: int = 1) -> None:
        places, start = [], 0
        for block in flat.blocks:
            for piece in block.pieces:
                stop = start + piece.stop - piece.first
                places.append((start, stop, block.group, piece.index, piece.first))
                start = stop
        every = np.array(places, np.int64).reshape(-1, 5)
        self.table = np.ascontiguousarray(every[:, :3])
        self.tensor = every[:, 3]
        self._first = every[:, 4]
        workers = min(threads, max(1, flat.size // _SHARE))
        shares = np.arange(1, workers) * (flat.size / workers)
        cuts = [0, *np.searchsorted(every[:, 0], shares).tolist(), len(places)]
        self._runs = [slice(*bounds) for bounds in itertools.pairwise(cuts)]
        self.sizes = [shape.numel() for shape in flat.shapes]

    def addresses(self, tensors: Sequence[Tensor] | Tensor) -> NDArray[np.int64]:
        """Return the address of each piece in contiguous tensors, or in one whole vector."""
        if isinstance(tensors, Tensor):
            return tensors.data_ptr() + tensors.element_size() * self.table[:, 0]
        at = np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))
        width = np.fromiter(map(Tensor.element_size, tensors), np.int64, len(tensors))
        return (at[self.tensor] + width[self.tensor] * self._first).astype(np.int64, copy=False)

    def run(self, call: Callable[[slice], Any]) -> None:
        """Call it with ranges of pieces that are all of them together, one for each thread."""
        run_on_threads(call, self._runs, len(self._runs))


def note_writes(tensors: Sequence[Tensor]) -> None:
    """Tell autograd that these tensors were written to by address."""
    increment = torch.autograd.graph.increment_version
    try:
        increment(tensors)
    except TypeError:  # torch 2.4 takes one tensor
        for tensor in tensors:
            increment(tensor)
