# SPDX-License-Identifier: Apache-2.0
"""Sums of records with public bounds: centred contributions, of norm at most the clip norm."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise_oracle import sum_matrix

from dpftrl_fast import PrefixSum, PrivacyPlan, SinglePass
from dpftrl_fast.audit.estimates import epsilon_lower_bound
from dpftrl_fast.rounding import clip_limit
from dpftrl_fast.streams.contributions import bounded, sum_of_step

NAN = float("nan")


def exact_sum(sums: PrefixSum) -> list[Fraction]:
    """The un-noised sum, exactly, in units of the contributions."""
    parts = zip(sums._running._sum, sums._running._low, strict=True)
    return [Fraction(a) + Fraction(b) for a, b in parts]


def test_the_noise_goes_with_the_half_width() -> None:
    records = np.full((1000, 1), 1000.5)
    given = {"epsilon": 1.0, "delta": 1e-6}
    narrow = PrefixSum.calibrate(1, 1000, bounds=(1000, 1001), **given)
    wide = PrefixSum.calibrate(1, 1000, clip_norm=1001.0, **given)
    ratio = wide.std(until=1000) / narrow.std(until=1000)
    np.testing.assert_allclose(ratio, 2002, rtol=1e-5)
    assert narrow.epsilon(1e-6) == wide.epsilon(1e-6)
    released = narrow.add_steps(records)
    assert abs(released[-1].item() - 1000.5 * 1000) < 6 * narrow.std().item()
    assert abs(narrow.mean().item() - 1000.5) < 0.05


@pytest.mark.parametrize("bounds", [(-1, 3), ([0.0, -5.0, 1e6], [1.0, 5.0, 1e6 + 1])], ids=str)
def test_released_sums_are_those_of_clipped_records(bounds: Any) -> None:
    low, high = (np.broadcast_to(np.asarray(end, float), 3) for end in bounds)
    rng = np.random.default_rng(3)
    records = rng.uniform(low - 1, high + 1, (40, 3))
    sums = PrefixSum(3, 10, None, 1e-9, bounds=bounds, seed=1)
    for step in range(10):
        value = sums.add(records[4 * step : 4 * step + 4])
    np.testing.assert_allclose(value, np.clip(records, low, high).sum(axis=0), rtol=1e-6)
    np.testing.assert_allclose(sums.mean() * 40, value)
    assert sums.records == 40


@pytest.mark.parametrize(
    "row", [[NAN, 0.0], [0.0, np.inf], [None, 1.0], ["x", 0.0], [-np.inf, NAN]], ids=str
)
def test_a_record_that_is_not_finite_counts_as_the_centre(row: list[Any]) -> None:
    found = []
    for record in (row, [2.0, 20.0]):
        sums = PrefixSum(2, 3, None, 1.0, bounds=([1, 10], [3, 30]), seed=1)
        sums.add([[1.0, 10.0], record])
        found.append((sums.value, exact_sum(sums), sums.records))
    assert (found[0][0] == found[1][0]).all() and found[0][1:] == found[1][1:]


coordinate = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([1.0, -1.0, 0.1])
vectors = st.tuples(coordinate, coordinate)


@given(
    records=st.lists(vectors, min_size=1, max_size=5),
    other=vectors,
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e6),
)
def test_neighbours_differ_by_at_most_the_clip_norm(
    records: list[Any], other: Any, low: float, width: float
) -> None:
    """In exact arithmetic: a record against its centre (zero), and against another record."""
    rule = bounded((low, [low + width, low + 2 * width + 1]), 2)
    assert clip_limit(rule.clip_norm) >= np.sqrt(2.0)
    whole = sum_of_step(rule, np.array(records, float))
    for change, times in (((NAN, 0.0), 1), (other, 2)):
        changed = sum_of_step(rule, np.array([change, *records[1:]], float))
        gap = [Fraction(a) - Fraction(b) for a, b in zip(whole, changed, strict=True)]
        assert sum(x * x for x in gap) <= (times * Fraction(rule.clip_norm)) ** 2


def test_no_value_raises_or_warns_whatever_the_callers_settings() -> None:
    sums = PrefixSum(2, 20, None, 1.0, bounds=(-1e100, 1e100))
    with np.errstate(all="raise"):
        for row in ([1e308, -1e308], [5e-324, NAN], [np.inf, 0.0], [0.0, 0.0]):
            assert np.isfinite(sums.add(row)).all()
    assert sums.t == 4


@pytest.mark.parametrize(
    ("bounds", "error", "message"),
    [
        ((1.0, 1.0), ValueError, "low < high"),
        ((2.0, 1.0), ValueError, "low < high"),
        ((0.0, NAN), ValueError, "low < high"),
        ((0.0, np.inf), ValueError, "finite"),
        ((0.0, 1e101), ValueError, "1e100"),
        ((0.0, 1e-101), ValueError, "apart"),
        ((0.0,), ValueError, r"\(low, high\)"),
        (3.0, ValueError, r"\(low, high\)"),
        ("ab", ValueError, r"\(low, high\)"),
        (("a", "b"), TypeError, "dtype"),
        (([0.0, 1.0, 2.0], 3.0), ValueError, r"got shape \(3,\)"),
    ],
)
def test_bad_bounds(bounds: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        PrefixSum(2, 3, None, 1.0, bounds=bounds)


def test_one_of_clip_norm_and_bounds() -> None:
    with pytest.raises(TypeError, match="either clip_norm or bounds, got both"):
        PrefixSum(1, 3, 1.0, 1.0, bounds=(0, 1))
    with pytest.raises(TypeError, match="either clip_norm or bounds, got neither"):
        PrefixSum(1, 3, None, 1.0)
    with pytest.raises(TypeError, match=r"PrefixSum\.calibrate chooses it"):
        PrefixSum(1, 3, 1.0)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_neighbours_are_told_apart_no_better_than_stated(epsilon: float) -> None:
    """A record at a bound against the centre, and against one at the other bound: many runs."""
    runs, delta, steps = 2500, 0.05, 3
    plan = PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=delta,
        clip_norm=bounded((10, 20), 1).clip_norm,
        participation=SinglePass(steps),
    )
    noise = sum_matrix(plan.mechanism, [steps])
    weights = np.linalg.solve(noise @ noise.T, np.ones(steps))
    scores: list[list[float]] = [[], [], []]
    for number, record in enumerate((20.0, 10.0, NAN)):
        for run in range(runs):
            sums = PrefixSum(
                1, steps, None, plan.noise_multiplier, bounds=(10, 20), mechanism=plan.mechanism,
                seed=runs * number + run, threads=1,
            )  # fmt: skip
            released = [sums.add([[record], [15.0]]), sums.add([[15.0]]), sums.add([[15.0]])]
            scores[number].append(float(weights @ np.array(released)[:, 0]))
    high, low, centre = map(np.array, scores)
    for one, other, stated in (
        (high, centre, plan.epsilon(delta)),
        (high, low, plan.epsilon(delta, neighbours="replace-one")),
    ):
        found = epsilon_lower_bound(one, other, delta=delta, confidence=0.99)
        assert 0.35 * stated < found <= stated, (found, stated)
