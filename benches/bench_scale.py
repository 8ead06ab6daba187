# SPDX-License-Identifier: Apache-2.0
"""Cost of a step against the model's size and against the step, for mechanisms beside the tree.

`pytest benches/bench_scale.py` runs everything small. `python benches/bench_scale.py FOLDER` prints
the tables of docs/results/scale.md and writes its picture, ``scale.png``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import dpftrl_fast as dpf
from dpftrl_fast.mechanisms import BandedInverse, BufferedToeplitz
from dpftrl_fast.plots import Line, Panel, panels_png

#: Coordinates that are made at a time where nothing is kept.
WINDOW = 2**20
TAPS = BandedInverse.anticorrelated(0.98)
BUFFERS = BufferedToeplitz((0.99, 0.875), (0.53125, 0.4375))
KEY = bytes(range(32))
#: Bands of a banded mechanism over epochs of so many steps: it keeps one vector less.
BANDS = 100


class Windows:
    """Two taps without a vector of state: a source for each window, which keeps its position."""

    name = "two taps, re-made in windows"

    def __init__(self, size: int) -> None:
        self._out = np.empty(min(size, WINDOW), np.float32)
        self._noises = [
            dpf.ToeplitzNoise(
                min(WINDOW, size - offset), 1.0, TAPS, key=KEY, memory="regenerate", threads=1,
                offset=offset,
            )
            for offset in range(0, size, WINDOW)
        ]  # fmt: skip

    @property
    def kept(self) -> int:
        return max(noise.allocated_vectors for noise in self._noises)

    def advance_to(self, t: int) -> None:
        """Take up a run whose residuals were returned up to step t: the position is all."""
        for noise in self._noises if t else ():
            noise.load_state_dict(
                {**noise.state_dict(), "t": t, "last_returned": [0, t]}, allow_fork=True
            )

    def residual(self) -> np.ndarray[Any, Any]:
        """Make all windows of the next residual, and return the last."""
        for noise in self._noises:
            part = self._out[: noise.size]
            noise.residual(part)
        return part


class Kept:
    """A source that keeps its vectors between the steps."""

    def __init__(self, name: str, noise: Any) -> None:
        self.name, self._noise = name, noise
        self._out = np.empty(noise.size, np.float32)

    @property
    def kept(self) -> int:
        return int(self._noise.allocated_vectors)

    def advance_to(self, t: int) -> None:
        self._noise.advance_to(t)

    def residual(self) -> np.ndarray[Any, Any]:
        self._noise.residual(self._out)
        return self._out


def buffers(size: int) -> Kept:
    noise = dpf.ToeplitzNoise(size, 1.0, BUFFERS, key=KEY, threads=1)
    return Kept("two buffers (BLT 2)", noise)


def tree(size: int) -> Kept:
    return Kept("tree, Honaker, stored", dpf.TreeNoise(size, 1.0, key=KEY, threads=1))


SOURCES: Sequence[Callable[[int], Any]] = (Windows, buffers, tree)


class Cost(NamedTuple):
    """Of a step: seconds to make it without saved vectors, seconds of later ones, vectors kept."""

    reach: float
    seconds: float
    vectors: int


def cost(make: Callable[[int], Any], size: int, t: int, repeats: int) -> tuple[str, Cost]:
    """Return the cost of steps from t on, the least of `repeats`, in time of this process alone."""
    source = make(size)
    begin = time.process_time()
    source.advance_to(t - 1)
    source.residual()
    reach = time.process_time() - begin
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        source.residual()
        seconds.append(time.process_time() - begin)
    return source.name, Cost(reach, min(seconds), source.kept)


def test_windows_are_the_whole_vector() -> None:
    whole = dpf.ToeplitzNoise(WINDOW + 5, 1.0, TAPS, key=KEY, threads=1)
    windows, resumed = Windows(WINDOW + 5), Windows(WINDOW + 5)
    for _ in range(3):
        expected = whole.residual()[WINDOW:].copy()
        np.testing.assert_array_equal(windows.residual(), expected)
    resumed.advance_to(2)
    np.testing.assert_array_equal(resumed.residual(), expected)
    two = buffers(10)
    two.residual()
    assert windows.kept == 0 and two.kept == 2


@pytest.mark.parametrize("make", SOURCES)
def test_step(benchmark: Any, make: Callable[[int], Any]) -> None:
    size = 10**7 if benchmark.enabled else 10**4
    source = make(size)
    benchmark.group = f"residual, d = {size}"
    found = benchmark(source.residual)
    assert np.isfinite(found).all() and found.any()


def by_size(sizes: Sequence[int], kept_up_to: int) -> dict[str, dict[int, Cost]]:
    """Return costs of step 9, whose tree has two nodes, by source and size."""
    found: dict[str, dict[int, Cost]] = {}
    for make in SOURCES:
        for size in sizes:
            if make is Windows or size <= kept_up_to:
                name, each = cost(make, size, 9, 3 if size >= 10**8 else 9)
                found.setdefault(name, {})[size] = each
    return found


def by_step(size: int, steps: Sequence[int]) -> dict[str, dict[int, Cost]]:
    """Return costs of the steps of one size, by source and step."""
    found: dict[str, dict[int, Cost]] = {}
    for make in SOURCES:
        for t in steps:
            name, each = cost(make, size, t, 9)
            found.setdefault(name, {})[t] = each
    return found


def _size(count: float) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f}"


def table(folder: Path) -> None:
    info = dpf.build_info()
    print(f"{info['compiler']}, target {info['active_target']}, one thread, float32\n")
    sizes = [10**k for k in range(3, 10)]
    found = by_size(sizes, 10**8)
    print("| d | " + " | ".join(found) + f" | {BANDS} bands elsewhere, kept |")
    print("|---|" + "---|" * (len(found) + 1))
    for size in sizes:
        cells = []
        for rows in found.values():
            each = rows.get(size)
            words = "" if each is None else f"{each.seconds / size * 1e9:.2f} ns"
            cells.append(f"{words}, {_size(4 * size * each.vectors)}" if each else "")
        print(
            f"| 10^{len(str(size)) - 1} | {' | '.join(cells)} | {_size(4 * size * (BANDS - 1))} |"
        )
    size, steps = 10**4, [10**k for k in range(7)]
    later = by_step(size, steps)
    print(f"\nd = {size:,}: microseconds of a step; of one without saved vectors; vectors\n")
    print("| t | " + " | ".join(later) + " |")
    print("|---|" + "---|" * len(later))
    for t in steps:
        cells = [
            f"{rows[t].seconds * 1e6:.1f}; {rows[t].reach * 1e6:,.0f}; {rows[t].vectors}"
            for rows in later.values()
        ]
        print(f"| {t:,} | {' | '.join(cells)} |")
    speed = [
        Line(name, [*rows], [each.seconds / size * 1e9 for size, each in rows.items()])
        for name, rows in found.items()
    ]
    bands = f"{BANDS} bands, elsewhere"
    memory = [
        Line(name, [*rows], [4 * max(n * each.vectors, min(n, WINDOW)) for n, each in rows.items()])
        for name, rows in found.items()
    ]
    memory.append(Line(bands, sizes, [4 * (BANDS - 1) * n for n in sizes], dashed=True))
    reach = [
        Line(name, [*rows], [each.reach * 1e6 for each in rows.values()])
        for name, rows in later.items()
    ]
    panels = [
        Panel("one step", "coordinates d", "ns a coordinate", speed, log_x=True, log_y=True),
        Panel("state, or window", "coordinates d", "bytes", memory, log_x=True, log_y=True),
        Panel(
            f"step t from nothing, d = {size:,}", "step t", "microseconds", reach, log_x=True,
            log_y=True,
        ),
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scale.png").write_bytes(panels_png(panels))


if __name__ == "__main__":
    table(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
