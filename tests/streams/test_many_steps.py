# SPDX-License-Identifier: Apache-2.0
"""Many steps in one call: the bits of single steps. Counts of events: exact sums."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from mechanism_cases import MECHANISMS

from dpftrl_fast import PrefixSum
from dpftrl_fast.mechanisms import Tree

NAN = float("nan")


def make(size: int = 3, steps: int = 30, **change: Any) -> PrefixSum:
    options = {"clip_norm": 0.75, "noise_multiplier": 2.0, "seed": 3, "threads": 1, **change}
    return PrefixSum(size, steps, **options)


def rows(size: int, steps: int = 30) -> np.ndarray:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(steps, size)) * 10.0 ** rng.integers(-6, 6, (steps, 1))
    x[3], x[7, 0], x[11, -1], x[13] = 0.0, NAN, np.inf, 1e308
    x[17], x[19] = 5e-324, -1e-160
    return x


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize("bounds", [None, (-1.5, 0.25)], ids=["norm", "bounds"])
def test_many_steps_are_the_bits_of_single_ones(size: int, bounds: Any, dtype: Any) -> None:
    change = {"dtype": dtype, **({} if bounds is None else {"clip_norm": None, "bounds": bounds})}
    one, many, x = make(size, **change), make(size, **change), rows(size)
    expected = np.array([one.add(row) for row in x])
    cuts = [many.add_steps(part) for part in (x[:1], x[1:8], x[8:8], x[8:])]
    assert (np.concatenate(cuts) == expected).all()
    assert (many.value == one.value).all() and many.t == one.t == 30
    assert (many._running._sum == one._running._sum).all()
    assert (many._running._low == one._running._low).all()
    assert many.records == one.records == 30


@pytest.mark.parametrize("name", MECHANISMS)
def test_many_steps_of_every_mechanism(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpftrl_fast.streams.running_sum._STRETCH", 20)
    one, many = (make(3, 10, mechanism=MECHANISMS[name]) for _ in range(2))
    x = rows(3)[:10]
    expected = np.array([one.add(row) for row in x])
    assert (np.concatenate([many.add_steps(x[:4]), many.add_steps(x[4:])]) == expected).all()


@pytest.mark.parametrize("n", [0, 1, 4, 5000])
@pytest.mark.parametrize("size", [1, 3])
def test_many_steps_of_many_records(size: int, n: int) -> None:
    x = np.random.default_rng(n).normal(size=(6, n, size))
    x[x > 2.5] = NAN
    one, many = make(size, noise_multiplier=1e-9), make(size, noise_multiplier=1e-9)
    expected = np.array([one.add(rows) for rows in x])
    found = np.concatenate([many.add_steps(x[:2]), many.add_steps(x[2:])])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-9)
    assert size == 1 or (found == expected).all()
    assert many.records == one.records == 6 * n
    with pytest.raises(ValueError, match=r"have one record each"):
        make(size).add_steps(x, users=np.arange(6))


def test_a_call_beyond_the_end_is_refused_whole() -> None:
    sums = make(3, 5)
    sums.add_steps(np.ones((4, 3)))
    with pytest.raises(ValueError, match="1 of the 5 declared steps are left, got a call of 2"):
        sums.add_steps(np.ones((2, 3)))
    assert sums.t == 4
    sums.add_steps(np.ones((1, 3)))
    with pytest.raises(ValueError, match="all 5 declared steps are taken"):
        sums.add_steps(np.ones((1, 3)))


@pytest.mark.parametrize("x", [np.ones(3), np.ones((2, 2)), np.ones((1, 1, 2, 3)), "abc"])
def test_bad_rows_change_nothing(x: Any) -> None:
    sums = make()
    with pytest.raises(
        (TypeError, ValueError), match=r"shape \(steps, 3\) or \(steps, n, 3\)|real"
    ):
        sums.add_steps(x)
    assert sums.t == 0


# ---- Counts ----


def test_counts_are_exact_and_released_as_whole_numbers() -> None:
    counts = np.random.default_rng(2).poisson(1000, (365, 2))
    sums = make(2, 365, clip_norm=1.0, whole=True)
    released = np.vstack([sums.add_counts(counts[0])[None], sums.add_counts(counts[1:])])
    assert (sums._running._sum + sums._running._low == counts.sum(axis=0)).all()
    assert (released == np.rint(released)).all()
    error = released - counts.cumsum(axis=0)
    assert np.abs(error).max() < 6 * sums.std().max()
    assert (sums.value == released[-1]).all()


def test_a_total_as_one_record_counts_one_but_as_counts_all() -> None:
    one, all_ = (make(1, 365, clip_norm=1.0) for _ in range(2))
    for _ in range(365):
        one.add([509.0]), all_.add_counts([509])
    assert abs(one._running._sum.item() - 365) < 0.01
    assert all_._running._sum.item() == 509 * 365


@pytest.mark.parametrize("steps", [4, 2**40])
def test_an_event_moves_the_exact_sums_by_one_step_of_one(steps: int) -> None:
    """Also where a step has more events than can be counted, and below none."""
    most = max(2**53 // steps, 2**22)
    for count in (0, 1, 509, most - 1, most, most + 5, 2**62, -3):
        totals = []
        for change in (0, 1):
            sums = make(1, steps, clip_norm=1.0, mechanism=Tree("vanilla"))
            seen = []
            for c in (7, count + change, 11):
                sums.add_counts([c])
                seen.append(Fraction(sums._running._sum[0]) + Fraction(sums._running._low[0]))
            totals.append(seen)
        gaps = [b - a for a, b in zip(*totals, strict=True)]
        assert gaps[0] == 0 and gaps[1] == gaps[2] and gaps[1] in (0, 1)


@pytest.mark.parametrize("counts", [[2**64, 1], [2**63, -1], [-(2**70), 2**80]], ids=str)
def test_a_list_of_large_counts_is_one_of_integers(counts: list[int]) -> None:
    """Its dtype would depend on the counts."""
    sums, other = make(2, clip_norm=1.0), make(2, clip_norm=1.0)
    most = 2**53 // 30
    expected = other.add_counts([min(max(count, 0), most) for count in counts])
    assert (sums.add_counts(counts) == expected).all()


def test_steps_whose_sum_of_counts_could_be_inexact_are_refused() -> None:
    sums = make(1, 2**40, clip_norm=1.0, mechanism=Tree("vanilla"), memory="regenerate")
    sums._running.noise.advance_to(2**31)
    with pytest.raises(ValueError, match="at most 2147483648 steps"):
        sums.add_counts([1])


@pytest.mark.parametrize(
    ("change", "counts", "error", "message"),
    [
        ({}, [1.5, 2.0, 1.0], TypeError, "counts must be integers, got dtype float64"),
        ({}, [True, False, True], TypeError, "counts must be integers"),
        ({}, [1, 2], ValueError, r"shape \(3,\) or \(steps, 3\), got \(2,\)"),
        ({"clip_norm": 0.99}, [1, 2, 3], ValueError, "clip_norm must be at least 1"),
        ({"clip_norm": None, "bounds": (0, 1)}, [1, 2, 3], ValueError, "at least 1"),
    ],
)
def test_bad_counts(change: Any, counts: Any, error: Any, message: str) -> None:
    sums = make(**{"clip_norm": 1.0, **change})
    with pytest.raises(error, match=message):
        sums.add_counts(counts)
    assert sums.t == 0


def test_counts_and_records_do_not_mix() -> None:
    for first, second in (("add", "add_counts"), ("add_counts", "add")):
        sums = make(1, clip_norm=1.0)
        getattr(sums, first)([1])
        with pytest.raises(ValueError, match="either counts or records, got both"):
            getattr(sums, second)([1])
        assert sums.t == 1


def test_the_mean_is_of_a_public_number_of_records() -> None:
    sums = make(1, clip_norm=1.0)
    with pytest.raises(ValueError, match="got none yet"):
        sums.mean()
    sums.add(np.full((50, 1), 0.5))
    assert sums.mean() == sums.value / 50
    counts = make(1, clip_norm=1.0)
    counts.add_counts([5])
    with pytest.raises(ValueError, match="of which it is private"):
        counts.mean()
