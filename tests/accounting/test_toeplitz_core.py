# SPDX-License-Identifier: Apache-2.0
"""Sums of columns in the C++ core, against dense matrices; and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpftrl_fast import _core
from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.sensitivity import splits, strided, toeplitz_order
from dpftrl_fast.mechanisms import BandedInverse, BufferedToeplitz

NO_LIMIT = 2**62


def stretches(*listed: tuple[int, list[int]]) -> tuple[Any, Any, Any]:
    """Return lengths, starts and uses of (length, uses)."""
    starts = np.cumsum([0, *(len(uses) for _, uses in listed)]).astype(np.int64)
    uses = np.array([u for _, one in listed for u in one], np.int64)
    return np.array([length for length, _ in listed], np.int64), starts, uses


def dense(column: Any, length: int, uses: list[int]) -> Any:
    """Return the columns of the uses, one a row."""
    table = np.zeros((len(uses), length))
    for row, use in zip(table, uses, strict=True):
        part = np.asarray(column)[: length - use]
        row[use : use + part.size] = part
    return table


CASES = [(3000, [0]), (3000, [5, 5]), (3000, [0, 700, 1024, 2999]), (50, [3, 49]), (1, [0])]
CASES += [(3000, [0, 700, 1024, 2999]), (2999, [0, 700, 1024, 2998])]


@pytest.mark.parametrize("size", [1, 7, 3000])
def test_sums_of_columns(size: int) -> None:
    column = np.random.default_rng(1).random(size)
    given = stretches(*CASES)
    out = np.empty(len(CASES))
    assert _core.column_sums(column, *given, NO_LIMIT, out)
    signed = np.empty(len(CASES))
    both = column - 0.5
    assert _core.column_products(both, 0.0, *given, NO_LIMIT, signed)
    for i, (length, uses) in enumerate(CASES):
        table = dense(column, length, uses)
        assert out[i] == pytest.approx(np.sum(table.sum(axis=0) ** 2), rel=1e-12)
        table = dense(both, length, uses)
        assert signed[i] == pytest.approx(np.abs(table @ table.T).sum(), rel=1e-12)


def test_sums_of_buffers() -> None:
    decay, scale = np.array([1.0, 0.999, 0.5]), np.array([0.01, 0.1, 0.7])
    column = BufferedToeplitz(decay.tolist(), scale.tolist()).strategy(3000)
    out = np.empty(len(CASES))
    _core.buffer_sums(decay, scale, *stretches(*CASES), out)
    for i, (length, uses) in enumerate(CASES):
        y = dense(column, length, uses).sum(axis=0)
        assert out[i] == pytest.approx(np.sum(y * y), rel=1e-12)


def test_large_tables_of_buffers_are_replaced_by_the_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mechanism = BufferedToeplitz([0.98, 0.5], [0.3, 0.1])
    order = acc.FixedOrder(np.arange(60) % 7)
    in_tables = acc.sensitivity_squared(order, mechanism)
    monkeypatch.setattr(toeplitz_order, "_MOST_POWERS", 0)
    assert acc.sensitivity_squared(order, mechanism) == pytest.approx(in_tables, rel=1e-11)


def test_too_much_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    order = acc.FixedOrder(np.arange(60) % 7)
    monkeypatch.setattr(toeplitz_order, "_MOST_WORK", 100)
    for taps in ([1.0, -0.5], [1.0, 0.5]):
        with pytest.raises(ValueError, match="declare its MinSeparation instead"):
            acc.sensitivity_squared(order, BandedInverse(taps))


@pytest.mark.parametrize(
    "given",
    [
        ([5], [0], [0]),
        ([5], [0, 2], [0]),
        ([5], [1, 1], [0]),
        ([5, 5], [0, 1, 1], [0]),
        ([5], [0, 1], [5]),
        ([5], [0, 1], [-1]),
        ([5], [0, 2], [3, 2]),
        ([0], [0, 1], [0]),
    ],
)
def test_wrong_stretches_are_refused(given: Any) -> None:
    arrays = [np.array(x, np.int64) for x in given]
    out = np.empty(arrays[0].size)
    column = np.ones(3)
    for call in (
        lambda: _core.column_sums(column, *arrays, NO_LIMIT, out),
        lambda: _core.column_products(column, 0.0, *arrays, NO_LIMIT, out),
        lambda: _core.buffer_sums(column, column, *arrays, out),
    ):
        with pytest.raises(ValueError, match=r"starts must have|stretches must hold"):
            call()


def test_wrong_arrays_are_refused() -> None:
    lengths, starts, uses = stretches((5, [1, 2]))
    out = np.empty(1)
    for wrong in (uses.astype(np.int32), uses.reshape(1, 2), np.arange(4, dtype=np.int64)[::2]):
        with pytest.raises(TypeError, match="uses must be a C-contiguous one-dimensional int64"):
            _core.column_sums(np.ones(3), lengths, starts, wrong, NO_LIMIT, out)
    with pytest.raises(TypeError, match="column must be a C-contiguous one-dimensional float64"):
        _core.column_sums(np.ones(3, np.float32), lengths, starts, uses, NO_LIMIT, out)
    with pytest.raises(ValueError, match="out must be"):
        _core.column_sums(np.ones(3), lengths, starts, uses, NO_LIMIT, np.empty(2))
    with pytest.raises(ValueError, match="decay and scale must be of one length"):
        _core.buffer_sums(np.ones(3), np.ones(2), lengths, starts, uses, out)


# ---- Strided sums and splits ----


@pytest.mark.parametrize("stride", [1, 2, 3, 7, 10, 11])
@pytest.mark.parametrize("uses", [1, 2, 3, 5, 9, 10, 30])
def test_shifted_sums(uses: int, stride: int) -> None:
    x = np.random.default_rng(2).normal(size=10)
    expected = np.zeros(10)
    for j in range(uses):
        if j * stride < 10:
            expected[j * stride :] += x[: 10 - j * stride]
    assert strided.shifted_sum(x, uses, stride) == pytest.approx(expected)


@pytest.mark.parametrize("stride", [1, 2, 3, 7, 10, 11])
def test_inner_products_of_a_place(stride: int) -> None:
    x = np.random.default_rng(2).normal(size=10)
    table = dense(x, 10, list(range(0, 10, stride)))
    assert strided.place_products(x, stride) == pytest.approx(np.triu(table @ table.T))


def test_splits_against_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(4)
    for _ in range(50):
        tables = [np.cumsum(generator.random(4)) for _ in range(2)]
        kinds = [
            (count, 3, lambda k, t=t: float(t[k]) if k else 0.0)
            for count, t in zip((2, 1), tables, strict=True)
        ]
        first, second = (np.concatenate([[0.0], t[1:]]) for t in tables)
        for uses in range(1, 10):
            best = max(
                first[i] + first[j] + second[k]
                for i in range(4)
                for j in range(4)
                for k in range(4)
                if i + j + k <= uses
            )
            value, exact = splits.best_split(kinds, uses)
            assert exact
            assert best <= value <= best * (1 + 1e-12)
            with monkeypatch.context() as changed:
                changed.setattr(splits, "_MOST_WORK", 0)
                value, exact = splits.best_split(kinds, uses)
                assert best <= value
                assert not exact or value <= best * (1 + 2e-12)
            with monkeypatch.context() as changed:
                changed.setattr(splits, "_MOST_VALUES", 2)
                value, exact = splits.best_split(kinds, uses)
                assert best <= value
                assert not exact or uses < 3
