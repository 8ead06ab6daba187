# SPDX-License-Identifier: Apache-2.0
"""The recurrence of an LSTM against plain loops, and its gradient against differences."""

from __future__ import annotations

import numpy as np
import pytest

from dpftrl_fast.kernels.lstm import _tanh, lstm_backward, lstm_forward

LENGTHS = [[1], [3], [5, 5, 2, 1], [20] * 16, [4, 3, 3, 1, 1, 1, 1, 1, 1]]


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def plain(z, recurrent, lengths):
    """States h of each sequence by themselves; z is packed."""
    starts = packed_starts(lengths)
    units = recurrent.shape[0]
    h_all = np.zeros((len(z), units))
    for row, length in enumerate(lengths):
        h, c = np.zeros(units), np.zeros(units)
        for t in range(length):
            gates = z[starts[t] + row] + h @ recurrent
            i, f, o = (sigmoid(gates[k * units : (k + 1) * units]) for k in range(3))
            c = f * c + i * np.tanh(gates[3 * units :])
            h = o * np.tanh(c)
            h_all[starts[t] + row] = h
    return h_all


def packed_starts(lengths):
    steps = [sum(length > t for length in lengths) for t in range(max(lengths))]
    return np.concatenate([[0], np.cumsum(steps)]).astype(np.int64)


def inputs(lengths, units, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 1, (sum(lengths), 4 * units))
    return z, rng.normal(0, 0.5, (units, 4 * units))


def single(array):
    return np.ascontiguousarray(array, np.float32)


def test_tanh_is_tanh():
    x = np.concatenate([np.linspace(-12, 12, 801), [-1e30, 1e30, 0.0]]).astype(np.float32)
    found = np.array([_tanh(v) for v in x])
    assert np.abs(found - np.tanh(x.astype(np.float64))).max() < 1e-5
    assert np.abs(found).max() <= 1.0 and np.isnan(_tanh(np.float32(np.nan)))


@pytest.mark.parametrize("units", [4, 12, 64])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_states_are_those_of_each_sequence_alone(lengths, units):
    z, recurrent = inputs(lengths, units)
    starts = packed_starts(lengths)
    h, _, before, _ = lstm_forward(single(z), single(recurrent), starts)
    assert np.abs(h - plain(z, recurrent, lengths)).max() < 3e-5
    for t in range(1, len(starts) - 1):
        count = starts[t + 1] - starts[t]
        assert np.array_equal(before[starts[t] :][:count], h[starts[t - 1] :][:count])
    assert not before[: starts[1]].any()


@pytest.mark.parametrize("lengths", LENGTHS[:3] + LENGTHS[4:])
def test_the_gradient_is_that_of_differences(lengths):
    units = 4
    z, recurrent = inputs(lengths, units, seed=1)
    starts = packed_starts(lengths)
    dh = np.random.default_rng(2).normal(0, 1, (len(z), units))
    gates = single(z)
    _, tanh_c, before, c = lstm_forward(gates, single(recurrent), starts)
    lstm_backward(gates, single(recurrent), starts, tanh_c, c, single(dh))

    def difference(array, place):
        step, values = 1e-6, []
        for sign in (1.0, -1.0):
            array[place] += sign * step
            values.append(float((plain(z, recurrent, lengths) * dh).sum()))
            array[place] -= sign * step
        return (values[0] - values[1]) / (2 * step)

    wanted = np.array([[difference(z, (i, j)) for j in range(z.shape[1])] for i in range(len(z))])
    assert np.abs(gates - wanted).max() < 1e-4
    weights = [(0, 0), (3, 5), (1, 11), (2, 15)]
    found = before.astype(np.float64).T @ gates
    assert [found[w] for w in weights] == pytest.approx(
        [difference(recurrent, w) for w in weights], abs=1e-4
    )


@pytest.mark.parametrize(
    ("z", "recurrent", "starts", "words"),
    [
        ((3, 16), (3, 12), [0, 3], "multiple of 4"),
        ((3, 12), (4, 16), [0, 3], "expected z of shape"),
        ((3, 16), (4, 16), [0, 2], "starts must cut 3 places"),
        ((3, 16), (4, 16), [0, 1, 3], "do not increase"),
        ((3, 16), (4, 16), [0, 3, 3], "starts must cut"),
        ((0, 16), (4, 16), [0], "starts must cut"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(z, recurrent, starts, words):
    arrays = np.zeros(z, np.float32), np.zeros(recurrent, np.float32)
    with pytest.raises(ValueError, match=words):
        lstm_forward(*arrays, np.array(starts))


def test_arrays_of_the_backward_pass_must_fit():
    gates, recurrent = np.zeros((3, 16), np.float32), np.zeros((4, 16), np.float32)
    small = np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match=r"must have the shape \(3, 4\)"):
        lstm_backward(gates, recurrent, np.array([0, 3]), small, small, small)
