# SPDX-License-Identifier: Apache-2.0
"""Squared sensitivity: our program against a plain memoised one, and the sizes of real runs.

The groups ``growth at T = ...`` double the steps at a fixed number of uses and a separation that
grows with them: the plain program's time grows with the square to the cube of the separation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from separation_program import plain_min_separation

from dpftrl_fast import accounting as acc
from dpftrl_fast.mechanisms import Tree

# (T, E, b): zeta
GROWTH = {
    (64, 4, 8): 56,
    (128, 4, 16): 60,
    (256, 5, 32): 81,
    (512, 6, 32): 140,
    (1024, 8, 64): 232,
    (2000, 20, 100): 425,
}
LARGE = {
    (10_000, 100, 100): 14351,
    (69_750, 50, 1395): 4926,
    (1_000_000, 100, 10_000): 8670,
}


def _is_only_a_test(benchmark: Any) -> bool:
    return bool(benchmark.disabled)


def _name(size: Any) -> str:
    return "-".join(map(str, size)) if isinstance(size, tuple) else str(size)


def _ours(size: tuple[int, int, int]) -> int | float:
    return acc.sensitivity_squared(acc.MinSeparation(*size))


def _plain(size: tuple[int, int, int]) -> int:
    steps, most, separation = size
    return plain_min_separation([(steps, False)], most, separation)


@pytest.mark.parametrize("size", GROWTH, ids=_name)
@pytest.mark.parametrize("program", [_ours, _plain], ids=["dpftrl_fast", "plain"])
def test_growth(benchmark: Any, program: Any, size: tuple[int, int, int]) -> None:
    benchmark.group = f"growth at T = {size[0]}"
    if program is _plain and size[0] > 512 and _is_only_a_test(benchmark):
        size = (512, 6, 32)
    repeats = 20 if program is _ours else 3
    got = benchmark.pedantic(program, (size,), rounds=repeats, warmup_rounds=program is _ours)
    assert got == GROWTH[size]


@pytest.mark.parametrize("size", LARGE, ids=_name)
@pytest.mark.benchmark(group="minimum separation")
def test_min_separation(benchmark: Any, size: tuple[int, int, int]) -> None:
    assert benchmark.pedantic(_ours, (size,), rounds=5, warmup_rounds=1) == LARGE[size]


@pytest.mark.parametrize("variant", ["vanilla", "honaker"])
@pytest.mark.benchmark(group="minimum separation, released prefixes, (2000, 20, 100)")
def test_released(benchmark: Any, variant: Any) -> None:
    run = acc.MinSeparation(2000, 20, 100)

    def released() -> int | float:
        return acc.sensitivity_squared(run, Tree(variant=variant), bound="released")

    assert benchmark.pedantic(released, rounds=3) <= acc.sensitivity_squared(run)


@pytest.fixture(scope="module")
def orders() -> dict[bool, acc.FixedOrder]:
    """Ids at random, by whether it is small: 10^7 uses of 10^6 ids in 10^5 steps."""
    rng = np.random.default_rng(0)
    return {
        small: acc.FixedOrder(
            rng.integers(0, ids, uses), np.linspace(0, uses, steps + 1).astype(int)
        )
        for small, uses, ids, steps in (
            (True, 10**4, 10**3, 10**2),
            (False, 10**7, 10**6, 10**5),
        )
    }


@pytest.mark.parametrize("kind", ["exact", "vanilla", "honaker"])
@pytest.mark.benchmark(group="order of 10^7 uses of 10^6 ids")
def test_order(benchmark: Any, orders: dict[bool, acc.FixedOrder], kind: str) -> None:
    order = orders[_is_only_a_test(benchmark)]
    options: dict[str, Any] = (
        {} if kind == "exact" else {"bound": "released", "mechanism": Tree(variant=kind)}
    )

    def largest() -> int | float:
        return acc.sensitivity_squared(order, **options)

    assert benchmark.pedantic(largest, rounds=3) >= order.most_uses()


@pytest.mark.benchmark(group="order of 10^7 uses of 10^6 ids")
def test_order_by_id(benchmark: Any, orders: dict[bool, acc.FixedOrder]) -> None:
    order = orders[_is_only_a_test(benchmark)]
    ids, values = benchmark.pedantic(acc.sensitivity_squared_by_id, (order,), rounds=3)
    assert np.array_equal(ids, np.unique(order.ids))
    assert values.max() == acc.sensitivity_squared(order)
