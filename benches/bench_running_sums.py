# SPDX-License-Identifier: Apache-2.0
"""Private running sums of many steps beside the time of making their noise.

`pytest benches/bench_running_sums.py` times each call. `python benches/bench_running_sums.py`
alternates them, and prints the table of docs/streams/running_sums.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dpftrl_fast as dpf

SIZE, STEPS, BLOCK = 50, 10**6, 10**4


def noise(steps: int) -> Callable[[], None]:
    """Make the noise of the steps, in blocks, and nothing else."""
    source = dpf.PrefixSum(SIZE, STEPS, 1.0, 4.0).plan.noise(SIZE, dtype="float64", threads=1)

    def call() -> None:
        for _ in range(steps // BLOCK):
            source.next_steps(BLOCK)

    return call


def sums(steps: int, **change: Any) -> Callable[[], None]:
    """Take the steps with one record each, in blocks."""
    given = {"clip_norm": 1.0, **change}
    running = dpf.PrefixSum(SIZE, STEPS, noise_multiplier=4.0, threads=1, **given)
    records = np.random.default_rng(0).normal(size=(BLOCK, SIZE))

    def call() -> None:
        for _ in range(steps // BLOCK):
            running.add_steps(records)

    return call


def one_by_one(steps: int) -> Callable[[], None]:
    """Take the steps by calls of `add`."""
    running = dpf.PrefixSum(SIZE, STEPS, 1.0, 4.0, threads=1)
    records = np.random.default_rng(0).normal(size=(BLOCK, SIZE))

    def call() -> None:
        for t in range(steps):
            running.add(records[t % BLOCK])

    return call


CASES: dict[str, Callable[[int], Callable[[], None]]] = {
    "noise alone": noise,
    "add_steps, clipped": sums,
    "add_steps, bounds": lambda steps: sums(steps, clip_norm=None, bounds=(-1, 1)),
    "add, clipped": one_by_one,
}


@pytest.mark.parametrize("name", CASES)
def test_steps(benchmark: Any, name: str) -> None:
    benchmark.group = f"{BLOCK} steps of {SIZE} coordinates"
    benchmark.pedantic(CASES[name](BLOCK), rounds=3, iterations=1)


def main() -> None:
    """Print the median time of a step and its ratio to the noise alone."""
    rounds, steps = 9, 5 * BLOCK
    times: dict[str, list[float]] = {name: [] for name in CASES}
    calls = {name: make(steps) for name, make in CASES.items()}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - begin) / steps)
    least = float(np.median(times["noise alone"]))
    for name, seen in times.items():
        each = float(np.median(seen))
        print(f"{name:20} {each * 1e9:8.0f} ns a step  {each / least:6.2f}")


if __name__ == "__main__":
    main()
