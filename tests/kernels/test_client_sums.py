# SPDX-License-Identifier: Apache-2.0
"""Clipped updates in integers, beside Python's own numbers and exact fractions."""

from __future__ import annotations

import ctypes
import math
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numba
import numpy as np
import pytest
from numba import types

from dpftrl_fast.kernels.client_sums import IntegerSum, Part, add_clipped, blocks_of, measure
from dpftrl_fast.kernels.jit import _OPTIONS, read_only, writable
from dpftrl_fast.kernels.loops import client as client_loops
from dpftrl_fast.rounding import clip_limit

SIZES = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 127, 128, 129, 4095, 4096, 4097, 8193, 20_000]
CLIP_NORMS = [1e-100, 3e-51, 1e-3, 1.0, 7.0, 2.0**40, 1e100]
SMALL = np.array([0.0, 5e-324, 1e-310, 1e-162, 1e-155, 1e-100, 1e-50, 1e-40, 1e-3, 1.0])
LARGE = np.array([1e10, 1e17, 3.4e38, 1e50, 1e100, 1e150, 1.3e154, 1e155, 1e200, 1e300, 1.7e308])
FINITE = np.concatenate([SMALL, -SMALL, LARGE, -LARGE])


def unit_of(clip_norm: float, bits: int) -> float:
    """The largest power of two that is at most 2^-bits of the clip norm."""
    unit = 2.0 ** (round(math.log2(clip_norm)) - bits)
    while unit * 2.0**bits > clip_norm:
        unit /= 2
    return unit


def coarsest(size: int) -> int:
    """Bits of the coarsest unit that the module's docstring allows."""
    bits = 21
    while 4 ** (bits - 21) < size:
        bits += 1
    return bits


def clipped(update: Any, clip_norm: float, unit: float) -> tuple[Any, float]:
    total = np.zeros(update.size, np.int64)
    norm = add_clipped(total, update, clip_limit(clip_norm), unit)
    return total, norm


