# SPDX-License-Identifier: Apache-2.0
"""The squared sensitivity of a listed order, id by id, and what orders the core refuses."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from participation_oracle import zeta_exact, zeta_released_honaker, zeta_released_vanilla
from tree_options import zeta_by_id, zeta_of

from dpftrl_fast import _core
from dpftrl_fast import accounting as acc

FAST = settings(max_examples=150, deadline=None, derandomize=True)

ZETA: list[tuple[Any, dict[str, Any]]] = [
    (zeta_exact, {}),
    (zeta_released_vanilla, {"bound": "released", "variant": "vanilla"}),
    (zeta_released_honaker, {"bound": "released", "variant": "honaker"}),
]
IDS = [0, 1, 2, 7, 10**15, 2**63 - 1]  # the last ones are no places of a table


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[list[int]], list[tuple[int, bool]]]:
    """The ids of each step, none and one twice among them, and trees."""
    known = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=4))
    steps = draw(st.lists(st.lists(st.sampled_from(known), max_size=4), min_size=1, max_size=24))
    steps[-1] = steps[-1] or [known[0]]
    cuts = draw(st.sets(st.integers(1, 23), max_size=4))
    ends = [*sorted(t for t in cuts if t < len(steps)), len(steps)]
    return steps, [(n, draw(st.booleans())) for n in np.diff([0, *ends]).tolist()]


@FAST
@given(runs())
def test_every_id_against_the_definition(run: Any) -> None:
    steps, trees = run
    options = {"tree_lengths": [n for n, _ in trees], "complete": [c for _, c in trees]}
    flat = [i for step in steps for i in step]
    orders = [
        acc.FixedOrder.from_steps(steps),
        acc.FixedOrder(np.array(flat), np.cumsum([0, *map(len, steps)])),
    ]
    if all(len(step) <= 1 for step in steps):
        orders.append(acc.FixedOrder([step[0] if step else -1 for step in steps]))
    for zeta, kind in ZETA:
        wanted = {
            i: zeta([t for t, step in enumerate(steps) for j in step if j == i], trees)
            for i in sorted(set(flat))
        }
        for order in orders:
            ids, got = zeta_by_id(order, **options, **kind)
            assert ids.tolist() == list(wanted)
            assert ids.dtype == np.int64
            if zeta is zeta_released_honaker:
                assert got.dtype == np.float64
                assert np.all(got >= np.array(list(wanted.values())) * (1 - 1e-13))
                assert np.allclose(got, list(wanted.values()), rtol=1e-11, atol=0)
            else:
                assert got.dtype == np.int64
                assert got.tolist() == list(wanted.values())
            largest = zeta_of(order, **options, **kind)
            assert type(largest) is type(got.max().item())
            assert largest == got.max()
    assert zeta_of(orders[0], bound="level", **options) >= zeta_of(orders[0], **options)


def exact_honaker(uses: list[int], steps: int) -> Fraction:
    """The released zeta of one tree without completion, as a fraction.

    Under a node of an even index a leaf weighs w = 2 - 2^-j (j: steps to the right on its way up,
    from the node before the first one to the left), and the node's part has the variance
    4/3 (1 - 4^-(level + 1)).
    """
    total, weight = Fraction(0), dict.fromkeys(uses, Fraction(1))
    for level in range(steps.bit_length()):
        nodes = {use >> level for use in weight if (use >> level) % 2 == 0}
        for node in nodes:
            if (node + 1) << level <= steps:
                under = sum(w for use, w in weight.items() if use >> level == node)
                total += under**2 / (Fraction(4, 3) * (1 - Fraction(1, 4 ** (level + 1))))
        weight = {use: 1 + w / 2 * (use >> level & 1) for use, w in weight.items()}
    return total


def test_weights_of_an_order_are_rounded_up() -> None:
    """Sums of float64 are as often below the exact value as above it: none may be below."""
    rng = np.random.default_rng(3)
    for steps in (9, 31, 100, 257):
        for count in (1, 2, 5, 9):
            uses = sorted(rng.choice(steps, count, replace=False).tolist())
            order = np.full(steps, -1)
            order[uses] = 4
            got = zeta_of(acc.FixedOrder(order), bound="released")
            exact = exact_honaker(uses, steps)
            rough = zeta_released_honaker(uses, [(steps, False)])
            assert float(exact) == pytest.approx(rough, rel=1e-11)
            assert exact <= Fraction(got) <= exact * (1 + Fraction(1, 10**11))


def test_level_wise_bound_of_an_order() -> None:
    # Id 0 is the worst at the leaves, id 1 (twice under one node of four) at the root.
    order = acc.FixedOrder([1, 1, -1, -1, 0, -1, 0, -1, 0, -1, -1, -1])
    assert zeta_by_id(order)[1].tolist() == [3 + 3 + 4 + 1 + 4, 2 + 4 + 4 + 4]
    assert zeta_of(order, bound="level") == 3 + 4 + 5 + 4


def test_order_of_numbers_does_not_matter() -> None:
    rng = np.random.default_rng(5)
    order = rng.integers(0, 50, 3000)
    names = rng.choice(2**62, 50, replace=False)
    for _, kind in ZETA:
        _, a = zeta_by_id(acc.FixedOrder(order), restart_every=700, **kind)
        renamed, b = zeta_by_id(acc.FixedOrder(names[order]), restart_every=700, **kind)
        assert np.array_equal(b, a[np.argsort(names)])
        assert np.array_equal(renamed, np.sort(names))


def test_levels_beyond_one_pass() -> None:
    # 2^14 + 3 steps, so that the levels take several passes over the uses.
    steps = 2**14 + 3
    uses = [0, 1, 2, 4095, 4096, 8192, 12345, steps - 1]
    order = np.full(steps, -1)
    order[uses] = 3
    for complete, end in ((False, steps), ("all", 2**15)):
        wanted = 0
        for level in range(16):
            for index in {use >> level for use in uses}:
                if (index + 1) << level <= end:
                    wanted += sum(use >> level == index for use in uses) ** 2
        assert zeta_of(acc.FixedOrder(order), complete=complete) == wanted


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"bound": "level"}, ValueError, "bound must be one of 'exact', 'released', got 'level'"),
        (
            {"variant": "none"},
            ValueError,
            "variant must be one of .*, got 'none'",
        ),
        ({"restart_every": 0}, ValueError, "restart_every must be an integer >= 1, got 0"),
        ({"tree_lengths": [1, 1]}, ValueError, "add up to the 3 steps of the run, got 2"),
    ],
)
def test_wrong_options(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        zeta_by_id(acc.FixedOrder([0, 1, 0]), **wrong)


def test_only_orders_have_values_of_ids() -> None:
    with pytest.raises(TypeError, match="order must be a FixedOrder, got SinglePass"):
        zeta_by_id(acc.SinglePass(3))  # type: ignore[arg-type]


# ---- The core, called with arrays that Python code would not send ----

STEPS = 300
TREES = [(STEPS, 1, False)]


def arguments(**changes: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = {
        "ids": np.zeros(STEPS, np.int64),
        "offsets": np.arange(STEPS + 1),
        "out": np.empty(1, np.int64),
    }
    arrays.update(changes)
    return {"trees": TREES, "statistic": "all_nodes", **arrays}


def misaligned(n: int) -> Any:
    return np.zeros(8 * n + 1, np.uint8)[1:].view(np.int64)


ZEROS = np.zeros(STEPS, np.int64)
OFFSETS = np.arange(STEPS + 1)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"trees": []}, ValueError, "at least one tree, got none"),
        ({"trees": [(0, 1, False)]}, ValueError, "trees must be"),
        ({"trees": [(1, 0, False)]}, ValueError, "trees must be"),
        ({"trees": [(2**40, 2, False)]}, ValueError, "at most 2\\^40 steps"),
        ({"trees": [(2**63, 2**63, False)]}, ValueError, "at most 2\\^40 steps"),
        ({"trees": [(2**40, 1, False), (1, 1, True)]}, ValueError, "at most 2\\^40 steps"),
        ({"trees": [(-1, 1, False)]}, TypeError, "incompatible"),
        ({"trees": [(STEPS + 1, 1, False)]}, ValueError, "offsets must have one element more"),
        ({"statistic": "odd"}, ValueError, "statistic must be"),
        ({"ids": ZEROS - 1}, ValueError, "ids must be integers in \\[0, 1\\), got -1"),
        ({"ids": ZEROS + 1}, ValueError, "ids must be integers in \\[0, 1\\), got 1"),
        ({"ids": ZEROS + 2**62}, ValueError, "ids must be integers in"),
        ({"ids": ZEROS[:-1].copy()}, ValueError, "offsets must go from 0"),
        ({"ids": ZEROS.astype(np.int32)}, TypeError, "ids must be a C-contiguous"),
        ({"ids": ZEROS.astype(np.uint64)}, TypeError, "ids must be a C-contiguous"),
        ({"ids": ZEROS.astype(">i8")}, TypeError, "ids must be a C-contiguous"),
        ({"ids": ZEROS.reshape(-1, 1)}, TypeError, "ids must be a C-contiguous"),
        ({"ids": np.zeros(2 * STEPS, np.int64)[::2]}, TypeError, "ids must be a C-contiguous"),
        ({"ids": np.broadcast_to(np.int64(0), STEPS)}, TypeError, "ids must be a C-contiguous"),
        ({"ids": ZEROS.tolist()}, TypeError, "incompatible"),
        ({"offsets": OFFSETS[:-1].copy()}, ValueError, "one element more than the 300 steps"),
        ({"offsets": OFFSETS + 1}, ValueError, "offsets must go from 0"),
        ({"offsets": OFFSETS[::-1].copy()}, ValueError, "offsets must go from 0"),
        ({"offsets": np.r_[0, 2**62, OFFSETS[2:]]}, ValueError, "offsets must go from 0"),
        ({"offsets": np.r_[0, -5, OFFSETS[2:]]}, ValueError, "offsets must go from 0"),
        ({"offsets": OFFSETS.astype(float)}, TypeError, "offsets must be a C-contiguous"),
        ({"out": np.empty(0, np.int64)}, ValueError, "ids must be integers in \\[0, 0\\)"),
        ({"out": np.empty(1)}, TypeError, "out must be a writable"),
        ({"out": np.empty(2, np.int64)[::2][:1].astype(">i8")}, TypeError, "out must be"),
        ({"out": np.empty(4, np.int64)[::2]}, ValueError, "not contiguous"),
        ({"out": misaligned(1)}, ValueError, "misaligned"),
        ({"out": np.broadcast_to(np.int64(0), 1)}, ValueError, "read-only"),
    ],
)
def test_wrong_arrays(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _core.order_counts(**arguments(**changes))
