# SPDX-License-Identifier: Apache-2.0
"""The price of an unknown end: the tables of docs/plan/horizon.md.

Run `python benches/horizon_table.py`.

Everything is the standard deviation of the noise in the running sum of a single pass, at one
epsilon, over that of the square root of the length at which the stream happens to end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting import SinglePass, sensitivity_squared
from dpftrl_fast.accounting.planner.choice import chosen_mechanism
from dpftrl_fast.mechanisms import BufferedToeplitz
from dpftrl_fast.mechanisms.run_error import mechanism_error, noise_std_at
from dpftrl_fast.mechanisms.toeplitz.long_run import known_end, ratios

ENDS = [10**n for n in range(3, 13)]
Floats = NDArray[np.float64]

_SMALL = 2**12
_J = np.arange(1, _SMALL)
_SQUARES = np.cumsum(np.concatenate([[1.0], np.cumprod((2 * _J - 1) / (2 * _J))]) ** 2)


def root(steps: float) -> float:
    """Return zeta of the square root over so many steps, which is the variance at the last one."""
    if steps <= _SMALL:
        return float(_SQUARES[max(1, int(steps)) - 1])
    return float(known_end(np.array([float(steps)]))[0][0])


def block_ends(first: float, double: bool, growth: float) -> Iterator[tuple[float, float]]:
    """Yield the steps before each block, and its length."""
    start, length = 0.0, first
    while True:
        yield start, length
        start += length
        length = 2.0 * length if double else length**growth


def in_blocks(times: Floats, *, first: float, double: bool, growth: float = 1.7) -> Floats:
    """Return sqrt(zeta) times std at some steps, with a square root in each block.

    Each block has the whole epsilon: a record is in one of them. The noise at the end of each stays
    in all later running sums, and its variance, zeta of the block times that at its end, adds up.
    """
    found = np.empty(times.size)
    for i, t in enumerate(times):
        carried = 0.0
        for start, length in block_ends(first, double, growth):
            if t <= start + length:
                found[i] = math.sqrt(carried + root(length) * root(t - start))
                break
            carried += root(length) ** 2
    return found


def worst_near(end: int, **blocks: float) -> float:
    """Return the largest ratio of blocks between an end and ten times it."""
    times = np.geomspace(end, 10.0 * end, 400)
    known = np.array([root(t) for t in times])
    return float((in_blocks(times, **blocks) / known).max())  # type: ignore[arg-type]


def prices() -> list[list[str]]:
    """Return the rows of the first table."""
    mechanism = BufferedToeplitz.unbounded()
    whole = sensitivity_squared(SinglePass.unbounded(), mechanism)
    last, rms = ratios(mechanism, np.array(ENDS))
    rows = []
    for end, at_end, mean in zip(ENDS, last, rms, strict=True):
        pattern = SinglePass(end)
        against = ["-", "-"]
        if end <= 10**6:
            known = chosen_mechanism("auto", pattern, 1.0, 1e-6)
            error = mechanism_error(known, end)
            own = mechanism_error(mechanism, end)
            price = math.sqrt(whole / sensitivity_squared(pattern, known))
            against = [f"{price * own.last / error.last:.2f}", f"{price * own.rms / error.rms:.2f}"]
        std = math.sqrt(whole) * noise_std_at([end], end, mechanism)[0]
        rows.append(
            [
                f"10^{round(math.log10(end))}",
                f"{root(end):.2f}",
                f"{std:.2f}",
                f"{at_end:.2f}",
                f"{mean:.2f}",
                *against,
                f"{worst_near(end, first=100.0, double=True):.2f}",
                f"{worst_near(end, first=100.0, double=False):.2f}",
            ]
        )
    return rows


def growing() -> list[list[str]]:
    """Return the rows of the second table: zeta of the first steps, with and without a bound."""
    mechanism = BufferedToeplitz.unbounded()
    return [
        [
            f"10^{round(math.log10(end))}",
            f"{root(end):.3f}",
            f"{sensitivity_squared(SinglePass(end), mechanism):.3f}",
        ]
        for end in ENDS
    ]


def by_buffers() -> list[list[str]]:
    """Return the rows of the third table: the largest ratio by the number of buffers."""
    ends = np.unique(np.geomspace(10**2, 10**13, 300).round().astype(np.int64))
    rows = []
    for buffers in range(2, 11):
        mechanism = BufferedToeplitz.unbounded(buffers=buffers)
        worst = max(float(each.max()) for each in ratios(mechanism, ends))
        zeta = sensitivity_squared(SinglePass.unbounded(), mechanism)
        rows.append([str(buffers), f"{zeta:.3f}", f"{worst:.2f}"])
    return rows


def table(rows: list[list[str]]) -> str:
    """Return rows of a table in Markdown, without its head."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    for each in (prices(), growing(), by_buffers()):
        print(table(each), end="\n\n")
