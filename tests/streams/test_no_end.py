# SPDX-License-Identifier: Apache-2.0
"""Running sums without a declared end: one epsilon for ever, errors, counts, folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import PrefixSum, SinglePass
from dpftrl_fast.accounting import MinSeparation
from dpftrl_fast.mechanisms import BufferedToeplitz, Tree


def make(**change: Any) -> PrefixSum:
    return PrefixSum(2, None, **{"clip_norm": 1.0, "noise_multiplier": 4.0, "seed": 1, **change})


def test_one_epsilon_covers_every_step() -> None:
    sums = PrefixSum.calibrate(2, None, epsilon=1.0, delta=1e-6, clip_norm=1.0)
    assert sums.plan.mechanism == BufferedToeplitz.unbounded()
    assert sums.plan.participation == SinglePass.unbounded() and not sums.has_end
    assert 0.999 < sums.epsilon(1e-6) <= 1.0
    upto = [sums.epsilon_at(t, 1e-6) for t in (1, 10, 10**3, 10**6, 2**46)]
    assert upto == sorted(upto) and upto[-1] == sums.epsilon(1e-6)
    assert "steps=None" in repr(sums) and "steps=10" in repr(PrefixSum(2, 10, 1.0, 4.0))


def test_the_price_against_a_known_end() -> None:
    given = {"epsilon": 1.0, "delta": 1e-6, "clip_norm": 1.0}
    endless = PrefixSum.calibrate(1, None, **given)
    for t in (10**3, 10**4, 10**5):
        known = PrefixSum.calibrate(1, t, **given)
        assert endless.std(until=t) <= 1.35 * known.std(until=t)


def test_errors_and_windows_of_streams() -> None:
    sums = PrefixSum(2000, None, 1e4, 0.01, seed=2, history=True)
    values = sums.add_steps(np.zeros((30, 2000)))
    assert (values == sums.values).all()
    for since, until in ((0, 1), (0, 30), (10, 30), (29, 30)):
        scaled = sums.window(since, until) / sums.std(since=since, until=until)
        assert abs(np.sqrt(np.mean(scaled**2)) - 1) < 5 / np.sqrt(4000)


def test_days_counts_and_a_folder(tmp_path: Path) -> None:
    whole, sums = make(), make()
    sums.save(tmp_path / "sum")
    for counts in ([5, 6], [[7, 8], [9, 10]]):
        assert (sums.add_counts(counts) == whole.add_counts(counts)).all()
    sums.close()
    with PrefixSum.open(tmp_path / "sum") as again:
        assert (again.add_counts([1, 1]) == whole.add_counts([1, 1])).all()
        assert again.t == 4 and not again.has_end


def test_other_mechanisms_and_wrong_calls() -> None:
    for mechanism in (Tree("vanilla"), "tree"):
        with pytest.raises(ValueError, match=r"Toeplitz kinds in a stream .* \(steps=None\), got"):
            make(mechanism=mechanism)
    with pytest.raises(ValueError, match="a stream without a declared end is a single pass"):
        make(participation=MinSeparation(10, 2, 3))
    with pytest.raises(ValueError, match="float64"):
        make(dtype="float32")
    with pytest.raises((TypeError, ValueError)):
        make().extend(100, accept_epsilon=(9.0, 1e-6))


def test_the_error_of_far_steps_is_that_of_the_mechanism() -> None:
    sums = make(noise_multiplier=2.0)
    near = [sums.std(until=t)[0] for t in (2**16 - 1, 2**16, 2**16 + 1, 2**16 + 2)]
    assert np.diff(near).min() > 0 and np.diff(near).max() < 1e-4
    # The table of docs/plan/horizon.md: 12.77 at 10^12 steps for a unit of sigma over sqrt(zeta).
    assert abs(sums.std(until=10**12)[0] / 2 * np.sqrt(4.092) - 12.77) < 0.01
