# SPDX-License-Identifier: Apache-2.0
"""Noise of Toeplitz mechanisms beside independent normals.

`pytest benches/bench_toeplitz.py` times each call. `python benches/bench_toeplitz.py` alternates
them, which a shared machine asks for, and prints the table of docs/results/benchmarks.md.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pytest

import dpftrl_fast as dpf
from dpftrl_fast.mechanisms import BandedInverse, BandedToeplitz, BufferedToeplitz, Identity

SIZE = 10**7
ROUNDS = 21

INDEPENDENT = Identity()
TWO_TAPS = BandedInverse.anticorrelated(0.9)
TAPS_16 = BandedInverse.square_root(16)
BUFFERS_2 = BufferedToeplitz([0.98, 0.5], [0.25, 0.2])
BUFFERS_3 = BufferedToeplitz([0.99, 0.9, 0.5], [0.1, 0.1, 0.2])
BANDS_4 = BandedToeplitz([1.0, 0.5, 0.3, 0.2])

# Mechanism, memory, threads, and the most that a residual may take, in times of independent noise.
RESIDUALS: dict[str, tuple[Any, Any, int, float | None]] = {
    "independent": (INDEPENDENT, "stored", 1, None),
    "two taps, re-made": (TWO_TAPS, "regenerate", 1, 2.05),
    "two taps, kept": (TWO_TAPS, "stored", 1, 1.6),
    "16 taps, re-made": (TAPS_16, "regenerate", 1, 15.0),
    "16 taps, kept": (TAPS_16, "stored", 1, None),
    "two buffers": (BUFFERS_2, "stored", 1, 2.0),
    "three buffers": (BUFFERS_3, "stored", 1, 2.3),
    "4 bands": (BANDS_4, "stored", 1, None),
    "independent, 2 threads": (INDEPENDENT, "stored", 2, None),
    "two taps, re-made, 2 threads": (TWO_TAPS, "regenerate", 2, None),
    "two buffers, 2 threads": (BUFFERS_2, "stored", 2, None),
}
STEPS = ["independent", "two taps, re-made", "two taps, kept", "two buffers"]


class Source:
    """A source that goes on, past the steps at which its sums are shorter."""

    def __init__(self, name: str, call: str, size: int) -> None:
        self.mechanism, memory, threads, _ = RESIDUALS[name]
        self.noise = dpf.ToeplitzNoise(
            size, 1.0, self.mechanism, seed=1, memory=memory, threads=threads
        )
        self.out = np.zeros(size, np.float32)
        for _ in range(16):
            self.noise.residual(self.out)
        self.next = getattr(self.noise, call)
        self()

    def __call__(self) -> np.ndarray[Any, Any]:
        result: np.ndarray[Any, Any] = self.next(self.out)
        return result


@pytest.mark.parametrize("call", ["residual", "step"])
@pytest.mark.parametrize("name", RESIDUALS)
def test_toeplitz(benchmark: Any, name: str, call: str) -> None:
    size = SIZE if benchmark.enabled else 2**14
    benchmark.group = f"{call} of a Toeplitz mechanism, d = {size}"
    source = Source(name, call, size)
    found = benchmark(source).copy()
    plain = dpf.ToeplitzNoise(size, 1.0, source.mechanism, seed=1)
    end = plain.prefix(source.noise.t)
    if call == "residual":  # x_t, up to the rounding of two sums
        end = end - plain.prefix(source.noise.t - 1)
    np.testing.assert_allclose(found, end, atol=1e-4)


def alternate(sources: dict[str, Source], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call, taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(rounds):
        for name, source in sources.items():
            begin = time.perf_counter()
            source()
            times[name].append(time.perf_counter() - begin)
    return times


def table(rounds: int) -> None:
    info = dpf.build_info()
    print(f"{info['compiler']}, {info['build_type']}, target {info['active_target']}, d = {SIZE}\n")
    sources = {name: Source(name, "residual", SIZE) for name in RESIDUALS}
    sources |= {f"{name}: step": Source(name, "step", SIZE) for name in STEPS}
    times = {name: np.median(t) for name, t in alternate(sources, rounds).items()}
    one = times["independent"]
    print(f"independent noise: {one / SIZE * 1e9:.2f} ns a coordinate\n")
    print("| call | at most | times independent noise |\n|---|---|---|")
    for name, seconds in times.items():
        most = RESIDUALS[name][3] if name in RESIDUALS else None
        print(f"| {name} | {'' if most is None else most} | {seconds / one:.2f} |")
    print("\n| 1 thread / 2 threads | at least | |\n|---|---|---|")
    for name in ("independent", "two taps, re-made", "two buffers"):
        print(f"| {name} | 1.8 | {times[name] / times[f'{name}, 2 threads']:.2f} |")


if __name__ == "__main__":
    table(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