def exact_norm(update: Any) -> Fraction:
    """To 200 bits, from below."""
    square = sum((Fraction(float(x)) ** 2 for x in update), Fraction(0))
    scale = 4**1300
    return Fraction(math.isqrt(square.numerator * scale // square.denominator), 2**1300)


def oracle(update: Any, clip_norm: float, unit: float) -> list[int]:
    """Each coordinate in exact numbers, but for the rounding at the end."""
    norm, limit = exact_norm(update), Fraction(clip_limit(clip_norm))
    factor = min(Fraction(1), limit / norm) if norm else Fraction(1)
    return [round(Fraction(float(x)) * factor / Fraction(unit)) for x in update]


def within(total: Any, clip_norm: float, unit: float) -> bool:
    square = sum(int(q) ** 2 for q in total)
    return square * Fraction(unit) ** 2 <= Fraction(clip_norm) ** 2


def wild(rng: np.random.Generator, size: int) -> Any:
    kind = rng.integers(4)
    plain = rng.standard_normal(size)
    if kind == 0:
        return plain
    if kind == 1:
        return plain * rng.choice([1e-300, 1e-155, 1e-30, 1e30, 1e153, 1e300])
    drawn = rng.choice(FINITE, size=size)
    return drawn if kind == 2 else np.where(rng.random(size) < 0.5, plain, drawn)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", SIZES)
def test_norm_and_integers_at_all_sizes(size: int, dtype: Any) -> None:
    rng = np.random.default_rng(size)
    update = rng.standard_normal(size).astype(dtype)
    unit = 2.0**-31

    total, norm = clipped(update, 0.5, unit)

    assert norm == pytest.approx(math.sqrt(math.fsum(float(x) ** 2 for x in update)), rel=1e-14)
    factor = clip_limit(0.5) / norm / unit if norm > clip_limit(0.5) else 1 / unit
    assert total.tolist() == [round(float(x) * factor) for x in update]
    assert within(total, 0.5, unit)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@np.errstate(over="ignore", under="ignore")
def test_whatever_an_update_holds_it_is_clipped(dtype: Any) -> None:
    rng = np.random.default_rng(3)
    seen = 0
    for _ in range(120):
        size = int(rng.integers(1, 9))
        update = wild(rng, size).astype(dtype)
        if not np.all(np.isfinite(update)):
            continue
        clip_norm = float(rng.choice(CLIP_NORMS))
        unit = unit_of(clip_norm, int(rng.choice([coarsest(size), 31, 44])))

        total, norm = clipped(update, clip_norm, unit)

        assert within(total, clip_norm, unit)
        # A product in float64 is off by 2^-50 of itself, so the rounding may go the other way.
        room = 1 + 2.0**-49 * clip_norm / unit
        expected = oracle(update, clip_norm, unit)
        assert max(abs(int(q) - e) for q, e in zip(total, expected, strict=True)) <= room
        assert math.isfinite(norm)
        exact = exact_norm(update)
        assert norm == pytest.approx(float(min(exact, sys.float_info.max)), rel=1e-14, abs=0)
        seen += 1
    assert seen > 60


@pytest.mark.parametrize("size", [1, 16, 64, 4096, 16_384])
def test_rounding_stays_within_the_margin_at_the_coarsest_unit(size: int) -> None:
    # All coordinates are alike, and rounded up by half a unit, nearly: the worst there is.
    unit, root = 2.0 ** -coarsest(size), math.isqrt(size)
    clip_norm = (2.0**21 + 0.6) * root * unit
    for most in (clip_limit(clip_norm), clip_norm):
        each = math.floor(most / root / unit - 0.51) + 0.5 + 2.0**-10
        assert each * root * unit <= most
        total = np.zeros(size, np.int64)
        add_clipped(total, np.full(size, each * unit), most, unit)
        assert np.all(total == each + 0.5 - 2.0**-10)
        # Without the margin it is too much.
        assert within(total, clip_norm, unit) == (most < clip_norm)


@contextmanager
def rounding_upward() -> Iterator[None]:
    libm = ctypes.CDLL("libm.so.6")
    before = libm.fegetround()
    assert libm.fesetround(0x800) == 0
    try:
        yield
    finally:
        libm.fesetround(before)


@pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux",
    reason="the number of the rounding mode is that of x86 and glibc",
)
@pytest.mark.parametrize("bits", [0, 10])
def test_the_margin_holds_where_the_processor_rounds_upward(bits: int) -> None:
    size, clip_norm = 4096, 1.0
    unit = unit_of(clip_norm, coarsest(size) + bits)
    update = np.random.default_rng(0).uniform(0.5, 1.5, size)
    nearest, _ = clipped(update, clip_norm, unit)
    with rounding_upward():
        upward, _ = clipped(update, clip_norm, unit)

    assert np.sum(upward > nearest) > size / 4
    assert within(upward, clip_norm, unit)


def test_an_update_on_the_grid_and_within_the_limit_is_added_as_it_is() -> None:
    integers = np.random.default_rng(1).integers(-(2**20), 2**20, 1000)
    unit = 2.0**-31
    for update in (integers * unit, (integers * unit).astype(np.float32)):
        total, _ = clipped(update, 1.0, unit)
        assert np.array_equal(total, integers)


def test_ties_go_to_even() -> None:
    total, _ = clipped(np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5]) * 2.0**-31, 1.0, 2.0**-31)
    assert total.tolist() == [0, 2, 2, 0, -2, -2]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 4095, 4096, 8999])
def test_what_is_not_finite_adds_nothing(place: int, bad: float, dtype: Any) -> None:
    update = np.ones(9000, dtype)
    update[place] = bad
    total = np.arange(9000)

    norm = add_clipped(total, update, 1.0, 2.0**-31)

    assert not math.isfinite(norm)
    assert np.isnan(norm) == np.isnan(bad)
    assert np.array_equal(total, np.arange(9000))


def test_nan_that_says_it_is_a_signal_is_nan() -> None:
    update = np.array([0x7F800001, 0], np.uint32).view(np.float32)
    total, norm = clipped(update, 1.0, 2.0**-31)
    assert not math.isfinite(norm) and not total.any()


def test_huge_updates_are_clipped_and_keep_their_direction() -> None:
    largest = sys.float_info.max
    for update in ([largest, -largest, 0.0, largest / 2], [1e300, -1e300, 0.0, 5e299]):
        total, norm = clipped(np.array(update), 1.0, 2.0**-31)
        assert norm == pytest.approx(min(largest, 1.5 * update[0]), rel=1e-15)
        expected = np.array([2, -2, 0, 1]) / 3 * clip_limit(1.0) * 2**31
        assert np.max(np.abs(total - expected)) <= 1


