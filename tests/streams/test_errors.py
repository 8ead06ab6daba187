# SPDX-License-Identifier: Apache-2.0
"""Standard deviations and intervals of released sums, against simulated streams.

Coordinates have independent noise: a sum of 2,000 coordinates is 2,000 streams.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mechanism_cases import MECHANISMS

from dpftrl_fast import PrefixSum
from dpftrl_fast.mechanisms.run_error import noise_std

STREAMS, STEPS = 2000, 10


def released(mechanism: Any, **change: Any) -> tuple[PrefixSum, np.ndarray, np.ndarray]:
    """The sum, the value at each step (from 0 on), and the true sums."""
    options = {"clip_norm": 1e4, "noise_multiplier": 0.01, "seed": 5, **change}
    sums = PrefixSum(STREAMS, STEPS, mechanism=mechanism, **options)
    records = np.random.default_rng(1).uniform(0, 2, (STEPS, STREAMS))
    values = np.vstack([np.zeros(STREAMS), sums.add_steps(records)])
    return sums, values, np.vstack([np.zeros(STREAMS), records.cumsum(axis=0)])


@pytest.mark.parametrize(
    "bounds", [None, (0.0, np.linspace(2, 4, STREAMS))], ids=["norm", "bounds"]
)
@pytest.mark.parametrize("name", MECHANISMS)
def test_the_std_of_sums_and_windows_is_that_of_simulated_streams(name: str, bounds: Any) -> None:
    change = {} if bounds is None else {"clip_norm": None, "bounds": bounds, "noise_multiplier": 2}
    sums, values, true = released(MECHANISMS[name], **change)
    error = values - true
    for since, until in ((0, 1), (0, 7), (0, STEPS), (3, 4), (2, 7), (5, STEPS)):
        std = sums.std(since=since, until=until)
        scaled = (error[until] - error[since]) / std
        # The spread of a standard deviation of 2,000 normals is 1.6 %; five of them.
        assert abs(np.sqrt(np.mean(scaled**2)) - 1) < 5 / np.sqrt(2 * STREAMS)
        inside = np.abs(error[until] - error[since]) <= sums.half_width(
            0.95, since=since, until=until
        )
        assert abs(inside.mean() - 0.95) < 5 * np.sqrt(0.95 * 0.05 / STREAMS)


def test_intervals_cover_as_they_say() -> None:
    """Pooled over mechanisms, streams and steps: 94 to 96 of a hundred 95 % intervals."""
    covered = {0.5: [], 0.95: []}
    for number, mechanism in enumerate(MECHANISMS.values()):
        sums = PrefixSum(STREAMS, STEPS, 1e4, 0.01, mechanism=mechanism, seed=number)
        true = np.zeros(STREAMS)
        for record in np.random.default_rng(number).uniform(0, 2, (STEPS, STREAMS)):
            sums.add(record)
            true += record
            for level, seen in covered.items():
                low, high = sums.interval(level)
                assert (low < sums.value).all() and (sums.value < high).all()
                seen.append(((low <= true) & (true <= high)).mean())
    for level, seen in covered.items():
        assert abs(np.mean(seen) - level) < 0.01


def test_std_is_the_mechanisms_and_needs_no_data() -> None:
    sums = PrefixSum(2, 50, 0.5, 3.0)
    unit = noise_std(50, sums.plan.mechanism).prefix
    for t in (1, 20, 50):
        np.testing.assert_allclose(sums.std(until=t), 1.5 * unit[t - 1], rtol=1e-12)
    assert (sums.std() == 0).all() and (sums.half_width() == 0).all()
    sums.add([0.1, 0.2])
    assert (sums.std() == sums.std(until=1)).all()
    assert (sums.std(since=1) == 0).all()


def test_the_noise_of_a_long_count_is_at_most_six_tenths_of_the_trees() -> None:
    """A counter of 10^6 steps at epsilon 1: the best mechanism against the released tree."""
    given = {"epsilon": 1.0, "delta": 1e-6, "clip_norm": 1.0}
    from dpftrl_fast import PrivacyPlan, SinglePass
    from dpftrl_fast.mechanisms import Tree

    passes = SinglePass(10**6)
    tree = PrivacyPlan.calibrate(participation=passes, mechanism=Tree(), bound="released", **given)
    best = PrivacyPlan.calibrate(participation=passes, **given)
    errors = []
    for plan in (best, tree):
        per_step = noise_std(10**6, plan.mechanism).prefix
        errors.append(plan.noise_multiplier * np.sqrt(np.mean(per_step**2)))
        assert plan.epsilon(1e-6) <= 1.0
    assert errors[0] / errors[1] <= 0.6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.std(until=51), "until must be"),
        (lambda s: s.std(since=3, until=2), "since must be"),
        (lambda s: s.std(since=-1), "since must be"),
        (lambda s: s.std(until=2.5), "until must be"),
        (lambda s: s.half_width(1.0), "level must be"),
        (lambda s: s.interval(0), "level must be"),
        (lambda s: s.interval(float("nan")), "level must be"),
    ],
)
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call(PrefixSum(2, 50, 0.5, 3.0))
