# SPDX-License-Identifier: Apache-2.0
"""Noise of one key on one device, by calls of the kernel of `triton_stream`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpftrl_fast.reference.stream import POLYNOMIALS
from dpftrl_fast.torch.device.triton_stream import sum_kernel

#: Of a node of a tree of 2^46 steps.
HIGHEST_LEVEL = 46

_LANES, _WARPS = 128, 4  # of a program


def coefficients(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Return the polynomials as integers of their bits: even and odd of K, C, S; and 2 ln 2."""
    integer = np.int64 if dtype == np.float64 else np.int32
    K, C, S, (two_ln_2,) = (
        tuple(np.array(row, dtype).view(integer).tolist()) for row in POLYNOMIALS[dtype]
    )
    return K[0::2], K[1::2], C, S, two_ln_2


@dataclass(frozen=True)
class Node:
    """Last node of a sum.

    With `left` None it is the node's own value; otherwise its average of Honaker, from the averages
    of the left children on the way down to its last leaf, those of the lowest level first.
    """

    level: int
    index: int
    left: Sequence[torch.Tensor] | None


class Stream:
    """Noise of one key on one device, and the sums of it.

    Parameters
    ----------
    key : bytes
        32 secret bytes. They go to the device with every launch, as arguments of the kernel.
    std : float
        Of a node, in the dtype.
    weights : sequence of float
        Weight of a term by its level, rounded to the dtype.
    device : torch.device
        A CUDA device; the CPU under Triton's interpreter.
    dtype, rounds, purpose, offset, size
        As for :class:`dpftrl_fast.TreeNoise`, `purpose` as its number.
    """

    def __init__(
        self,
        key: bytes,
        *,
        std: float,
        weights: Sequence[float],
        dtype: torch.dtype,
        device: torch.device,
        rounds: int,
        purpose: int,
        offset: int,
        size: int,
    ) -> None:
        self.dtype, self.device, self.size = dtype, device, size
        self._key = [int.from_bytes(key[i : i + 4], "little", signed=True) for i in range(0, 32, 4)]
        self._rounds, self._purpose, self._offset = rounds, purpose, offset
        # On level l the weight of a term, then the standard deviation.
        self._weighted = torch.tensor([*weights, std], dtype=dtype, device=device)
        self._plain = torch.tensor([1.0] * len(weights) + [std], dtype=dtype, device=device)
        double = dtype == torch.float64
        self._polynomials = coefficients(np.dtype(np.float64 if double else np.float32))
        per = 8 if double else 16  # lanes of a superblock
        superblocks = (offset + size - 1) // (16 * per) - offset // (16 * per) + 1
        self._grid = (-(-superblocks // (_LANES // per)),)

    def add_up(
        self,
        out: torch.Tensor,
        *,
        tree: int,
        base: torch.Tensor | None = None,
        known: Sequence[tuple[torch.Tensor, int]] = (),
        node: Node | None = None,
        plain: bool = False,
        keep_average: torch.Tensor | None = None,
        keep_sum: torch.Tensor | None = None,
        last: torch.Tensor | None = None,
        difference: bool = False,
    ) -> None:
        """Set out to base + the known averages by their weights + the node by its weight.

        Parameters
        ----------
        out : tensor of shape (size,)
        tree : int
        base : tensor, optional
        known : sequence of (tensor, level)
            Averages at hand, in the order in which they are added.
        node : Node, optional
            The last term.
        plain : bool
            All weights are 1.
        keep_average, keep_sum, last : tensors, optional
            Where the node's average goes, the sum, and the sum again.
        difference : bool
            Set out to the sum less `last`.
        """
        left = () if node is None or node.left is None else node.left
        entries = [x for average, level in known for x in (average.data_ptr(), level)]
        entries += [average.data_ptr() for average in left]
        table = torch.tensor(entries or [0], dtype=torch.int64).to(self.device, non_blocking=True)
        level, index = (0, 0) if node is None else (node.level, node.index)
        # Triton launches on the current device.
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            sum_kernel[self._grid](
                out,
                base,
                keep_average,
                keep_sum,
                last,
                table,
                self._plain if plain else self._weighted,
                len(known),
                level,
                index,
                level if node is None or node.left is None else 0,
                tree,
                self._purpose,
                *self._key,
                self._offset,
                self.size,
                STD=HIGHEST_LEVEL + 1,
                HAS_KNOWN=bool(known),
                HAS_NODE=node is not None,
                DIFFERENCE=difference,
                DOUBLE=self.dtype == torch.float64,
                ROUNDS=self._rounds,
                POLYNOMIALS=self._polynomials,
                LANES=_LANES,
                num_warps=_WARPS,
                enable_fp_fusion=False,
            )
