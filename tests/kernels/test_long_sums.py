# SPDX-License-Identifier: Apache-2.0
"""Sums over more rows than one block: their rounding, and the refusal of too many rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpftrl_fast.kernels import clipped_sum, gradients, least_squares
from dpftrl_fast.kernels import threads as threads_module
from dpftrl_fast.kernels.least_squares import RankUpdate
from dpftrl_fast.kernels.loops.dense import CHUNK
from dpftrl_fast.kernels.threads import BLOCK, sum_of_chunks
from dpftrl_fast.rounding import MOST_SUMMANDS, check_summands


def of_chunks(values: Any, threads: int) -> float:
    """Sum of given block sums, each the value of its first row."""

    def loop(x: Any, out: Any) -> None:
        out[:] = 0.0
        for start in range(0, len(x), CHUNK):
            out += x[start : start + CHUNK].sum()

    rows = np.zeros(len(values) * BLOCK, np.float32)
    rows[::BLOCK] = values
    out = np.empty(1)
    sum_of_chunks(loop, lambda a, b: (rows[a:b],), len(rows), (), out, threads)
    return float(out[0])


@pytest.mark.parametrize("threads", [1, 3])
def test_sums_of_blocks_keep_their_rounding_errors(threads: int) -> None:
    # 2^53 + 1 is 2^53: a plain sum would lose all ones.
    values = np.array([2.0**53, 1.0, 1.0, 1.0, -(2.0**53)], np.float32)
    assert of_chunks(values, threads) == 3.0
    assert of_chunks(values[:1], threads) == 2.0**53


def test_more_than_a_block_is_the_same_for_every_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    n = 2 * BLOCK + CHUNK + 5
    X, y = rng.normal(size=(n, 2)), rng.normal(size=n)
    found = [
        clipped_sum(X, y, np.ones(2), clip_norm=1.0, loss="squared", threads=threads)
        for threads in (1, 2, 5)
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    slopes = X @ np.ones(2) - y
    g = slopes[:, None] * X
    g *= np.minimum(1.0, (1 - 2.0**-20) / np.linalg.norm(g, axis=1))[:, None]
    exact = [math.fsum(column) for column in g.T]
    np.testing.assert_allclose(found[0], exact, rtol=0, atol=1e-10)


def test_a_block_has_the_bits_of_one_call() -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(BLOCK, 2)), rng.normal(size=BLOCK)
    options: dict[str, Any] = {"clip_norm": 1.0, "loss": "squared"}
    one = clipped_sum(X, y, np.ones(2), **options)
    empty = np.zeros((1, 2))
    two = clipped_sum(np.concatenate([X, empty]), np.append(y, 0.0), np.ones(2), **options)
    np.testing.assert_array_equal(one, two)


def test_the_bias_of_least_squares_keeps_its_rounding_errors() -> None:
    rows = 3 * least_squares.MOST_ROWS
    X, y = np.zeros((rows, 1)), np.ones(rows)
    X[0], X[least_squares.MOST_ROWS], X[-1] = 2.0**53, 1.0, -(2.0**53)
    total, low, bias = np.zeros(1), np.zeros(1), np.empty(1)
    for _ in range(2):  # nothing is left over for the next batch
        RankUpdate(1, x_norm_bound=2.0**60, y_bound=1.0).add(X, y, total, low, bias)
        assert bias.tolist() == [1.0]
    update = RankUpdate(1, x_norm_bound=2.0**60, y_bound=1.0)
    for _ in range(2):
        update.add(X, y, total, low, bias)
        assert bias.tolist() == [1.0]


def test_too_many_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_SUMMANDS == 2**28
    for module in (gradients, least_squares):
        monkeypatch.setattr(module, "MOST_SUMMANDS", 4)
    X, y = np.ones((5, 1)), np.ones(5)
    options: dict[str, Any] = {"clip_norm": 1.0, "loss": "squared"}
    with pytest.raises(ValueError, match=r"rows must hold at most 4 rows, .*, got 5"):
        clipped_sum(X, y, np.zeros(1), **options)
    users = np.arange(6)
    with pytest.raises(ValueError, match=r"rows must hold at most 4 users, .*, got 5"):
        clipped_sum(X, y, np.zeros(1), users=users, **options)
    assert clipped_sum(X, y, np.zeros(1), users=users[[0, 5]], **options).shape == (1,)
    total, low, bias = np.zeros(1), np.zeros(1), np.full(1, 7.0)
    with pytest.raises(ValueError, match=r"rows must be at most 4, .*, got 5"):
        RankUpdate(1, x_norm_bound=1.0, y_bound=1.0).add(X, y, total, low, bias)
    assert bias[0] == 7.0 and total[0] == 0.0


def test_the_largest_sums() -> None:
    check_summands("rows", 2**28, 2**28)
    check_summands("rows", 2**29, 2**27)
    check_summands("rows", 10**6, 10**9)
    for n, steps in ((2**29, 2**29), (2**30, 2**20), (2**28, 2**29)):
        with pytest.raises(ValueError, match=f"^rows must be so few .*, got {n} in {steps} steps"):
            check_summands("rows", n, steps)
    # The whole budget: half of the margin for the last three parts, an eighth for a block.
    u, n = 2.0**-53, 2.0**28
    parts = [2 * (2**12 + 2**4) * u * 2**16, 2 * u * n, u**2 * n**2 * n, 2 * u * n]
    assert sum(parts) < 2.0**-20


def test_a_row_of_zeros_has_its_constant() -> None:
    """Replaced by zeros, a row with a constant can move the sum by twice the clip norm."""
    options: dict[str, Any] = {"clip_norm": 1.0, "loss": "squared", "constant": 1.0}
    theta = np.array([10.0, 5.0])

    def found(x: float, y: float) -> np.ndarray:
        return clipped_sum(np.array([[x]]), np.array([y]), theta, **options)

    row, zeros, gone = found(0.001, 100.0), found(0.0, -100.0), found(np.nan, 100.0)
    assert np.linalg.norm(gone) == 0.0
    assert np.linalg.norm(row - gone) <= 1.0 and np.linalg.norm(zeros - gone) <= 1.0
    assert 1.99 < np.linalg.norm(row - zeros) <= 2.0


def test_the_block_is_of_chunks() -> None:
    assert threads_module.BLOCK == 2**16 and CHUNK == 2**12
