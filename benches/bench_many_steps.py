# SPDX-License-Identifier: Apache-2.0
"""The noise of many steps of a short vector in one call, beside one call a step.

`pytest benches/bench_many_steps.py` times each call. `python benches/bench_many_steps.py`
alternates them, which a shared machine asks for, and prints the table of
docs/results/benchmarks.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

import dpftrl_fast as dpf
from dpftrl_fast.mechanisms import BandedInverse, BufferedToeplitz, Identity

STEPS = 1024
ROUNDS = 101
SIZES = (1, 8, 50, 100)
KINDS: dict[str, Any] = {
    "independent": Identity(),
    "three buffers": BufferedToeplitz([0.99, 0.9, 0.5], [0.1, 0.1, 0.2]),
    "16 taps": BandedInverse.square_root(16),
    "vanilla tree": "vanilla",
    "Honaker tree": "honaker",
}
BARE = 2**17  # normals of one vector: the cost of a normal where nothing is wasted

Dtype = Literal["float32", "float64"]


def source(kind: str, size: int, dtype: Dtype) -> Any:
    if isinstance(KINDS[kind], str):
        return dpf.TreeNoise(size, 1.0, variant=KINDS[kind], seed=1, dtype=dtype, threads=1)
    return dpf.ToeplitzNoise(size, 1.0, KINDS[kind], seed=1, dtype=dtype, threads=1)


def one_by_one(noise: Any, rows: np.ndarray[Any, Any]) -> None:
    for row in rows:
        noise.step(row)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_many_steps(benchmark: Any, size: int, kind: str) -> None:
    benchmark.group = f"{STEPS} steps of {size} coordinates"
    noise = source(kind, size, "float64")
    rows = benchmark.pedantic(lambda: noise.next_steps(STEPS), rounds=5 if benchmark.enabled else 1)
    plain = source(kind, size, "float64")
    plain.advance_to(noise.t - STEPS)
    want = np.empty((100, size))
    one_by_one(plain, want)
    np.testing.assert_array_equal(rows[:100], want)


def alternate(calls: dict[Any, Callable[[], Any]], rounds: int) -> dict[Any, float]:
    """Median seconds of each call, taken in turn, in time of this thread on the processor."""
    times: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.thread_time()
            call()
            times[name].append(time.thread_time() - begin)
    return {name: float(np.median(seconds)) for name, seconds in times.items()}


def table(rounds: int) -> None:
    info = dpf.build_info()
    print(f"{info['compiler']}, {info['build_type']}, target {info['active_target']}\n")
    dtypes: tuple[Dtype, Dtype] = ("float64", "float32")
    for dtype in dtypes:
        bare, room = source("independent", BARE, dtype), np.empty(BARE, dtype)
        calls: dict[Any, Callable[[], Any]] = {"bare": lambda b=bare, r=room: b.residual(r)}
        for size in SIZES:
            rows = np.empty((STEPS, size), dtype)
            for kind in KINDS:
                many, one = source(kind, size, dtype), source(kind, size, dtype)
                calls[kind, size, "many"] = lambda m=many, r=rows: m.next_steps(STEPS, r)
                calls[kind, size, "one"] = lambda o=one, r=rows: one_by_one(o, r)
        seconds = alternate(calls, rounds)
        normal = seconds["bare"] / BARE
        print(f"{dtype}: {normal * 1e9:.2f} ns a normal\n")
        print("| noise | " + " | ".join(f"d = {size}" for size in SIZES) + " |")
        print("|---" * (len(SIZES) + 1) + "|")
        for kind in KINDS:
            cells = []
            for size in SIZES:
                many, one = (seconds[kind, size, which] / STEPS for which in ("many", "one"))
                cells.append(f"{many * 1e9:.0f} ns; {one / many:.1f}; {many / normal / size:.1f}")
            print(f"| {kind} | " + " | ".join(cells) + " |")
        print()


if __name__ == "__main__":
    table(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
