# SPDX-License-Identifier: Apache-2.0
"""The recurrence of a long short-term memory over time, forward and backward, in float32.

The products over all places at once (inputs, outputs, gradients of weights) are left to the caller:
large matrices, which BLAS does well. The T small steps are made here in one call: a mini-batch of
16 rows is so small that calls of NumPy would take longer than their work. A step multiplies by the
recurrent weights four rows at a time, so that sums are loaded and stored a quarter as often.

Sequences of different lengths are packed without padding: sorted by decreasing length, places in
the order of time, and a step holds only the sequences that have not ended. ``starts[t]`` is the
first place of step t.

Gates are in the order input, forget, output, candidate. With z = x Wx + h' Wh + b, s the sigmoid:
i, f, o = s(z_i), s(z_f), s(z_o), g = tanh(z_g), c = f c' + i g, h = o tanh(c).
s(z) = (1 + tanh(z/2))/2, and tanh is a convergent of Lambert's continued fraction, cut off at 1: to
7e-6, in multiplications and one division that the compiler does in lanes.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from dpftrl_fast._validate import Array
from dpftrl_fast.kernels.jit import compiled, helper, read_only, writable

_ONE, _HALF = np.float32(1.0), np.float32(0.5)
_TOP = tuple(np.float32(v) for v in (34459425.0, 4729725.0, 135135.0, 990.0, 1.0))
_LOW = tuple(np.float32(v) for v in (34459425.0, 16216200.0, 945945.0, 13860.0, 45.0))
_FAR = np.float32(20.0)


@helper
def _tanh(x: Any) -> Any:
    x = min(max(x, -_FAR), _FAR)
    y = x * x
    top = x * (_TOP[0] + y * (_TOP[1] + y * (_TOP[2] + y * (_TOP[3] + y * _TOP[4]))))
    low = _LOW[0] + y * (_LOW[1] + y * (_LOW[2] + y * (_LOW[3] + y * _LOW[4])))
    return min(max(top / low, -_ONE), _ONE)


@helper
def _add_product(a: Array, row: int, weights: Array, into: Array) -> None:
    """Add a[row] @ weights to a vector; the weights have a multiple of four rows."""
    for k in range(0, weights.shape[0], 4):
        a0, a1, a2, a3 = a[row, k], a[row, k + 1], a[row, k + 2], a[row, k + 3]
        for j in range(weights.shape[1]):
            into[j] += (a0 * weights[k, j] + a1 * weights[k + 1, j]) + (
                a2 * weights[k + 2, j] + a3 * weights[k + 3, j]
            )


def _forward_loop(
    z: Array, recurrent: Array, starts: Array, h: Array, tanh_c: Array, before: Array, c: Array
) -> None:
    width = z.shape[1]
    units = width // 4
    line = np.empty(width, np.float32)
    for t in range(starts.shape[0] - 1):
        following = starts[t + 2] - starts[t + 1] if t + 2 < starts.shape[0] else 0
        for place in range(starts[t], starts[t + 1]):
            for j in range(width):
                line[j] = z[place, j]
            if t > 0:
                _add_product(before, place, recurrent, line)
            for j in range(3 * units):
                line[j] = _HALF + _HALF * _tanh(_HALF * line[j])
            for j in range(3 * units, width):
                line[j] = _tanh(line[j])
            for j in range(width):
                z[place, j] = line[j]
            for j in range(units):
                line[j] = line[units + j] * c[place, j] + line[j] * line[3 * units + j]
            continues = place - starts[t] < following
            later = place + starts[t + 1] - starts[t]
            for j in range(units):
                if continues:
                    c[later, j] = line[j]
                tanh_c[place, j] = _tanh(line[j])
            for j in range(units):
                h[place, j] = line[2 * units + j] * tanh_c[place, j]
                if continues:
                    before[later, j] = h[place, j]


def _backward_loop(
    gates: Array, transposed: Array, starts: Array, tanh_c: Array, c: Array, dh: Array
) -> None:
    units = gates.shape[1] // 4
    cells = np.zeros((starts[1], units), np.float32)
    line = np.empty(units, np.float32)
    for t in range(starts.shape[0] - 2, -1, -1):
        following = starts[t + 2] - starts[t + 1] if t + 2 < starts.shape[0] else 0
        for place in range(starts[t], starts[t + 1]):
            row = place - starts[t]
            for j in range(units):
                line[j] = dh[place, j]
            if row < following:
                _add_product(gates, starts[t + 1] + row, transposed, line)
            for j in range(units):
                i, f = gates[place, j], gates[place, units + j]
                o, g = gates[place, 2 * units + j], gates[place, 3 * units + j]
                tc = tanh_c[place, j]
                d = cells[row, j] + line[j] * o * (_ONE - tc * tc)
                gates[place, j] = d * g * i * (_ONE - i)
                gates[place, units + j] = d * c[place, j] * f * (_ONE - f)
                gates[place, 2 * units + j] = line[j] * tc * o * (_ONE - o)
                gates[place, 3 * units + j] = d * i * (_ONE - g * g)
                cells[row, j] = d * f


@functools.cache
def _forward() -> Any:
    two, starts = writable("float32", 2), read_only("int64", 1)
    return compiled(_forward_loop, two, read_only("float32", 2), starts, two, two, two, two)


@functools.cache
def _backward() -> Any:
    two, starts = read_only("float32", 2), read_only("int64", 1)
    return compiled(_backward_loop, writable("float32", 2), two, starts, two, two, two)


def lstm_forward(z: Array, recurrent: Array, starts: Array) -> tuple[Array, Array, Array, Array]:
    """Run the recurrence from states of zero.

    Parameters
    ----------
    z : (N, 4 H) array of float32, C-contiguous
        x Wx + b at each place; overwritten with the gates i, f, o, g.
    recurrent : (H, 4 H) array of float32, C-contiguous
        Wh; H is a multiple of four.
    starts : (T + 1,) array of int64
        First place of each step, and N. Step sizes do not increase.

    Returns
    -------
    h, tanh_c : (N, H) arrays of float32
        States of each place.
    before, c : (N, H) arrays of float32
        h and c of the place before in the same sequence, zero at its beginning.

    Examples
    --------
    >>> starts = np.array([0, 2, 3])  # of two sequences, one has a second step
    >>> z, recurrent = np.ones((3, 16), np.float32), np.zeros((4, 16), np.float32)
    >>> h, _, before, _ = lstm_forward(z, recurrent, starts)
    >>> bool((before[2] == h[0]).all()), float(before[:2].max())
    (True, 0.0)
    """
    _check(z, recurrent, starts)
    shape = (len(z), recurrent.shape[0])
    h, tanh_c = np.empty(shape, np.float32), np.empty(shape, np.float32)
    before, c = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    _forward()(z, recurrent, starts, h, tanh_c, before, c)
    return h, tanh_c, before, c


def lstm_backward(
    gates: Array, recurrent: Array, starts: Array, tanh_c: Array, c: Array, dh: Array
) -> None:
    """Overwrite the gates with the gradient of the loss in z.

    `gates`, `tanh_c` and `c` are those of `lstm_forward`; `dh` is an (N, H) array of float32, the
    gradient in h through the outputs of its own place.
    """
    _check(gates, recurrent, starts)
    shape = (len(gates), recurrent.shape[0])
    if not tanh_c.shape == c.shape == dh.shape == shape:
        raise ValueError(
            f"tanh_c, c and dh must have the shape {shape}, got {tanh_c.shape}, {c.shape} and "
            f"{dh.shape}"
        )
    _backward()(gates, np.ascontiguousarray(recurrent.T), starts, tanh_c, c, dh)


def _check(z: Array, recurrent: Array, starts: Array) -> None:
    units = recurrent.shape[0] if recurrent.ndim == 2 else 0
    if (
        units % 4
        or recurrent.shape != (units, 4 * units)
        or z.ndim != 2
        or (z.shape[1] != 4 * units)
    ):
        raise ValueError(
            "expected z of shape (N, 4 H) and recurrent of shape (H, 4 H), H a multiple of 4, "
            f"got {z.shape} and {recurrent.shape}"
        )
    steps = np.diff(starts)
    if not (
        steps.size and starts[0] == 0 and starts[-1] == len(z)
        and steps[-1] > 0 and np.all(steps[1:] <= steps[:-1])
    ):  # fmt: skip
        raise ValueError(
            f"starts must cut {len(z)} places into steps whose sizes do not increase, got {starts}"
        )
