# SPDX-License-Identifier: Apache-2.0
"""`ToeplitzLayout`: the steps of a run under a Toeplitz mechanism, in blocks of fresh noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dpftrl_fast.mechanisms.blocks import BlockLayout
from dpftrl_fast.mechanisms.run_error import check_error_steps

if TYPE_CHECKING:
    from dpftrl_fast.mechanisms.toeplitz.values import ToeplitzMechanism


@dataclass(frozen=True)
class ToeplitzRun:
    """Equal blocks in a row.

    Parameters
    ----------
    steps : int
        Steps of each block, >= 1.
    count : int
        Number of blocks, >= 1.
    """

    steps: int
    count: int

    def part(self, first: int, last: int) -> ToeplitzRun:
        """Return steps first..last of one block, which start as a block of their own."""
        return ToeplitzRun(last - first + 1, 1)


@dataclass(frozen=True)
class ToeplitzLayout(BlockLayout[ToeplitzRun]):
    """The blocks of a run: the strategy is block-diagonal, with one Toeplitz matrix a block.

    Attributes
    ----------
    runs : tuple of ToeplitzRun
        No two neighbours are equal but for their count.
    mechanism : ToeplitzMechanism
        The mechanism of each block; its own ``restart_every`` is not read here.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import BandedInverse
    >>> layout = BandedInverse.anticorrelated(0.5, restart_every=400).layout(1000)
    >>> layout.runs
    (ToeplitzRun(steps=400, count=2), ToeplitzRun(steps=200, count=1))
    """

    runs: tuple[ToeplitzRun, ...]
    mechanism: ToeplitzMechanism

    @cached_property
    def noise_limits(self) -> tuple[int, int]:
        """Bounds of the variance and of the largest value of a running sum's noise."""
        prefix = np.abs(np.cumsum(self.mechanism.inverse(check_error_steps(self.longest))))
        variance, size = np.cumsum(prefix * prefix), np.cumsum(prefix)
        at = [(run.steps - 1, run.count) for run in self.runs]
        # One more for the rounding of these sums.
        return (
            math.ceil(sum(float(variance[t]) * count for t, count in at)) + 1,
            math.ceil(sum(float(size[t]) * count for t, count in at)) + 1,
        )

    @property
    def released_spreads(self) -> bool:
        """False: "exact" and "released" are one bound."""
        return False

    def describe(self) -> str:
        """Return the mechanism in words, and when its noise starts afresh.

        Examples
        --------
        >>> from dpftrl_fast.mechanisms import BufferedToeplitz
        >>> BufferedToeplitz([0.98], [0.3]).layout(100).describe()
        'buffered Toeplitz noise, 1 buffer'
        """
        if self.count == 1:
            return self.mechanism.words
        return f"{self.mechanism.words}, fresh noise every {self.runs[0].steps} steps"

    def declaration(self) -> dict[str, Any]:
        """Return the blocks as JSON-able data, for the declaration of a guard."""
        return {"blocks": [[run.steps, run.count] for run in self.runs]}

    def noise_declaration(self) -> dict[str, Any]:
        """Return the mechanism without its blocks, for the declaration of a ledger."""
        return {"mechanism": {**self.mechanism.to_dict(), "restart_every": None}}
