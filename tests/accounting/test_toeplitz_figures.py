# SPDX-License-Identifier: Apache-2.0
"""Figures of the sensitivity of Toeplitz mechanisms: computed by other programs, and published."""

from __future__ import annotations

from typing import Any

import pytest

from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.sensitivity.squared import rule_of
from dpftrl_fast.mechanisms import BandedInverse, BandedToeplitz, BufferedToeplitz

HALVES = [1.0]
for _j in range(1, 100):
    HALVES.append(HALVES[-1] * (_j - 0.5) / _j)

MECHANISMS: dict[str, Any] = {
    "square root 4": BandedInverse.square_root(4),
    "square root 8": BandedInverse.square_root(8),
    "square root 16": BandedInverse.square_root(16),
    "square root 2000": BandedInverse.square_root(2000),
    "bands": BandedToeplitz(HALVES),
    "two buffers": BufferedToeplitz([0.98, 0.5], [0.25, 0.25]),
    "one buffer": BufferedToeplitz([0.98], [0.3]),
    "anticorrelated": BandedInverse.anticorrelated(0.9),
    "not falling": BandedInverse([1.0, -0.5, -0.25, -0.15]),
    "signed bands": BandedToeplitz([1.0, -0.5, 0.3, -0.2, 0.1]),
    "wave": BandedInverse([1.0, -1.2, 0.9]),
    "ripple": BandedInverse([1.0, -0.1, -0.6, 0.0, -0.1]),
}

# Mechanism, (steps, uses, separation), zeta, and sigma for epsilon 8 at delta 1e-5.
FIGURES = [
    ("square root 4", (1000, 10, 100), 16.2240236, 2.41766605),
    ("square root 2000", (2000, 1, 1), 3.48567846, 1.12062598),
    ("bands", (2000, 20, 100), 50.6270423, 4.27079086),
    ("two buffers", (10000, 100, 100), 349.754586, 11.2253201),
    ("anticorrelated", (1000, 10, 100), 52.6340953, 4.35462346),
    ("not falling", (1000, 10, 100), 35.873373, 3.59503508),
    ("one buffer", (2000, 20, 100), 80.2619542, 5.37739441),
    ("square root 8", (1050, 10, 97), 18.7548328, 2.59940306),
]


@pytest.mark.parametrize(("name", "run", "zeta", "sigma"), FIGURES)
def test_figures(name: str, run: tuple[int, int, int], zeta: float, sigma: float) -> None:
    steps, uses, separation = run
    mechanism = MECHANISMS[name]
    patterns: list[Any] = [acc.MinSeparation(*run)]
    if steps == uses * separation:
        patterns += [acc.FixedEpochs(separation, uses, again) for again in (True, False)]
    if uses == 1:
        patterns += [acc.SinglePass(steps)]
    for pattern in patterns:
        found = acc.sensitivity_squared(pattern, mechanism)
        assert found == pytest.approx(zeta, rel=1.5e-9)
        assert acc.noise_multiplier(8.0, 1e-5, found) == pytest.approx(sigma, rel=5e-9)
        assert rule_of(mechanism.layout(steps), pattern, "exact").endswith(", exact")


@pytest.mark.parametrize(
    ("uses", "zeta"),
    [([1], 1.71837926), ([1, 4], 4.61998296), ([2, 3, 7], 8.08474064), ([1, 3, 5, 7], 12.7587044)],
)
def test_figures_of_an_order(uses: list[int], zeta: float) -> None:
    order = acc.FixedOrder([0 if step in uses else -1 for step in range(1, 9)])
    found = acc.sensitivity_squared(order, BandedInverse.square_root(8))
    assert found == pytest.approx(zeta, rel=3e-9)


# jax_privacy 2.0.0 (jax 0.10.2, float64, CPU): toeplitz.sensitivity_squared (one use),
# toeplitz.minsep_sensitivity_squared (None where it refuses c that does not fall, or c < 0), and
# the squares of sensitivity.get_min_sep_sensitivity_upper_bound and .fixed_epoch_sensitivity (None
# where the uses do not fill the run).
PUBLISHED = [
    (
        "square root 4",
        (1000, 10, 100),
        (1.6224023581429623, 16.224023581515922, 16.22402358151592, 16.22402358151592),
    ),
    (
        "bands",
        (2000, 20, 100),
        (2.53135211263557, 50.627042252711384, 50.62704225271138, 50.627042252711384),
    ),
    (
        "one buffer",
        (2000, 20, 100),
        (3.27272727272727, 80.26195423856291, 80.26195423856288, 80.26195423856292),
    ),
    (
        "not falling",
        (1000, 10, 100),
        (3.578283520701947, None, 35.87337296147683, 35.87337296147683),
    ),
    ("square root 8", (1050, 10, 97), (None, 18.75483281924555, 18.75484699044167, None)),
    (
        "square root 16",
        (2000, 1, 1),
        (2.1116814045977508, 2.1116814045977508, 2.11168140459776, None),
    ),
    (
        "two buffers",
        (1000, 7, 30),
        (2.9067142008318467, 43.0298250939014, 47.876519513764855, None),
    ),
    (
        "square root 4",
        (1000, 3, 100),
        (1.6224023581429623, 4.867207074448063, 4.867207074457653, None),
    ),
    ("signed bands", (8, 3, 3), (1.39, None, 5.03, None)),
    ("signed bands", (20, 4, 5), (1.39, None, 5.56, 5.56)),
    ("wave", (60, 6, 10), (8.740428849731291, None, 117.65283156890261, 99.39571032017228)),
    ("ripple", (60, 4, 15), (2.0374403886604893, None, 9.888001742342873, 9.784737407276038)),
]


@pytest.mark.parametrize(("name", "run", "published"), PUBLISHED)
def test_equal_to_published_rules_or_below(
    name: str, run: tuple[int, int, int], published: tuple[float | None, ...]
) -> None:
    steps, uses, separation = run
    one, falling, bound, epochs = published
    mechanism = MECHANISMS[name]
    separated = acc.sensitivity_squared(acc.MinSeparation(*run), mechanism)
    if one is not None:
        assert acc.sensitivity_squared(acc.SinglePass(steps), mechanism) == pytest.approx(
            one, rel=1e-11
        )
    if falling is not None:
        assert separated == pytest.approx(falling, rel=1e-11)
    assert bound is not None
    assert separated <= bound * (1 + 1e-11)
    if epochs is not None:
        found = acc.sensitivity_squared(acc.FixedEpochs(separation, uses), mechanism)
        assert found == pytest.approx(epochs, rel=1e-11)
