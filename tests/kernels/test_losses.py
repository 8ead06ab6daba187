# SPDX-License-Identifier: Apache-2.0
"""The losses: slopes against difference quotients of the values, sums against the definitions."""

from __future__ import annotations

import numpy as np
import pytest
from gradient_oracle import kernel, oracle, slope_of

from dpftrl_fast.kernels.losses import LOSS_CODES, MULTI_LOSS_CODES, loss_values, slope, slopes

PARAMETERS = {"huber": 0.7, "epsilon_insensitive": 0.4, "quantile": 0.3}
NEW = ["epsilon_insensitive", "quantile", "linear"]


@pytest.mark.parametrize("loss", LOSS_CODES)
def test_slopes_are_the_derivatives_of_the_values(loss):
    rng = np.random.default_rng(1)
    k, h = PARAMETERS.get(loss, 1.0), 1e-6
    z, y = rng.normal(size=400), rng.normal(size=400)
    # away from corners
    corners = {"hinge": [np.abs(1 - np.where(y > 0, z, -z))], "quantile": [np.abs(z - y)]}
    corners["epsilon_insensitive"] = [np.abs(np.abs(z - y) - k)]
    smooth = np.all([c > 1e-3 for c in corners.get(loss, [np.ones(400)])], axis=0)
    up, down = loss_values(loss, k, z + h, y), loss_values(loss, k, z - h, y)
    got = np.array([slope(LOSS_CODES[loss], k, a, b) for a, b in zip(z, y, strict=True)])
    np.testing.assert_allclose(got[smooth], ((up - down) / (2 * h))[smooth], atol=1e-8)
    assert smooth.sum() > 300


@pytest.mark.parametrize("loss", MULTI_LOSS_CODES)
def test_slopes_of_several_outputs_are_the_gradients_of_the_values(loss):
    rng = np.random.default_rng(2)
    h = 1e-6
    for _ in range(50):
        z, label = rng.normal(size=5), int(rng.integers(5))
        got = z.copy()
        square = slopes(MULTI_LOSS_CODES[loss], 1.0, got, float(label))
        assert square == pytest.approx(np.sum(got**2), rel=1e-12)
        for k in range(5):
            step = h * (np.arange(5) == k)
            ends = np.stack([z + step, z - step])
            up, down = loss_values(loss, 1.0, ends, np.full(2, float(label)))
            assert got[k] == pytest.approx((up - down) / (2 * h), abs=1e-7)


def test_the_softmax_of_two_classes_is_the_logistic_loss():
    z = np.array([0.3, -1.1])
    square = slopes(MULTI_LOSS_CODES["multinomial"], 1.0, z, 1.0)
    expected = slope(LOSS_CODES["logistic"], 1.0, -1.1 - 0.3, 1.0)
    np.testing.assert_allclose(z, [-expected, expected], rtol=1e-12)
    assert square == pytest.approx(2 * expected**2)


def test_the_softmax_neither_overflows_nor_cancels():
    z = np.array([800.0, -800.0, 0.0])
    assert slopes(MULTI_LOSS_CODES["multinomial"], 1.0, z, 1.0) == 2.0
    assert z.tolist() == [1.0, -1.0, 0.0]
    z = np.array([40.0, 0.0])
    slopes(MULTI_LOSS_CODES["multinomial"], 1.0, z, 0.0)
    assert z[0] == pytest.approx(-np.exp(-40.0), rel=1e-12)  # no 1 - (1 - 4e-18)


@pytest.mark.parametrize("y", [-1.0, 3.0, 0.5, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("loss", MULTI_LOSS_CODES)
def test_a_target_that_is_no_class_is_bad(loss, y):
    assert np.isnan(slopes(MULTI_LOSS_CODES[loss], 1.0, np.zeros(3), y))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", NEW)
def test_sums_equal_the_definitions(loss, sparse):
    rng = np.random.default_rng(3)
    k = PARAMETERS.get(loss, 1.0)
    for p in (1, 7, 8, 33):
        X, y = rng.normal(size=(9, p)).astype(np.float32), rng.normal(size=9)
        theta = rng.normal(size=p)
        for clip_norm in (0.5, 1e3):
            expected = oracle(X, y, theta, clip_norm, loss, k=k)
            got = kernel(X, y, theta, clip_norm, loss, k=k, sparse=sparse)
            np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12)


def test_subgradients_at_corners_are_zero():
    for loss, z, y, k in [("quantile", 1.5, 1.5, 0.3), ("epsilon_insensitive", 2.0, 1.5, 0.5)]:
        assert slope(LOSS_CODES[loss], k, z, y) == 0.0 == slope_of(loss, z, y, k)


def test_the_quantile_loss_finds_the_quantile():
    y = np.sort(np.random.default_rng(4).normal(size=101))
    candidates = np.linspace(-2, 2, 2001)
    sums = [loss_values("quantile", 0.9, np.full(101, z), y).sum() for z in candidates]
    assert candidates[np.argmin(sums)] == pytest.approx(np.quantile(y, 0.9), abs=0.05)


@pytest.mark.parametrize(
    ("loss", "k", "message"),
    [
        ("quantile", 1.0, "loss_param must be a finite number > 0 and < 1, got 1.0"),
        ("quantile", 0.0, "got 0.0"),
        ("quantile", np.nan, "got nan"),
        ("epsilon_insensitive", -0.1, "loss_param must be a finite number >= 0, got -0.1"),
        ("epsilon_insensitive", np.nan, "got nan"),
        ("huber", np.inf, "loss_param must be a finite number > 0, got inf"),
    ],
)
def test_wrong_parameters_are_refused(loss, k, message):
    with pytest.raises(ValueError, match=message):
        kernel(np.ones((1, 1)), np.ones(1), np.zeros(1), 1.0, loss, k=k)


def test_a_tube_of_no_width_is_the_absolute_loss():
    y = np.array([1.0, -2.0, 0.0])
    got = kernel(np.eye(3), y, np.zeros(3), 9.0, "epsilon_insensitive", k=0.0)
    assert got.tolist() == [[-1.0, 1.0, 0.0]]
