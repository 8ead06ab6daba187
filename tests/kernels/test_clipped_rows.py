# SPDX-License-Identifier: Apache-2.0
"""Norms and weighted sums of per-example gradients, against exact sums."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dpftrl_fast.kernels import clipped_rows
from dpftrl_fast.kernels.clipped_rows import add_weighted, squared_norms


@pytest.fixture
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipped_rows, "_SHARE", 64)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("width", [1, 7, 4095, 4096, 4097, 9000])
def test_sums_are_those_of_exact_numbers(rows: int, width: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    factors, before = rng.uniform(0.1, 1.0, rows), rng.standard_normal(width)
    exact = [math.fsum(float(v) ** 2 for v in row) for row in x]
    np.testing.assert_allclose(squared_norms(x), exact, rtol=1e-14)
    total = before.copy()
    add_weighted(x, factors, total)
    for j in {0, width // 2, width - 1}:
        terms = [Fraction(float(f)) * Fraction(float(v)) for f, v in zip(factors, x[:, j])]  # noqa: B905
        expected = float(Fraction(float(before[j])) + sum(terms))
        assert total[j] == pytest.approx(expected, rel=1e-13, abs=1e-13)
    np.testing.assert_allclose(
        total, before + factors @ x.astype(np.float64), rtol=1e-12, atol=1e-12
    )


@pytest.mark.usefixtures("small_shares")
@pytest.mark.parametrize("shape", [(1, 20_000), (4, 9000), (250, 33)])
def test_any_number_of_threads_has_the_same_bits(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    x, factors = rng.standard_normal(shape).astype(np.float32), rng.uniform(size=shape[0])
    totals = []
    for threads in (1, 2, 5):
        totals.append(np.zeros(shape[1]))
        add_weighted(x, factors, totals[-1], threads)
        assert np.array_equal(squared_norms(x, threads), squared_norms(x))
    assert np.array_equal(totals[0], totals[1]) and np.array_equal(totals[0], totals[2])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", range(6))
def test_rows_with_a_factor_of_0_are_left_out(bad: float, place: int) -> None:
    x = np.ones((6, 10), np.float32)
    x[place, 3] = bad
    factors = np.full(6, 0.5)
    factors[place] = 0.0
    total = np.zeros(10)
    add_weighted(x, factors, total)
    assert total.tolist() == [2.5] * 10
    found = squared_norms(x)
    assert not np.isfinite(found[place]) and np.isfinite(np.delete(found, place)).all()


def test_squares_do_not_overflow() -> None:
    x = np.full((2, 3), np.finfo(np.float32).max)
    assert np.isfinite(squared_norms(x)).all()
    tiny = np.full((2, 3), np.finfo(np.float32).smallest_subnormal)
    assert (squared_norms(tiny) > 0).all()


def test_other_arrays_are_refused() -> None:
    x = np.ones((4, 4))
    with pytest.raises(TypeError):
        squared_norms(x)
    with pytest.raises(TypeError):
        squared_norms(np.ones((8, 4), np.float32)[::2])