@pytest.mark.parametrize(
    "update", [[0.0, -0.0], [5e-324, -5e-324], [1e-310, 0.0], [1e-170, 1e-200]]
)
def test_nothing_is_left_of_updates_far_below_a_unit(update: list[float]) -> None:
    total, norm = clipped(np.array(update), 1.0, 2.0**-31)
    assert not total.any()
    assert norm == pytest.approx(math.hypot(*update), rel=1e-12, abs=0)


def test_subnormal_float32_at_a_clip_norm_of_their_size() -> None:
    update = np.array([1e-44, -3e-42, 0.0], np.float32)
    total, norm = clipped(update, 1e-42, unit_of(1e-42, 40))
    assert norm == pytest.approx(3e-42, rel=1e-3)
    assert within(total, 1e-42, unit_of(1e-42, 40)) and total[1] < 0 < total[0]


def test_neither_place_in_memory_nor_writability_changes_a_bit() -> None:
    rng = np.random.default_rng(5)
    for dtype in (np.float32, np.float64):
        values = rng.standard_normal(9000).astype(dtype)
        expected = clipped(values, 1.0, 2.0**-31)
        for offset in (1, 3, 5):
            moved = np.empty(9000 + offset, dtype)[offset:]
            moved[:] = values
            moved.flags.writeable = False
            total, norm = clipped(moved, 1.0, 2.0**-31)
            assert norm == expected[1]
            assert np.array_equal(total, expected[0])


