# SPDX-License-Identifier: Apache-2.0
"""Toeplitz mechanisms as values: coefficients, columns, layouts, dictionaries, refusals."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.special
from numpy.typing import NDArray

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.mechanisms import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Identity,
    Mechanism,
    ToeplitzLayout,
    ToeplitzMechanism,
    mechanism_from_dict,
)

VALUES: list[ToeplitzMechanism] = [
    Identity(),
    BandedInverse([1.0]),
    BandedInverse.anticorrelated(0.9),
    BandedInverse([1.0, -0.5, 0.25, -0.15]),
    BandedInverse.square_root(16),
    BufferedToeplitz([0.98, 0.5], [0.25, 0.25]),
    BufferedToeplitz([1.0], [0.0]),
    BandedToeplitz([1.0, 0.5, 0.375]),
    BandedToeplitz([2.0, -1.0]),
    BufferedToeplitz([0.9], [0.3], restart_every=7),
]


def dense(column: NDArray[np.float64]) -> NDArray[np.float64]:
    n = column.size
    rows, columns = np.indices((n, n))
    return np.where(rows >= columns, column[np.maximum(rows - columns, 0)], 0.0)


@pytest.mark.parametrize("mechanism", VALUES, ids=repr)
def test_columns_are_those_of_a_matrix_and_its_inverse(mechanism: ToeplitzMechanism) -> None:
    c, d = mechanism.strategy(20), mechanism.inverse(20)
    np.testing.assert_allclose(np.linalg.inv(dense(c)), dense(d), rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(mechanism.strategy(30)[:20], c)
    engine = mechanism.engine
    if engine.kind == "taps":
        assert engine.first == tuple(d[: len(engine.first)])
    elif engine.kind == "bands":
        assert engine.first == tuple(c[: len(engine.first)])
    else:
        powers = np.power.outer(np.array(engine.first), np.arange(19)).T @ engine.second
        np.testing.assert_allclose(c[1:], powers, rtol=1e-13)


@pytest.mark.parametrize("gamma", [0.5, 0.25, 1.0])
def test_fractional_taps_are_binomial_coefficients(gamma: float) -> None:
    taps = BandedInverse.fractional(gamma, 12).taps
    j = np.arange(12)
    expected = scipy.special.binom(gamma, j) * (-1.0) ** j
    np.testing.assert_allclose(taps, expected, rtol=1e-12, atol=1e-15)


def test_costs() -> None:
    assert [(m.vectors, m.normals, m.bands) for m in VALUES[:6]] == [
        (0, 1, 1), (0, 1, 1), (0, 2, 2), (0, 4, 4), (0, 16, 16), (2, 1, 1),
    ]  # fmt: skip
    assert (VALUES[7].vectors, VALUES[7].normals, VALUES[7].bands) == (2, 1, 3)


@pytest.mark.parametrize("mechanism", VALUES, ids=repr)
def test_dictionary_hash_and_rounding(mechanism: ToeplitzMechanism) -> None:
    again = mechanism_from_dict(json.loads(json.dumps(mechanism.to_dict())))
    assert again == mechanism and hash(again) == hash(mechanism)
    assert isinstance(mechanism, Mechanism)
    assert mechanism.rounded("float64") == mechanism
    for value in [*mechanism.rounded("float32").engine.first]:
        assert np.float32(value) == value
    plan = PrivacyPlan(1.0, 2.0, acc.SinglePass(40), mechanism)
    assert PrivacyPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    with pytest.raises(ValueError, match=f"mechanism {mechanism.kind} must have exactly the keys"):
        type(mechanism).from_dict({**mechanism.to_dict(), "more": 2})
    with pytest.raises(ValueError, match=f"mechanism {mechanism.kind} must be of version 1, got 2"):
        type(mechanism).from_dict({**mechanism.to_dict(), "version": 2})


def test_layouts() -> None:
    layout = VALUES[-1].layout(20)
    assert isinstance(layout, ToeplitzLayout)
    assert [(run.steps, run.count) for run in layout.runs] == [(7, 2), (6, 1)]
    assert (
        layout.locate(8) == (1, 1)
        and layout.blocks_of(np.arange(20)).tolist() == [0] * 7 + [1] * 7 + [2] * 6
    )
    part = layout.between(3, 16)
    assert [(run.steps, run.count) for run in part.runs] == [(5, 1), (7, 1), (2, 1)]
    assert Identity().layout(2**40).count == 1
    assert BandedInverse.square_root(16).layout(16).steps == 16
    assert Identity(restart_every=30).layout(20).runs[0].steps == 20
    assert not BandedInverse.square_root(2).any_length and Identity().any_length


@pytest.mark.parametrize("mechanism", VALUES, ids=repr)
def test_limits_of_the_noise_of_a_running_sum(mechanism: ToeplitzMechanism) -> None:
    layout = mechanism.layout(20)
    variance, size = layout.noise_limits
    most = 0.0
    sums = np.zeros(0)
    for block, count in layout.blocks():
        response = np.tril(np.ones((block.steps,) * 2)) @ dense(mechanism.inverse(block.steps))
        for _ in range(count):
            carried = np.tile(sums, (block.steps, 1))
            rows = np.hstack([carried, response])
            most = max(most, float((rows**2).sum(1).max()))
            assert np.abs(rows).sum(1).max() <= size
            sums = rows[-1]
    assert most <= variance <= most + 3 + layout.count


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: BandedInverse([0.5]), ValueError, r"taps\[0\] must be 1, got 0.5"),
        (lambda: BandedInverse([]), ValueError, "taps must hold 1 to 65536 numbers, got 0"),
        (lambda: BandedInverse([1.0, math.nan]), ValueError, "each of taps must be a finite"),
        (lambda: BandedInverse([1.0, math.inf]), ValueError, "each of taps must be a finite"),
        (lambda: BandedInverse("1"), TypeError, "taps must be"),  # type: ignore[arg-type]
        (lambda: BandedInverse(1.0), TypeError, "taps must be a sequence of numbers, got float"),  # type: ignore[arg-type]
        (lambda: BandedInverse([1.0, True]), TypeError, "each of taps must be a finite"),
        (lambda: BandedInverse.anticorrelated(1.5), ValueError, r"lam must be .* \[0, 1\]"),
        (lambda: BandedInverse.square_root(0), ValueError, "p must be an integer in"),
        (lambda: BandedInverse.fractional(0.0, 3), ValueError, "gamma must be"),
        (lambda: BufferedToeplitz([], []), ValueError, "decay must hold 1 to 65536 numbers"),
        (lambda: BufferedToeplitz([1.1], [0.2]), ValueError, "each of decay must be"),
        (lambda: BufferedToeplitz([0.0], [0.2]), ValueError, "each of decay must be"),
        (lambda: BufferedToeplitz([0.5], [-0.1]), ValueError, "each of scale must be"),
        (lambda: BufferedToeplitz([0.5], [0.1, 0.2]), ValueError, "of one length, got 1 and 2"),
        (lambda: BandedToeplitz([0.0, 1.0]), ValueError, r"coefficients\[0\] must be"),
        (lambda: BandedToeplitz([]), ValueError, "coefficients must hold 1 to"),
        (lambda: Identity(restart_every=0), ValueError, "restart_every must be an integer >= 1"),
        (lambda: BandedToeplitz([1.0] * 5).layout(4), ValueError, "number of taps or bands, 5"),
        (lambda: BandedInverse.square_root(5).layout(4), ValueError, "number of taps or bands, 5"),
        (lambda: Identity().layout(0), ValueError, "steps must be an integer in"),
        (lambda: Identity().rounded("float16"), ValueError, "dtype must be 'float32' or"),
        (lambda: Identity.from_dict([]), TypeError, "identity must be a mapping, got"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_refusals(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()
