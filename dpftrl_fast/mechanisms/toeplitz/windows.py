# SPDX-License-Identifier: Apache-2.0
"""Error of windows under the Toeplitz mechanisms.

With p_j = d_0 + .. + d_j the noise at step t of a block is the sum of p_(t-k) z_k over k <= t. So

    Var(b_v - b_u) = sum over m < v - u of p_m^2 + sum over j < u of (p_(j+v-u) - p_j)^2.

For one width v - u both are prefix sums. A window that reaches over the end L of a block needs
E(r) = Var(b_L - b_(L-r)) for every r up to the width, and E(0) = 0,

    E(r) - E(r - 1) = 2 p_(L-r) p_(L-1) - p_(L-r)^2 - 2 X(r),
    X(r) = sum over j < L - r of p_j d_(j+r).

The correlations X are made by Fourier transforms. Those of p with itself would give E at once, but
as a small difference of large numbers where the noise grows with the steps.
"""

from __future__ import annotations

import numpy as np

from dpftrl_fast.mechanisms.run_error import check_error_steps
from dpftrl_fast.mechanisms.toeplitz.layout import ToeplitzLayout
from dpftrl_fast.mechanisms.window_error import (
    Floats,
    Steps,
    pair_variance,
    sliding_variances,
    window_variance,
    window_variances,
)

_LEAST_PIECE = 2**12  # steps of a Fourier transform, at least


@window_variance.register
def _(layout: ToeplitzLayout, since: int, until: int) -> float:
    blocks = {layout.locate(step)[0] for step in (max(since, 1), until)}
    inner = [run.steps for run in layout.runs if len(blocks) > 1]
    (_, v) = layout.locate(until)
    p = np.cumsum(layout.mechanism.inverse(check_error_steps(max([v, *inner]))))

    def within(u: int, v: int) -> float:
        width = v - u
        change = p[width : width + u] - p[:u]
        return float(np.dot(p[:width], p[:width]) + np.dot(change, change))

    return pair_variance(layout, since, until, within)


@window_variances.register
def _(layout: ToeplitzLayout, width: int) -> Floats:
    return sliding_variances(layout, width, _ToeplitzWindows(layout, width))


class _ToeplitzWindows:
    def __init__(self, layout: ToeplitzLayout, width: int) -> None:
        inverse = layout.mechanism.inverse(layout.longest)
        p = np.cumsum(inverse)
        self._alone = _sums_before(p * p)
        self._change = np.zeros(1)
        if width < p.size:
            change = p[width:] - p[:-width]
            self._change = _sums_before(change * change)
        self._lengths = np.array([run.steps for run in layout.runs], np.int64)
        self._ends = {}
        if layout.count > 1:
            self._ends = {
                n: _at_end(inverse[:n], p[:n], width) for n in set(self._lengths.tolist())
            }

    def within(self, since: Steps, until: Steps) -> Floats:
        return np.asarray(self._alone[until - since] + self._change[since])

    def to_end(self, run: Steps, since: Steps) -> Floats:
        lengths = self._lengths[run]
        found = np.empty(since.size)
        for length, at_end in self._ends.items():
            here = lengths == length
            found[here] = at_end[length - since[here]]
        return found


def _sums_before(x: Floats) -> Floats:
    """Return 0, x_0, x_0 + x_1, .."""
    return np.concatenate([[0.0], np.cumsum(x)])


def _at_end(d: Floats, p: Floats, width: int) -> Floats:
    """Return E(0) .. E(min(width, L)) of a block of L = d.size steps."""
    lags = min(width, d.size)
    earlier = p[::-1][:lags]  # p_(L-r), r = 1 .. lags
    steps = 2.0 * earlier * p[-1] - earlier * earlier - 2.0 * _correlation(p, d, lags)
    return _sums_before(steps)


def _correlation(p: Floats, d: Floats, lags: int) -> Floats:
    """Return X(1) .. X(lags), by pieces of p, so that the memory is of the order of `lags`."""
    piece = max(_LEAST_PIECE, 1 << lags.bit_length())
    size = 2 * piece  # a piece of p, and of d so much more: nothing wraps around
    found = np.zeros(lags)
    for start in range(0, p.size, piece):
        a = np.fft.rfft(p[start : start + piece], size)
        b = np.fft.rfft(d[start : start + piece + lags], size)
        found += np.fft.irfft(a.conj() * b, size)[1 : lags + 1]
    return found
