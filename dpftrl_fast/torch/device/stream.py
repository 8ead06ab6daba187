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


class KeyStream:
    """Noise of one key on one device: what every launch of a kernel needs.

    Parameters
    ----------
    key : bytes
        32 secret bytes. They go to the device with every launch, as arguments of the kernel.
    device : torch.device
        A CUDA device; the CPU under Triton's interpreter.
    dtype, rounds, purpose, offset, size
        As for :class:`dpftrl_fast.TreeNoise`, `purpose` as its number.
    """

    def __init__(
        self,
        key: bytes,
        *,
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
        double = dtype == torch.float64
        self._polynomials = coefficients(np.dtype(np.float64 if double else np.float32))
        per = 8 if double else 16  # lanes of a superblock
        superblocks = (offset + size - 1) // (16 * per) - offset // (16 * per) + 1
        self._grid = (-(-superblocks // (_LANES // per)),)

    def _launch(self, kernel: Any, *arguments: Any, tree: int, **constants: Any) -> None:
        """Run a kernel whose last arguments are tree, purpose, key, offset and size."""
        # Triton launches on the current device.
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            kernel[self._grid](
                *arguments,
                tree,
                self._purpose,
                *self._key,
                self._offset,
                self.size,
                **constants,
                DOUBLE=self.dtype == torch.float64,
                ROUNDS=self._rounds,
                POLYNOMIALS=self._polynomials,
                LANES=_LANES,
                num_warps=_WARPS,
                enable_fp_fusion=False,
            )

    def _table(self, entries: Sequence[int]) -> torch.Tensor:
        """Return addresses and levels on the device; one entry where there is none."""
        table = torch.tensor(entries or [0], dtype=torch.int64)
        return table.to(self.device, non_blocking=True)


class Stream(KeyStream):
    """Noise of one key on one device, and the sums of a tree of it.

    Parameters
    ----------
    key, **options
        As for `KeyStream`.
    std : float
        Of a node, in the dtype.
    weights : sequence of float
        Weight of a term by its level, rounded to the dtype.
    """

    def __init__(self, key: bytes, *, std: float, weights: Sequence[float], **options: Any) -> None:
        super().__init__(key, **options)
        on_device: Any = {"dtype": self.dtype, "device": self.device}
        # On level l the weight of a term, then the standard deviation.
        self._weighted = torch.tensor([*weights, std], **on_device)
        self._plain = torch.tensor([1.0] * len(weights) + [std], **on_device)

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
        level, index = (0, 0) if node is None else (node.level, node.index)
        self._launch(
            sum_kernel,
            out,
            base,
            keep_average,
            keep_sum,
            last,
            self._table(entries),
            self._plain if plain else self._weighted,
            len(known),
            level,
            index,
            level if node is None or node.left is None else 0,
            tree=tree,
            STD=HIGHEST_LEVEL + 1,
            HAS_KNOWN=bool(known),
            HAS_NODE=node is not None,
            DIFFERENCE=difference,
        )
