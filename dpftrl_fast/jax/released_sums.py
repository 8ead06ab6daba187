# SPDX-License-Identifier: Apache-2.0
"""Release of the noisy sums of a step, leaf by leaf, on a grid and with the remainder kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.residual_step import residual_loop
from dpftrl_fast.kernels.threads import run_on_threads

_SHARE = 2**20  # coordinates that are worth a thread


class ReleasedSums:
    """Positions of leaves in the vector of the noise, and the passes over them.

    Parameters
    ----------
    sizes : sequence of int
        Coordinates of each leaf.
    dtype : {"float32", "float64"}
        Of noise and remainder.
    threads : int
        Most threads of a pass.

    Examples
    --------
    >>> sums, noise, remainder = np.array([1.0, -2.0]), np.array([0.3, 0.2]), np.zeros(2)
    >>> released = ReleasedSums([2], "float64", threads=1)
    >>> released.release([sums], noise, remainder, grid=0.5, divisor=2)
    >>> sums.tolist(), remainder.round(2).tolist()
    ([0.75, -1.0], [-0.2, 0.2])
    """

    def __init__(self, sizes: Sequence[int], dtype: str, threads: int) -> None:
        self._dtype = dtype
        ends = np.cumsum(sizes)
        leaf, start, stop = [], [], []
        workers = min(threads, max(1, int(ends[-1]) // _SHARE))
        for i, size in enumerate(sizes):
            cuts = [size * k // workers for k in range(workers + 1)]
            for first, last in itertools.pairwise(cuts):
                if last > first:
                    leaf.append(i)
                    start.append(int(ends[i]) - size + first)
                    stop.append(int(ends[i]) - size + last)
        self._leaf = np.array(leaf, np.int64)
        self._table = np.array([start, stop, [0] * len(start)], np.int64).T.copy()
        self._first = self._table[:, 0] - (ends - np.array(sizes, np.int64))[self._leaf]
        self._workers = workers

    def compile(self, dtypes: set[str]) -> None:
        """Compile the passes for sums of these dtypes, before the first step."""
        for name in dtypes:
            residual_loop(self._dtype, name)

    def release(
        self,
        leaves: Sequence[NDArray[Any]],
        noise: NDArray[Any],
        remainder: NDArray[Any],
        *,
        grid: float,
        divisor: int,
    ) -> None:
        """Replace the sums in `leaves` by noisy ones, in place: see `residual_loop`."""
        dtypes = [leaf.dtype for leaf in leaves]
        width = np.array([leaf.itemsize for leaf in leaves])[self._leaf]
        starts = np.array([leaf.ctypes.data for leaf in leaves])[self._leaf] + width * self._first
        for dtype in sorted({*dtypes}, key=str):
            taken = np.array([other == dtype for other in dtypes])[self._leaf]
            table, at = self._table[taken], starts[taken].astype(np.int64)
            loop = residual_loop(self._dtype, str(dtype))
            numbers = np.empty(0, dtype), noise.dtype.type(grid), dtype.type(divisor)
            shares = [slice(i, None, self._workers) for i in range(self._workers)]
            jobs = [[np.ascontiguousarray(x[share]) for x in (table, at)] for share in shares]
            call = partial(_release, loop, (*numbers, remainder, noise))
            run_on_threads(call, jobs, self._workers)


def _release(loop: Callable[..., None], rest: tuple[Any, ...], job: Sequence[Array]) -> None:
    loop(*job, *rest)