def whole(values: Any) -> Part:
    return Part.of([values], [0], [0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_integers_are_the_same_in_int32_and_int64(dtype: Any) -> None:
    rng = np.random.default_rng(6)
    values = rng.standard_normal(3 * 4096 + 5).astype(dtype)
    values[5000] = 1e6
    sums = IntegerSum(values.size, 4)
    measured = measure([whole(values)], 4)
    factors = [1.0, 1e5, 0.7, 2.0**24, 2.0**24, 2.0**26, 1e-9, 1e5, *[2.0**22] * 300]
    expected = np.zeros(values.size, np.int64)
    for factor in factors:
        sums.add(measured, factor)
        expected += np.rint(values * np.float64(factor)).astype(np.int64)
    assert np.array_equal(sums.total(), expected)
    assert np.array_equal(sums.total(), expected)
    sums.clear()
    assert not sums.total().any()
    sums.add(measure([whole(-values)], 4), 1e5)
    assert np.array_equal(sums.total(), -np.rint(values * np.float64(1e5)))


@pytest.mark.parametrize("each", [2**31 - 3, 2**27 - 2, 2**27 - 1, 2**27, 2**26, 1])
def test_int32_never_overflows(each: int) -> None:
    values = np.array([1.0, -1.0] + [0.0] * 5000)
    measured = measure([whole(values)], 2)
    sums = IntegerSum(values.size, 2)
    for _ in range(100):
        sums.add(measured, float(each))
    assert sums.total()[:3].tolist() == [100 * each, -100 * each, 0]


def test_the_norm_is_the_same_for_every_cut_into_calls() -> None:
    values = np.random.default_rng(7).standard_normal(30_000).astype(np.float32)
    sizes = [3, 4997, 1, 7999, 17_000]
    starts = [0, *np.cumsum(sizes[:-1])]
    blocks = [0, *np.cumsum([blocks_of([size]) for size in sizes])]
    arrays = [values[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    one = measure([Part.of(arrays, starts, blocks[:-1])], blocks[-1])
    several = measure(
        [
            Part.of([array.copy()], [start], [block])
            for array, start, block in zip(arrays, starts, blocks, strict=False)
        ],
        blocks[-1],
    )
    assert one.norm == several.norm
    assert np.array_equal(one.peaks, several.peaks)
    sums = [IntegerSum(values.size, blocks[-1]) for _ in range(2)]
    sums[0].add(one, 1e9)
    sums[1].add(several, 1e9)
    assert np.array_equal(sums[0].total(), sums[1].total())
    assert np.array_equal(sums[0].total(), np.rint(values * np.float64(1e9)))


def test_parts_of_both_dtypes_have_one_norm_and_one_scale() -> None:
    small, large = np.array([3.0], np.float32), np.array([4e300])
    parts = [Part.of([small], [1], [1]), Part.of([large], [0], [0])]
    measured = measure(parts, 2)
    assert measured.length() == pytest.approx(4e300)
    assert [part.char for part in measured.parts] == ["d", "d"]
    large[0] = -4.0
    measured = measure(parts, 2)
    assert (measured.norm, measured.peaks.tolist(), measured.exponent) == (5.0, [4.0, 3.0], 0)
    small[0] = np.nan
    assert np.isnan(measure(parts, 2).norm)


def test_a_sum_of_many_large_squares_is_finite() -> None:
    values, times = np.full(2**12, 2.0**500), 2**13  # 2^25 numbers, of a few in memory
    part = Part.of([values] * times, [0] * times, range(times))
    measured = measure([part], times)
    assert measured.length() == math.ldexp(math.sqrt(2**25), 500)


def test_extreme_updates_are_scaled_where_their_arrays_are() -> None:
    arrays = [np.array([1e300]), np.array([], np.float64), np.array([-1e300, 0.0, 1.0])]
    measured = measure([Part.of(arrays, [0, 5, 5], [0, 1, 1])], 2)
    sums = IntegerSum(8, 2)
    sums.add(measured, 2.0**20)
    each = round(math.ldexp(1e300, -measured.exponent) * 2**20)
    assert sums.total().tolist() == [each, 0, 0, 0, 0, -each, 0, 0]


def test_no_operation_is_fused_or_reordered_when_values_are_added() -> None:
    numbers, sums = read_only("l", 1), (writable("l", 1), writable("i", 1), writable("l", 1))
    for char in "fd":
        to_int64 = *[numbers] * 3, read_only(char, 1), types.float64, sums[0]
        to_int32 = *[numbers] * 4, read_only(char, 1), read_only("d", 1), types.float64, *sums
        for function, arguments in (
            (client_loops._add_to_int64, to_int64),
            (client_loops._add, to_int32),
        ):
            loop = numba.njit(**_OPTIONS)(function)
            loop.compile(types.void(*arguments))
            (code,) = loop.inspect_llvm().values()
            found = re.findall(r"= fmul ((?:[a-z]+ )*)<", code)
            assert found and not any(flags.strip() for flags in found)
            assert "@llvm.fma" not in code


class TestWrongCalls:
    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            ({"total": np.zeros(3, np.int32)}, TypeError, "total must be"),
            ({"total": [0, 0, 0]}, TypeError, "total must be"),
            ({"total": np.zeros(4, np.int64)}, ValueError, "4 entries"),
            ({"total": np.zeros(6, np.int64)[::2]}, ValueError, "strides"),
            ({"update": np.zeros(3, np.float16)}, TypeError, "update must be"),
            ({"update": np.zeros((3, 1))}, ValueError, "update must be"),
            ({"update": np.zeros(6)[::2]}, ValueError, "strides"),
            ({"limit": 0.0}, ValueError, "limit must be"),
            ({"limit": np.nan}, ValueError, "limit must be"),
            ({"limit": np.inf}, ValueError, "limit must be"),
            ({"unit": 0.3 * 2.0**-20}, ValueError, "power of two"),
            ({"unit": np.nan}, ValueError, "unit must be a finite number, got nan"),
            ({"unit": 2.0}, ValueError, "power of two"),
            ({"unit": 2.0**-51}, ValueError, "power of two"),
            ({"unit": -(2.0**-31)}, ValueError, "power of two"),
            ({"unit": "1"}, TypeError, "unit must be"),
        ],
    )
    def test_are_refused(self, change: dict[str, Any], error: type[Exception], words: str) -> None:
        call: dict[str, Any] = {
            "total": np.zeros(3, np.int64),
            "update": np.ones(3),
            "limit": 1.0,
            "unit": 2.0**-31,
        }
        with pytest.raises(error, match=words):
            add_clipped(**{**call, **change})

    def test_a_read_only_total(self) -> None:
        total = np.zeros(3, np.int64)
        total.flags.writeable = False
        with pytest.raises(ValueError, match="total must be writable"):
            add_clipped(total, np.ones(3), 1.0, 2.0**-31)
