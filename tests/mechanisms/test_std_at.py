# SPDX-License-Identifier: Apache-2.0
"""Noise at single steps in closed form, against every step of the recursion."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast import mechanisms as mech
from dpftrl_fast.mechanisms.run_error import noise_std_at
from dpftrl_fast.mechanisms.toeplitz.spectrum import spectrum

STEPS = 400
MECHANISMS = {
    "tree": mech.Tree(),
    "vanilla": mech.Tree("vanilla"),
    "restarts": mech.Tree(restart_every=37),
    "completed": mech.Tree(restart_every=37, complete=True),
    "completed vanilla": mech.Tree("vanilla", restart_every=37, complete="all"),
    "lengths": mech.Tree(tree_lengths=[100, 100, 200], complete=[True, False, True]),
    "identity": mech.Identity(),
    "identity in blocks": mech.Identity(restart_every=17),
    "taps": mech.BandedInverse.square_root(9),
    "taps in blocks": mech.BandedInverse([1.0, -0.9, 0.3], restart_every=64),
    "bands": mech.BandedToeplitz([1.0, 0.5, 0.2]),
    "bands in blocks": mech.BandedToeplitz([2.0, 0.5, 0.2], restart_every=33),
    "buffers": mech.BufferedToeplitz([0.99, 0.7, 1.0], [0.1, 0.3, 1e-3]),
    "buffers in blocks": mech.BufferedToeplitz([0.98], [0.3], restart_every=77),
    "negative rates": mech.BufferedToeplitz([0.3, 0.2], [1.1, 0.4]),
    "equal decays": mech.BufferedToeplitz([0.9, 0.9, 0.5], [0.1, 0.2, 0.0]),
    "no scale": mech.BufferedToeplitz([0.9], [0.0]),
}


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
def test_single_steps_have_the_noise_of_every_step(mechanism):
    times = np.random.default_rng(0).permutation(STEPS) + 1
    found = noise_std_at(times, STEPS, mechanism)
    assert found == pytest.approx(acc.noise_std(STEPS, mechanism).prefix[times - 1], rel=1e-12)
    assert noise_std_at([], STEPS, mechanism).shape == (0,)


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_spectra_of_any_buffers(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 9))
    decay = 1.0 - 0.999 * 10.0 ** rng.uniform(-9, 0, size)
    scale = 10.0 ** rng.uniform(-8, 0.3, size)
    if size > 1:  # buffers that are nearly one
        decay[1] = rng.choice([decay[0], np.nextafter(decay[0], 2.0), 1.0, decay[1]])
    scale *= min(1.0, (0.9 + decay.min()) / scale.sum())  # the noise of a step stays finite
    mechanism = mech.BufferedToeplitz(np.minimum(decay, 1.0).tolist(), scale.tolist())
    times = rng.integers(1, 3001, 20)
    expected = acc.noise_std(3000, mechanism).prefix[times - 1]
    assert noise_std_at(times, 3000, mechanism) == pytest.approx(expected, rel=1e-9)


def test_spectrum_against_dense_eigenvalues():
    decay, scale = np.array([0.5, 0.9, 0.99]), np.array([0.3, 0.2, 0.1])
    root = np.sqrt(scale)
    rates, vectors = np.linalg.eigh(np.diag(1.0 - decay) + np.outer(root, root))
    found = spectrum(decay, scale)
    order = np.argsort(found.rate)
    assert found.rate[order] == pytest.approx(rates, rel=1e-12)
    assert found.weight[order] == pytest.approx((vectors.T @ root) ** 2 / rates, rel=1e-11)
    assert found.weight.sum() + found.rest == pytest.approx(1.0, rel=1e-13)


def test_small_rates_keep_their_digits():
    """b_t = rest + weight (1 - rate)^t with one buffer, whose numbers are known."""
    for slow in (2.0**-20, 2.0**-45):
        scale = slow / 4.0
        found = spectrum([1.0 - slow], [scale])
        assert found.rate.tolist() == pytest.approx([slow + scale], rel=1e-14)
        assert found.rest == pytest.approx(0.8, rel=1e-14)
        assert found.weight.tolist() == pytest.approx([0.2], rel=1e-13)


def test_long_runs():
    """A mechanism at 2^46 steps: the doubling of its covariance in integers agrees."""
    decay, scale = [1.0 - 2.0**-30, 1.0 - 2.0**-10], [2.0**-16, 2.0**-6]
    times = [2**10, 2**30, 2**46]
    found = noise_std_at(times, 2**46, mech.BufferedToeplitz(decay, scale))
    assert found == pytest.approx(by_doubling(decay, scale, 46)[[10, 30, 46]], rel=1e-12)
    assert noise_std_at([2**40], 2**40, mech.Tree()) == pytest.approx(np.sqrt(1 / (2 - 2.0**-40)))


def by_doubling(decay, scale, doublings):
    """Return the std at 1, 2, 4, .. from the covariance of the buffers and the sum, in integers."""
    bits = 400
    one = 1 << bits

    def fixed(x):
        numerator, denominator = float(x).as_integer_ratio()
        return numerator * one // denominator

    size = len(decay)
    move = np.zeros((size + 1, size + 1), object)
    for i in range(size):
        move[i, i] = fixed(decay[i])
        for j in range(size):
            move[i, j] -= fixed(scale[j])
        move[size, i] = -fixed(scale[i])
    move[size, size] = one
    covariance = np.full((size + 1, size + 1), one, object)
    found = [1.0]
    for _ in range(doublings):
        covariance = covariance + (move @ ((covariance @ move.T) >> bits) >> bits)
        move = move @ move >> bits
        found.append(float(covariance[size, size] / one) ** 0.5)
    return np.array(found)


@pytest.mark.parametrize("mechanism", [m for name, m in MECHANISMS.items() if "bands" not in name])
def test_largest_std_is_that_of_the_last_step(mechanism):
    layout = mechanism.layout(STEPS)
    at_end = acc.noise_std(STEPS, mechanism).prefix[-1]
    if isinstance(layout, mech.ToeplitzLayout):
        assert layout.largest_std == pytest.approx(at_end, rel=1e-12)
    else:
        assert layout.largest_std >= at_end


def test_noise_limits_of_long_blocks_bound_those_of_every_step(monkeypatch):
    layouts = [
        MECHANISMS[name].layout(STEPS)
        for name in ("buffers", "buffers in blocks", "taps", "identity")
    ]
    exact = [layout.noise_limits for layout in layouts]
    monkeypatch.setattr("dpftrl_fast.mechanisms.toeplitz.layout.MAX_ERROR_STEPS", 10)
    for layout, (variance, size) in zip(layouts, exact, strict=True):
        fresh = type(layout)(layout.runs, layout.mechanism)
        assert variance - 1 <= fresh.noise_limits[0] <= variance + 1
        assert size - 1 <= fresh.noise_limits[1] <= 3 * size
    variance, size = MECHANISMS["identity"].layout(2**46).noise_limits
    assert 2**46 <= variance < 1.001 * 2**46 and 2**46 <= size < 1.001 * 2**46


@pytest.mark.parametrize(
    ("times", "steps", "error", "words"),
    [
        ([0], 10, ValueError, "times must be integers >= 1, got 0"),
        ([11], 10, ValueError, "times must be at most the 10 steps of the run, got 11"),
        ([1.5], 10, TypeError, "times must be a one-dimensional sequence of integers"),
        ([[1]], 10, ValueError, "times must be a one-dimensional sequence of integers"),
        ([1], 0, ValueError, "steps must be an integer >= 1, got 0"),
        ([1], 2.0, TypeError, "steps must be an integer >= 1, got float"),
        ([1], 2**40 + 1, ValueError, r"steps must be an integer in \[1, 1099511627776\]"),
    ],
)
def test_refusals(times, steps, error, words):
    with pytest.raises(error, match=words):
        noise_std_at(times, steps)


def test_bands_need_every_step():
    with pytest.raises(ValueError, match="at most 2\\^26"):
        noise_std_at([2**27], 2**27, MECHANISMS["bands"])
    assert noise_std_at([STEPS, STEPS + 1], 2**40, MECHANISMS["bands in blocks"]).shape == (2,)


def test_noise_that_grows_without_end_is_refused():
    """Buffers with a rate above 2: the spacing of numbers must not pass for fine."""
    layout = mech.BufferedToeplitz([0.1, 0.2], [3.0, 1.0]).layout(2**30)
    assert layout.largest_std == np.inf
    with pytest.raises(ValueError, match="dtype must be one whose numbers are fine enough"):
        PrivacyPlan(1.0, 1.0, acc.SinglePass(2**20), layout.mechanism).noise(1, dtype="float64")
