# SPDX-License-Identifier: Apache-2.0
"""Jobs and sums over many rows on several threads: the same bits for every number of threads.

The loops add up chunks of `CHUNK` rows and then the sums of the chunks in their order. Here the
chunks are given to threads, and their sums are added in that order too. A batch of one chunk stays
in the calling thread: a sum of 4096 rows is done before others would have started.

The sums of blocks of `BLOCK` rows are added with their rounding errors (`dpftrl_fast.rounding`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.loops.dense import CHUNK
from dpftrl_fast.rounding import two_sum

T = TypeVar("T")

#: Most rows whose sum is made of the plain sums of chunks.
BLOCK = 16 * CHUNK


def run_on_threads(call: Callable[[T], object], jobs: Sequence[T], threads: int) -> None:
    """Call a function with each of the jobs, on at most so many threads; raise an error of one.

    Each job must write to memory of its own. A single job, or one thread, stays in the calling
    thread.

    Examples
    --------
    >>> squares = [0] * 4
    >>> def square(k):
    ...     squares[k] = k * k
    >>> run_on_threads(square, range(4), threads=2)
    >>> squares
    [0, 1, 4, 9]
    """
    if threads == 1 or len(jobs) < 2:
        for job in jobs:
            call(job)
        return
    with ThreadPoolExecutor(min(threads, len(jobs))) as pool:
        for done in [pool.submit(call, job) for job in jobs]:
            done.result()


def sum_of_chunks(
    loop: Callable[..., None],
    cut: Callable[[int, int], tuple[Array, ...]],
    slots: int,
    rest: tuple[Any, ...],
    out: Array,
    threads: int,
) -> None:
    """Set `out` to the sum over all slots (rows or users), in chunks.

    ``cut(start, stop)`` gives the arrays of the slots from start to stop - 1, and ``loop(*arrays,
    *rest, out)`` sets `out` to the sum over them.

    Examples
    --------
    >>> import numpy as np
    >>> def loop(x, factor, out):
    ...     out[:] = factor * x.sum()
    >>> x, out = np.ones(10_000), np.empty(1)
    >>> sum_of_chunks(loop, lambda start, stop: (x[start:stop],), 10_000, (2.0,), out, 3)
    >>> out.item()
    20000.0
    """
    if slots <= BLOCK:
        _sum_of_block(loop, cut, 0, slots, rest, out, threads)
        return
    total, low, part = np.zeros_like(out), np.zeros_like(out), np.empty_like(out)
    for start in range(0, slots, BLOCK):
        _sum_of_block(loop, cut, start, min(start + BLOCK, slots), rest, part, threads)
        total, error = two_sum(total, part)
        low += error
    np.add(total, low, out=out)


def _sum_of_block(
    loop: Callable[..., None],
    cut: Callable[[int, int], tuple[Array, ...]],
    first: int,
    stop: int,
    rest: tuple[Any, ...],
    out: Array,
    threads: int,
) -> None:
    if threads == 1 or stop - first <= CHUNK:
        loop(*cut(first, stop), *rest, out)
        return
    starts = [*range(first, stop, CHUNK)]
    workers = min(threads, len(starts))
    parts = [np.empty_like(out) for _ in range(workers)]
    out.fill(0.0)
    with ThreadPoolExecutor(workers) as pool:
        for wave in range(0, len(starts), workers):
            jobs = [
                pool.submit(loop, *cut(start, min(start + CHUNK, stop)), *rest, part)
                for start, part in zip(starts[wave : wave + workers], parts, strict=False)
            ]
            for job, part in zip(jobs, parts, strict=False):
                job.result()
                out += part
