# SPDX-License-Identifier: Apache-2.0
"""Sums of rounds: exact for every order, within the clip norm between neighbours."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast.federated.sums.grid import (
    check_unit,
    most_contributions,
    noisy_sum,
    sum_unit,
)
from dpftrl_fast.federated.sums.layout import ModelLayout
from dpftrl_fast.federated.sums.round_sum import RoundSum
from dpftrl_fast.kernels.client_sums import add_clipped
from dpftrl_fast.rounding import clip_limit

SHAPES = {"embedding": (120, 300), "bias": (7,), "gate": (3, 5), "dense": (80, 500), "one": ()}


def model(dtype: Any = np.float32) -> dict[str, Any]:
    return {name: np.zeros(shape, dtype) for name, shape in SHAPES.items()}


LAYOUT = ModelLayout(model())


def update(seed: int, scale: float = 1e-2, dtype: Any = np.float32) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        name: np.asarray(scale * rng.standard_normal(shape)).astype(dtype)
        for name, shape in SHAPES.items()
    }


def peaked(seed: int) -> dict[str, Any]:
    """Nearly all of the norm in one coordinate."""
    change = update(seed, 1e-6)
    change["bias"][seed % 7] = 3.0
    return change


def sums(clip_norm: float = 1.0, unit: float = 2.0**-31) -> RoundSum:
    return RoundSum(LAYOUT, clip_norm, unit)


def total_of(updates: Any, **options: Any) -> Any:
    result = sums(**options)
    for each in updates:
        result.add(each)
    return result.total.copy()


def test_one_update_is_clipped_as_a_whole() -> None:
    change = update(1)
    flat = LAYOUT.flatten(change)
    result = sums()

    norm = result.add(change)

    assert norm == pytest.approx(np.linalg.norm(flat), rel=1e-14)
    assert norm > 1.3
    expected = flat * (clip_limit(1.0) / norm)
    np.testing.assert_allclose(result.total * result.unit, expected, rtol=0, atol=2.0**-31)
    assert result.count == 1


def test_small_updates_are_left_as_they_are() -> None:
    result = sums(clip_norm=100.0, unit=2.0**-31)
    change = update(2)
    result.add(change)
    flat = LAYOUT.flatten(change)
    assert np.array_equal(result.total, np.rint(flat * 2.0**31))


def test_the_sum_is_the_kernels_sum() -> None:
    updates = [update(k, 10.0 ** -(k % 4)) for k in range(10)]
    expected = np.zeros(LAYOUT.size, np.int64)
    one_array = ModelLayout([np.zeros(LAYOUT.size)])
    alone = RoundSum(one_array, 1.0, 2.0**-31)
    for each in updates:
        flat = LAYOUT.flatten(each)
        add_clipped(expected, flat, clip_limit(1.0), 2.0**-31)
        alone.add([flat])
    assert np.array_equal(alone.total, expected)
    # Cut into arrays, the squares are added in another order.
    assert np.max(np.abs(total_of(updates) - expected)) <= len(updates)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(12)), st.integers(0, 11))
def test_every_order_gives_the_same_bits(order: list[int], look: int) -> None:
    updates = [peaked(k) if k % 3 == 0 else update(k, 10.0 ** (k % 5 - 3)) for k in range(12)]
    result = sums()
    for place, k in enumerate(order):
        result.add(updates[k])
        if place == look:
            _ = result.total  # what waits in int32 is added now
    assert np.array_equal(result.total, total_of(updates))


def test_many_updates_do_not_overflow_what_waits_in_int32() -> None:
    # Every update has the same sign and 2^26 units in one coordinate: 32 of them are 2^31.
    change = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    change["one"][...] = 2.0**-5
    for _ in itertools.repeat(None, 2):
        result = sums()
        for _ in itertools.repeat(None, 200):
            result.add(change)
        assert result.total[-1] == 200 * 2**26
        assert result.count == 200
        change["one"] *= -1.0
        result.clear()
        assert not result.total.any() and result.count == 0
        for _ in itertools.repeat(None, 33):
            result.add(change)
        assert result.total[-1] == -33 * 2**26
        change["one"] *= -1.0


def layouts_of_memory(change: dict[str, Any]) -> list[dict[str, Any]]:
    fixed = {name: array.copy() for name, array in change.items()}
    for array in fixed.values():
        array.flags.writeable = False
    return [
        {name: array.copy(order="F") for name, array in change.items()},
        {name: array.astype(array.dtype.newbyteorder()) for name, array in change.items()},
        {
            name: np.repeat(array, 2).reshape(*array.shape, 2)[..., 0]
            for name, array in change.items()
        },
        dict(reversed(change.items())),
        fixed,
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_memory_layout_changes_no_bit(dtype: Any) -> None:
    change = update(3, dtype=dtype)
    expected = total_of([change])
    for other in layouts_of_memory(change):
        assert np.array_equal(total_of([other]), expected)


def test_float16_counts_as_the_numbers_that_it_holds() -> None:
    half = update(4, dtype=np.float16)
    wide = {name: array.astype(np.float32) for name, array in half.items()}
    assert np.array_equal(total_of([half]), total_of([wide]))


def test_arrays_of_several_dtypes_in_one_update() -> None:
    change = update(5)
    mixed = {
        name: array.astype(dtype)
        for (name, array), dtype in zip(
            change.items(), itertools.cycle([np.float64, np.float32]), strict=False
        )
    }
    assert np.max(np.abs(total_of([mixed]) - total_of([change]))) <= 1


def wild_updates() -> list[dict[str, Any]]:
    rng = np.random.default_rng(9)
    found = [update(20, 1e30), update(21, 1e-30), peaked(22), update(23, 0.0)]
    for scale in (1e-320, 1e-160, 1e153, 1e155, 1e307):
        found.append(
            {n: np.asarray(scale * rng.uniform(-1, 1, shape)) for n, shape in SHAPES.items()}
        )
    one = update(24, dtype=np.float64)
    one["gate"][1, 1] = 1.7e308
    found.append(one)
    return found


def test_neighbours_differ_by_one_update_within_the_clip_norm() -> None:
    for clip_norm in (1.0, 0.3):
        unit = sum_unit(clip_norm, LAYOUT.size, 1000)
        updates = [*wild_updates(), *(update(k) for k in range(5))]
        whole = total_of(updates, clip_norm=clip_norm, unit=unit)
        for k in range(len(updates)):
            rest = total_of(updates[:k] + updates[k + 1 :], clip_norm=clip_norm, unit=unit)
            square = sum(int(q) ** 2 for q in whole - rest)
            assert square * Fraction(unit) ** 2 <= Fraction(clip_norm) ** 2
            if k == 0:
                assert square * Fraction(unit) ** 2 >= (0.999 * Fraction(clip_norm)) ** 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", SHAPES)
def test_an_update_that_is_not_finite_changes_nothing(name: str, bad: float) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        change = update(6, dtype=dtype)
        change[name].reshape(-1)[-1] = bad
        result = sums()
        result.add(update(7))
        before = result.total.copy()
        assert not math.isfinite(result.add(change))
        assert np.array_equal(result.total, before)
        assert result.count == 1


@pytest.mark.parametrize("name", SHAPES)
def test_nan_of_the_kind_that_signals(name: str) -> None:
    for dtype, integer, bits in (
        (np.float16, np.uint16, 0x7C01),
        (np.float32, np.uint32, 0x7F800001),
        (np.float64, np.uint64, 0x7FF0000000000001),
    ):
        change = update(6, dtype=dtype)
        change[name].reshape(-1).view(integer)[-1] = bits
        result = sums()
        assert not math.isfinite(result.add(change))
        assert not result.total.any() and result.count == 0


def test_an_update_of_another_model_changes_nothing() -> None:
    result = sums()
    result.add(update(8))
    before = result.total.copy()
    with pytest.raises(ValueError, match="lacks 'one'"):
        result.add({name: array for name, array in update(9).items() if name != "one"})
    with pytest.raises(ValueError, match="'gate' must be of float16"):
        result.add({**update(9), "gate": np.zeros((3, 5), int)})
    assert np.array_equal(result.total, before) and result.count == 1


def test_updates_are_left_alone_and_not_kept() -> None:
    change = update(10)
    copies = {name: array.copy() for name, array in change.items()}
    result = sums()
    result.add(change)
    assert all(np.array_equal(change[name], copies[name]) for name in change)
    for array in change.values():
        array[...] = 7.0
    assert np.array_equal(result.total, total_of([copies]))


@pytest.mark.parametrize("look", [False, True], ids=["in int32", "in int64"])
def test_a_cleared_sum_holds_nothing_of_before(look: bool) -> None:
    result = sums()
    for seed in (10, 11):
        result.add(update(seed))
    if look:  # moves the sum from int32 to int64
        assert result.total.any()
    result.clear()
    assert result.count == 0
    result.add(update(12))
    assert np.array_equal(result.total, total_of([update(12)])) and result.count == 1
    result.clear()
    assert not result.total.any()


def test_the_total_cannot_be_written_to() -> None:
    result = sums()
    with pytest.raises(ValueError, match="read-only"):
        result.total[0] = 1


def test_a_sum_is_full_before_int64_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpftrl_fast.federated.sums.round_sum.most_contributions", lambda *_: 2)
    result = sums()
    result.add(update(11))
    result.add(update(12))
    before = result.total.copy()
    with pytest.raises(OverflowError, match="at most 2 updates"):
        result.add(update(13))
    assert np.array_equal(result.total, before) and result.count == 2


def test_memory_does_not_grow_with_clients() -> None:
    size = 100_000
    result = RoundSum(ModelLayout([np.zeros(size, np.float32)]), 1.0, 2.0**-31)
    change = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    result.add([change])
    tracemalloc.start()
    for _ in range(50):
        result.add([change])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size / 2  # bytes


class TestUnit:
    @pytest.mark.parametrize("clip_norm", [1e-100, 1.0, math.nextafter(1.0, 0.0), 0.1, 7.0, 1e100])
    @pytest.mark.parametrize("size", [1, 2, 3, 1000, 2**20, 2**20 + 1, 10**8, 2**36])
    @pytest.mark.parametrize(("contributions", "noise"), [(1, 0.0), (10**5, 1e4), (2**21, 2.0**21)])
    def test_keeps_both_promises(
        self, clip_norm: float, size: int, contributions: int, noise: float
    ) -> None:
        unit = sum_unit(clip_norm, size, contributions, noise)

        bound, grid = Fraction(clip_norm), Fraction(unit)
        assert (contributions + Fraction(noise)) * bound / grid <= 2**62
        assert size * (grid / 2) ** 2 <= (bound / 2**22) ** 2
        assert math.frexp(unit)[0] == 0.5
        assert check_unit(clip_norm, size, unit) == unit
        assert most_contributions(clip_norm, unit) >= contributions

    def test_the_finest_that_is_of_use(self) -> None:
        assert sum_unit(1.0, 1, 1) == 2.0**-31
        assert sum_unit(1.0, 2**20, 2**30) == 2.0**-31
        assert sum_unit(1.0, 2**20 + 1, 2**29) == 2.0**-32
        assert sum_unit(1.0, 1, 2**40) == 2.0**-21

    def test_there_is_none_for_too_many(self) -> None:
        for size, most in ((2**20, 2**30), (2**36, 2**22), (1, 2**40)):
            sum_unit(1.0, size, most)
            sum_unit(1.0, size, most // 2, most / 2)
            with pytest.raises(ValueError, match="contributions"):
                sum_unit(1.0, size, most + 1)
            with pytest.raises(ValueError, match="contributions"):
                sum_unit(1.0, size, most // 2, most / 2 + 0.5)

    @pytest.mark.parametrize(
        ("arguments", "error", "words"),
        [
            ((0.0, 1, 1), ValueError, "clip_norm"),
            ((np.nan, 1, 1), ValueError, "clip_norm"),
            ((1.0, 0, 1), ValueError, "size"),
            ((1.0, 1.5, 1), TypeError, "size"),
            ((1.0, 1, 0), ValueError, "contributions"),
            ((1.0, 1, True), TypeError, "contributions"),
            ((1.0, 1, 1, np.nan), ValueError, "noise"),
            ((1.0, 1, 1, -1.0), ValueError, "noise"),
            ((1.0, 1, 1, 1e300), ValueError, "contributions"),
        ],
    )
    def test_wrong_numbers(self, arguments: Any, error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            sum_unit(*arguments)

    @pytest.mark.parametrize("unit", [2.0**-20, 0.3 * 2.0**-30, np.nan, -(2.0**-31), 2.0**-60, 0.0])
    def test_a_sum_takes_no_other(self, unit: float) -> None:
        with pytest.raises(ValueError, match="unit must be"):
            sums(unit=unit)

    @pytest.mark.parametrize("clip_norm", [0.0, np.nan, np.inf, 1e101, -1.0])
    def test_a_sum_takes_no_such_clip_norm(self, clip_norm: float) -> None:
        with pytest.raises(ValueError, match="clip_norm must be"):
            sums(clip_norm=clip_norm)


class TestNoisySum:
    def test_is_the_rounded_exact_noisy_sum(self) -> None:
        rng = np.random.default_rng(1)
        unit = 2.0**-10
        total = rng.integers(-(2**40), 2**40, 70_000)
        for dtype in (np.float32, np.float64):
            noise = (100 * rng.standard_normal(70_000)).astype(dtype)
            noise[:2] = 2.0**-11, 3 * 2.0**-11  # ties
            result = noisy_sum(total, noise, unit)
            for k in [*range(500), 69_999]:
                exact = int(total[k]) + round(Fraction(float(noise[k])) / Fraction(unit))
                assert Fraction(float(result[k])) == exact * Fraction(unit)

    def test_nothing_but_the_noisy_sum_shows(self) -> None:
        # Of sums and noise that add up to the same, the same leaves: no bit of the sum by itself.
        unit = 2.0**-31
        noise = np.random.default_rng(2).standard_normal(1000)
        shift = np.random.default_rng(3).integers(-(2**62), 2**62, 1000) >> 20
        grid = np.rint(noise / unit).astype(np.int64)
        one = noisy_sum(shift, grid * unit, unit)
        other = noisy_sum(np.zeros(1000, np.int64), (grid + shift) * unit, unit)
        assert np.array_equal(one, other)

    def test_writes_where_it_is_told(self) -> None:
        out = np.full(3, np.nan)
        assert noisy_sum(np.arange(3), np.zeros(3), 0.5, out) is out
        assert out.tolist() == [0.0, 0.5, 1.0]
