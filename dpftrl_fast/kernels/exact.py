# SPDX-License-Identifier: Apache-2.0
"""Steps of compiled loops whose every operation is rounded as written: exact sums, the grid."""

from __future__ import annotations

import numpy as np

from dpftrl_fast.kernels.jit import exact_helper


@exact_helper
def two_sum(a: float, b: float) -> tuple[float, float]:
    """Return a + b rounded, and its rounding error, as `dpftrl_fast.rounding.two_sum`."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


@exact_helper
def half_of(x: float) -> float:
    """Return 1/2 in the dtype of `x`."""
    return x / (x + x)


@exact_helper
def on_grid(x: float, grid: float, half: float) -> float:
    """Return `x` on the grid, as `dpftrl_fast.rounding.to_grid`; `half` is 1/2 in its dtype."""
    return np.floor(x / grid + half) * grid  # type: ignore[no-any-return]
