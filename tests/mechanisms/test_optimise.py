# SPDX-License-Identifier: Apache-2.0
"""Optimised mechanisms: exact gradients, the figures that they reach, and what they guarantee."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import accounting as acc
from dpftrl_fast import mechanisms as mech
from dpftrl_fast.mechanisms.optimise import Problem

A, B = acc.FixedEpochs(100, 100), acc.SinglePass(2000)
C, D = acc.MinSeparation(2000, 20, 100), acc.FixedEpochs(100, 10)
SMALL = acc.FixedEpochs(20, 5)
SCHEDULE = acc.Workload(0.9, 1e-3, np.linspace(1.0, 0.02, 100).tolist())

Vector = np.ndarray[Any, Any]


def rms_at_8(pattern: Any, mechanism: Any, workload: acc.Workload) -> float:
    zeta = acc.sensitivity_squared(pattern, mechanism)
    sigma = acc.noise_multiplier(8.0, 1e-5, zeta)
    return sigma * acc.mechanism_error(mechanism, pattern, workload).rms


# (pattern, kind, size, momentum, rms at epsilon 8 and delta 1e-5)
REACHED = [
    (D, "buffers", 2, 0.0, 7.3192),
    (D, "taps", 4, 0.0, 7.8749),
    (C, "buffers", 2, 0.0, 12.8294),
    (C, "taps", 8, 0.0, 13.0267),
    (A, "buffers", 2, 0.0, 52.104),
    (A, "anticorrelated", None, 0.9, 46.51),
    (D, "bands", 100, 0.0, 6.9465),
    (A, "bands", 100, 0.0, 49.6215),
    (C, "bands", 100, 0.0, 12.1295),
    (B, "buffers", 3, 0.0, 1.965),
    (B, "taps", 16, 0.0, 2.2463),
    (D, "buffers", 1, 0.9, 5.528),
]


@pytest.mark.parametrize(("pattern", "kind", "size", "momentum", "wanted"), REACHED)
def test_reaches_the_figures(
    pattern: Any, kind: Any, size: int | None, momentum: float, wanted: float
) -> None:
    workload = acc.Workload(momentum)
    found = mech.optimise(kind, pattern, workload, size=size)
    assert rms_at_8(pattern, found, workload) <= wanted * (1 + 1e-4)
    assert found.rounded("float32") == found
    assert found.strategy(pattern.steps).min() >= 0


def first(value: Callable[[Vector], tuple[float, Vector]], x: Vector) -> float:
    return value(x)[0]


def slope(value: Callable[[Vector], float], x: Vector) -> Vector:
    steps = 1e-5 * np.eye(x.size)
    return np.array([(value(x + h) - value(x - h)) / 2e-5 for h in steps])


@pytest.mark.parametrize("rank_by", ["rms", "last"])
@pytest.mark.parametrize(
    "workload", [acc.Workload(), acc.Workload(0.7, 0.01), SCHEDULE], ids=["plain", "decay", "rates"]
)
def test_gradients(workload: acc.Workload, rank_by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Any, Vector]] = []

    def keep(self: Problem, value: Any, start: Vector, bounds: Any) -> Vector:
        found.append((value, start))
        return start

    monkeypatch.setattr(Problem, "_descend", keep)
    problem = Problem(SMALL, workload, rank_by)
    problem.taps(5)
    problem.bands(7)
    list(problem.buffers(2))
    assert len(found) == 4
    for value, start in found:
        x = start + np.linspace(-0.3, 0.3, start.size)
        np.testing.assert_allclose(
            value(x)[1], slope(partial(first, value), x), rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("pattern", [SMALL, acc.SinglePass(90), acc.MinSeparation(95, 4, 20)])
def test_the_objective_is_the_squared_sensitivity_times_the_error(pattern: Any) -> None:
    problem, blt = Problem(pattern, acc.Workload(0.5)), mech.BufferedToeplitz([0.9], [0.25])
    zeta = acc.sensitivity_squared(pattern, blt)
    rms = acc.mechanism_error(blt, pattern, acc.Workload(0.5)).rms
    assert problem.value_of(blt) == pytest.approx(np.log(zeta * rms**2), rel=1e-12)


def test_a_schedule_of_rates_is_read() -> None:
    plain = mech.optimise("buffers", SMALL, size=2)
    chosen = mech.optimise("buffers", SMALL, SCHEDULE, size=2)

    def error(mechanism: Any) -> float:
        zeta = acc.sensitivity_squared(SMALL, mechanism)
        return float(np.sqrt(zeta)) * acc.mechanism_error(mechanism, SMALL, SCHEDULE).rms

    assert error(chosen) < error(plain)
    # Few steps: every start is summed, and the sum is the error itself.
    problem = Problem(acc.SinglePass(40), acc.Workload(0.5, 0.1, [*range(1, 41)]))
    blt = mech.BufferedToeplitz([0.9], [0.25])
    rms = acc.mechanism_error(blt, 40, acc.Workload(0.5, 0.1, [*range(1, 41)])).rms
    zeta = acc.sensitivity_squared(acc.SinglePass(40), blt)
    assert problem.value_of(blt) == pytest.approx(np.log(zeta * rms**2), rel=1e-12)


@pytest.mark.parametrize("kind", ["taps", "buffers", "bands"])
def test_the_error_that_is_ranked_is_small(kind: Any) -> None:
    by = {rank: mech.optimise(kind, D, size=4, rank_by=rank) for rank in ("rms", "last", "worst")}
    assert by["last"] == by["worst"]

    def last(mechanism: Any) -> float:
        zeta = acc.sensitivity_squared(D, mechanism)
        return float(np.sqrt(zeta)) * acc.mechanism_error(mechanism, D).last

    assert last(by["last"]) < last(by["rms"])
    assert rms_at_8(D, by["rms"], acc.Workload()) < rms_at_8(D, by["last"], acc.Workload())


def test_a_listed_order_and_short_runs() -> None:
    order = acc.FixedOrder([0, 1, 2, 3] * 5)
    assert mech.optimise("taps", order, size=4) == mech.optimise(
        "taps", acc.FixedEpochs(4, 5), size=4
    )
    assert acc.FixedOrder([1, 2, 3]).least_separation() == 3
    for steps in (2, 3):
        assert mech.optimise("taps", acc.SinglePass(steps), size=2).bands == 2
        assert mech.optimise("bands", acc.SinglePass(steps), size=2).bands == 2
    assert mech.optimise("buffers", acc.SinglePass(1), size=1).vectors == 1


@pytest.mark.parametrize(
    ("kind", "options", "error", "words"),
    [
        ("tree", {}, ValueError, "kind must be one of"),
        ("taps", {}, TypeError, r"size must be an integer in \[2, 1000\], got NoneType"),
        ("taps", {"size": 1}, ValueError, r"size must be an integer in \[2, 1000\], got 1"),
        ("bands", {"size": 1001}, ValueError, r"size must be an integer in \[2, 1000\]"),
        ("buffers", {"size": 0}, ValueError, r"size must be an integer in \[1, 8\], got 0"),
        ("buffers", {"size": 9}, ValueError, r"size must be an integer in \[1, 8\], got 9"),
        ("anticorrelated", {"size": 2}, ValueError, "size must be None for 'anticorrelated'"),
        ("taps", {"size": 4, "rank_by": "smoothed"}, ValueError, "rank_by must be one of"),
    ],
)
def test_refuses(kind: Any, options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        mech.optimise(kind, D, **options)


def test_refuses_other_patterns_and_workloads() -> None:
    with pytest.raises(TypeError, match="participation must be a pattern such as"):
        mech.optimise("taps", 1000, size=4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="workload must be a Workload"):
        mech.optimise("taps", D, 0.9, size=4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one rate for each of the 1000 steps"):
        mech.optimise("taps", D, acc.Workload(learning_rates=[1, 2]), size=4)
    with pytest.raises(ValueError, match=r"at most 2\^26"):
        mech.optimise("taps", acc.SinglePass(2**27), size=4)
